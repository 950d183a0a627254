//! Instructions that do not fit the unary-to-ternary mould.

use super::integer::{insert_u64, lop3};
use super::lane::{Lane, Raw};
use super::op::Op;
use super::warp::{Ins, LANES, Warp};
use std::marker::PhantomData;

/// A register lane of 32 or 64 bits.
pub(crate) trait Word: Lane {
    const WIDTH: u32;
    fn wide(bits: Self::Bits) -> u64;
    fn of(value: u64) -> Self::Bits;
}

macro_rules! words {
    ($($ty:ty)*) => {$(
        impl Word for $ty {
            const WIDTH: u32 = <$ty>::BITS;
            #[inline(always)]
            fn wide(bits: $ty) -> u64 { bits.into() }
            #[inline(always)]
            fn of(value: u64) -> $ty { value as $ty }
        }
    )*};
}
words! { u32 u64 }

/// `bfi`. `ops`: d, a, b, position, length.
pub(crate) struct Insert<T>(PhantomData<T>);
impl<T: Word> Op for Insert<T> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b) = unsafe {
            (
                warp.read::<T::Bits>(ins.ops[1]),
                warp.read::<T::Bits>(ins.ops[2]),
            )
        };
        // SAFETY: as above.
        let (position, length) =
            unsafe { (warp.read::<u32>(ins.ops[3]), warp.read::<u32>(ins.ops[4])) };
        let mut value = [T::ZERO; LANES];
        for lane in 0..LANES {
            let (a, b) = (T::wide(a[lane]), T::wide(b[lane]));
            value[lane] = T::of(insert_u64(a, b, position[lane], length[lane], T::WIDTH));
        }
        // SAFETY: the first operand is the destination.
        unsafe { T::Bits::write(warp, ins.ops[0], &value) };
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
impl<T: Word, const SUBTRACT: bool, const USES: bool> Op for Carry<T, SUBTRACT, USES> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: the operands are slots of 32 lanes.
        let (a, b) = unsafe {
            (
                warp.read::<T::Bits>(ins.ops[2]),
                warp.read::<T::Bits>(ins.ops[3]),
            )
        };
        let carry_in = if USES {
            // SAFETY: the last operand is a predicate.
            unsafe { warp.pred(ins.ops[4]) }
        } else {
            0
        };
        let mut value = [T::ZERO; LANES];
        let mut carry_out = 0u32;
        for lane in 0..LANES {
            let (a, b) = (u128::from(T::wide(a[lane])), u128::from(T::wide(b[lane])));
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
        unsafe { T::Bits::write(warp, ins.ops[0], &value) };
        // SAFETY: as above.
        unsafe { warp.set_pred(ins.ops[1], carry_out) };
        ip.wrapping_add(1)
    }
}

/// `%clock`, `%clock64` and `%globaltimer`: instructions that this warp has issued, so that runs repeat.
pub(crate) struct Clock<T>(PhantomData<T>);
impl<T: Word> Op for Clock<T> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let now = T::of(warp.counters.warp_instructions);
        // SAFETY: the first operand is the destination.
        unsafe { T::Bits::write(warp, ins.ops[0], &[now; LANES]) };
        ip.wrapping_add(1)
    }
}
