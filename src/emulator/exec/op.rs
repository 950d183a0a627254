//! From scalar closures to 32-lane instruction handlers.
//!
//! A handler is compiled once for the baseline CPU and once with AVX2 and FMA; [`handler`] picks one when a module is
//! loaded. Everything a handler calls is `inline(always)` or a closure, so that it takes on the features of the
//! instantiation it lands in.

use super::lane::{Lane, Raw};
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

/// The form of an operation for CPUs with AVX2.
///
/// # Safety
/// As for [`Op::run`], on such a CPU.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
pub(super) unsafe fn run_avx2<O: Op>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: passed on to the caller.
    unsafe { O::run(warp, ip) }
}

unsafe fn run_portable<O: Op>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: passed on to the caller.
    unsafe { O::run(warp, ip) }
}

/// Whether this CPU runs the AVX2 instantiation. `NEAP_EMULATOR_PORTABLE=1` in the environment says no to any wide form, for tests.
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

/// Whether this CPU has AVX-512 as well, which only a few handlers use. `NEAP_EMULATOR_AVX512=0` in the environment says no, for
/// tests.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        let forbidden = std::env::var_os("NEAP_EMULATOR_AVX512").is_some_and(|value| value == "0");
        has_avx2()
            && !forbidden
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
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

/// The handler of `O` compiled for wide vectors, if this CPU has them. On x86-64 the instructions that have a form for one
/// lane at a time are not compiled a second time for CPUs without AVX2.
fn wide_handler<O: Op>() -> Option<Handler> {
    #[cfg(target_arch = "x86_64")]
    return has_avx2().then_some(run_avx2::<O> as Handler);
    #[cfg(not(target_arch = "x86_64"))]
    Some(run_portable::<O>)
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

/// A handler with its immediate, of which [`Selected`] knows the operands as well.
#[derive(Clone, Copy)]
pub(crate) struct Action {
    pub handler: Handler,
    pub imm: i64,
}

impl From<Selected> for Action {
    fn from(selected: Selected) -> Action {
        Action {
            handler: selected.handler,
            imm: selected.imm,
        }
    }
}

impl From<Handler> for Action {
    fn from(handler: Handler) -> Action {
        Action { handler, imm: 0 }
    }
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

/// The lanes for which `f` holds.
///
/// # Safety
/// `a` and `b` are slots of 32 lanes.
#[inline(always)]
pub(crate) unsafe fn lanes_where<T: Copy>(
    a: *const T,
    b: *const T,
    f: impl Fn(T, T) -> bool,
) -> u32 {
    // Lane bits are gathered side by side and only folded at the end, which vectorises.
    let mut bits = [0u32; CHUNK];
    for index in 0..LANES / CHUNK {
        // SAFETY: passed on to the caller.
        let (x, y) = unsafe { (chunk(a, index), chunk(b, index)) };
        for i in 0..CHUNK {
            let bit = 1u32 << (index * CHUNK + i);
            bits[i] |= if f(x[i], y[i]) { bit } else { 0 };
        }
    }
    bits.iter().fold(0, |all, bit| all | bit)
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
        // SAFETY: the operands are slots of 32 lanes.
        let result = unsafe { lanes_where(a, b, |x, y| f(A::get(x), A::get(y))) };
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

/// An instruction without a lane function in `Ins::imm`.
const NO_FUNCTION: i64 = 0;

fn selected1<A: Lane, D: Lane>(handler: Handler, imm: i64) -> Selected {
    Selected {
        handler,
        dst: D::CLASS,
        src: [Some(A::CLASS), None, None],
        imm,
    }
}

fn selected2<A: Lane, B: Lane>(handler: Handler, dst: RegClass, imm: i64) -> Selected {
    Selected {
        handler,
        dst,
        src: [Some(A::CLASS), Some(B::CLASS), None],
        imm,
    }
}

fn selected3<A: Lane, B: Lane, C: Lane, D: Lane>(handler: Handler, imm: i64) -> Selected {
    Selected {
        handler,
        dst: D::CLASS,
        src: [Some(A::CLASS), Some(B::CLASS), Some(C::CLASS)],
        imm,
    }
}

pub(crate) fn unary<A: Lane, D: Lane, F: Fn(A) -> D + Copy>(f: F) -> Selected {
    match wide_handler::<Unary<A, D, F>>() {
        Some(handler) => selected1::<A, D>(handler, NO_FUNCTION),
        None => rare::unary(f),
    }
}

pub(crate) fn binary<A: Lane, B: Lane, D: Lane, F: Fn(A, B) -> D + Copy>(f: F) -> Selected {
    match wide_handler::<Binary<A, B, D, F>>() {
        Some(handler) => selected2::<A, B>(handler, D::CLASS, NO_FUNCTION),
        None => rare::binary(f),
    }
}

pub(crate) fn ternary<A: Lane, B: Lane, C: Lane, D: Lane, F: Fn(A, B, C) -> D + Copy>(
    f: F,
) -> Selected {
    match wide_handler::<Ternary<A, B, C, D, F>>() {
        Some(handler) => selected3::<A, B, C, D>(handler, NO_FUNCTION),
        None => rare::ternary(f),
    }
}

pub(crate) fn compare<A: Lane, F: Fn(A, A) -> bool + Copy>(f: F) -> Selected {
    match wide_handler::<Compare<A, F>>() {
        Some(handler) => selected2::<A, A>(handler, RegClass::Pred, NO_FUNCTION),
        None => rare::compare(f),
    }
}

/// Like [`unary`], [`binary`], [`ternary`] and [`compare`], but one lane at a time through a function in `Ins::imm`: for
/// instructions that kernels hardly ever run, whose code is then a few bytes each, and for CPUs without wide vectors.
pub(crate) mod rare {
    use super::*;

    pub(crate) fn unary<A: Lane, D: Lane, F: Fn(A) -> D + Copy>(_: F) -> Selected {
        let f: fn(A::Bits) -> D::Bits = |a| conjure::<F>()(A::get(a)).put();
        selected1::<A, D>(
            plain_handler::<Scalar1<A::Bits, D::Bits>>(),
            address(f as *const ()),
        )
    }

    pub(crate) fn binary<A: Lane, B: Lane, D: Lane, F: Fn(A, B) -> D + Copy>(_: F) -> Selected {
        let f: fn(A::Bits, B::Bits) -> D::Bits = |a, b| conjure::<F>()(A::get(a), B::get(b)).put();
        let handler = plain_handler::<Scalar2<A::Bits, B::Bits, D::Bits>>();
        selected2::<A, B>(handler, D::CLASS, address(f as *const ()))
    }

    pub(crate) fn ternary<A: Lane, B: Lane, C: Lane, D: Lane, F: Fn(A, B, C) -> D + Copy>(
        _: F,
    ) -> Selected {
        let f: fn(A::Bits, B::Bits, C::Bits) -> D::Bits =
            |a, b, c| conjure::<F>()(A::get(a), B::get(b), C::get(c)).put();
        let handler = plain_handler::<Scalar3<A::Bits, B::Bits, C::Bits, D::Bits>>();
        selected3::<A, B, C, D>(handler, address(f as *const ()))
    }

    pub(crate) fn compare<A: Lane, F: Fn(A, A) -> bool + Copy>(_: F) -> Selected {
        let f: fn(A::Bits, A::Bits) -> bool = |a, b| conjure::<F>()(A::get(a), A::get(b));
        let handler = plain_handler::<ScalarTest<A::Bits>>();
        selected2::<A, A>(handler, RegClass::Pred, address(f as *const ()))
    }

    fn address(function: *const ()) -> i64 {
        function as usize as i64
    }
}

/// The lane function that a [`rare`] constructor left in the immediate.
macro_rules! lane_function {
    ($ins:expr, $signature:ty) => {
        // SAFETY: the constructor that chose this handler put a function of this signature there.
        unsafe { std::mem::transmute::<*const (), $signature>($ins.imm as usize as *const ()) }
    };
}

/// One lane after another of a one-operand instruction.
struct Scalar1<A, D>(PhantomData<(A, D)>);
impl<A: Raw, D: Raw> Op for Scalar1<A, D> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = lane_function!(ins, fn(A) -> D);
        // SAFETY: the operand is a slot of 32 lanes of this width.
        let a = unsafe { warp.read::<A>(ins.ops[1]) };
        // SAFETY: `ops[0]` is a destination of this width.
        unsafe { D::write(warp, ins.ops[0], &a.map(f)) };
        ip.wrapping_add(1)
    }
}

/// One lane after another of a two-operand instruction.
struct Scalar2<A, B, D>(PhantomData<(A, B, D)>);
impl<A: Raw, B: Raw, D: Raw> Op for Scalar2<A, B, D> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = lane_function!(ins, fn(A, B) -> D);
        // SAFETY: the operands are slots of 32 lanes of these widths.
        let (a, b) = unsafe { (warp.read::<A>(ins.ops[1]), warp.read::<B>(ins.ops[2])) };
        let value: [D; LANES] = std::array::from_fn(|lane| f(a[lane], b[lane]));
        // SAFETY: `ops[0]` is a destination of this width.
        unsafe { D::write(warp, ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// One lane after another of a three-operand instruction.
struct Scalar3<A, B, C, D>(PhantomData<(A, B, C, D)>);
impl<A: Raw, B: Raw, C: Raw, D: Raw> Op for Scalar3<A, B, C, D> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = lane_function!(ins, fn(A, B, C) -> D);
        // SAFETY: the operands are slots of 32 lanes of these widths.
        let (a, b, c) = unsafe {
            (
                warp.read::<A>(ins.ops[1]),
                warp.read::<B>(ins.ops[2]),
                warp.read::<C>(ins.ops[3]),
            )
        };
        let value: [D; LANES] = std::array::from_fn(|lane| f(a[lane], b[lane], c[lane]));
        // SAFETY: `ops[0]` is a destination of this width.
        unsafe { D::write(warp, ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// One lane after another of a comparison.
struct ScalarTest<A>(PhantomData<A>);
impl<A: Raw> Op for ScalarTest<A> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let f = lane_function!(ins, fn(A, A) -> bool);
        // SAFETY: the operands are slots of 32 lanes of this width.
        let (a, b) = unsafe { (warp.read::<A>(ins.ops[1]), warp.read::<A>(ins.ops[2])) };
        let holds = (0..LANES).fold(0, |bits, lane| {
            bits | u32::from(f(a[lane], b[lane])) << lane
        });
        // SAFETY: `ops[0]` is a predicate.
        unsafe { warp.set_pred(ins.ops[0], holds) };
        ip.wrapping_add(1)
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
