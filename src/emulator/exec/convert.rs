//! `cvt`.

use super::float16::{f32_to_bf16_rz, f32_to_f16_rz};
use super::lane::{Bf16, F16, Float, Ftz, FtzSat, Lane, Sat};
use super::op::{Selected, binary, unary};

/// Modifiers of a conversion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Modifiers<'a> {
    /// `rn`, `rz`, `rm`, `rp`, `rni`, `rzi`, `rmi`, `rpi`, or empty.
    pub rounding: &'a str,
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
    /// `.relu`
    pub relu: bool,
}

/// An integer type: conversions go through i128, which holds them all.
trait Integer: Lane {
    const BITS: u32;
    fn wide(self) -> i128;
    fn wrap(value: i128) -> Self;
    fn clamp(value: i128) -> Self;
    /// From an integral float; out of range clamps, NaN becomes `nan`.
    fn of_float(value: f64, nan: Self) -> Self;
    /// What NaN becomes unless the conversion is from f32 or narrower to 32 bits or fewer: only the top bit set.
    const NAN: Self;
    const ZERO_VALUE: Self;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
}

macro_rules! integers {
    ($($ty:ty, $unsigned:ty;)*) => {$(
        impl Integer for $ty {
            const BITS: u32 = <$ty>::BITS;
            const NAN: Self = (1 as $unsigned << (<$ty>::BITS - 1)) as $ty;
            const ZERO_VALUE: Self = 0;
            #[inline(always)]
            fn wide(self) -> i128 { self as i128 }
            #[inline(always)]
            fn wrap(value: i128) -> Self { value as $ty }
            #[inline(always)]
            fn clamp(value: i128) -> Self { value.clamp(<$ty>::MIN as i128, <$ty>::MAX as i128) as $ty }
            #[inline(always)]
            fn of_float(value: f64, nan: Self) -> Self { if value.is_nan() { nan } else { value as $ty } }
            #[inline(always)]
            fn to_f32(self) -> f32 { self as f32 }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
        }
    )*};
}
integers! { u8, u8; i8, u8; u16, u16; i16, u16; u32, u32; i32, u32; u64, u64; i64, u64; }

fn int_to_int<S: Integer, D: Integer>(sat: bool) -> Selected {
    if sat {
        unary(|a: S| D::clamp(a.wide()))
    } else {
        unary(|a: S| D::wrap(a.wide()))
    }
}

fn float_to_int<S: Lane, D: Integer, V: Fn(S) -> f64 + Copy>(
    rounding: &str,
    wide_source: bool,
    value: V,
) -> Option<Selected> {
    // NaN becomes 0 only between types of at most 32 bits.
    if wide_source || D::BITS == 64 {
        Some(match rounding {
            "rzi" => unary(move |a: S| D::of_float(value(a).trunc(), D::NAN)),
            "rni" => unary(move |a: S| D::of_float(value(a).round_ties_even(), D::NAN)),
            "rmi" => unary(move |a: S| D::of_float(value(a).floor(), D::NAN)),
            "rpi" => unary(move |a: S| D::of_float(value(a).ceil(), D::NAN)),
            _ => return None,
        })
    } else {
        Some(match rounding {
            "rzi" => unary(move |a: S| D::of_float(value(a).trunc(), D::ZERO_VALUE)),
            "rni" => unary(move |a: S| D::of_float(value(a).round_ties_even(), D::ZERO_VALUE)),
            "rmi" => unary(move |a: S| D::of_float(value(a).floor(), D::ZERO_VALUE)),
            "rpi" => unary(move |a: S| D::of_float(value(a).ceil(), D::ZERO_VALUE)),
            _ => return None,
        })
    }
}

/// From an integer type to anything.
fn from_int<S: Integer>(to: &str, m: Modifiers<'_>) -> Option<Selected> {
    Some(match (to, m.rounding) {
        ("u8", "") => int_to_int::<S, u8>(m.sat),
        ("s8", "") => int_to_int::<S, i8>(m.sat),
        ("u16", "") => int_to_int::<S, u16>(m.sat),
        ("s16", "") => int_to_int::<S, i16>(m.sat),
        ("u32", "") => int_to_int::<S, u32>(m.sat),
        ("s32", "") => int_to_int::<S, i32>(m.sat),
        ("u64", "") => int_to_int::<S, u64>(m.sat),
        ("s64", "") => int_to_int::<S, i64>(m.sat),
        ("f32", "rn") if m.sat => unary(|a: S| Sat(a.to_f32())),
        ("f32", "rn") => unary(|a: S| a.to_f32()),
        ("f64", "rn") => unary(|a: S| a.to_f64()),
        // f32 rounds wide integers first; to odd would be needed for the last bit beyond 24 bits.
        ("f16", "rn") if S::BITS <= 16 => unary(|a: S| F16(a.to_f32())),
        ("bf16", "rn") if S::BITS <= 16 => unary(|a: S| Bf16(a.to_f32())),
        _ => return None,
    })
}

/// From a float type to an integer type.
fn to_int<S: Lane, V: Fn(S) -> f64 + Copy>(
    to: &str,
    rounding: &str,
    wide: bool,
    value: V,
) -> Option<Selected> {
    match to {
        "u8" => float_to_int::<S, u8, V>(rounding, wide, value),
        "s8" => float_to_int::<S, i8, V>(rounding, wide, value),
        "u16" => float_to_int::<S, u16, V>(rounding, wide, value),
        "s16" => float_to_int::<S, i16, V>(rounding, wide, value),
        "u32" => float_to_int::<S, u32, V>(rounding, wide, value),
        "s32" => float_to_int::<S, i32, V>(rounding, wide, value),
        "u64" => float_to_int::<S, u64, V>(rounding, wide, value),
        "s64" => float_to_int::<S, i64, V>(rounding, wide, value),
        _ => None,
    }
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    if x.is_nan() || x > 0.0 { x } else { 0.0 }
}

/// f64 to f32, rounded down or up.
#[inline(always)]
fn narrow(x: f64, down: bool) -> f32 {
    let nearest = x as f32;
    if x.is_nan() || x.is_infinite() {
        nearest
    } else if down && f64::from(nearest) > x {
        nearest.next_down()
    } else if !down && f64::from(nearest) < x {
        nearest.next_up()
    } else {
        nearest
    }
}

fn from_f32<S: Float>(to: &str, m: Modifiers<'_>) -> Option<Selected> {
    Some(match (to, m.rounding) {
        ("f32", "") if m.sat => unary(|a: S| Sat(a.value())),
        ("f32", "") => unary(|a: S| S::of(a.value())),
        ("f32", "rni") => unary(|a: S| S::of(a.value().round_ties_even())),
        ("f32", "rzi") => unary(|a: S| S::of(a.value().trunc())),
        ("f32", "rmi") => unary(|a: S| S::of(a.value().floor())),
        ("f32", "rpi") => unary(|a: S| S::of(a.value().ceil())),
        ("f64", "") => unary(|a: S| f64::from(a.value())),
        ("f16", "rn") if m.relu => unary(|a: S| F16(relu(a.value()))),
        ("f16", "rn") if m.sat => unary(|a: S| F16(super::lane::saturate(a.value()))),
        ("f16", "rn") => unary(|a: S| F16(a.value())),
        ("bf16", "rn") if m.relu => unary(|a: S| Bf16(relu(a.value()))),
        ("bf16", "rn") => unary(|a: S| Bf16(a.value())),
        ("f16", "rz") if !m.relu => unary(|a: S| f32_to_f16_rz(a.value()) as u16),
        ("bf16", "rz") if !m.relu => unary(|a: S| f32_to_bf16_rz(a.value()) as u16),
        _ => return to_int(to, m.rounding, false, |a: S| f64::from(a.value())),
    })
}

/// `cvt.<m>.<to>.<from>` with one source.
pub(crate) fn select(to: &str, from: &str, m: Modifiers<'_>) -> Option<Selected> {
    match from {
        "u8" => from_int::<u8>(to, m),
        "s8" => from_int::<i8>(to, m),
        "u16" => from_int::<u16>(to, m),
        "s16" => from_int::<i16>(to, m),
        "u32" => from_int::<u32>(to, m),
        "s32" => from_int::<i32>(to, m),
        "u64" => from_int::<u64>(to, m),
        "s64" => from_int::<i64>(to, m),
        "f32" if m.ftz && m.sat && to == "f32" => Some(unary(|a: Ftz| FtzSat(a.0))),
        "f32" if m.ftz => from_f32::<Ftz>(to, m),
        "f32" => from_f32::<f32>(to, m),
        "f64" => Some(match (to, m.rounding) {
            ("f64", "") => unary(|a: f64| a),
            ("f64", "rni") => unary(f64::round_ties_even),
            ("f64", "rzi") => unary(f64::trunc),
            ("f64", "rmi") => unary(f64::floor),
            ("f64", "rpi") => unary(f64::ceil),
            ("f32", "rn") if m.ftz => unary(|a: f64| Ftz(a as f32)),
            ("f32", "rn") => unary(|a: f64| a as f32),
            ("f32", "rz") => unary(|a: f64| narrow(a, a > 0.0)),
            ("f32", "rm") => unary(|a: f64| narrow(a, true)),
            ("f32", "rp") => unary(|a: f64| narrow(a, false)),
            _ => return to_int(to, m.rounding, true, |a: f64| a),
        }),
        "f16" => half::<F16>("f16", to, m),
        "bf16" => half::<Bf16>("bf16", to, m),
        _ => None,
    }
}

fn half<S: Float>(name: &str, to: &str, m: Modifiers<'_>) -> Option<Selected> {
    Some(match (to, m.rounding) {
        ("f32", "") if m.ftz => unary(|a: S| Ftz(a.value())),
        ("f32", "") if m.sat => unary(|a: S| Sat(a.value())),
        ("f32", "") => unary(|a: S| a.value()),
        ("f64", "") => unary(|a: S| f64::from(a.value())),
        ("f16", "rn") if name == "bf16" => unary(|a: S| F16(a.value())),
        ("bf16", "rn") if name == "f16" => unary(|a: S| Bf16(a.value())),
        (_, "") if to == name => unary(|a: S| a),
        (_, "rni") if to == name => unary(|a: S| S::of(a.value().round_ties_even())),
        (_, "rzi") if to == name => unary(|a: S| S::of(a.value().trunc())),
        (_, "rmi") if to == name => unary(|a: S| S::of(a.value().floor())),
        (_, "rpi") if to == name => unary(|a: S| S::of(a.value().ceil())),
        _ => return to_int(to, m.rounding, false, |a: S| f64::from(a.value())),
    })
}

/// `cvt.<m>.<to>.f32 d, a, b`: a becomes the upper half, b the lower.
pub(crate) fn select_packed(to: &str, m: Modifiers<'_>) -> Option<Selected> {
    Some(match (to, m.rounding, m.relu) {
        ("bf16x2", "rn", false) => binary(|a: f32, b: f32| Bf16(b).put() | Bf16(a).put() << 16),
        ("bf16x2", "rn", true) => {
            binary(|a: f32, b: f32| Bf16(relu(b)).put() | Bf16(relu(a)).put() << 16)
        }
        ("bf16x2", "rz", false) => {
            binary(|a: f32, b: f32| f32_to_bf16_rz(b) | f32_to_bf16_rz(a) << 16)
        }
        ("f16x2", "rn", false) => binary(|a: f32, b: f32| F16(b).put() | F16(a).put() << 16),
        ("f16x2", "rn", true) => {
            binary(|a: f32, b: f32| F16(relu(b)).put() | F16(relu(a)).put() << 16)
        }
        ("f16x2", "rz", false) => {
            binary(|a: f32, b: f32| f32_to_f16_rz(b) | f32_to_f16_rz(a) << 16)
        }
        _ => return None,
    })
}
