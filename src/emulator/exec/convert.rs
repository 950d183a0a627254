//! `cvt`.

use super::float16::narrow_directed;
use super::lane::{Bf16, F16, Float, Ftz, FtzSat, Lane, Sat, saturate};
use super::op::rare::unary;
use super::op::{self, CHUNK, Op, Selected, chunk, out, plain_handler, set_chunk, settle};
use super::soft_float::Format;
use super::soft_ops::{Conversion, Pair};
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
    /// `.satfinite`
    pub finite: bool,
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
    let direct = if m.finite {
        None
    } else {
        select_direct(to, from, m)
    };
    direct.or_else(|| select_soft(to, from, Pair::Single, m))
}

/// Any conversion to a float format, after checking that PTX has it.
fn select_soft(to: &str, from: &str, pair: Pair, m: Modifiers<'_>) -> Option<Selected> {
    let integer = match from {
        "u8" => Some(16),
        "u16" => Some(17),
        "u32" => Some(18),
        "u64" => Some(19),
        "s8" => Some(24),
        "s16" => Some(25),
        "s32" => Some(26),
        "s64" => Some(27),
        _ => None,
    };
    let plain = |name: &str| matches!(name, "f16" | "bf16" | "f32" | "f64");
    let narrow = |name: &str| matches!(name, "e4m3" | "e5m2" | "e2m1" | "e2m3" | "e3m2");
    let rounded = matches!(m.rounding, "rn" | "rz" | "rm" | "rp");
    let whole = matches!(m.rounding, "rni" | "rzi" | "rmi" | "rpi");
    let only_finite = to == "f16" || to == "bf16" || narrow(to) || to == "tf32" || to == "ue8m0";
    let known = match (from, to) {
        _ if integer.is_some() => plain(to) && rounded && !m.relu && !m.ftz,
        ("f32", "tf32") => (m.rounding == "rna" && !m.relu) || matches!(m.rounding, "rn" | "rz"),
        ("f32" | "bf16", "ue8m0") => {
            pair != Pair::Single && matches!(m.rounding, "rz" | "rp") && !m.relu
        }
        ("ue8m0", "bf16") => pair == Pair::Packed && m.rounding == "rn" && !m.relu,
        ("f32" | "f16", to) if narrow(to) => pair != Pair::Single && m.rounding == "rn" && m.finite,
        (from, "f16") if narrow(from) => pair == Pair::Packed && m.rounding == "rn",
        (from, to) if plain(from) && plain(to) => {
            let widens = Format::number(from) == Format::number(to)
                || to == "f64"
                || (to == "f32" && from != "f64");
            (if widens {
                m.rounding.is_empty() || whole
            } else {
                rounded
            }) && (!m.relu || (from == "f32" && to.ends_with("f16")))
                && (pair == Pair::Single || from == "f32")
        }
        _ => false,
    };
    if !known
        || (m.finite && !only_finite)
        || (m.sat && (!plain(to) || m.relu || m.finite))
        || (m.ftz && from != "f32" && to != "f32")
    {
        return None;
    }
    let number = match m.rounding {
        "rz" | "rzi" => 1,
        "rm" | "rmi" => 2,
        "rp" | "rpi" => 3,
        "rna" => 4,
        _ => 0,
    };
    let conversion = Conversion {
        from: match integer {
            Some(number) => number,
            None => Format::number(from)? as u8,
        },
        to: Format::number(to)? as u8,
        rounding: number,
        integral: whole,
        flush: m.ftz,
        saturate: m.sat,
        relu: m.relu,
        finite: m.finite,
        pair,
    };
    Some(conversion.select())
}

fn select_direct(to: &str, from: &str, m: Modifiers<'_>) -> Option<Selected> {
    let from_float = !from.starts_with(['s', 'u']);
    let to_float = !to.starts_with(['s', 'u']);
    // The direct forms know `.sat` and `.relu` where compilers use them.
    let saturates = match (from, to, m.rounding) {
        ("f32" | "f16" | "bf16", "f32", "") => !m.ftz || from == "f32",
        ("f32", "f16", "rn") => true,
        (_, "f32", "rn") => !from_float,
        _ => !to_float && !from_float,
    };
    if (m.sat && !saturates && to_float)
        || (m.relu && !(from == "f32" && to.ends_with("f16") && !m.sat))
    {
        return None;
    }
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
    let element = to.strip_suffix("x2")?;
    if m.finite || m.ftz || m.sat {
        return select_soft(element, "f32", Pair::Apart, m);
    }
    Some(match (to, m.rounding, m.relu) {
        ("bf16x2", "rn", false) => op::binary(|a: f32, b: f32| Bf16(b).put() | Bf16(a).put() << 16),
        ("f16x2", "rn", false) => op::binary(|a: f32, b: f32| F16(b).put() | F16(a).put() << 16),
        _ => return select_soft(element, "f32", Pair::Apart, m),
    })
}

/// `cvt.<m>.<to>x2.<from>x2`
pub(crate) fn select_pair(to: &str, from: &str, m: Modifiers<'_>) -> Option<Selected> {
    if m.ftz || m.sat {
        return None;
    }
    let (to, from) = (to.strip_suffix("x2")?, from.strip_suffix("x2")?);
    select_soft(to, from, Pair::Packed, m)
}

/// `cvt.pack.sat.<to>.s32[.b32] d, a, b[, c]`: a and b, saturated to a type of 2 to 16 bits, a above b; the low half of
/// `c` is moved above them.
pub(crate) fn select_pack(to: &str, chained: bool) -> Option<Selected> {
    use op::rare::{binary, ternary};
    Some(match (to, chained) {
        ("u16", false) => binary(|a: i32, b: i32| pack(a, b, 0, 16, false)),
        ("s16", false) => binary(|a: i32, b: i32| pack(a, b, 0, 16, true)),
        ("u8", false) => binary(|a: i32, b: i32| pack(a, b, 0, 8, false)),
        ("s8", false) => binary(|a: i32, b: i32| pack(a, b, 0, 8, true)),
        ("u8", true) => ternary(|a: i32, b: i32, c: u32| pack(a, b, c, 8, false)),
        ("s8", true) => ternary(|a: i32, b: i32, c: u32| pack(a, b, c, 8, true)),
        ("u4", true) => ternary(|a: i32, b: i32, c: u32| pack(a, b, c, 4, false)),
        ("s4", true) => ternary(|a: i32, b: i32, c: u32| pack(a, b, c, 4, true)),
        ("u2", true) => ternary(|a: i32, b: i32, c: u32| pack(a, b, c, 2, false)),
        ("s2", true) => ternary(|a: i32, b: i32, c: u32| pack(a, b, c, 2, true)),
        _ => return None,
    })
}

fn pack(a: i32, b: i32, c: u32, bits: u32, signed: bool) -> u32 {
    let (low, high) = if signed {
        (-1i64 << (bits - 1), (1i64 << (bits - 1)) - 1)
    } else {
        (0, (1i64 << bits) - 1)
    };
    let one = |x: i32| (i64::from(x).clamp(low, high) as u32) & (u32::MAX >> (32 - bits));
    let pair = one(b) | one(a) << bits;
    if bits == 16 {
        pair
    } else {
        pair | c << (2 * bits)
    }
}
