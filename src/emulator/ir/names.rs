//! What names in the text stand for: types, arithmetic instructions, special registers.

use super::Special;
use crate::emulator::exec::float16::Directed;
use crate::emulator::exec::op::Selected;
use crate::emulator::exec::soft_float::Rounding;
use crate::emulator::exec::{float, integer, soft_ops};
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
        return select_float(base, modifiers, ty, operands);
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

fn select_float(base: &str, modifiers: &[&str], ty: &str, operands: usize) -> Option<Selected> {
    let mut m = float::Modifiers::default();
    let (mut xorsign, mut magnitude) = (false, false);
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
            // Out-of-bounds NaNs are not told from other NaNs, so that `.oob` changes nothing.
            "xorsign" => xorsign = true,
            "abs" => magnitude = true,
            _ => return None,
        }
    }
    let half = ty != "f32" && ty != "f64";
    let brain = ty.starts_with("bf16");
    let arithmetic = matches!(base, "add" | "sub" | "mul" | "fma" | "mad");
    let exact = matches!(base, "div" | "rcp" | "sqrt");
    let extreme = matches!(base, "min" | "max");
    let approximate = matches!(base, "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh")
        || (exact && ty != "f64")
        || (base == "rcp" && m.ftz);
    let takes = |allowed: bool, asked: bool| allowed || !asked;
    let known = takes(
        (ty != "f64" && !brain) || (ty == "f64" && m.approx) || base == "ex2",
        m.ftz,
    ) && takes(arithmetic && ty != "f64" && !brain, m.sat)
        && takes(extreme && ty != "f64", m.nan || xorsign || magnitude)
        && xorsign == magnitude
        && takes(base == "fma" && half, m.relu)
        && takes(!half && (arithmetic || exact), m.directed.is_some())
        && takes(approximate, m.approx);
    if !known {
        return None;
    }
    if extreme && (xorsign || (half && (m.ftz || m.nan))) {
        return soft_ops::extreme(base, ty, m.nan, xorsign, m.ftz);
    }
    // Subnormals of the 16-bit formats are kept by the direct forms.
    if !(half && (m.ftz || m.sat)) || base == "ex2" {
        let found = match operands {
            2 => float::select1(base, ty, m),
            3 => float::select2(base, ty, m),
            4 => float::select3(base, ty, m),
            _ => None,
        };
        if found.is_some() {
            return found;
        }
    }
    if half && m.ftz && matches!(base, "neg" | "abs") {
        return float::flushed_sign(base, ty);
    }
    let m = soft_ops::Arithmetic {
        rounding: match m.directed {
            None => Rounding::Even,
            Some(Directed::Zero) => Rounding::Zero,
            Some(Directed::Down) => Rounding::Down,
            Some(Directed::Up) => Rounding::Up,
        },
        flush: m.ftz,
        saturate: m.sat,
        relu: m.relu,
    };
    soft_ops::arithmetic(base, ty, operands.checked_sub(1)?, m)
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
            "%clusterid" => Special::ClusterId(dimension),
            "%nclusterid" => Special::ClusterCount(dimension),
            "%cluster_ctaid" => Special::ClusterBlock(dimension),
            "%cluster_nctaid" => Special::ClusterBlocks(dimension),
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
        "%is_explicit_cluster" => Special::ExplicitCluster,
        "%aggr_smem_size" => Special::TotalSharedBytes,
        "%reserved_smem_offset_begin"
        | "%reserved_smem_offset_end"
        | "%reserved_smem_offset_cap"
        | "%reserved_smem_offset_0"
        | "%reserved_smem_offset_1"
        | "%current_graph_exec" => Special::Zero,
        // NVIDIA's driver hands the workspace of cooperative groups over in these.
        "%envreg1" => Special::Workspace(0),
        "%envreg2" => Special::Workspace(1),
        // Free for drivers, and performance counters that nobody has started.
        _ if ["%envreg", "%pm"]
            .iter()
            .filter_map(|prefix| name.strip_prefix(prefix))
            .any(|rest| {
                rest.trim_end_matches("_64")
                    .parse::<u8>()
                    .is_ok_and(|n| n < 32)
            }) =>
        {
            Special::Zero
        }
        "%cluster_ctarank" => Special::ClusterRank,
        "%cluster_nctarank" => Special::ClusterRanks,
        _ => return None,
    })
}
