//! `cvt`.

use super::float16::{f32_to_bf16_rz, f32_to_f16_rz, narrow_directed};
use super::lane::{Bf16, F16, Float, Ftz, FtzSat, Lane, Sat, saturate};
use super::op::rare::unary;
use super::op::{self, CHUNK, Op, Selected, binary, chunk, out, plain_handler, set_chunk, settle};
use super::warp::{Ins, LANES, Warp};
use std::marker::PhantomData;

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

/// An integer type.
trait Integer: Lane {
    const BITS: u32;
    fn wide(self) -> i128;
    fn wrap(value: i128) -> Self;
    /// From an integral float; out of range clamps.
    fn of_float(value: f64) -> Self;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Integer for $ty {
            const BITS: u32 = <$ty>::BITS;
            #[inline(always)]
            fn wide(self) -> i128 { self as i128 }
            #[inline(always)]
            fn wrap(value: i128) -> Self { value as $ty }
            #[inline(always)]
            fn of_float(value: f64) -> Self { value as $ty }
            #[inline(always)]
            fn to_f32(self) -> f32 { self as f32 }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
        }
    )*};
}
integers! { u8 i8 u16 i16 u32 i32 u64 i64 }

/// Applies `f` to 32 lanes.
#[inline(always)]
unsafe fn map<S: Lane, D: Lane>(warp: &mut Warp, ip: *const Ins, f: impl Fn(S) -> D) -> *const Ins {
    // SAFETY: the run loop passes a valid instruction.
    let ins = unsafe { &*ip };
    let d = out::<D>(warp, ins.ops[0]);
    let a = warp.slot::<S::Bits>(ins.ops[1]);
    for index in 0..LANES / CHUNK {
        // SAFETY: the operands are slots of 32 lanes.
        let x = unsafe { chunk(a, index) };
        let r = x.map(|bits| f(S::get(bits)).put());
        // SAFETY: as above.
        unsafe { set_chunk(d, index, r) };
    }
    // SAFETY: `ops[0]` is the destination.
    unsafe { settle::<D>(warp, ins.ops[0]) };
    ip.wrapping_add(1)
}

/// Float to integer. `imm`: rounding (0 nearest even, 1 to zero, 2 down, 3 up), plus 4 if NaN becomes the value with only
/// the top bit set instead of 0.
struct ToInteger<S, D>(PhantomData<(S, D)>);
impl<S: Real, D: Integer> Op for ToInteger<S, D> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let imm = unsafe { &*ip }.imm;
        let nan = if imm & 4 != 0 {
            D::wrap(1 << (D::BITS - 1))
        } else {
            D::wrap(0)
        };
        let convert = |a: S| {
            let x = a.real();
            let rounded = match imm & 3 {
                0 => x.round_ties_even(),
                1 => x.trunc(),
                2 => x.floor(),
                _ => x.ceil(),
            };
            if x.is_nan() {
                nan
            } else {
                D::of_float(rounded)
            }
        };
        // SAFETY: passed on to the caller.
        unsafe { map::<S, D>(warp, ip, convert) }
    }
}

/// A float type, as f64.
trait Real: Lane {
    fn real(self) -> f64;
}
impl Real for f64 {
    #[inline(always)]
    fn real(self) -> f64 {
        self
    }
}
macro_rules! reals {
    ($($ty:ty)*) => {$(
        impl Real for $ty {
            #[inline(always)]
            fn real(self) -> f64 { self.value().into() }
        }
    )*};
}
reals! { f32 Ftz F16 Bf16 }

/// Integer to integer with saturation. `imm`: bits of the result, negative if it is signed.
struct Saturate<S, D>(PhantomData<(S, D)>);
impl<S: Integer, D: Integer> Op for Saturate<S, D> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let bits = unsafe { &*ip }.imm;
        let (low, high) = if bits < 0 {
            (-1i128 << (-bits - 1), (1i128 << (-bits - 1)) - 1)
        } else {
            (0, (1i128 << bits) - 1)
        };
        // SAFETY: passed on to the caller.
        unsafe { map::<S, D>(warp, ip, |a| D::wrap(a.wide().clamp(low, high))) }
    }
}

fn saturated<S: Integer>(to: &str) -> Option<Selected> {
    let imm = match to {
        "u8" => 8,
        "s8" => -8,
        "u16" => 16,
        "s16" => -16,
        "u32" => 32,
        "s32" => -32,
        "u64" => 64,
        "s64" => -64,
        _ => return None,
    };
    let selected = match imm {
        64 | -64 => Selected {
            handler: plain_handler::<Saturate<S, u64>>(),
            ..unary(|a: S| a.wide() as u64)
        },
        32 | -32 => Selected {
            handler: plain_handler::<Saturate<S, u32>>(),
            ..unary(|a: S| a.wide() as u32)
        },
        // Signed bytes are extended to the whole register.
        _ => Selected {
            handler: plain_handler::<Saturate<S, u32>>(),
            ..unary(|a: S| a.wide() as u16)
        },
    };
    Some(Selected { imm, ..selected })
}

/// From an integer type to anything.
fn from_int<S: Integer>(to: &str, m: Modifiers<'_>) -> Option<Selected> {
    if m.sat && !to.starts_with('f') {
        return if m.rounding.is_empty() {
            saturated::<S>(to)
        } else {
            None
        };
    }
    Some(match (to, m.rounding) {
        ("u8", "") => unary(|a: S| a.wide() as u8),
        ("s8", "") => unary(|a: S| a.wide() as i8),
        ("u16" | "s16", "") => unary(|a: S| a.wide() as u16),
        ("u32" | "s32", "") => unary(|a: S| a.wide() as u32),
        ("u64" | "s64", "") => unary(|a: S| a.wide() as u64),
        ("f32", "rn") if m.sat => unary(|a: S| Sat(a.to_f32())),
        ("f32", "rn") => unary(|a: S| a.to_f32()),
        ("f64", "rn") => unary(|a: S| a.to_f64()),
        // Wider integers would be rounded twice.
        ("f16", "rn") if S::BITS <= 16 => unary(|a: S| F16(a.to_f32())),
        ("bf16", "rn") if S::BITS <= 16 => unary(|a: S| Bf16(a.to_f32())),
        _ => return None,
    })
}

/// From a float type to an integer type; `wide` for f64.
fn to_int<S: Real>(to: &str, rounding: &str, wide: bool) -> Option<Selected> {
    let selected = match to {
        "u8" => to_integer::<S, u8>(wide),
        "s8" => to_integer::<S, i8>(wide),
        "u16" => to_integer::<S, u16>(wide),
        "s16" => to_integer::<S, i16>(wide),
        "u32" => to_integer::<S, u32>(wide),
        "s32" => to_integer::<S, i32>(wide),
        "u64" => to_integer::<S, u64>(wide),
        "s64" => to_integer::<S, i64>(wide),
        _ => return None,
    };
    let mode = match rounding {
        "rni" => 0,
        "rzi" => 1,
        "rmi" => 2,
        "rpi" => 3,
        _ => return None,
    };
    Some(Selected {
        imm: selected.imm | mode,
        ..selected
    })
}

fn to_integer<S: Real, D: Integer>(wide: bool) -> Selected {
    // NaN becomes 0 only between types of at most 32 bits.
    let imm = if wide || D::BITS == 64 { 4 } else { 0 };
    Selected {
        handler: plain_handler::<ToInteger<S, D>>(),
        dst: D::CLASS,
        src: [Some(S::CLASS), None, None],
        imm,
    }
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    if x.is_nan() || x > 0.0 { x } else { 0.0 }
}

fn from_f32<S: Float + Real>(to: &str, m: Modifiers<'_>) -> Option<Selected> {
    Some(match (to, m.rounding) {
        ("f32", "") if m.sat => unary(|a: S| Sat(a.value())),
        ("f32", "") => unary(|a: S| S::of(a.value())),
        ("f32", "rni") => unary(|a: S| S::of(a.value().round_ties_even())),
        ("f32", "rzi") => unary(|a: S| S::of(a.value().trunc())),
        ("f32", "rmi") => unary(|a: S| S::of(a.value().floor())),
        ("f32", "rpi") => unary(|a: S| S::of(a.value().ceil())),
        ("f64", "") => unary(|a: S| f64::from(a.value())),
        ("f16", "rn") if m.relu => unary(|a: S| F16(relu(a.value()))),
        ("f16", "rn") if m.sat => unary(|a: S| F16(saturate(a.value()))),
        ("f16", "rn") => unary(|a: S| F16(a.value())),
        ("bf16", "rn") if m.relu => unary(|a: S| Bf16(relu(a.value()))),
        ("bf16", "rn") => unary(|a: S| Bf16(a.value())),
        ("f16", "rz") if !m.relu => unary(|a: S| f32_to_f16_rz(a.value()) as u16),
        ("bf16", "rz") if !m.relu => unary(|a: S| f32_to_bf16_rz(a.value()) as u16),
        _ => return to_int::<S>(to, m.rounding, false),
    })
}

/// Conversions that kernels run often, compiled for wide vectors.
fn frequent(to: &str, from: &str, m: Modifiers<'_>) -> Option<Selected> {
    if m.ftz || m.sat || m.relu {
        return None;
    }
    Some(match (to, m.rounding, from) {
        ("u64" | "s64", "", "u32") => op::unary(|a: u32| u64::from(a)),
        ("u64" | "s64", "", "s32") => op::unary(|a: i32| i64::from(a)),
        ("u32" | "s32", "", "u64" | "s64") => op::unary(|a: u64| a as u32),
        ("u32" | "s32", "", "u16") => op::unary(|a: u16| u32::from(a)),
        ("u16" | "s16", "", "u32" | "s32") => op::unary(|a: u32| a as u16),
        ("f32", "rn", "s32") => op::unary(|a: i32| a as f32),
        ("f32", "rn", "u32") => op::unary(|a: u32| a as f32),
        ("f32", "", "bf16") => op::unary(|a: Bf16| a.0),
        ("f32", "", "f16") => op::unary(|a: F16| a.0),
        ("bf16", "rn", "f32") => op::unary(Bf16),
        ("f16", "rn", "f32") => op::unary(F16),
        ("f32", "rni", "f32") => op::unary(f32::round_ties_even),
        _ => return None,
    })
}

/// `cvt.<m>.<to>.<from>` with one source.
pub(crate) fn select(to: &str, from: &str, m: Modifiers<'_>) -> Option<Selected> {
    if let Some(selected) = frequent(to, from, m) {
        return Some(selected);
    }
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
            ("f32", "rz") => unary(|a: f64| narrow_directed(a, a > 0.0)),
            ("f32", "rm") => unary(|a: f64| narrow_directed(a, true)),
            ("f32", "rp") => unary(|a: f64| narrow_directed(a, false)),
            _ => return to_int::<f64>(to, m.rounding, true),
        }),
        "f16" => half::<F16>("f16", to, m),
        "bf16" => half::<Bf16>("bf16", to, m),
        _ => None,
    }
}

fn half<S: Float + Real>(name: &str, to: &str, m: Modifiers<'_>) -> Option<Selected> {
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
        _ => return to_int::<S>(to, m.rounding, false),
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
            op::rare::binary(|a: f32, b: f32| f32_to_bf16_rz(b) | f32_to_bf16_rz(a) << 16)
        }
        ("f16x2", "rn", false) => binary(|a: f32, b: f32| F16(b).put() | F16(a).put() << 16),
        ("f16x2", "rn", true) => {
            op::rare::binary(|a: f32, b: f32| F16(relu(b)).put() | F16(relu(a)).put() << 16)
        }
        ("f16x2", "rz", false) => {
            op::rare::binary(|a: f32, b: f32| f32_to_f16_rz(b) | f32_to_f16_rz(a) << 16)
        }
        _ => return None,
    })
}
