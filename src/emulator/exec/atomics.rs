//! `atom` and `red`: one compare-and-swap loop a lane, lanes in ascending order.

use super::access::{SPACE_BITS, prepare, space};
use super::op::{Op, conjure, plain_handler};
use super::warp::{Handler, Ins, Warp};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// An integer with an atomic counterpart, and the register lane that holds it.
pub(crate) trait Word: Copy + Eq {
    type Bits: Copy;
    fn of(bits: Self::Bits) -> Self;
    fn bits(self) -> Self::Bits;
    /// Replaces the value at `address` by `f` of it and returns the old one.
    unsafe fn update(address: u64, f: impl Fn(Self) -> Self) -> Self;
}

macro_rules! words {
    ($($word:ty, $bits:ty, $atomic:ty;)*) => {$(
        impl Word for $word {
            type Bits = $bits;
            fn of(bits: $bits) -> Self { bits as $word }
            fn bits(self) -> $bits { self.into() }
            unsafe fn update(address: u64, f: impl Fn(Self) -> Self) -> Self {
                // SAFETY: the caller has checked the address; kernels share such words through atomics.
                let cell = unsafe { <$atomic>::from_ptr(address as *mut $word) };
                let mut old = cell.load(Ordering::SeqCst);
                loop {
                    match cell.compare_exchange_weak(old, f(old), Ordering::SeqCst, Ordering::SeqCst) {
                        Ok(_) => return old,
                        Err(now) => old = now,
                    }
                }
            }
        }
    )*};
}
words! {
    u16, u32, AtomicU16;
    u32, u32, AtomicU32;
    u64, u64, AtomicU64;
}

/// `ops`: destination for the old value, address, b, c. `red` has a destination that nobody reads.
struct Atomic<W, F>(PhantomData<(W, F)>);

impl<W: Word, F: Fn(W, W, W) -> W + Copy> Op for Atomic<W, F> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = conjure::<F>();
        let Some((all, _)) = prepare(warp, ip, ins.ops[1], size_of::<W>() as u64, true) else {
            return std::ptr::null();
        };
        warp.counters.atomics += u64::from(warp.mask.count_ones());
        if ins.ext & SPACE_BITS == space::SHARED {
            warp.counters.shared_requests += 1;
        }
        let mut rest = warp.mask;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // SAFETY: the operands are slots of 32 lanes.
            let (b, c) = unsafe {
                (
                    *warp.slot::<W::Bits>(ins.ops[2]).add(lane),
                    *warp.slot::<W::Bits>(ins.ops[3]).add(lane),
                )
            };
            // SAFETY: the access has been checked.
            let old = unsafe { W::update(all.0[lane], |old| f(old, W::of(b), W::of(c))) };
            // SAFETY: the first operand is the destination.
            unsafe { *warp.slot::<W::Bits>(ins.ops[0]).add(lane) = old.bits() };
        }
        ip.wrapping_add(1)
    }
}

fn make<W: Word, F: Fn(W, W, W) -> W + Copy>(_: F) -> Handler {
    plain_handler::<Atomic<W, F>>()
}

fn float32(f: impl Fn(f32, f32) -> f32) -> impl Fn(u32, u32) -> u32 {
    move |a, b| f(f32::from_bits(a), f32::from_bits(b)).to_bits()
}

/// The handler of `atom.<operation>.<type>`.
pub(crate) fn select(operation: &str, ty: &str) -> Option<Handler> {
    use super::lane::{Bf16, Bf16x2, F16, F16x2, Lane};
    Some(match (operation, ty) {
        ("add", "u32" | "s32") => make(|a: u32, b, _| a.wrapping_add(b)),
        ("add", "u64" | "s64") => make(|a: u64, b, _| a.wrapping_add(b)),
        ("add", "f32") => make(|a: u32, b, _| float32(|x, y| x + y)(a, b)),
        ("add", "f64") => make(|a: u64, b, _| (f64::from_bits(a) + f64::from_bits(b)).to_bits()),
        ("add", "f16") => {
            make(|a: u16, b, _| F16(F16::get(a.into()).0 + F16::get(b.into()).0).put() as u16)
        }
        ("add", "bf16") => {
            make(|a: u16, b, _| Bf16(Bf16::get(a.into()).0 + Bf16::get(b.into()).0).put() as u16)
        }
        ("add", "f16x2") => make(|a: u32, b, _| {
            let (a, b) = (F16x2::get(a), F16x2::get(b));
            F16x2(a.0 + b.0, a.1 + b.1).put()
        }),
        ("add", "bf16x2") => make(|a: u32, b, _| {
            let (a, b) = (Bf16x2::get(a), Bf16x2::get(b));
            Bf16x2(a.0 + b.0, a.1 + b.1).put()
        }),
        ("min", "u32") => make(|a: u32, b, _| a.min(b)),
        ("max", "u32") => make(|a: u32, b, _| a.max(b)),
        ("min", "s32") => make(|a: u32, b, _| (a as i32).min(b as i32) as u32),
        ("max", "s32") => make(|a: u32, b, _| (a as i32).max(b as i32) as u32),
        ("min", "u64") => make(|a: u64, b, _| a.min(b)),
        ("max", "u64") => make(|a: u64, b, _| a.max(b)),
        ("min", "s64") => make(|a: u64, b, _| (a as i64).min(b as i64) as u64),
        ("max", "s64") => make(|a: u64, b, _| (a as i64).max(b as i64) as u64),
        ("inc", "u32") => make(|a: u32, b, _| if a >= b { 0 } else { a + 1 }),
        ("dec", "u32") => make(|a: u32, b, _| if a == 0 || a > b { b } else { a - 1 }),
        ("and", "b32") => make(|a: u32, b, _| a & b),
        ("or", "b32") => make(|a: u32, b, _| a | b),
        ("xor", "b32") => make(|a: u32, b, _| a ^ b),
        ("and", "b64") => make(|a: u64, b, _| a & b),
        ("or", "b64") => make(|a: u64, b, _| a | b),
        ("xor", "b64") => make(|a: u64, b, _| a ^ b),
        ("exch", "b32") => make(|_: u32, b, _| b),
        ("exch", "b64") => make(|_: u64, b, _| b),
        ("cas", "b16") => make(|a: u16, b, c| if a == b { c } else { a }),
        ("cas", "b32") => make(|a: u32, b, c| if a == b { c } else { a }),
        ("cas", "b64") => make(|a: u64, b, c| if a == b { c } else { a }),
        _ => return None,
    })
}
