//! Conversions to and from fp8, fp6, fp4, ue8m0 and tf32, of wide integers, and packs of saturated integers.

use super::elementwise::{D, H, INTEGERS, W, check, check_with, combine};
use super::float_rare::MODES;
use super::float_values::{d, doubles, f, floats, same32};
use half::{bf16, f16};

/// Every value of a format by its code, as its definition says; `None` for NaN and infinity.
fn table(exponent: u32, mantissa: u32, top: &dyn Fn(u32) -> bool) -> Vec<Option<f64>> {
    let bias = (1i32 << (exponent - 1)) - 1;
    (0..1u32 << (exponent + mantissa))
        .map(|code| {
            let (e, m) = (code >> mantissa, code & ((1 << mantissa) - 1));
            let fraction = f64::from(m) / f64::from(1u32 << mantissa);
            if top(code) {
                None
            } else if e == 0 {
                Some(fraction * 2f64.powi(1 - bias))
            } else {
                Some((1.0 + fraction) * 2f64.powi(e as i32 - bias))
            }
        })
        .collect()
}

/// The code of the nearest value (ties to even codes), saturated; `nan` for NaN.
fn nearest(table: &[Option<f64>], x: f32, nan: u64, sign: u32) -> u64 {
    if x.is_nan() {
        return nan;
    }
    let a = f64::from(x.abs());
    let last = table.iter().rposition(Option::is_some).unwrap_or(0);
    if table[last].is_some_and(|largest| a >= largest) {
        return last as u64 | u64::from(x.is_sign_negative()) << sign;
    }
    let mut best = 0;
    for (code, value) in table.iter().enumerate() {
        let (Some(value), Some(so_far)) = (value, table[best]) else {
            continue;
        };
        let (new, old) = ((value - a).abs(), (so_far - a).abs());
        if new < old || (new == old && code % 2 == 0) {
            best = code;
        }
    }
    best as u64 | u64::from(x.is_sign_negative()) << sign
}

#[test]
fn eight_bit_and_shorter_formats() {
    let none = |_: u32| false;
    type Top<'a> = &'a dyn Fn(u32) -> bool;
    let formats: [(&str, u32, u32, u64, Top<'_>); 5] = [
        ("e4m3", 4, 3, 0x7f, &|code| code == 0x7f),
        ("e5m2", 5, 2, 0x7f, &|code| code >= 0x7c),
        ("e2m1", 2, 1, 0x7, &none),
        ("e2m3", 2, 3, 0x1f, &none),
        ("e3m2", 3, 2, 0x1f, &none),
    ];
    let mut values = floats();
    // Every halfway case of the short formats.
    values.extend((0..96).map(|i| u64::from((f32::from_bits(0x3b00_0000 + (i << 21))).to_bits())));
    for (name, exponent, mantissa, nan, top) in formats {
        let table = table(exponent, mantissa, top);
        let sign = exponent + mantissa;
        let width = if name == "e2m1" { 4 } else { 8 };
        for relu in [false, true] {
            let suffix = if relu { ".relu" } else { "" };
            let one = |x: f32| {
                let x = if relu && x <= 0.0 { 0.0 } else { x };
                let code = nearest(&table, x, nan, sign);
                // The short formats have no NaN: it becomes the largest value.
                code
            };
            // Two values of four bits take a register of eight.
            let narrow = name == "e2m1";
            let cvt = format!("cvt.rn.satfinite{suffix}.{name}x2.f32");
            check(
                &if narrow {
                    format!("{cvt} %c0, {{a}}, {{b}}; mov.b16 {{d}}, {{%c0, %c1}}")
                } else {
                    format!("{cvt} {{d}}, {{a}}, {{b}}")
                },
                &[W, W],
                H,
                &values,
                |x| one(f(x[1])) | one(f(x[0])) << width,
            );
            let back = |code: u64| -> u64 {
                let magnitude = code & ((1 << sign) - 1);
                let negative = code >> sign & 1 != 0;
                let value = match table[magnitude as usize] {
                    Some(v) => v as f32,
                    None if name == "e5m2" && magnitude == 0x7c => f32::INFINITY,
                    None => return 0x7fff,
                };
                let value = if negative { -value } else { value };
                let value = if relu && negative { 0.0 } else { value };
                f16::from_f32(value).to_bits().into()
            };
            let codes: Vec<u64> = (0..256u64).map(|c| c | (255 - c) << 8).collect();
            let cvt = format!("cvt.rn{suffix}.f16x2.{name}x2");
            check(
                &if narrow {
                    format!("mov.b16 {{%c0, %c1}}, {{a}}; {cvt} {{d}}, %c0")
                } else {
                    format!("{cvt} {{d}}, {{a}}")
                },
                &[H],
                W,
                &codes,
                |x| {
                    let mask = (1 << width) - 1;
                    back(x[0] & mask) | back(x[0] >> width & mask) << 16
                },
            );
        }
    }
    let table = table(4, 3, &|code| code == 0x7f);
    check(
        "cvt.rn.satfinite.e4m3x2.f16x2 {d}, {a}",
        &[W],
        H,
        INTEGERS,
        |x| {
            let one = |s: u32| {
                let v = f16::from_bits((x[0] >> s) as u16).to_f32();
                nearest(&table, v, 0x7f, 7)
            };
            one(0) | one(16) << 8
        },
    );
    // ue8m0: powers of two alone.
    for (mode, up) in [("rz", false), ("rp", true)] {
        let one = |x: f32| -> u64 {
            if x.is_nan() {
                return 0xff;
            }
            let a = f64::from(x.abs());
            let code = (0..255u32).find(|&c| {
                let here = 2f64.powi(c as i32 - 127);
                if up { here >= a } else { here * 2.0 > a }
            });
            code.unwrap_or(254).into()
        };
        check(
            &format!("cvt.{mode}.satfinite.ue8m0x2.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            H,
            &values,
            |x| one(f(x[1])) | one(f(x[0])) << 8,
        );
    }
    let codes: Vec<u64> = (0..256u64).map(|c| c | (255 - c) << 8).collect();
    check("cvt.rn.bf16x2.ue8m0x2 {d}, {a}", &[H], W, &codes, |x| {
        let one = |c: u64| match c & 255 {
            255 => 0x7fff,
            c => u64::from(bf16::from_f64(2f64.powi(c as i32 - 127)).to_bits()),
        };
        one(x[0]) | one(x[0] >> 8) << 16
    });
}

#[test]
fn tf32_and_wide_integers() {
    let rows = combine(&floats(), 1);
    // Cutting 13 bits off, with the carry going where it belongs.
    let cut = |x: f32, add: u32| -> u64 {
        if x.is_nan() {
            return 0x7fff_ffff;
        }
        if x.is_infinite() {
            return x.to_bits().into();
        }
        u64::from(x.to_bits().wrapping_add(add) & !0x1fff)
    };
    check_with(
        "cvt.rna.tf32.f32 {d}, {a}",
        &[W],
        W,
        &rows,
        |x| cut(f(x[0]), 0x1000),
        same32,
    );
    check_with(
        "cvt.rz.tf32.f32 {d}, {a}",
        &[W],
        W,
        &rows,
        |x| cut(f(x[0]), 0),
        same32,
    );
    check_with(
        "cvt.rn.relu.tf32.f32 {d}, {a}",
        &[W],
        W,
        &rows,
        |x| {
            let y = f(x[0]);
            if y <= 0.0 {
                return 0;
            }
            cut(y, 0xfff + (x[0] >> 13 & 1) as u32)
        },
        same32,
    );
    // Integers to floats in every rounding: the neighbour on the right side of the exact value.
    for (mode, down) in MODES {
        check(
            &format!("cvt.{mode}.f32.s64 {{d}}, {{a}}"),
            &[D],
            W,
            INTEGERS,
            |x| {
                let exact = i128::from(x[0] as i64);
                let nearest = x[0] as i64 as f32;
                let error = exact - nearest as i128;
                let down = down.unwrap_or(exact > 0);
                let r = if down && error < 0 {
                    nearest.next_down()
                } else if !down && error > 0 {
                    nearest.next_up()
                } else {
                    nearest
                };
                r.to_bits().into()
            },
        );
    }
    check("cvt.rn.f16.u64 {d}, {a}", &[D], H, INTEGERS, |x| {
        // Beyond 2^53 everything is infinity in f16, so that f64 is exact enough.
        f16::from_f64(x[0] as f64).to_bits().into()
    });
    check("cvt.rn.bf16.s32 {d}, {a}", &[W], H, INTEGERS, |x| {
        bf16::from_f64(f64::from(x[0] as i32)).to_bits().into()
    });
    check_with(
        "cvt.rn.f16.f64 {d}, {a}",
        &[D],
        H,
        &combine(&doubles(), 1),
        |x| {
            let y = d(x[0]);
            if y.is_nan() {
                0x7fff
            } else {
                f16::from_f64(y).to_bits().into()
            }
        },
        |_, got, want| got == want,
    );
    check_with(
        "cvt.rzi.sat.f32.f32 {d}, {a}",
        &[W],
        W,
        &rows,
        |x| {
            let y = f(x[0]).trunc();
            u64::from(if y >= 1.0 { 1f32 } else { 0.0 }.to_bits())
        },
        same32,
    );
}

#[test]
fn packs_of_saturated_integers() {
    for (ty, bits, signed) in [("u16", 16, false), ("s16", 16, true)] {
        check(
            &format!("cvt.pack.sat.{ty}.s32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            INTEGERS,
            |x| clamp(x[1], bits, signed) | clamp(x[0], bits, signed) << bits,
        );
    }
    for (ty, bits, signed) in [
        ("u8", 8, false),
        ("s8", 8, true),
        ("u4", 4, false),
        ("s4", 4, true),
        ("u2", 2, false),
        ("s2", 2, true),
    ] {
        check(
            &format!("cvt.pack.sat.{ty}.s32.b32 {{d}}, {{a}}, {{b}}, {{c}}"),
            &[W, W, W],
            W,
            INTEGERS,
            |x| {
                clamp(x[1], bits, signed)
                    | clamp(x[0], bits, signed) << bits
                    | (x[2] << (2 * bits) & 0xffff_ffff)
            },
        );
    }
}

fn clamp(x: u64, bits: u32, signed: bool) -> u64 {
    let x = i64::from(x as i32);
    let (low, high) = if signed {
        (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1)
    } else {
        (0, (1i64 << bits) - 1)
    };
    x.clamp(low, high) as u64 & ((1 << bits) - 1)
}

/// Tests of statements.
pub const TESTS: &[fn()] = &[
    eight_bit_and_shorter_formats,
    tf32_and_wide_integers,
    packs_of_saturated_integers,
];
