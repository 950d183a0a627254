//! Directed rounding of every operation, saturation, `.xorsign.abs` and comparisons of pairs, against models that share
//! nothing with the emulator's integer arithmetic: error terms of the host's FPU.

use super::elementwise::{D, H, INTEGERS, W, check, check_some, check_with, combine};
use super::float_values::{d, f, floats, flush, halves, same32, same64};
use half::{bf16, f16};

pub const MODES: [(&str, Option<bool>); 3] =
    [("rz", None), ("rm", Some(true)), ("rp", Some(false))];

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
            check_some(
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
            check_some(
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
        check_some(
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

/// Tests of statements.
pub const TESTS: &[fn()] = &[
    directed_doubles,
    directed_singles,
    saturation_of_directed_and_half_results,
    extremes_with_signs_and_nans,
    comparisons_of_pairs,
];
