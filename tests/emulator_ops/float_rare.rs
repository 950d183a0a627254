//! Directed rounding of every operation, saturation, `.xorsign.abs`, comparisons of pairs, and conversions to the short
//! formats, against models that share nothing with the emulator's integer arithmetic: error terms of the host's FPU, and
//! searches of code tables.

use super::elementwise::{D, H, INTEGERS, W, check, check_with, combine};
use super::float_values::{d, doubles, f, floats, flush, halves, same32, same64};
use half::{bf16, f16};

const MODES: [(&str, Option<bool>); 3] = [("rz", None), ("rm", Some(true)), ("rp", Some(false))];

/// The neighbour that a mode wants, from the nearest value and the sign of `exact - nearest`.
fn step(nearest: f64, error: f64, mode: Option<bool>) -> f64 {
    if !nearest.is_finite() || error == 0.0 {
        return nearest;
    }
    let positive = if nearest == 0.0 {
        error > 0.0
    } else {
        nearest > 0.0
    };
    let down = mode.unwrap_or(positive);
    match (down, error > 0.0) {
        (true, false) => nearest.next_down(),
        (false, true) => nearest.next_up(),
        _ => nearest,
    }
}

#[test]
fn directed_doubles() {
    // Values whose error terms are exact: nothing overflows or becomes subnormal.
    let values: Vec<u64> = [
        1.0f64,
        -1.0,
        3.0,
        -7.25,
        0.1,
        -0.3,
        1e10,
        -2.5e-9,
        1.0 + f64::EPSILON,
        std::f64::consts::PI,
        -12345.678,
        1e100,
        3e-100,
    ]
    .map(f64::to_bits)
    .to_vec();
    let pairs: Vec<Vec<u64>> = values
        .iter()
        .flat_map(|&a| values.iter().map(move |&b| vec![a, b]))
        .collect();
    for (mode, down) in MODES {
        let sum = |a: f64, b: f64| {
            let s = a + b;
            let t = s - a;
            let error = (a - (s - t)) + (b - t);
            if s == 0.0 {
                // An exact cancellation is -0 only when rounding down.
                return if down == Some(true) { -0.0 } else { 0.0 };
            }
            step(s, error, down)
        };
        let run = |form: &str, model: &dyn Fn(f64, f64) -> f64| {
            check_with(
                &format!("{form}.{mode}.f64 {{d}}, {{a}}, {{b}}"),
                &[D, D],
                D,
                &pairs,
                |x| model(d(x[0]), d(x[1])).to_bits(),
                same64,
            );
        };
        run("add", &sum);
        run("sub", &|a, b| sum(a, -b));
        run("mul", &|a, b| step(a * b, a.mul_add(b, -(a * b)), down));
        run("div", &|a, b| {
            let q = a / b;
            // The sign of the remainder, turned by the divisor's, is that of the error.
            step(q, (-q).mul_add(b, a) * b.signum(), down)
        });
        let single = |form: &str, model: &dyn Fn(f64) -> f64| {
            let rows: Vec<Vec<u64>> = values.iter().map(|&v| vec![v]).collect();
            check_with(
                &format!("{form}.{mode}.f64 {{d}}, {{a}}"),
                &[D],
                D,
                &rows,
                |x| model(d(x[0])).to_bits(),
                same64,
            );
        };
        single("rcp", &|a| {
            step(1.0 / a, (-(1.0 / a)).mul_add(a, 1.0) * a.signum(), down)
        });
        single("sqrt", &|a| {
            let r = a.sqrt();
            step(r, (-r).mul_add(r, a), down)
        });
        // Small integers times powers of two, so that the exact sum fits 128 bits.
        let triples: Vec<Vec<u64>> = (0..400i64)
            .map(|i| {
                let part = |k: i64| ((i * 7919 + k * 104_729) % 2_000_003 - 1_000_000) as f64;
                let scale = 2f64.powi((i % 40) as i32);
                vec![
                    (part(1) * 1e3 + 0.5).to_bits(),
                    (part(2) * 1e3 + 0.25).to_bits(),
                    (part(3) * scale).to_bits(),
                ]
            })
            .collect();
        check_with(
            &format!("fma.{mode}.f64 {{d}}, {{a}}, {{b}}, {{c}}"),
            &[D, D, D],
            D,
            &triples,
            |x| {
                let units = |v: u64, n: i32| (d(v) * 2f64.powi(n)) as i128;
                let exact = units(x[0], 2) * units(x[1], 2) + units(x[2], 4);
                let nearest = exact as f64;
                let error = (exact - nearest as i128) as f64;
                let nearest = if nearest == 0.0 && down == Some(true) {
                    -0.0
                } else {
                    nearest
                };
                (step(nearest, error, down) / 16.0).to_bits()
            },
            same64,
        );
    }
}

#[test]
fn directed_singles() {
    let pairs = combine(&floats(), 2);
    for (mode, down) in MODES {
        // An f64 near enough to the exact value that only its side of an f32 matters, with the error it has itself.
        let narrow = move |near: f64, error: f64| -> f32 {
            let nearest = near as f32;
            if near.is_nan() || near.is_infinite() {
                return nearest;
            }
            let rest = if f64::from(nearest) == near {
                error
            } else {
                near - f64::from(nearest)
            };
            let positive = near > 0.0 || (near == 0.0 && error > 0.0);
            let down = down.unwrap_or(positive);
            match (down, rest) {
                (true, r) if r < 0.0 => nearest.next_down(),
                (false, r) if r > 0.0 => nearest.next_up(),
                _ => nearest,
            }
        };
        for ftz in [false, true] {
            let flushed = move |x: f32| if ftz { flush(x) } else { x };
            let suffix = if ftz { ".ftz" } else { "" };
            let run = |form: &str, model: &dyn Fn(f64, f64) -> f32| {
                check_with(
                    &format!("{form}.{mode}{suffix}.f32 {{d}}, {{a}}, {{b}}"),
                    &[W, W],
                    W,
                    &pairs,
                    |x| {
                        let (a, b) = (flushed(f(x[0])), flushed(f(x[1])));
                        flushed(model(a.into(), b.into())).to_bits().into()
                    },
                    same32,
                );
            };
            let cancel = move |a: f64, b: f64| {
                a + b == 0.0
                    && !(a == 0.0 && b == 0.0 && a.is_sign_negative() == b.is_sign_negative())
            };
            let sum = move |a: f64, b: f64| {
                let s = a + b;
                let t = s - a;
                let error = (a - (s - t)) + (b - t);
                if cancel(a, b) {
                    return if down == Some(true) { -0.0 } else { 0.0 };
                }
                narrow(s, if error.is_nan() { 0.0 } else { error })
            };
            run("add", &sum);
            run("sub", &|a, b| sum(a, -b));
            run("mul", &|a, b| narrow(a * b, 0.0));
            run("div", &|a, b| {
                let q = a / b;
                let error = (-q).mul_add(b, a) * b.signum();
                narrow(q, if error.is_nan() { 0.0 } else { error })
            });
            check_with(
                &format!("sqrt.{mode}{suffix}.f32 {{d}}, {{a}}"),
                &[W],
                W,
                &combine(&floats(), 1),
                |x| {
                    let a = f64::from(flushed(f(x[0])));
                    let r = a.sqrt();
                    let error = (-r).mul_add(r, a);
                    narrow(r, if error.is_nan() { 0.0 } else { error })
                        .to_bits()
                        .into()
                },
                same32,
            );
        }
    }
}

#[test]
fn saturation_of_directed_and_half_results() {
    let clamp = |x: f32| {
        if x.is_nan() {
            0.0
        } else {
            x.clamp(0.0, 1.0) + 0.0
        }
    };
    check_with(
        "mul.rz.sat.f32 {d}, {a}, {b}",
        &[W, W],
        W,
        &combine(&floats(), 2),
        |x| {
            let exact = f64::from(f(x[0])) * f64::from(f(x[1]));
            let nearest = exact as f32;
            let r = if f64::from(nearest).abs() > exact.abs() && nearest.is_finite() {
                f32::from_bits(nearest.to_bits() - 1)
            } else {
                nearest
            };
            clamp(r).to_bits().into()
        },
        same32,
    );
    let h = |x: u64| f16::from_bits(x as u16);
    let keep = |x: f32| x;
    for (ftz, form) in [(false, "sat"), (true, "ftz.sat")] {
        let input = move |x: u64| {
            let v = h(x).to_f32();
            if ftz && h(x).is_normal().eq(&false) && v.is_finite() {
                0f32.copysign(v)
            } else {
                v
            }
        };
        let output = move |x: f32| {
            let r = f16::from_f32(keep(x));
            let r = if ftz && !r.is_normal() && r.to_f32().is_finite() {
                f16::from_f32(0.0)
            } else {
                r
            };
            f16::from_f32(clamp(r.to_f32())).to_bits().into()
        };
        check(
            &format!("add.{form}.f16 {{d}}, {{a}}, {{b}}"),
            &[H, H],
            H,
            &halves(),
            move |x| output(input(x[0]) + input(x[1])),
        );
        check(
            &format!("mul.{form}.f16x2 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            INTEGERS,
            move |x| {
                let half = |s: u32| output(input(x[0] >> s & 0xffff) * input(x[1] >> s & 0xffff));
                half(0) | half(16) << 16
            },
        );
    }
}

#[test]
fn extremes_with_signs_and_nans() {
    let bits = |x: f32| u64::from(x.to_bits());
    for (name, max) in [("min", false), ("max", true)] {
        check_with(
            &format!("{name}.xorsign.abs.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &combine(&floats(), 2),
            |x| {
                let (a, b) = (f(x[0]).abs(), f(x[1]).abs());
                let m = if max { a.max(b) } else { a.min(b) };
                if m.is_nan() {
                    return bits(f32::NAN);
                }
                bits(m) | ((x[0] ^ x[1]) & 0x8000_0000)
            },
            same32,
        );
        let brain = |x: u64| bf16::from_bits(x as u16).to_f32();
        check_with(
            &format!("{name}.NaN.bf16x2 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &combine(INTEGERS, 2),
            |x| {
                let half = |s: u32| {
                    let (a, b) = (brain(x[0] >> s & 0xffff), brain(x[1] >> s & 0xffff));
                    let r = if a.is_nan() || b.is_nan() {
                        return 0x7fff;
                    } else if a == b {
                        // -0 is smaller than +0.
                        if a.is_sign_negative() == max { b } else { a }
                    } else if (a > b) == max {
                        a
                    } else {
                        b
                    };
                    u64::from(bf16::from_f32(r).to_bits())
                };
                half(0) | half(16) << 16
            },
            |_, got, want| got == want,
        );
    }
}

#[test]
fn comparisons_of_pairs() {
    let h = |x: u64, s: u32| f16::from_bits((x >> s) as u16);
    let values: Vec<u64> = halves()
        .iter()
        .zip(halves().iter().rev())
        .map(|(a, b)| a | b << 16)
        .collect();
    check(
        "set.lt.f16x2.f16x2 {d}, {a}, {b}",
        &[W, W],
        W,
        &values,
        |x| {
            let one = |s: u32| if h(x[0], s) < h(x[1], s) { 0x3c00 } else { 0 };
            one(0) | one(16) << 16
        },
    );
    check("set.ge.u32.f16 {d}, {a}, {b}", &[H, H], W, &halves(), |x| {
        if h(x[0], 0) >= h(x[1], 0) {
            0xffff_ffff
        } else {
            0
        }
    });
    check(
        "set.ne.bf16.bf16 {d}, {a}, {b}",
        &[H, H],
        H,
        &halves(),
        |x| {
            let b = |v: u64| bf16::from_bits(v as u16).to_f32();
            let order = b(x[0]).partial_cmp(&b(x[1]));
            if order.is_some_and(std::cmp::Ordering::is_ne) {
                0x3f80
            } else {
                0
            }
        },
    );
}

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
            check(
                &format!("cvt.rn.satfinite{suffix}.{name}x2.f32 {{d}}, {{a}}, {{b}}"),
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
            check(
                &format!("cvt.rn{suffix}.f16x2.{name}x2 {{d}}, {{a}}"),
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
