//! Operands for floating-point instructions, and how results are compared.

use super::elementwise::{Noise, W, check_with, combine};

/// f32 bits: zeros, subnormals, ones, limits, infinities, NaN, and values around integers.
pub fn floats() -> Vec<u64> {
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

pub fn doubles() -> Vec<u64> {
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

pub fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

pub fn d(x: u64) -> f64 {
    f64::from_bits(x)
}

/// Equal bits, or both NaN.
pub fn same32(_: &[u64], got: u64, want: u64) -> bool {
    got == want || (f(got).is_nan() && f(want).is_nan())
}

pub fn same64(_: &[u64], got: u64, want: u64) -> bool {
    got == want || (d(got).is_nan() && d(want).is_nan())
}

pub fn check32(statement: &str, count: usize, model: impl Fn(&[f32]) -> f32) {
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

pub fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

pub fn max(a: f32, b: f32) -> f32 {
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

pub fn min(a: f32, b: f32) -> f32 {
    -max(-a, -b)
}

/// 16-bit patterns: the edges of both formats.
pub fn halves() -> Vec<u64> {
    let mut bits = vec![
        0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x3c00, 0xbc00, 0x3c01,
        0x4248, 0x3f80, 0xbf80, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x80, 0x7f,
    ];
    let mut noise = Noise(3);
    bits.extend((0..24).map(|_| noise.next() & 0xffff));
    bits
}
