//! Conversions between float formats, and between floats and integers.

use super::elementwise::{D, H, INTEGERS, Kind, W, check, check_with, combine};
use super::float_values::{check32, d, doubles, f, floats, same32, same64};
use half::{bf16, f16};

#[test]
fn conversions_between_floats() {
    let v = floats();
    let rows = combine(&v, 1);
    let h = |x: u64| f16::from_bits(x as u16);
    let b = |x: u64| bf16::from_bits(x as u16);
    let same_f16 =
        |_: &[u64], got: u64, want: u64| got == want || (h(got).is_nan() && h(want).is_nan());
    let same_bf16 =
        |_: &[u64], got: u64, want: u64| got == want || (b(got).is_nan() && b(want).is_nan());
    check_with(
        "cvt.rn.f16.f32 {d}, {a}",
        &[W],
        H,
        &rows,
        |x| f16::from_f32(f(x[0])).to_bits().into(),
        same_f16,
    );
    check_with(
        "cvt.rn.bf16.f32 {d}, {a}",
        &[W],
        H,
        &rows,
        |x| bf16::from_f32(f(x[0])).to_bits().into(),
        same_bf16,
    );
    check_with(
        "cvt.rn.relu.bf16.f32 {d}, {a}",
        &[W],
        H,
        &rows,
        |x| {
            let y = f(x[0]);
            bf16::from_f32(if y.is_nan() || y > 0.0 { y } else { 0.0 })
                .to_bits()
                .into()
        },
        same_bf16,
    );
    check_with(
        "cvt.rz.f16.f32 {d}, {a}",
        &[W],
        H,
        &rows,
        |x| {
            // The largest f16 whose magnitude does not exceed the value's.
            let y = f(x[0]);
            if y.is_nan() || y.is_infinite() {
                return f16::from_f32(y).to_bits().into();
            }
            let m = (0..0x7c00u16)
                .rev()
                .find(|&m| f16::from_bits(m).to_f32() <= y.abs())
                .expect("zero is one");
            u64::from(m) | if y.is_sign_negative() { 0x8000 } else { 0 }
        },
        same_f16,
    );
    let all: Vec<Vec<u64>> = (0..1 << 16).map(|x| vec![x]).collect();
    check_with(
        "cvt.f32.f16 {d}, {a}",
        &[H],
        W,
        &all,
        |x| h(x[0]).to_f32().to_bits().into(),
        same32,
    );
    check_with(
        "cvt.f32.bf16 {d}, {a}",
        &[H],
        W,
        &all,
        |x| b(x[0]).to_f32().to_bits().into(),
        same32,
    );
    check_with(
        "cvt.f64.f32 {d}, {a}",
        &[W],
        D,
        &rows,
        |x| f64::from(f(x[0])).to_bits(),
        same64,
    );
    let wide = combine(&doubles(), 1);
    check_with(
        "cvt.rn.f32.f64 {d}, {a}",
        &[D],
        W,
        &wide,
        |x| (d(x[0]) as f32).to_bits().into(),
        same32,
    );
    for (mode, below) in [("rz", None), ("rm", Some(true)), ("rp", Some(false))] {
        check_with(
            &format!("cvt.{mode}.f32.f64 {{d}}, {{a}}"),
            &[D],
            W,
            &wide,
            |x| {
                let exact = d(x[0]);
                let nearest = exact as f32;
                let down = below.unwrap_or(exact > 0.0);
                let r = if exact.is_nan() || exact.is_infinite() {
                    nearest
                } else if down && f64::from(nearest) > exact {
                    nearest.next_down()
                } else if !down && f64::from(nearest) < exact {
                    nearest.next_up()
                } else {
                    nearest
                };
                r.to_bits().into()
            },
            same32,
        );
    }
    let pairs = combine(&v, 2);
    let pair_same = |_: &[u64], got: u64, want: u64| {
        (0..2).all(|i| same_bf16(&[], got >> (16 * i) & 0xffff, want >> (16 * i) & 0xffff))
    };
    check_with(
        "cvt.rn.bf16x2.f32 {d}, {a}, {b}",
        &[W, W],
        W,
        &pairs,
        |x| {
            u64::from(bf16::from_f32(f(x[0])).to_bits()) << 16
                | u64::from(bf16::from_f32(f(x[1])).to_bits())
        },
        pair_same,
    );
    let pair_same = |_: &[u64], got: u64, want: u64| {
        (0..2).all(|i| same_f16(&[], got >> (16 * i) & 0xffff, want >> (16 * i) & 0xffff))
    };
    check_with(
        "cvt.rn.f16x2.f32 {d}, {a}, {b}",
        &[W, W],
        W,
        &pairs,
        |x| {
            u64::from(f16::from_f32(f(x[0])).to_bits()) << 16
                | u64::from(f16::from_f32(f(x[1])).to_bits())
        },
        pair_same,
    );
    check32("cvt.rni.f32.f32 {d}, {a}", 1, |x| x[0].round_ties_even());
    check32("cvt.rzi.f32.f32 {d}, {a}", 1, |x| x[0].trunc());
    check32("cvt.rmi.f32.f32 {d}, {a}", 1, |x| x[0].floor());
    check32("cvt.rpi.f32.f32 {d}, {a}", 1, |x| x[0].ceil());
    check32("cvt.sat.f32.f32 {d}, {a}", 1, |x| {
        if x[0].is_nan() {
            0.0
        } else {
            x[0].clamp(0.0, 1.0) + 0.0
        }
    });
}

#[test]
fn conversions_between_floats_and_integers() {
    let types: [(&str, Kind, u32, bool); 6] = [
        ("u16", H, 16, false),
        ("s16", H, 16, true),
        ("u32", W, 32, false),
        ("s32", W, 32, true),
        ("u64", D, 64, false),
        ("s64", D, 64, true),
    ];
    let rounded = |mode: &str, x: f64| match mode {
        "rni" => x.round_ties_even(),
        "rzi" => x.trunc(),
        "rmi" => x.floor(),
        _ => x.ceil(),
    };
    for (ty, kind, bits, signed) in types {
        let (low, high) = if signed {
            (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
        } else {
            (0, (1i128 << bits) - 1)
        };
        for mode in ["rni", "rzi", "rmi", "rpi"] {
            let to_int = |x: f64, wide: bool| -> u64 {
                if x.is_nan() {
                    return if wide || bits == 64 {
                        1 << (bits - 1)
                    } else {
                        0
                    };
                }
                (rounded(mode, x) as i128).clamp(low, high) as u64
            };
            check(
                &format!("cvt.{mode}.{ty}.f32 {{d}}, {{a}}"),
                &[W],
                kind,
                &floats(),
                |x| to_int(f(x[0]).into(), false),
            );
            check(
                &format!("cvt.{mode}.{ty}.f64 {{d}}, {{a}}"),
                &[D],
                kind,
                &doubles(),
                |x| to_int(d(x[0]), true),
            );
        }
        let value = |x: u64| {
            if signed {
                i128::from((x << (64 - bits)) as i64 >> (64 - bits))
            } else {
                i128::from(x & (u64::MAX >> (64 - bits)))
            }
        };
        check(
            &format!("cvt.rn.f32.{ty} {{d}}, {{a}}"),
            &[kind],
            W,
            INTEGERS,
            |x| (value(x[0]) as f32).to_bits().into(),
        );
        check(
            &format!("cvt.rn.f64.{ty} {{d}}, {{a}}"),
            &[kind],
            D,
            INTEGERS,
            |x| (value(x[0]) as f64).to_bits(),
        );
    }
}

/// Tests of statements.
pub const TESTS: &[fn()] = &[
    conversions_between_floats,
    conversions_between_floats_and_integers,
];
