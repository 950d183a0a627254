//! Floating-point instructions and conversions.

use super::elementwise::{D, H, INTEGERS, Kind, Noise, P, W, check, check_with, combine};
use half::{bf16, f16};

/// f32 bits: zeros, subnormals, ones, limits, infinities, NaN, and values around integers.
fn floats() -> Vec<u64> {
    let values = [
        0.0f32,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        -1.5,
        2.5,
        3.0,
        -3.75,
        1e-3,
        123.456,
        -77.7,
        65504.0,
        65519.9,
        65520.0,
        65536.0,
        1e10,
        -1e10,
        3e38,
        -3e38,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        -f32::MIN_POSITIVE,
        1e-40,
        -1e-40,
        1e-45,
        6e-8,
        5.96e-8,
        2.9e-8,
        6.1e-5,
        2147483647.0,
        2147483648.0,
        -2147483648.0,
        4294967296.0,
        1.8446744e19,
        9.223372e18,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let mut bits: Vec<u64> = values.iter().map(|v| u64::from(v.to_bits())).collect();
    // Halfway cases of the 16-bit formats.
    bits.extend([
        0x3f80_8000u64,
        0x3f81_8000,
        0x3f80_7fff,
        0x3f80_8001,
        0x3f80_1000,
        0x3f80_3000,
        0x7f7f_8000,
        0x477f_efff,
        0x477f_f000,
    ]);
    let mut noise = Noise(7);
    bits.extend((0..20).map(|_| noise.next() & 0xffff_ffff));
    bits
}

fn doubles() -> Vec<u64> {
    let mut values: Vec<u64> = floats()
        .iter()
        .map(|&b| f64::from(f32::from_bits(b as u32)).to_bits())
        .collect();
    values.extend(
        [
            1e300f64,
            -1e300,
            1e-310,
            1.0 + f64::EPSILON,
            16777217.0,
            1.8446744073709552e19,
        ]
        .map(f64::to_bits),
    );
    values
}

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

fn d(x: u64) -> f64 {
    f64::from_bits(x)
}

/// Equal bits, or both NaN.
fn same32(_: &[u64], got: u64, want: u64) -> bool {
    got == want || (f(got).is_nan() && f(want).is_nan())
}

fn same64(_: &[u64], got: u64, want: u64) -> bool {
    got == want || (d(got).is_nan() && d(want).is_nan())
}

fn check32(statement: &str, count: usize, model: impl Fn(&[f32]) -> f32) {
    let model =
        |x: &[u64]| u64::from(model(&x.iter().map(|&v| f(v)).collect::<Vec<_>>()).to_bits());
    check_with(
        statement,
        &[W; 3][..count],
        W,
        &combine(&floats(), count),
        model,
        same32,
    );
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

fn max(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() {
        a
    } else if a == b {
        if a.is_sign_negative() { b } else { a }
    } else if a > b {
        a
    } else {
        b
    }
}

fn min(a: f32, b: f32) -> f32 {
    -max(-a, -b)
}

#[test]
fn f32_arithmetic() {
    check32("add.f32 {d}, {a}, {b}", 2, |x| x[0] + x[1]);
    check32("add.rn.ftz.f32 {d}, {a}, {b}", 2, |x| {
        flush(flush(x[0]) + flush(x[1]))
    });
    check32("sub.rn.f32 {d}, {a}, {b}", 2, |x| x[0] - x[1]);
    check32("mul.f32 {d}, {a}, {b}", 2, |x| x[0] * x[1]);
    check32("mul.ftz.f32 {d}, {a}, {b}", 2, |x| {
        flush(flush(x[0]) * flush(x[1]))
    });
    let sat = |x: f32| {
        if x.is_nan() {
            0.0
        } else {
            x.clamp(0.0, 1.0) + 0.0
        }
    };
    check32("add.sat.f32 {d}, {a}, {b}", 2, |x| sat(x[0] + x[1]));
    check32("fma.rn.f32 {d}, {a}, {b}, {c}", 3, |x| {
        x[0].mul_add(x[1], x[2])
    });
    check32("fma.rn.ftz.f32 {d}, {a}, {b}, {c}", 3, |x| {
        flush(flush(x[0]).mul_add(flush(x[1]), flush(x[2])))
    });
    check32("fma.rn.sat.f32 {d}, {a}, {b}, {c}", 3, |x| {
        sat(x[0].mul_add(x[1], x[2]))
    });
    check32("div.rn.f32 {d}, {a}, {b}", 2, |x| x[0] / x[1]);
    check32("rcp.rn.f32 {d}, {a}", 1, |x| 1.0 / x[0]);
    check32("sqrt.rn.f32 {d}, {a}", 1, |x| x[0].sqrt());
    check32("abs.f32 {d}, {a}", 1, |x| x[0].abs());
    check32("neg.f32 {d}, {a}", 1, |x| -x[0]);
    check32("max.f32 {d}, {a}, {b}", 2, |x| max(x[0], x[1]));
    check32("min.f32 {d}, {a}, {b}", 2, |x| min(x[0], x[1]));
    check32("max.NaN.f32 {d}, {a}, {b}", 2, |x| {
        if x[0].is_nan() || x[1].is_nan() {
            f32::NAN
        } else {
            max(x[0], x[1])
        }
    });
    check32("min.ftz.f32 {d}, {a}, {b}", 2, |x| {
        min(flush(x[0]), flush(x[1]))
    });
    check32("copysign.f32 {d}, {a}, {b}", 2, |x| x[1].copysign(x[0]));
}

#[test]
fn directed_rounding() {
    // The exact value lies between the result and its neighbour; both are compared in exact f64 arithmetic where that
    // holds, which is for products, and for sums of values that are not too far apart.
    let near: Vec<u64> = [
        0.0f32,
        1.0,
        -1.0,
        1.5,
        -1.75,
        1.0e-3,
        -2.5e-3,
        1.1,
        3.3,
        0.1,
        7.7e5,
        -9.9e4,
        1.0 + f32::EPSILON,
        0.333_333_34,
    ]
    .iter()
    .map(|v| u64::from(v.to_bits()))
    .collect();
    for (mode, down) in [("rz", None), ("rm", Some(true)), ("rp", Some(false))] {
        let model = |exact: f64| -> u64 {
            let nearest = exact as f32;
            let down = down.unwrap_or(exact > 0.0);
            let r = if down && f64::from(nearest) > exact {
                nearest.next_down()
            } else if !down && f64::from(nearest) < exact {
                nearest.next_up()
            } else {
                nearest
            };
            (if r == 0.0 { 0.0f32 } else { r }).to_bits().into()
        };
        let same =
            |_: &[u64], got: u64, want: u64| got == want || (f(got) == 0.0 && f(want) == 0.0);
        let pairs: Vec<Vec<u64>> = near
            .iter()
            .flat_map(|&a| near.iter().map(move |&b| vec![a, b]))
            .collect();
        let triples: Vec<Vec<u64>> = pairs
            .iter()
            .flat_map(|p| near.iter().map(move |&c| vec![p[0], p[1], c]))
            .collect();
        let v = |x: u64| f64::from(f(x));
        check_with(
            &format!("add.{mode}.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &pairs,
            |x| model(v(x[0]) + v(x[1])),
            same,
        );
        check_with(
            &format!("sub.{mode}.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &pairs,
            |x| model(v(x[0]) - v(x[1])),
            same,
        );
        check_with(
            &format!("mul.{mode}.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &pairs,
            |x| model(v(x[0]) * v(x[1])),
            same,
        );
        // 48 bits of product and 24 of addend within 2^20 of each other can exceed f64's 53; those are left out.
        let triples: Vec<Vec<u64>> = triples
            .into_iter()
            .filter(|x| {
                let (p, c) = (v(x[0]) * v(x[1]), v(x[2]));
                let sum = p + c;
                let t = sum - p;
                (p - (sum - t)) + (c - t) == 0.0
            })
            .collect();
        assert!(triples.len() > 500);
        check_with(
            &format!("fma.{mode}.f32 {{d}}, {{a}}, {{b}}, {{c}}"),
            &[W, W, W],
            W,
            &triples,
            |x| model(v(x[0]) * v(x[1]) + v(x[2])),
            same,
        );
    }
    // Far apart: 1 plus or minus 2^-100.
    let tiny = u64::from(2f32.powi(-100).to_bits());
    let one = u64::from(1f32.to_bits());
    let minus = tiny | 1 << 31;
    for (statement, b, want) in [
        ("add.rz.f32", tiny, 0x3f80_0000u64),
        ("add.rz.f32", minus, 0x3f7f_ffff),
        ("add.rm.f32", minus, 0x3f7f_ffff),
        ("add.rp.f32", tiny, 0x3f80_0001),
        ("add.rp.f32", minus, 0x3f80_0000),
    ] {
        check_with(
            &format!("{statement} {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &[vec![one, b], vec![one, b]],
            |_| want,
            |_, got, want| got == want,
        );
    }
}

#[test]
fn f64_arithmetic() {
    let run = |statement: &str, count: usize, model: &dyn Fn(&[f64]) -> f64| {
        let model = |x: &[u64]| model(&x.iter().map(|&v| d(v)).collect::<Vec<_>>()).to_bits();
        check_with(
            statement,
            &[D; 3][..count],
            D,
            &combine(&doubles(), count),
            model,
            same64,
        );
    };
    run("add.f64 {d}, {a}, {b}", 2, &|x| x[0] + x[1]);
    run("sub.rn.f64 {d}, {a}, {b}", 2, &|x| x[0] - x[1]);
    run("mul.f64 {d}, {a}, {b}", 2, &|x| x[0] * x[1]);
    run("div.rn.f64 {d}, {a}, {b}", 2, &|x| x[0] / x[1]);
    run("fma.rn.f64 {d}, {a}, {b}, {c}", 3, &|x| {
        x[0].mul_add(x[1], x[2])
    });
    run("sqrt.rn.f64 {d}, {a}", 1, &|x| x[0].sqrt());
    run("rcp.rn.f64 {d}, {a}", 1, &|x| 1.0 / x[0]);
    run("neg.f64 {d}, {a}", 1, &|x| -x[0]);
    run("abs.f64 {d}, {a}", 1, &|x| x[0].abs());
}

#[test]
fn comparisons() {
    type Test = fn(f64, f64) -> bool;
    let tests: [(&str, Test, bool); 12] = [
        ("eq", |a, b| a == b, false),
        ("ne", |a, b| a != b, false),
        ("lt", |a, b| a < b, false),
        ("le", |a, b| a <= b, false),
        ("gt", |a, b| a > b, false),
        ("ge", |a, b| a >= b, false),
        ("equ", |a, b| a == b, true),
        ("neu", |a, b| a != b, true),
        ("ltu", |a, b| a < b, true),
        ("leu", |a, b| a <= b, true),
        ("gtu", |a, b| a > b, true),
        ("geu", |a, b| a >= b, true),
    ];
    let ordered = |a: f64, b: f64, test: Test, unordered: bool| -> u64 {
        if a.is_nan() || b.is_nan() {
            unordered.into()
        } else {
            test(a, b).into()
        }
    };
    for (name, test, unordered) in tests {
        check(
            &format!("setp.{name}.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            P,
            &floats(),
            |x| ordered(f(x[0]).into(), f(x[1]).into(), test, unordered),
        );
        check(
            &format!("setp.{name}.ftz.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            P,
            &floats(),
            |x| {
                ordered(
                    flush(f(x[0])).into(),
                    flush(f(x[1])).into(),
                    test,
                    unordered,
                )
            },
        );
        check(
            &format!("setp.{name}.f64 {{d}}, {{a}}, {{b}}"),
            &[D, D],
            P,
            &doubles(),
            |x| ordered(d(x[0]), d(x[1]), test, unordered),
        );
        check(
            &format!("setp.{name}.bf16 {{d}}, {{a}}, {{b}}"),
            &[H, H],
            P,
            &halves(),
            |x| {
                ordered(
                    bf16::from_bits(x[0] as u16).into(),
                    bf16::from_bits(x[1] as u16).into(),
                    test,
                    unordered,
                )
            },
        );
    }
    check("setp.nan.f32 {d}, {a}, {b}", &[W, W], P, &floats(), |x| {
        u64::from(f(x[0]).is_nan() || f(x[1]).is_nan())
    });
    check("setp.num.f32 {d}, {a}, {b}", &[W, W], P, &floats(), |x| {
        u64::from(!f(x[0]).is_nan() && !f(x[1]).is_nan())
    });
    check("testp.finite.f32 {d}, {a}", &[W], P, &floats(), |x| {
        u64::from(f(x[0]).is_finite())
    });
    check("testp.subnormal.f32 {d}, {a}", &[W], P, &floats(), |x| {
        u64::from(f(x[0]).is_subnormal())
    });
    check("set.gt.f32.f32 {d}, {a}, {b}", &[W, W], W, &floats(), |x| {
        if f(x[0]) > f(x[1]) { 0x3f80_0000 } else { 0 }
    });
}

/// 16-bit patterns: the edges of both formats.
fn halves() -> Vec<u64> {
    let mut bits = vec![
        0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3c00, 0xbc00, 0x3c01,
        0x4248, 0x3f80, 0xbf80, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x80, 0x7f,
    ];
    let mut noise = Noise(3);
    bits.extend((0..24).map(|_| noise.next() & 0xffff));
    bits
}

/// `a * b + c` rounded once to a format of `digits` significant bits, least exponent `least` (of the last bit) and overflow
/// above `limit`: exact in integers of units 2^-600 would be too wide, so the sum is compared with the midpoint in pieces.
fn fma_half_model(
    a: f64,
    b: f64,
    c: f64,
    round: &dyn Fn(f64) -> f64,
    next: &dyn Fn(f64, bool) -> f64,
) -> f64 {
    let product = a * b;
    let sum = product + c;
    if !sum.is_finite() || !product.is_finite() || !c.is_finite() {
        return sum;
    }
    // sum + error is the exact value (Knuth's two-sum).
    let t = sum - product;
    let error = (product - (sum - t)) + (c - t);
    let rounded = round(sum);
    if error == 0.0 || !rounded.is_finite() {
        return rounded;
    }
    // Only a sum that lies exactly halfway can be rounded wrongly, and then the error decides.
    for up in [false, true] {
        let other = next(rounded, up);
        if other.is_finite() && (rounded - sum).abs() == (other - sum).abs() {
            let towards_other = (error > 0.0) == (other > rounded);
            return if towards_other { other } else { rounded };
        }
    }
    rounded
}

#[test]
fn sixteen_bit_arithmetic() {
    let h = |x: u64| f16::from_bits(x as u16);
    let b = |x: u64| bf16::from_bits(x as u16);
    let same_f16 =
        |_: &[u64], got: u64, want: u64| got == want || (h(got).is_nan() && h(want).is_nan());
    let same_bf16 =
        |_: &[u64], got: u64, want: u64| got == want || (b(got).is_nan() && b(want).is_nan());
    let pairs = combine(&halves(), 2);
    let triples = combine(&halves(), 3);
    let step_f16 = |x: f64, up: bool| {
        let bits = f16::from_f64(x).to_bits();
        let away = up == (x > 0.0);
        f64::from(f16::from_bits(if bits & 0x7fff == 0 {
            1 | if up { 0 } else { 0x8000 }
        } else if away {
            bits + 1
        } else {
            bits - 1
        }))
    };
    let step_bf16 = |x: f64, up: bool| {
        let bits = bf16::from_f64(x).to_bits();
        let away = up == (x > 0.0);
        f64::from(bf16::from_bits(if bits & 0x7fff == 0 {
            1 | if up { 0 } else { 0x8000 }
        } else if away {
            bits + 1
        } else {
            bits - 1
        }))
    };
    for (name, model) in [
        ("add", (|a, b| a + b) as fn(f64, f64) -> f64),
        ("sub", |a, b| a - b),
        ("mul", |a, b| a * b),
    ] {
        check_with(
            &format!("{name}.rn.f16 {{d}}, {{a}}, {{b}}"),
            &[H, H],
            H,
            &pairs,
            |x| u64::from(f16::from_f64(model(h(x[0]).into(), h(x[1]).into())).to_bits()),
            same_f16,
        );
        // f64 sums of bf16 values may be inexact, but never halfway between two bf16 values then, except through the
        // error that the model takes care of.
        check_with(
            &format!("{name}.rn.bf16 {{d}}, {{a}}, {{b}}"),
            &[H, H],
            H,
            &pairs,
            |x| {
                let (p, q) = (f64::from(b(x[0])), f64::from(b(x[1])));
                let exact = match name {
                    "add" => fma_half_model(1.0, p, q, &|v| bf16::from_f64(v).into(), &step_bf16),
                    "sub" => fma_half_model(1.0, p, -q, &|v| bf16::from_f64(v).into(), &step_bf16),
                    _ => model(p, q),
                };
                u64::from(bf16::from_f64(exact).to_bits())
            },
            same_bf16,
        );
    }
    check_with(
        "fma.rn.f16 {d}, {a}, {b}, {c}",
        &[H, H, H],
        H,
        &triples,
        |x| {
            let exact = fma_half_model(
                h(x[0]).into(),
                h(x[1]).into(),
                h(x[2]).into(),
                &|v| f16::from_f64(v).into(),
                &step_f16,
            );
            u64::from(f16::from_f64(exact).to_bits())
        },
        same_f16,
    );
    check_with(
        "fma.rn.bf16 {d}, {a}, {b}, {c}",
        &[H, H, H],
        H,
        &triples,
        |x| {
            let exact = fma_half_model(
                b(x[0]).into(),
                b(x[1]).into(),
                b(x[2]).into(),
                &|v| bf16::from_f64(v).into(),
                &step_bf16,
            );
            u64::from(bf16::from_f64(exact).to_bits())
        },
        same_bf16,
    );
    check_with(
        "fma.rn.relu.bf16 {d}, {a}, {b}, {c}",
        &[H, H, H],
        H,
        &triples,
        |x| {
            let exact = fma_half_model(
                b(x[0]).into(),
                b(x[1]).into(),
                b(x[2]).into(),
                &|v| bf16::from_f64(v).into(),
                &step_bf16,
            );
            u64::from(
                bf16::from_f64(if exact.is_nan() {
                    exact
                } else {
                    exact.max(0.0) + 0.0
                })
                .to_bits(),
            )
        },
        same_bf16,
    );
    // 1.5 * 1.0078125 = 1.51171875 is halfway between two bf16 values, and 2^-100 more or less decides; an f32 or f64
    // intermediate would lose it.
    let hard = vec![
        vec![0x3fc0, 0x3f81, 0x0d80],
        vec![0x3fc0, 0x3f81, 0x8d80],
        vec![0x3fc0, 0x3f81, 0],
    ];
    let wanted = [0x3fc2u64, 0x3fc1, 0x3fc2];
    for (row, want) in hard.into_iter().zip(wanted) {
        let same = |_: &[u64], got: u64, want: u64| got == want;
        check_with(
            "fma.rn.bf16 {d}, {a}, {b}, {c}",
            &[H, H, H],
            H,
            &[row.clone(), row.clone()],
            |_| want,
            same,
        );
    }
    let rows: Vec<Vec<u64>> = triples
        .iter()
        .zip(triples.iter().rev())
        .map(|(l, u)| {
            (0..3)
                .map(|i| (l[i] & 0xffff) | (u[i] & 0xffff) << 16)
                .collect()
        })
        .collect();
    for (ty, is_f16) in [("f16x2", true), ("bf16x2", false)] {
        let one = |a: u64, b2: u64, c: u64| -> u64 {
            if is_f16 {
                let e = fma_half_model(
                    h(a).into(),
                    h(b2).into(),
                    h(c).into(),
                    &|v| f16::from_f64(v).into(),
                    &step_f16,
                );
                f16::from_f64(e).to_bits().into()
            } else {
                let e = fma_half_model(
                    b(a).into(),
                    b(b2).into(),
                    b(c).into(),
                    &|v| bf16::from_f64(v).into(),
                    &step_bf16,
                );
                bf16::from_f64(e).to_bits().into()
            }
        };
        let nan = |x: u64| if is_f16 { h(x).is_nan() } else { b(x).is_nan() };
        check_with(
            &format!("fma.rn.{ty} {{d}}, {{a}}, {{b}}, {{c}}"),
            &[W, W, W],
            W,
            &rows,
            |x| {
                one(x[0] & 0xffff, x[1] & 0xffff, x[2] & 0xffff)
                    | one(x[0] >> 16, x[1] >> 16, x[2] >> 16) << 16
            },
            |_, got, want| {
                (0..2).all(|i| {
                    let (g, w) = (got >> (16 * i) & 0xffff, want >> (16 * i) & 0xffff);
                    g == w || (nan(g) && nan(w))
                })
            },
        );
        check(&format!("neg.{ty} {{d}}, {{a}}"), &[W], W, &floats(), |x| {
            x[0] ^ 0x8000_8000
        });
        check(&format!("abs.{ty} {{d}}, {{a}}"), &[W], W, &floats(), |x| {
            x[0] & 0x7fff_7fff
        });
    }
}

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

/// Within `relative` of the f64 value, or within `absolute` of it.
fn check_approx(
    statement: &str,
    inputs: &[f32],
    model: impl Fn(f64) -> f64,
    relative: f64,
    absolute: f64,
) {
    let rows: Vec<Vec<u64>> = inputs.iter().map(|x| vec![x.to_bits().into()]).collect();
    check_with(
        statement,
        &[W],
        W,
        &rows,
        |x| u64::from((model(f(x[0]).into()) as f32).to_bits()),
        |x, got, _| {
            let (got, want) = (f64::from(f(got)), model(f(x[0]).into()));
            if want.is_nan() {
                return got.is_nan();
            }
            if want.is_infinite() || want.abs() > f32::MAX.into() {
                return got == want
                    || got == f64::from(f32::MAX)
                    || (got.is_infinite() && got.signum() == want.signum());
            }
            (got - want).abs() <= (relative * want.abs()).max(absolute)
        },
    );
}

#[test]
fn approximations() {
    let mut noise = Noise(11);
    let mut wide: Vec<f32> = floats().iter().map(|&b| f(b)).collect();
    wide.extend((0..20000).map(|_| f(noise.next() & 0xffff_ffff)));
    let mut uniform = |low: f32, high: f32| -> Vec<f32> {
        (0..20000)
            .map(|_| low + (high - low) * (noise.next() >> 40) as f32 / (1u64 << 24) as f32)
            .collect()
    };
    let tiny = 1e-44;
    let mut ex2_inputs = uniform(-150.0, 130.0);
    ex2_inputs.extend(&wide);
    check_approx(
        "ex2.approx.f32 {d}, {a}",
        &ex2_inputs,
        f64::exp2,
        2f64.powi(-22),
        tiny,
    );
    check_approx(
        "ex2.approx.ftz.f32 {d}, {a}",
        &ex2_inputs,
        f64::exp2,
        2f64.powi(-22),
        1.2e-38,
    );
    let small = uniform(-8.0, 8.0);
    check_approx(
        "ex2.approx.f32 {d}, {a}",
        &small,
        f64::exp2,
        2f64.powi(-22),
        0.0,
    );
    let mut positive = uniform(0.5, 2.0);
    positive.extend(&wide);
    check_approx(
        "lg2.approx.f32 {d}, {a}",
        &positive,
        |x| {
            if x == 0.0 {
                f64::NEG_INFINITY
            } else {
                x.log2()
            }
        },
        2f64.powi(-22),
        1e-12,
    );
    check_approx(
        "rcp.approx.f32 {d}, {a}",
        &wide,
        |x| 1.0 / x,
        2f64.powi(-23),
        tiny,
    );
    check_approx(
        "rsqrt.approx.f32 {d}, {a}",
        &wide,
        |x| 1.0 / x.sqrt(),
        2f64.powf(-22.9),
        tiny,
    );
    check_approx(
        "sqrt.approx.f32 {d}, {a}",
        &wide,
        f64::sqrt,
        2f64.powi(-23),
        tiny,
    );
    let angles: Vec<f32> = uniform(-3.2, 3.2)
        .into_iter()
        .chain(uniform(-200_000.0, 200_000.0))
        .chain([f32::NAN, 0.0, -0.0])
        .collect();
    check_approx(
        "sin.approx.f32 {d}, {a}",
        &angles,
        f64::sin,
        2f64.powi(-23),
        2f64.powf(-20.9),
    );
    check_approx(
        "cos.approx.f32 {d}, {a}",
        &angles,
        f64::cos,
        2f64.powi(-23),
        2f64.powf(-20.9),
    );
    let mut arguments = uniform(-6.0, 6.0);
    arguments.extend(uniform(-0.5, 0.5));
    arguments.extend(&wide);
    check_approx(
        "tanh.approx.f32 {d}, {a}",
        &arguments,
        f64::tanh,
        2f64.powi(-20),
        tiny,
    );
}
