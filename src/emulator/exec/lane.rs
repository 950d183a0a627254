//! How values of PTX types lie in register slots: 16- and 32-bit ones as 32 lanes of 32 bits, 64-bit ones as 32 lanes of
//! 64 bits. The upper half of a 16-bit value's lane is never read.

use super::float16::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::warp::{LANES, Warp};
use crate::emulator::ptx::RegClass;

/// The bits of a register lane.
pub(crate) trait Raw: Copy {
    /// Its width.
    const WIDTH: u32;
    /// Zero-extended to 64 bits.
    fn wide(self) -> u64;
    /// The low bits.
    fn of(value: u64) -> Self;
    /// Writes the lanes of the warp's mask.
    ///
    /// # Safety
    /// `slot` is a slot of 32 lanes of this width in the warp's register file.
    unsafe fn write(warp: &mut Warp, slot: u32, value: &[Self; LANES]);
}

impl Raw for u32 {
    const WIDTH: u32 = 32;
    #[inline(always)]
    fn wide(self) -> u64 {
        self.into()
    }
    #[inline(always)]
    fn of(value: u64) -> u32 {
        value as u32
    }
    #[inline(always)]
    unsafe fn write(warp: &mut Warp, slot: u32, value: &[u32; LANES]) {
        // SAFETY: passed on to the caller.
        unsafe { warp.write32(slot, value) }
    }
}

impl Raw for u64 {
    const WIDTH: u32 = 64;
    #[inline(always)]
    fn wide(self) -> u64 {
        self
    }
    #[inline(always)]
    fn of(value: u64) -> u64 {
        value
    }
    #[inline(always)]
    unsafe fn write(warp: &mut Warp, slot: u32, value: &[u64; LANES]) {
        // SAFETY: passed on to the caller.
        unsafe { warp.write64(slot, value) }
    }
}

/// A scalar type that instructions compute with.
pub(crate) trait Lane: Copy {
    /// The lane of the register slot.
    type Bits: Raw;
    /// The register class that holds it.
    const CLASS: RegClass;
    /// All zero bits.
    const ZERO: Self::Bits;
    /// From a register lane.
    fn get(bits: Self::Bits) -> Self;
    /// To a register lane.
    fn put(self) -> Self::Bits;
}

macro_rules! lanes {
    ($($type:ty, $bits:ty, $class:ident, |$b:ident| $get:expr, |$v:ident| $put:expr;)*) => {$(
        impl Lane for $type {
            type Bits = $bits;
            const CLASS: RegClass = RegClass::$class;
            const ZERO: $bits = 0;
            #[inline(always)]
            fn get($b: $bits) -> Self { $get }
            #[inline(always)]
            fn put(self) -> $bits { let $v = self; $put }
        }
    )*};
}

/// An f32 whose subnormals count as zero (`.ftz`), on the way in and out.
#[derive(Clone, Copy)]
pub(crate) struct Ftz(pub f32);
/// An f32 that is clamped to `[0, 1]` when written (`.sat`); NaN becomes 0.
#[derive(Clone, Copy)]
pub(crate) struct Sat(pub f32);
/// Both.
#[derive(Clone, Copy)]
pub(crate) struct FtzSat(pub f32);
/// An f16, as its value in f32; rounded to nearest even when written.
#[derive(Clone, Copy)]
pub(crate) struct F16(pub f32);
/// A bf16, as its value in f32; rounded to nearest even when written.
#[derive(Clone, Copy)]
pub(crate) struct Bf16(pub f32);
/// Two f16, low half first.
#[derive(Clone, Copy)]
pub(crate) struct F16x2(pub f32, pub f32);
/// Two bf16, low half first.
#[derive(Clone, Copy)]
pub(crate) struct Bf16x2(pub f32, pub f32);

/// Replaces a subnormal by a zero of its sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    })
}

/// `.sat`
#[inline(always)]
pub(crate) fn saturate(x: f32) -> f32 {
    // NaN fails both comparisons and becomes 0.
    if x > 0.0 {
        if x < 1.0 { x } else { 1.0 }
    } else {
        0.0
    }
}

lanes! {
    u8, u32, B16, |b| b as u8, |v| u32::from(v);
    i8, u32, B16, |b| b as i8, |v| v as i32 as u32;
    u16, u32, B16, |b| b as u16, |v| u32::from(v);
    i16, u32, B16, |b| b as i16, |v| v as u16 as u32;
    u32, u32, B32, |b| b, |v| v;
    i32, u32, B32, |b| b as i32, |v| v as u32;
    f32, u32, B32, |b| f32::from_bits(b), |v| v.to_bits();
    u64, u64, B64, |b| b, |v| v;
    i64, u64, B64, |b| b as i64, |v| v as u64;
    f64, u64, B64, |b| f64::from_bits(b), |v| v.to_bits();
    Ftz, u32, B32, |b| Ftz(flush(f32::from_bits(b))), |v| flush(v.0).to_bits();
    Sat, u32, B32, |b| Sat(f32::from_bits(b)), |v| saturate(v.0).to_bits();
    FtzSat, u32, B32, |b| FtzSat(flush(f32::from_bits(b))), |v| saturate(flush(v.0)).to_bits();
    F16, u32, B16, |b| F16(f16_to_f32(b)), |v| f32_to_f16(v.0);
    Bf16, u32, B16, |b| Bf16(bf16_to_f32(b)), |v| f32_to_bf16(v.0);
    F16x2, u32, B32, |b| F16x2(f16_to_f32(b & 0xffff), f16_to_f32(b >> 16)),
        |v| f32_to_f16(v.0) | f32_to_f16(v.1) << 16;
    Bf16x2, u32, B32, |b| Bf16x2(bf16_to_f32(b & 0xffff), bf16_to_f32(b >> 16)),
        |v| f32_to_bf16(v.0) | f32_to_bf16(v.1) << 16;
}

/// The f32 family: what `.ftz` and `.sat` choose between.
pub(crate) trait Float: Lane {
    fn value(self) -> f32;
    fn of(x: f32) -> Self;
}

macro_rules! floats {
    ($($type:ident)*) => {$(
        impl Float for $type {
            #[inline(always)]
            fn value(self) -> f32 { self.0 }
            #[inline(always)]
            fn of(x: f32) -> Self { $type(x) }
        }
    )*};
}
floats!(Ftz Sat FtzSat F16 Bf16);

impl Float for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
    #[inline(always)]
    fn of(x: f32) -> f32 {
        x
    }
}
