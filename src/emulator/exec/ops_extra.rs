//! Instructions that do not fit the unary-to-ternary mould.

use super::integer::{insert_u64, lop3};
use super::lane::Raw;
use super::op::Op;
use super::warp::{Ins, LANES, Warp};
use std::marker::PhantomData;

/// `bfi`. `ops`: d, a, b, position, length.
pub(crate) struct Insert<T>(PhantomData<T>);
impl<T: Raw> Op for Insert<T> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b) = unsafe { (warp.read::<T>(ins.ops[1]), warp.read::<T>(ins.ops[2])) };
        // SAFETY: as above.
        let (position, length) =
            unsafe { (warp.read::<u32>(ins.ops[3]), warp.read::<u32>(ins.ops[4])) };
        let mut value = [T::of(0); LANES];
        for lane in 0..LANES {
            let (a, b) = (a[lane].wide(), b[lane].wide());
            value[lane] = T::of(insert_u64(a, b, position[lane], length[lane], T::WIDTH));
        }
        // SAFETY: the first operand is the destination.
        unsafe { T::write(warp, ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// `lop3`. `ops`: d, a, b, c; `imm`: truth table.
pub(crate) struct Lop3;
impl Op for Lop3 {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b, c) = unsafe {
            (
                warp.read::<u32>(ins.ops[1]),
                warp.read::<u32>(ins.ops[2]),
                warp.read::<u32>(ins.ops[3]),
            )
        };
        let mut value = [0; LANES];
        for lane in 0..LANES {
            value[lane] = lop3(a[lane], b[lane], c[lane], ins.imm as u32);
        }
        // SAFETY: the first operand is the destination.
        unsafe { warp.write32(ins.ops[0], &value) };
        ip.wrapping_add(1)
    }
}

/// `add.cc`, `addc[.cc]`, `sub.cc`, `subc[.cc]`. `ops`: d, carry out, a, b, carry in. The carry of a subtraction is its
/// borrow.
pub(crate) struct Carry<T, const SUBTRACT: bool, const USES: bool>(PhantomData<T>);
impl<T: Raw, const SUBTRACT: bool, const USES: bool> Op for Carry<T, SUBTRACT, USES> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b) = unsafe { (warp.read::<T>(ins.ops[2]), warp.read::<T>(ins.ops[3])) };
        let carry_in = if USES {
            // SAFETY: the last operand is a predicate.
            unsafe { warp.pred(ins.ops[4]) }
        } else {
            0
        };
        let mut value = [T::of(0); LANES];
        let mut carry_out = 0u32;
        for lane in 0..LANES {
            let (a, b) = (u128::from(a[lane].wide()), u128::from(b[lane].wide()));
            let carry = u128::from(carry_in >> lane & 1);
            let wide = if SUBTRACT {
                a.wrapping_sub(b).wrapping_sub(carry)
            } else {
                a + b + carry
            };
            value[lane] = T::of(wide as u64);
            carry_out |= ((wide >> T::WIDTH & 1) as u32) << lane;
        }
        // SAFETY: the first operand is the destination, the second a predicate.
        unsafe { T::write(warp, ins.ops[0], &value) };
        // SAFETY: as above.
        unsafe { warp.set_pred(ins.ops[1], carry_out) };
        ip.wrapping_add(1)
    }
}

/// `lop3.or` and `lop3.and`: also a predicate of whether any bit is set, combined with q. `ops`: d, p, a, b, c, q; `imm`:
/// truth table; `ext`: 1 for and.
pub(crate) struct Lop3Test;
impl Op for Lop3Test {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b, c) = unsafe {
            (
                warp.read::<u32>(ins.ops[2]),
                warp.read::<u32>(ins.ops[3]),
                warp.read::<u32>(ins.ops[4]),
            )
        };
        // SAFETY: the operand is a predicate.
        let q = unsafe { warp.pred(ins.ops[5]) };
        let value: [u32; LANES] =
            std::array::from_fn(|lane| lop3(a[lane], b[lane], c[lane], ins.imm as u32));
        let any = (0..LANES).fold(0, |bits, lane| bits | u32::from(value[lane] != 0) << lane);
        // SAFETY: the first operand is the destination.
        unsafe { warp.write32(ins.ops[0], &value) };
        let p = if ins.ext == 1 { any & q } else { any | q };
        // SAFETY: the second operand is a predicate.
        unsafe { warp.set_pred(ins.ops[1], p) };
        ip.wrapping_add(1)
    }
}

/// `%clock`, `%clock64` and `%globaltimer`, or their upper halves: instructions that this warp has issued, so that runs
/// repeat. `imm`: bits to shift right.
pub(crate) struct Clock<T>(PhantomData<T>);
impl<T: Raw> Op for Clock<T> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let now = T::of(warp.counters.warp_instructions >> (ins.imm & 63));
        // SAFETY: the first operand is the destination.
        unsafe { T::write(warp, ins.ops[0], &[now; LANES]) };
        ip.wrapping_add(1)
    }
}
