//! Floating-point arithmetic.

use super::approx;
use super::float16::{Directed, fma_directed, fma_for_half};
use super::lane::{Bf16, Bf16x2, F16, F16x2, Ftz, FtzSat, Sat};
use super::op::{Selected, binary, compare, rare, ternary, unary};

/// Modifiers of a floating-point instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Modifiers {
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
    /// `.NaN`
    pub nan: bool,
    /// `.relu`
    pub relu: bool,
    /// `.approx` or `.full`
    pub approx: bool,
    /// `.rz`, `.rm` or `.rp`
    pub directed: Option<Directed>,
}

fn f1<F: Fn(f32) -> f32 + Copy>(m: Modifiers, f: F) -> Selected {
    if m.ftz {
        unary(move |a: Ftz| Ftz(f(a.0)))
    } else {
        unary(f)
    }
}

fn f2<F: Fn(f32, f32) -> f32 + Copy>(m: Modifiers, f: F) -> Selected {
    if m.ftz {
        binary(move |a: Ftz, b: Ftz| Ftz(f(a.0, b.0)))
    } else {
        binary(f)
    }
}

fn f2_sat<F: Fn(f32, f32) -> f32 + Copy>(m: Modifiers, f: F) -> Selected {
    match (m.ftz, m.sat) {
        (_, false) => f2(m, f),
        (false, true) => binary(move |a: f32, b: f32| Sat(f(a, b))),
        (true, true) => binary(move |a: Ftz, b: Ftz| FtzSat(f(a.0, b.0))),
    }
}

fn f3_sat<F: Fn(f32, f32, f32) -> f32 + Copy>(m: Modifiers, f: F) -> Selected {
    match (m.ftz, m.sat) {
        (false, false) => ternary(f),
        (true, false) => ternary(move |a: Ftz, b: Ftz, c: Ftz| Ftz(f(a.0, b.0, c.0))),
        (false, true) => ternary(move |a: f32, b: f32, c: f32| Sat(f(a, b, c))),
        (true, true) => ternary(move |a: Ftz, b: Ftz, c: Ftz| FtzSat(f(a.0, b.0, c.0))),
    }
}

const CANONICAL_NAN: u32 = 0x7fff_ffff;

/// `a` if `condition` holds, else `b`, without a branch: what the compiler turns into vector code for many lanes.
#[inline(always)]
fn choose(condition: bool, a: u32, b: u32) -> u32 {
    let mask = u32::from(condition).wrapping_neg();
    a & mask | b & !mask
}

/// The larger or smaller of two values, as `first` says that `a` is; `equal` when neither is. A NaN operand loses.
#[inline(always)]
fn extreme(a: f32, b: f32, first: bool, equal: u32) -> f32 {
    let (x, y) = (a.to_bits(), b.to_bits());
    let ordered = choose(a == b, equal, choose(first, x, y));
    let number = choose(b.is_nan(), x, choose(a.is_nan(), y, ordered));
    f32::from_bits(choose(a.is_nan() & b.is_nan(), CANONICAL_NAN, number))
}

/// PTX `max`: a NaN operand loses, and +0 is larger than -0.
#[inline(always)]
pub(super) fn max(a: f32, b: f32) -> f32 {
    extreme(a, b, a > b, a.to_bits() & b.to_bits())
}

/// PTX `min`: a NaN operand loses, and -0 is smaller than +0.
#[inline(always)]
pub(super) fn min(a: f32, b: f32) -> f32 {
    extreme(a, b, a < b, a.to_bits() | b.to_bits())
}

#[inline(always)]
fn nan_or(a: f32, b: f32, r: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::from_bits(CANONICAL_NAN)
    } else {
        r
    }
}

/// `.relu`: negative results become +0; NaN stays.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x.is_nan() || x > 0.0 { x } else { 0.0 }
}

/// Replaces a subnormal by a zero of its sign.
#[inline(always)]
fn flush64(x: f64) -> f64 {
    if x.is_subnormal() {
        0f64.copysign(x)
    } else {
        x
    }
}

#[inline(always)]
fn max64(a: f64, b: f64) -> f64 {
    match () {
        _ if a.is_nan() => b,
        _ if b.is_nan() || a > b => a,
        _ if b > a => b,
        _ => f64::from_bits(a.to_bits() & b.to_bits()),
    }
}

#[inline(always)]
fn min64(a: f64, b: f64) -> f64 {
    match () {
        _ if a.is_nan() => b,
        _ if b.is_nan() || a < b => a,
        _ if b < a => b,
        _ => f64::from_bits(a.to_bits() | b.to_bits()),
    }
}

/// `fma` of f32 that does not round to nearest, and without `.sat`: the ones that library code runs often.
fn select_directed(base: &str, operands: usize, m: Modifiers) -> Option<Selected> {
    if (base, operands) != ("fma", 3) || m.ftz || m.sat {
        return None;
    }
    Some(match m.directed? {
        Directed::Zero => rare::ternary(|a, b, c| fma_directed(a, b, c, Directed::Zero)),
        Directed::Down => rare::ternary(|a, b, c| fma_directed(a, b, c, Directed::Down)),
        Directed::Up => rare::ternary(|a, b, c| fma_directed(a, b, c, Directed::Up)),
    })
}

/// `neg.ftz` and `abs.ftz` of the 16-bit formats that have it.
pub(crate) fn flushed_sign(base: &str, ty: &str) -> Option<Selected> {
    fn flush(half: u32) -> u32 {
        if half & 0x7c00 == 0 {
            half & 0x8000
        } else {
            half
        }
    }
    fn both(a: u32) -> u32 {
        flush(a & 0xffff) | flush(a >> 16) << 16
    }
    Some(match (base, ty) {
        ("neg", "f16") => rare::unary(|a: u16| flush(u32::from(a)) as u16 ^ 0x8000),
        ("abs", "f16") => rare::unary(|a: u16| flush(u32::from(a)) as u16 & 0x7fff),
        ("neg", "f16x2") => rare::unary(|a: u32| both(a) ^ 0x8000_8000),
        ("abs", "f16x2") => rare::unary(|a: u32| both(a) & 0x7fff_7fff),
        _ => return None,
    })
}

/// One-operand instruction.
pub(crate) fn select1(base: &str, ty: &str, m: Modifiers) -> Option<Selected> {
    if m.directed.is_some() {
        return None;
    }
    Some(match (base, ty) {
        ("neg", "f32") => f1(m, |a| -a),
        ("abs", "f32") => f1(m, f32::abs),
        ("neg", "f64") => rare::unary(|a: f64| -a),
        ("abs", "f64") => rare::unary(f64::abs),
        ("neg", "f16" | "bf16") => rare::unary(|a: u16| a ^ 0x8000),
        ("abs", "f16" | "bf16") => rare::unary(|a: u16| a & 0x7fff),
        ("neg", "f16x2" | "bf16x2") => unary(|a: u32| a ^ 0x8000_8000),
        ("abs", "f16x2" | "bf16x2") => unary(|a: u32| a & 0x7fff_7fff),
        ("rcp", "f32") => f1(m, |a| 1.0 / a),
        ("sqrt", "f32") => f1(m, f32::sqrt),
        ("rsqrt", "f32") => f1(m, approx::rsqrt),
        ("ex2", "f32") => f1(m, approx::ex2),
        ("lg2", "f32") => f1(m, approx::lg2),
        ("sin", "f32") => f1(m, approx::sin),
        ("cos", "f32") => f1(m, approx::cos),
        ("tanh", "f32") => f1(m, approx::tanh),
        ("ex2", "f16") => unary(|a: F16| F16(approx::ex2(a.0))),
        ("ex2", "bf16") => unary(|a: Bf16| Bf16(approx::ex2(a.0))),
        ("ex2", "f16x2") => unary(|a: F16x2| F16x2(approx::ex2(a.0), approx::ex2(a.1))),
        ("ex2", "bf16x2") => unary(|a: Bf16x2| Bf16x2(approx::ex2(a.0), approx::ex2(a.1))),
        ("tanh", "f16") => unary(|a: F16| F16(approx::tanh(a.0))),
        ("tanh", "bf16") => unary(|a: Bf16| Bf16(approx::tanh(a.0))),
        ("tanh", "f16x2") => unary(|a: F16x2| F16x2(approx::tanh(a.0), approx::tanh(a.1))),
        ("tanh", "bf16x2") => unary(|a: Bf16x2| Bf16x2(approx::tanh(a.0), approx::tanh(a.1))),
        ("rcp", "f64") if m.ftz => rare::unary(|a: f64| flush64(1.0 / flush64(a))),
        ("rsqrt", "f64") if m.ftz => rare::unary(|a: f64| flush64(1.0 / flush64(a).sqrt())),
        ("rcp", "f64") => rare::unary(|a: f64| 1.0 / a),
        ("sqrt", "f64") => rare::unary(f64::sqrt),
        ("rsqrt", "f64") => rare::unary(|a: f64| 1.0 / a.sqrt()),
        _ => return None,
    })
}

/// Two-operand instruction.
pub(crate) fn select2(base: &str, ty: &str, m: Modifiers) -> Option<Selected> {
    if m.directed.is_some() {
        return None;
    }
    Some(match (base, ty) {
        ("add", "f32") => f2_sat(m, |a, b| a + b),
        ("sub", "f32") => f2_sat(m, |a, b| a - b),
        ("mul", "f32") => f2_sat(m, |a, b| a * b),
        ("div", "f32") => f2(m, |a, b| a / b),
        ("max", "f32") if m.nan => f2(m, |a, b| nan_or(a, b, max(a, b))),
        ("min", "f32") if m.nan => f2(m, |a, b| nan_or(a, b, min(a, b))),
        ("max", "f32") => f2(m, max),
        ("min", "f32") => f2(m, min),
        // `copysign d, a, b` gives b the sign of a.
        ("copysign", "f32") => binary(|a: u32, b: u32| (a & 0x8000_0000) | (b & 0x7fff_ffff)),
        ("copysign", "f64") => rare::binary(|a: u64, b: u64| (a & 1 << 63) | (b & (u64::MAX >> 1))),
        ("add", "f64") => binary(|a: f64, b: f64| a + b),
        ("sub", "f64") => binary(|a: f64, b: f64| a - b),
        ("mul", "f64") => binary(|a: f64, b: f64| a * b),
        ("div", "f64") => rare::binary(|a: f64, b: f64| a / b),
        ("max", "f64") => rare::binary(max64),
        ("min", "f64") => rare::binary(min64),
        ("add", "f16") => rare::binary(|a: F16, b: F16| F16(a.0 + b.0)),
        ("sub", "f16") => rare::binary(|a: F16, b: F16| F16(a.0 - b.0)),
        ("mul", "f16") => rare::binary(|a: F16, b: F16| F16(a.0 * b.0)),
        ("max", "f16") => rare::binary(|a: F16, b: F16| F16(max(a.0, b.0))),
        ("min", "f16") => rare::binary(|a: F16, b: F16| F16(min(a.0, b.0))),
        ("add", "bf16") => rare::binary(|a: Bf16, b: Bf16| Bf16(a.0 + b.0)),
        ("sub", "bf16") => rare::binary(|a: Bf16, b: Bf16| Bf16(a.0 - b.0)),
        ("mul", "bf16") => rare::binary(|a: Bf16, b: Bf16| Bf16(a.0 * b.0)),
        ("max", "bf16") => rare::binary(|a: Bf16, b: Bf16| Bf16(max(a.0, b.0))),
        ("min", "bf16") => rare::binary(|a: Bf16, b: Bf16| Bf16(min(a.0, b.0))),
        ("add", "f16x2") => binary(|a: F16x2, b: F16x2| F16x2(a.0 + b.0, a.1 + b.1)),
        ("sub", "f16x2") => binary(|a: F16x2, b: F16x2| F16x2(a.0 - b.0, a.1 - b.1)),
        ("mul", "f16x2") => binary(|a: F16x2, b: F16x2| F16x2(a.0 * b.0, a.1 * b.1)),
        ("max", "f16x2") => rare::binary(|a: F16x2, b: F16x2| F16x2(max(a.0, b.0), max(a.1, b.1))),
        ("min", "f16x2") => rare::binary(|a: F16x2, b: F16x2| F16x2(min(a.0, b.0), min(a.1, b.1))),
        ("add", "bf16x2") => binary(|a: Bf16x2, b: Bf16x2| Bf16x2(a.0 + b.0, a.1 + b.1)),
        ("sub", "bf16x2") => binary(|a: Bf16x2, b: Bf16x2| Bf16x2(a.0 - b.0, a.1 - b.1)),
        ("mul", "bf16x2") => binary(|a: Bf16x2, b: Bf16x2| Bf16x2(a.0 * b.0, a.1 * b.1)),
        ("max", "bf16x2") => binary(|a: Bf16x2, b: Bf16x2| Bf16x2(max(a.0, b.0), max(a.1, b.1))),
        ("min", "bf16x2") => binary(|a: Bf16x2, b: Bf16x2| Bf16x2(min(a.0, b.0), min(a.1, b.1))),
        _ => return None,
    })
}

/// Three-operand instruction.
pub(crate) fn select3(base: &str, ty: &str, m: Modifiers) -> Option<Selected> {
    if m.directed.is_some() {
        return if ty == "f32" {
            select_directed(base, 3, m)
        } else {
            None
        };
    }
    Some(match (base, ty) {
        ("fma" | "mad", "f32") => f3_sat(m, f32::mul_add),
        ("fma" | "mad", "f64") => ternary(f64::mul_add),
        ("fma", "f16") if m.relu => {
            rare::ternary(|a: F16, b: F16, c: F16| F16(relu(fma_for_half(a.0, b.0, c.0))))
        }
        ("fma", "f16") => rare::ternary(|a: F16, b: F16, c: F16| F16(fma_for_half(a.0, b.0, c.0))),
        ("fma", "bf16") if m.relu => {
            rare::ternary(|a: Bf16, b: Bf16, c: Bf16| Bf16(relu(fma_for_half(a.0, b.0, c.0))))
        }
        ("fma", "bf16") => {
            rare::ternary(|a: Bf16, b: Bf16, c: Bf16| Bf16(fma_for_half(a.0, b.0, c.0)))
        }
        ("fma", "f16x2") if m.relu => ternary(|a: F16x2, b: F16x2, c: F16x2| {
            F16x2(
                relu(fma_for_half(a.0, b.0, c.0)),
                relu(fma_for_half(a.1, b.1, c.1)),
            )
        }),
        ("fma", "f16x2") => ternary(|a: F16x2, b: F16x2, c: F16x2| {
            F16x2(fma_for_half(a.0, b.0, c.0), fma_for_half(a.1, b.1, c.1))
        }),
        ("fma", "bf16x2") if m.relu => ternary(|a: Bf16x2, b: Bf16x2, c: Bf16x2| {
            Bf16x2(
                relu(fma_for_half(a.0, b.0, c.0)),
                relu(fma_for_half(a.1, b.1, c.1)),
            )
        }),
        ("fma", "bf16x2") => ternary(|a: Bf16x2, b: Bf16x2, c: Bf16x2| {
            Bf16x2(fma_for_half(a.0, b.0, c.0), fma_for_half(a.1, b.1, c.1))
        }),
        _ => return None,
    })
}

macro_rules! float_comparisons {
    ($comparison:expr, $make:expr, $lane:ident, $value:expr) => {{
        let value = $value;
        Some(match $comparison {
            "eq" => $make(move |a: $lane, b: $lane| value(a) == value(b)),
            "ne" => $make(move |a: $lane, b: $lane| value(a) < value(b) || value(a) > value(b)),
            "lt" => $make(move |a: $lane, b: $lane| value(a) < value(b)),
            "le" => $make(move |a: $lane, b: $lane| value(a) <= value(b)),
            "gt" => $make(move |a: $lane, b: $lane| value(a) > value(b)),
            "ge" => $make(move |a: $lane, b: $lane| value(a) >= value(b)),
            // Unordered comparisons hold if an operand is NaN: the opposite of the ordered opposite.
            "equ" => $make(move |a: $lane, b: $lane| !(value(a) < value(b) || value(a) > value(b))),
            "neu" => $make(move |a: $lane, b: $lane| value(a) != value(b)),
            "ltu" => $make(move |a: $lane, b: $lane| !(value(a) >= value(b))),
            "leu" => $make(move |a: $lane, b: $lane| !(value(a) > value(b))),
            "gtu" => $make(move |a: $lane, b: $lane| !(value(a) <= value(b))),
            "geu" => $make(move |a: $lane, b: $lane| !(value(a) < value(b))),
            "num" => $make(move |a: $lane, b: $lane| !value(a).is_nan() && !value(b).is_nan()),
            "nan" => $make(move |a: $lane, b: $lane| value(a).is_nan() || value(b).is_nan()),
            _ => return None,
        })
    }};
}

macro_rules! integer_comparisons {
    ($comparison:expr, $compare:path, $ty:ty) => {
        Some(match $comparison {
            "eq" => $compare(|a: $ty, b: $ty| a == b),
            "ne" => $compare(|a: $ty, b: $ty| a != b),
            "lt" | "lo" => $compare(|a: $ty, b: $ty| a < b),
            "le" | "ls" => $compare(|a: $ty, b: $ty| a <= b),
            "gt" | "hi" => $compare(|a: $ty, b: $ty| a > b),
            "ge" | "hs" => $compare(|a: $ty, b: $ty| a >= b),
            _ => return None,
        })
    };
}

/// `setp.<comparison>.<ty>`
#[allow(clippy::neg_cmp_op_on_partial_ord)]
pub(crate) fn select_compare(comparison: &str, ty: &str, ftz: bool) -> Option<Selected> {
    match ty {
        "f32" if ftz => float_comparisons!(comparison, rare::compare, Ftz, |x: Ftz| x.0),
        "f32" => float_comparisons!(comparison, compare, f32, |x: f32| x),
        "f64" => float_comparisons!(comparison, rare::compare, f64, |x: f64| x),
        "f16" => float_comparisons!(comparison, rare::compare, F16, |x: F16| x.0),
        "bf16" => float_comparisons!(comparison, rare::compare, Bf16, |x: Bf16| x.0),
        "u16" | "b16" => integer_comparisons!(comparison, rare::compare, u16),
        "s16" => integer_comparisons!(comparison, rare::compare, i16),
        "u32" | "b32" => integer_comparisons!(comparison, compare, u32),
        "s32" => integer_comparisons!(comparison, compare, i32),
        "u64" | "b64" => integer_comparisons!(comparison, compare, u64),
        "s64" => integer_comparisons!(comparison, compare, i64),
        _ => None,
    }
}

/// `testp.<property>.<ty>`: the operand is given twice.
pub(crate) fn select_test(property: &str, ty: &str) -> Option<Selected> {
    Some(match (property, ty) {
        ("finite", "f32") => rare::compare(|a: f32, _: f32| a.is_finite()),
        ("infinite", "f32") => rare::compare(|a: f32, _: f32| a.is_infinite()),
        ("number", "f32") => rare::compare(|a: f32, _: f32| !a.is_nan()),
        ("notanumber", "f32") => rare::compare(|a: f32, _: f32| a.is_nan()),
        ("normal", "f32") => rare::compare(|a: f32, _: f32| a.is_normal()),
        ("subnormal", "f32") => rare::compare(|a: f32, _: f32| a.is_subnormal()),
        ("finite", "f64") => rare::compare(|a: f64, _: f64| a.is_finite()),
        ("infinite", "f64") => rare::compare(|a: f64, _: f64| a.is_infinite()),
        ("number", "f64") => rare::compare(|a: f64, _: f64| !a.is_nan()),
        ("notanumber", "f64") => rare::compare(|a: f64, _: f64| a.is_nan()),
        ("normal", "f64") => rare::compare(|a: f64, _: f64| a.is_normal()),
        ("subnormal", "f64") => rare::compare(|a: f64, _: f64| a.is_subnormal()),
        _ => return None,
    })
}
