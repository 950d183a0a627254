//! f32 and f64 instructions.

use super::elementwise::{D, H, Noise, P, W, check, check_some, check_with, combine};
use super::float_values::{check32, d, doubles, f, floats, flush, halves, max, min, same64};
use half::bf16;

#[test]
fn f32_arithmetic() {
    check32("add.f32 {d}, {a}, {b}", 2, |x| x[0] + x[1]);
    check32("add.rn.ftz.f32 {d}, {a}, {b}", 2, |x| {
        flush(flush(x[0]) + flush(x[1]))
    });
    check32("sub.rn.f32 {d}, {a}, {b}", 2, |x| x[0] - x[1]);
    check32("sub.f32 {d}, {a}, {b}", 2, |x| x[0] - x[1]);
    check32("mul.f32 {d}, {a}, {b}", 2, |x| x[0] * x[1]);
    check32("mul.rn.f32 {d}, {a}, {b}", 2, |x| x[0] * x[1]);
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

/// Bits are moved, selected and compared as they are, NaNs too.
#[test]
fn bits_of_floats() {
    check("mov.f32 {d}, {a}", &[W], W, &floats(), |x| x[0]);
    check("mov.u16 {d}, {a}", &[H], H, &halves(), |x| x[0]);
    let pick = |x: &[u64]| if x[2] & 1 != 0 { x[0] } else { x[1] };
    check(
        "selp.f32 {d}, {a}, {b}, {c}",
        &[W, W, P],
        W,
        &floats(),
        pick,
    );
    let equal = |x: &[u64]| u64::from(x[0] == x[1]);
    check("setp.eq.b32 {d}, {a}, {b}", &[W, W], P, &floats(), equal);
    check("setp.eq.b64 {d}, {a}, {b}", &[D, D], P, &doubles(), equal);
    let differ = |x: &[u64]| u64::from(x[0] != x[1]);
    check("setp.ne.b32 {d}, {a}, {b}", &[W, W], P, &floats(), differ);
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
        check_some(
            &format!("add.{mode}.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &pairs,
            |x| model(v(x[0]) + v(x[1])),
            same,
        );
        check_some(
            &format!("sub.{mode}.f32 {{d}}, {{a}}, {{b}}"),
            &[W, W],
            W,
            &pairs,
            |x| model(v(x[0]) - v(x[1])),
            same,
        );
        check_some(
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
        check_some(
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
        check_some(
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

/// Within `relative` of the f64 value, or within `absolute` of it.
fn check_approx(
    statement: &str,
    inputs: &[f32],
    model: impl Fn(f64) -> f64,
    relative: f64,
    absolute: f64,
) {
    let rows: Vec<Vec<u64>> = inputs.iter().map(|x| vec![x.to_bits().into()]).collect();
    check_some(
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
        "rcp.approx.ftz.f32 {d}, {a}",
        &wide,
        |x| 1.0 / f64::from(flush(x as f32)),
        2f64.powi(-23),
        1.2e-38,
    );
    // PTX ISA, "div": within 2 ulp for divisors from 2^-126 to 2^126; beyond, 0 for finite dividends.
    let quotients: Vec<Vec<u64>> = uniform(-9.0, 9.0)
        .chunks(2)
        .map(|pair| {
            pair.iter()
                .map(|x| u64::from((x * 5.0).exp2().to_bits()))
                .collect()
        })
        .collect();
    check_some(
        "div.approx.f32 {d}, {a}, {b}",
        &[W, W],
        W,
        &quotients,
        |x| u64::from((f(x[0]) / f(x[1])).to_bits()),
        |_, got, want| (got as i64 - want as i64).abs() <= 2,
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
    // Where a unit in the last place is several turns any value will do, between -1 and 1.
    let far = [1e9, -1e12, 5e15, -1e16, 1e20, f32::MAX, f32::MIN];
    check_approx("sin.approx.f32 {d}, {a}", &far, |_| 0.0, 0.0, 1.0);
    check_approx("cos.approx.f32 {d}, {a}", &far, |_| 0.0, 0.0, 1.0);
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

/// Tests of statements.
pub const TESTS: &[fn()] = &[
    f32_arithmetic,
    bits_of_floats,
    directed_rounding,
    f64_arithmetic,
    comparisons,
    approximations,
];
