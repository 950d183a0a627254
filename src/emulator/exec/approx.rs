//! The transcendental functions of PTX's `.approx` forms.
//!
//! Built from f32 and f64 additions, multiplications, divisions, square roots and FMAs alone, so that every host computes
//! the same bits; a GPU's own bits differ within the error bounds of the PTX ISA.

/// 2^x, relative error below 2^-22. Subnormal results are produced, not flushed.
#[inline(always)]
pub(crate) fn ex2(x: f32) -> f32 {
    // Beyond these the result is 0 or infinity anyway; NaN fails both comparisons and survives.
    let x = if x < -160.0 { -160.0 } else { x };
    let x = if x > 160.0 { 160.0 } else { x };
    // Adding 1.5 * 2^23 rounds to an integer, found in the low bits.
    let shifter = 12_582_912.0f32;
    let shifted = x + shifter;
    let n = shifted.to_bits().wrapping_sub(shifter.to_bits()) as i32;
    let f = x - (shifted - shifter);
    // Taylor coefficients ln(2)^k / k!: for |f| <= 1/2 the first term left out is below 2^-27.
    let mut p = 1.525_273_4e-5f32;
    p = p.mul_add(f, 1.540_353_e-4);
    p = p.mul_add(f, 1.333_355_8e-3);
    p = p.mul_add(f, 9.618_129e-3);
    p = p.mul_add(f, 5.550_411e-2);
    p = p.mul_add(f, 0.240_226_5);
    p = p.mul_add(f, std::f32::consts::LN_2);
    p = p.mul_add(f, 1.0);
    // In two halves, so that subnormal results round once and infinity is reached.
    let half = n >> 1;
    let low = f32::from_bits((half.wrapping_add(127) as u32) << 23);
    let high = f32::from_bits((n.wrapping_sub(half).wrapping_add(127) as u32) << 23);
    p * low * high
}

/// log2(x), by a series in f64: absolute error far below the 2^-22 allowed.
#[inline(always)]
pub(crate) fn lg2(x: f32) -> f32 {
    if x.is_nan() || x < 0.0 {
        return f32::NAN;
    }
    if x == 0.0 {
        return f32::NEG_INFINITY;
    }
    if x == f32::INFINITY {
        return x;
    }
    let bits = f64::from(x).to_bits();
    // Mantissa in [sqrt(1/2), sqrt(2)).
    let offset = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits());
    let exponent = (offset as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((exponent as u64) << 52));
    // log(m) = 2 atanh(s), |s| < 0.172
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut p = 1.0 / 13.0;
    for k in [11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = p * s2 + 1.0 / k;
    }
    (exponent as f64 + p * s * (2.0 * std::f64::consts::LOG2_E)) as f32
}

/// Reduces to a quarter turn: the remainder in [-pi/4, pi/4] and the quarter's number.
#[inline(always)]
fn quarter(x: f32) -> (f64, i64) {
    let x = f64::from(x);
    let shifter = 6_755_399_441_055_744.0f64;
    let shifted = x * std::f64::consts::FRAC_2_PI + shifter;
    let n = shifted - shifter;
    // Two parts of pi/2, exact to about 2^-90 for the quotients an f32 below 2^20 gives.
    let r = n.mul_add(-std::f64::consts::FRAC_PI_2, x);
    let r = n.mul_add(-6.123_233_995_736_766e-17, r);
    // Of arguments beyond 2^51 nothing is left, but sines stay sines.
    let r = r.clamp(-std::f64::consts::FRAC_PI_4, std::f64::consts::FRAC_PI_4);
    (r, shifted.to_bits() as i64)
}

#[inline(always)]
fn sine_cosine(x: f32, turn: i64) -> f32 {
    let (r, n) = quarter(x);
    let r2 = r * r;
    let mut s = -1.0 / 39_916_800.0;
    for c in [1.0 / 362_880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0] {
        s = s * r2 + c;
    }
    let mut c = -1.0 / 3_628_800.0;
    for k in [1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0] {
        c = c * r2 + k;
    }
    let n = n + turn;
    let value = if n & 1 == 0 { s * r } else { c };
    let value = if n & 2 == 0 { value } else { -value };
    if x.is_finite() {
        value as f32
    } else {
        f32::NAN
    }
}

/// sin(x)
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    sine_cosine(x, 0)
}

/// cos(x)
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    sine_cosine(x, 1)
}

/// tanh(x), relative error below 2^-20 (2^-11 is allowed).
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    // Odd Taylor series where 1 - 2 / (e^2x + 1) would cancel.
    let x2 = a * a;
    let mut p = 62.0 / 2835.0f32;
    p = p.mul_add(-x2, 17.0 / 315.0);
    p = p.mul_add(-x2, 2.0 / 15.0);
    p = p.mul_add(-x2, 1.0 / 3.0);
    let small = p.mul_add(-x2 * a, a);
    let e = ex2(a.min(16.0) * (2.0 * std::f32::consts::LOG2_E));
    let large = 1.0 - 2.0 / (e + 1.0);
    let magnitude = if a < 0.3 { small } else { large };
    let magnitude = if x.is_nan() { x } else { magnitude };
    f32::from_bits((magnitude.to_bits() & 0x7fff_ffff) | (x.to_bits() & 0x8000_0000))
}

/// 1 / sqrt(x)
#[inline(always)]
pub(crate) fn rsqrt(x: f32) -> f32 {
    // Through f64: one rounding, and no subnormal trouble.
    let r = (1.0 / f64::from(x).sqrt()) as f32;
    if x == 0.0 {
        f32::INFINITY.copysign(x)
    } else {
        r
    }
}
