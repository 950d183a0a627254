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

/// f32 to bf16 bits, towards zero.
#[inline(always)]
pub(crate) fn f32_to_bf16_rz(x: f32) -> u32 {
    if x.is_nan() {
        0x7fff
    } else {
        x.to_bits() >> 16
    }
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

/// f32 to f16 bits, towards zero; finite values too large become 65504.
#[inline(always)]
pub(crate) fn f32_to_f16_rz(x: f32) -> u32 {
    let magnitude = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    if x.is_nan() {
        return 0x7fff;
    }
    let mut value = f32_to_f16(magnitude);
    if magnitude.is_finite() && f16_to_f32(value) > magnitude {
        value -= 1;
    }
    value | (x.to_bits() >> 16 & 0x8000)
}

/// `a * b + c` in f32 with an error small enough that rounding to f16 or bf16 afterwards gives the correctly rounded
/// result: the sum is rounded to odd in f64, which keeps halfway cases apart.
#[inline(always)]
pub(crate) fn fma_for_half(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let addend = f64::from(c);
    let odd = |sum: f64, error: f64| {
        let bits = sum.to_bits();
        if error != 0.0 && error.is_finite() && bits & 1 == 0 {
            let away = (error > 0.0) == (sum > 0.0);
            f64::from_bits(if away { bits + 1 } else { bits - 1 })
        } else {
            sum
        }
    };
    let sum = product + addend;
    let virtual_addend = sum - product;
    let error = (product - (sum - virtual_addend)) + (addend - virtual_addend);
    let sum = odd(sum, error);
    // Again to odd, now to f32.
    let narrow = sum as f32;
    let error = sum - f64::from(narrow);
    let bits = narrow.to_bits();
    if error != 0.0 && error.is_finite() && bits & 1 == 0 {
        let away = (error > 0.0) == (narrow > 0.0);
        if narrow == 0.0 {
            return f32::from_bits(1 | if error < 0.0 { 1 << 31 } else { 0 });
        }
        return f32::from_bits(if away { bits + 1 } else { bits - 1 });
    }
    narrow
}
