//! Conversions between f32 and the 16-bit formats, without branches so that they vectorise.

/// bf16 bits (low half of `bits`) to f32.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// f32 to bf16 bits, to nearest even. NaN becomes the canonical 0x7fff, as on hardware.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { 0x7fff } else { rounded }
}

/// f16 bits (low half of `bits`) to f32.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u32) -> f32 {
    let sign = (bits & 0x8000) << 16;
    let rest = bits & 0x7fff;
    // Shifting exponent and mantissa into place leaves an exponent that is 112 too small; one multiplication mends
    // normal and subnormal values alike.
    let scaled = f32::from_bits(rest << 13) * f32::from_bits((254 - 15) << 23);
    let special = f32::from_bits(0x7f80_0000 | rest << 13);
    let magnitude = if rest >= 0x7c00 { special } else { scaled };
    f32::from_bits(magnitude.to_bits() | sign)
}

/// f32 to f16 bits, to nearest even. NaN becomes the canonical 0x7fff, as on hardware.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u32 {
    let bits = x.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: rebias, round on bit 12.
    let normal = magnitude.wrapping_sub(112 << 23);
    let normal = normal.wrapping_add(0xfff + (normal >> 13 & 1)) >> 13;
    // Subnormal results: adding 0.5 lets the FPU round at the right bit, 2^-24.
    let subnormal = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0.5f32.to_bits());
    let value = if magnitude < 113 << 23 {
        subnormal
    } else {
        normal
    };
    let value = if magnitude >= 0x4780_0000 {
        0x7c00
    } else {
        value.min(0x7c00)
    };
    if magnitude > 0x7f80_0000 {
        0x7fff
    } else {
        sign | value
    }
}

/// `a + b` in f64, rounded to odd: an inexact sum gets a set last bit, so that a later rounding to fewer bits sees on which
/// side of a halfway case, or of a representable value, the exact sum lies.
#[inline(always)]
pub(crate) fn add_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    // The sum's error, exactly (Knuth).
    let virtual_b = sum - a;
    let error = (a - (sum - virtual_b)) + (b - virtual_b);
    let bits = sum.to_bits();
    if error != 0.0 && error.is_finite() && bits & 1 == 0 {
        let away = (error > 0.0) == (sum > 0.0);
        f64::from_bits(if away { bits + 1 } else { bits - 1 })
    } else {
        sum
    }
}

/// `a * b + c` in f32 with an error small enough that rounding to f16 or bf16 afterwards gives the correctly rounded
/// result: everything is rounded to odd.
#[inline(always)]
pub(crate) fn fma_for_half(a: f32, b: f32, c: f32) -> f32 {
    // The product of two values of at most 11 bits is exact.
    let sum = add_to_odd(f64::from(a) * f64::from(b), f64::from(c));
    let narrow = sum as f32;
    let error = sum - f64::from(narrow);
    let bits = narrow.to_bits();
    if error != 0.0 && error.is_finite() && bits & 1 == 0 {
        if narrow == 0.0 {
            return f32::from_bits(1 | if error < 0.0 { 1 << 31 } else { 0 });
        }
        let away = (error > 0.0) == (narrow > 0.0);
        return f32::from_bits(if away { bits + 1 } else { bits - 1 });
    }
    narrow
}

/// f64 to f32, rounded down or up.
#[inline(always)]
pub(crate) fn narrow_directed(x: f64, down: bool) -> f32 {
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

/// A directed rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Directed {
    /// `.rz`
    Zero,
    /// `.rm`
    Down,
    /// `.rp`
    Up,
}

/// `a * b + c`, rounded once as `mode` says.
#[inline(always)]
pub(crate) fn fma_directed(a: f32, b: f32, c: f32, mode: Directed) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let sum = add_to_odd(product, f64::from(c));
    if sum == 0.0 && product != 0.0 {
        // An exact cancellation.
        return if mode == Directed::Down { -0.0 } else { 0.0 };
    }
    let down = match mode {
        Directed::Zero => sum > 0.0,
        Directed::Down => true,
        Directed::Up => false,
    };
    narrow_directed(sum, down)
}
