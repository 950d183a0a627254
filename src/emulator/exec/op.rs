//! From scalar closures to 32-lane instruction handlers.
//!
//! A handler is compiled once for the baseline CPU and once with AVX2 and FMA; [`handler`] picks one when a module is
//! loaded. Everything a handler calls is `inline(always)` or a closure, so that it takes on the features of the
//! instantiation it lands in.

use super::lane::Lane;
use super::warp::{FULL, Handler, Ins, LANES, Warp, blend32, blend64};
use crate::emulator::ptx::RegClass;
use std::marker::PhantomData;

/// An instruction's implementation.
pub(crate) trait Op {
    /// Executes the instruction at `ip`.
    ///
    /// # Safety
    /// `ip` was made by the loader for this operation and for the warp's register file.
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn run_avx2<O: Op>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: passed on to the caller.
    unsafe { O::run(warp, ip) }
}

unsafe fn run_portable<O: Op>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: passed on to the caller.
    unsafe { O::run(warp, ip) }
}

/// Whether this CPU runs the AVX2 instantiation. `NEAP_EMULATOR_PORTABLE=1` in the environment says no, for tests.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        let portable = std::env::var_os("NEAP_EMULATOR_PORTABLE").is_some_and(|value| value == "1");
        !portable
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    })
}

/// The handler of `O` for this CPU.
pub(crate) fn handler<O: Op>() -> Handler {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        return run_avx2::<O>;
    }
    run_portable::<O>
}

/// The handler of an operation that gains nothing from wide vectors or is too rare to be compiled twice.
pub(crate) fn plain_handler<O: Op>() -> Handler {
    run_portable::<O>
}

/// A handler and the register classes of its operands.
#[derive(Clone, Copy)]
pub(crate) struct Selected {
    pub handler: Handler,
    pub dst: RegClass,
    pub src: [Option<RegClass>; 3],
    /// For `Ins::imm`.
    pub imm: i64,
}

/// Makes a value of a closure type that captures nothing.
#[inline(always)]
pub(crate) fn conjure<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0, "the closure captures something") };
    // SAFETY: a type without size has no bytes that could be invalid, and a value of it was given to the function that
    // named the type.
    unsafe { std::ptr::NonNull::<F>::dangling().read() }
}

/// Lanes that handlers work on at a time.
pub(crate) const CHUNK: usize = 8;

/// Where the results of an instruction go: the destination itself, or scratch memory to be blended afterwards.
#[inline(always)]
pub(crate) fn out<T: Lane>(warp: &mut Warp, offset: u32) -> *mut T::Bits {
    if warp.mask == FULL {
        warp.slot(offset)
    } else {
        warp.scratch.0.as_mut_ptr().cast()
    }
}

/// Blends scratch results into the destination if need be.
#[inline(always)]
pub(crate) unsafe fn settle<T: Lane>(warp: &mut Warp, offset: u32) {
    if warp.mask != FULL {
        if size_of::<T::Bits>() == 8 {
            // SAFETY: the destination is a slot of 64-bit lanes, and scratch holds as many.
            unsafe { blend64(warp.slot(offset), &warp.scratch.0, warp.mask) };
        } else {
            // SAFETY: the destination is a slot of 32-bit lanes; scratch is at least as large and as aligned.
            unsafe {
                blend32(
                    warp.slot(offset),
                    &*warp.scratch.0.as_ptr().cast(),
                    warp.mask,
                )
            };
        }
    }
}

/// Reads eight lanes.
#[inline(always)]
pub(crate) unsafe fn chunk<T: Copy>(base: *const T, index: usize) -> [T; CHUNK] {
    // SAFETY: the caller passes a slot of 32 lanes and an index below 4.
    unsafe { base.add(index * CHUNK).cast::<[T; CHUNK]>().read() }
}

/// Writes eight lanes.
#[inline(always)]
pub(crate) unsafe fn set_chunk<T: Copy>(base: *mut T, index: usize, value: [T; CHUNK]) {
    // SAFETY: the caller passes a slot of 32 lanes and an index below 4.
    unsafe { base.add(index * CHUNK).cast::<[T; CHUNK]>().write(value) }
}

struct Unary<A, D, F>(PhantomData<(A, D, F)>);
impl<A: Lane, D: Lane, F: Fn(A) -> D + Copy> Op for Unary<A, D, F> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = conjure::<F>();
        let d = out::<D>(warp, ins.ops[0]);
        let a = warp.slot::<A::Bits>(ins.ops[1]);
        for index in 0..LANES / CHUNK {
            // SAFETY: the operands are slots of 32 lanes.
            let x = unsafe { chunk(a, index) };
            let mut r = [D::ZERO; CHUNK];
            for i in 0..CHUNK {
                r[i] = f(A::get(x[i])).put();
            }
            // SAFETY: as above.
            unsafe { set_chunk(d, index, r) };
        }
        // SAFETY: `ops[0]` is the destination.
        unsafe { settle::<D>(warp, ins.ops[0]) };
        ip.wrapping_add(1)
    }
}

struct Binary<A, B, D, F>(PhantomData<(A, B, D, F)>);
impl<A: Lane, B: Lane, D: Lane, F: Fn(A, B) -> D + Copy> Op for Binary<A, B, D, F> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = conjure::<F>();
        let d = out::<D>(warp, ins.ops[0]);
        let a = warp.slot::<A::Bits>(ins.ops[1]);
        let b = warp.slot::<B::Bits>(ins.ops[2]);
        for index in 0..LANES / CHUNK {
            // SAFETY: the operands are slots of 32 lanes.
            let (x, y) = unsafe { (chunk(a, index), chunk(b, index)) };
            let mut r = [D::ZERO; CHUNK];
            for i in 0..CHUNK {
                r[i] = f(A::get(x[i]), B::get(y[i])).put();
            }
            // SAFETY: as above.
            unsafe { set_chunk(d, index, r) };
        }
        // SAFETY: `ops[0]` is the destination.
        unsafe { settle::<D>(warp, ins.ops[0]) };
        ip.wrapping_add(1)
    }
}

struct Ternary<A, B, C, D, F>(PhantomData<(A, B, C, D, F)>);
impl<A: Lane, B: Lane, C: Lane, D: Lane, F: Fn(A, B, C) -> D + Copy> Op for Ternary<A, B, C, D, F> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = conjure::<F>();
        let d = out::<D>(warp, ins.ops[0]);
        let a = warp.slot::<A::Bits>(ins.ops[1]);
        let b = warp.slot::<B::Bits>(ins.ops[2]);
        let c = warp.slot::<C::Bits>(ins.ops[3]);
        for index in 0..LANES / CHUNK {
            // SAFETY: the operands are slots of 32 lanes.
            let (x, y, z) = unsafe { (chunk(a, index), chunk(b, index), chunk(c, index)) };
            let mut r = [D::ZERO; CHUNK];
            for i in 0..CHUNK {
                r[i] = f(A::get(x[i]), B::get(y[i]), C::get(z[i])).put();
            }
            // SAFETY: as above.
            unsafe { set_chunk(d, index, r) };
        }
        // SAFETY: `ops[0]` is the destination.
        unsafe { settle::<D>(warp, ins.ops[0]) };
        ip.wrapping_add(1)
    }
}

struct Compare<A, F>(PhantomData<(A, F)>);
impl<A: Lane, F: Fn(A, A) -> bool + Copy> Op for Compare<A, F> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = conjure::<F>();
        let a = warp.slot::<A::Bits>(ins.ops[1]);
        let b = warp.slot::<A::Bits>(ins.ops[2]);
        // Lane bits are gathered side by side and only folded at the end, which vectorises.
        let mut bits = [0u32; CHUNK];
        for index in 0..LANES / CHUNK {
            // SAFETY: the operands are slots of 32 lanes.
            let (x, y) = unsafe { (chunk(a, index), chunk(b, index)) };
            for i in 0..CHUNK {
                let bit = 1u32 << (index * CHUNK + i);
                bits[i] |= if f(A::get(x[i]), A::get(y[i])) {
                    bit
                } else {
                    0
                };
            }
        }
        let result = bits.iter().fold(0, |all, bit| all | bit);
        // SAFETY: `ops[0]` is a predicate.
        unsafe { warp.set_pred(ins.ops[0], result) };
        ip.wrapping_add(1)
    }
}

/// `d = p ? a : b` lane by lane; operands d, a, b, p.
pub(crate) struct Select<A>(PhantomData<A>);
impl<A: Lane> Op for Select<A> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let d = out::<A>(warp, ins.ops[0]);
        let a = warp.slot::<A::Bits>(ins.ops[1]);
        let b = warp.slot::<A::Bits>(ins.ops[2]);
        // SAFETY: `ops[3]` is a predicate.
        let p = unsafe { warp.pred(ins.ops[3]) };
        for index in 0..LANES / CHUNK {
            // SAFETY: the operands are slots of 32 lanes.
            let (x, y) = unsafe { (chunk(a, index), chunk(b, index)) };
            let mut r = [A::ZERO; CHUNK];
            for i in 0..CHUNK {
                r[i] = if p >> (index * CHUNK + i) & 1 != 0 {
                    x[i]
                } else {
                    y[i]
                };
            }
            // SAFETY: as above.
            unsafe { set_chunk(d, index, r) };
        }
        // SAFETY: `ops[0]` is the destination.
        unsafe { settle::<A>(warp, ins.ops[0]) };
        ip.wrapping_add(1)
    }
}

struct PredicateLogic<F>(PhantomData<F>);
impl<F: Fn(u32, u32) -> u32 + Copy> Op for PredicateLogic<F> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are predicates.
        let (a, b) = unsafe { (warp.pred(ins.ops[1]), warp.pred(ins.ops[2])) };
        // SAFETY: as above.
        unsafe { warp.set_pred(ins.ops[0], conjure::<F>()(a, b)) };
        ip.wrapping_add(1)
    }
}

pub(crate) fn unary<A: Lane, D: Lane, F: Fn(A) -> D + Copy>(_: F) -> Selected {
    let handler = handler::<Unary<A, D, F>>();
    Selected {
        handler,
        dst: D::CLASS,
        src: [Some(A::CLASS), None, None],
        imm: 0,
    }
}

pub(crate) fn binary<A: Lane, B: Lane, D: Lane, F: Fn(A, B) -> D + Copy>(_: F) -> Selected {
    let handler = handler::<Binary<A, B, D, F>>();
    Selected {
        handler,
        dst: D::CLASS,
        src: [Some(A::CLASS), Some(B::CLASS), None],
        imm: 0,
    }
}

pub(crate) fn ternary<A: Lane, B: Lane, C: Lane, D: Lane, F: Fn(A, B, C) -> D + Copy>(
    _: F,
) -> Selected {
    let handler = handler::<Ternary<A, B, C, D, F>>();
    Selected {
        handler,
        dst: D::CLASS,
        src: [Some(A::CLASS), Some(B::CLASS), Some(C::CLASS)],
        imm: 0,
    }
}

pub(crate) fn compare<A: Lane, F: Fn(A, A) -> bool + Copy>(_: F) -> Selected {
    let handler = handler::<Compare<A, F>>();
    Selected {
        handler,
        dst: RegClass::Pred,
        src: [Some(A::CLASS), Some(A::CLASS), None],
        imm: 0,
    }
}

/// Like [`unary`], [`binary`], [`ternary`] and [`compare`], but compiled once: for instructions that kernels hardly ever
/// run. They must not use `mul_add`, which is a library call without FMA.
pub(crate) mod rare {
    use super::*;

    pub(crate) fn unary<A: Lane, D: Lane, F: Fn(A) -> D + Copy>(_: F) -> Selected {
        let handler = plain_handler::<Unary<A, D, F>>();
        Selected {
            handler,
            dst: D::CLASS,
            src: [Some(A::CLASS), None, None],
            imm: 0,
        }
    }

    pub(crate) fn binary<A: Lane, B: Lane, D: Lane, F: Fn(A, B) -> D + Copy>(_: F) -> Selected {
        let handler = plain_handler::<Binary<A, B, D, F>>();
        Selected {
            handler,
            dst: D::CLASS,
            src: [Some(A::CLASS), Some(B::CLASS), None],
            imm: 0,
        }
    }

    pub(crate) fn ternary<A: Lane, B: Lane, C: Lane, D: Lane, F: Fn(A, B, C) -> D + Copy>(
        _: F,
    ) -> Selected {
        let handler = plain_handler::<Ternary<A, B, C, D, F>>();
        Selected {
            handler,
            dst: D::CLASS,
            src: [Some(A::CLASS), Some(B::CLASS), Some(C::CLASS)],
            imm: 0,
        }
    }

    pub(crate) fn compare<A: Lane, F: Fn(A, A) -> bool + Copy>(_: F) -> Selected {
        let handler = plain_handler::<Compare<A, F>>();
        Selected {
            handler,
            dst: RegClass::Pred,
            src: [Some(A::CLASS), Some(A::CLASS), None],
            imm: 0,
        }
    }
}

/// Logic on predicates as lane masks. A unary function ignores its second operand.
pub(crate) fn predicate<F: Fn(u32, u32) -> u32 + Copy>(_: F) -> Selected {
    let handler = plain_handler::<PredicateLogic<F>>();
    Selected {
        handler,
        dst: RegClass::Pred,
        src: [Some(RegClass::Pred), Some(RegClass::Pred), None],
        imm: 0,
    }
}
