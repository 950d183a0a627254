//! Arithmetic on f16 and bf16, single and packed.

use super::elementwise::{H, W, check, check_some, check_with, combine};
use super::float_values::{floats, halves};
use half::{bf16, f16};

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
    check_some(
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
    check_some(
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
    check_some(
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
        check_some(
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
        check_some(
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

/// Tests of statements.
pub const TESTS: &[fn()] = &[sixteen_bit_arithmetic];
