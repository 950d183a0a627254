//! What names in the text stand for: types, arithmetic instructions, special registers.

use super::Special;
use crate::emulator::exec::float16::Directed;
use crate::emulator::exec::op::Selected;
use crate::emulator::exec::{float, integer};
use crate::emulator::ptx::RegClass;

/// The register class of values of a type.
pub(super) fn class_of(ty: &str) -> Option<RegClass> {
    Some(match ty {
        "pred" => RegClass::Pred,
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" | "f16" | "bf16" => RegClass::B16,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => RegClass::B32,
        "b64" | "u64" | "s64" | "f64" => RegClass::B64,
        "b128" => RegClass::B128,
        _ => return None,
    })
}

/// Arithmetic by name, type and operand count.
pub(super) fn select_arithmetic(
    base: &str,
    modifiers: &[&str],
    ty: &str,
    operands: usize,
) -> Option<Selected> {
    if matches!(ty, "f32" | "f64" | "f16" | "bf16" | "f16x2" | "bf16x2") {
        let mut m = float::Modifiers::default();
        for part in modifiers {
            match *part {
                "rn" => {}
                "ftz" => m.ftz = true,
                "sat" => m.sat = true,
                "NaN" => m.nan = true,
                "relu" => m.relu = true,
                "approx" | "full" => m.approx = true,
                "rz" => m.directed = Some(Directed::Zero),
                "rm" => m.directed = Some(Directed::Down),
                "rp" => m.directed = Some(Directed::Up),
                _ => return None,
            }
        }
        let takes = |allowed: bool, asked: bool| allowed || !asked;
        let half = ty != "f32" && ty != "f64";
        let reciprocal = m.approx && matches!(base, "rcp" | "rsqrt");
        let known = takes(ty == "f32" || half || reciprocal, m.ftz)
            && takes(
                matches!(base, "add" | "sub" | "mul" | "fma" | "mad") && ty == "f32",
                m.sat,
            )
            && takes(matches!(base, "min" | "max"), m.nan)
            && takes(base == "fma" && half, m.relu)
            && takes(operands > 2 && ty == "f32", m.directed.is_some())
            && takes(
                matches!(
                    base,
                    "div" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
                ),
                m.approx,
            );
        // Subnormals of the 16-bit formats are kept: `.ftz` is refused where it would matter.
        if !known || (half && m.ftz && base != "ex2") {
            return None;
        }
        return match operands {
            2 => float::select1(base, ty, m),
            3 => float::select2(base, ty, m),
            4 => float::select3(base, ty, m),
            _ => None,
        };
    }
    let name = std::iter::once(base)
        .chain(modifiers.iter().copied())
        .collect::<Vec<_>>()
        .join(".");
    match operands {
        2 => integer::select1(&name, ty),
        3 => integer::select2(&name, ty),
        4 => integer::select3(&name, ty),
        _ => None,
    }
}

/// A special register by name.
pub(super) fn special(name: &str) -> Option<Special> {
    let axis = |name: &str| match name {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((register, dimension)) = name.split_once('.') {
        let dimension = axis(dimension)?;
        return Some(match register {
            "%tid" => Special::Tid(dimension),
            "%ntid" => Special::Ntid(dimension),
            "%ctaid" => Special::Ctaid(dimension),
            "%nctaid" => Special::Nctaid(dimension),
            // Without clusters, every block is a cluster of its own.
            "%clusterid" => Special::Ctaid(dimension),
            "%nclusterid" => Special::Nctaid(dimension),
            "%cluster_ctaid" => Special::Zero,
            "%cluster_nctaid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::WarpCount,
        "%lanemask_eq" => Special::LaneMaskEq,
        "%lanemask_le" => Special::LaneMaskLe,
        "%lanemask_lt" => Special::LaneMaskLt,
        "%lanemask_ge" => Special::LaneMaskGe,
        "%lanemask_gt" => Special::LaneMaskGt,
        "%smid" => Special::SmId,
        "%nsmid" => Special::SmCount,
        "%gridid" => Special::GridId,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        "%cluster_ctarank" => Special::Zero,
        "%cluster_nctarank" => Special::One,
        _ => return None,
    })
}
