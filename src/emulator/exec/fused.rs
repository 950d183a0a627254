//! Instructions that stand for several of the program, as [`ir::fuse`](crate::emulator::ir) joins them. Each counts as many as
//! it stands for.

use super::op::{CHUNK, Op, chunk, handler, lanes_where, out, set_chunk, settle};
use super::warp::{Handler, Ins, LANES, Warp};

/// Counts `more` instructions of the program that this one stands for, beyond one: usually its `imm`.
#[inline(always)]
pub(super) fn count(warp: &mut Warp, more: u64) {
    warp.counters.warp_instructions += more;
    let lanes = more * u64::from(warp.mask.count_ones());
    warp.more_lanes = warp.more_lanes.wrapping_add(lanes);
}

/// The sum of 64-bit terms, the first `NARROW` of which are zero-extended from 32 bits. `ops`: d, the terms.
struct Sum<const NARROW: usize, const WIDE: usize>;
impl<const NARROW: usize, const WIDE: usize> Op for Sum<NARROW, WIDE> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        count(warp, ins.imm as u64);
        let d = out::<u64>(warp, ins.ops[0]);
        for index in 0..LANES / CHUNK {
            let mut sum = [0u64; CHUNK];
            for n in 0..NARROW {
                // SAFETY: the operand is a slot of 32 lanes of 32 bits.
                let term: [u32; CHUNK] = unsafe { chunk(warp.slot(ins.ops[1 + n]), index) };
                for i in 0..CHUNK {
                    sum[i] = sum[i].wrapping_add(term[i].into());
                }
            }
            for n in 0..WIDE {
                let slot = warp.slot(ins.ops[1 + NARROW + n]);
                // SAFETY: the operand is a slot of 32 lanes of 64 bits.
                let term: [u64; CHUNK] = unsafe { chunk(slot, index) };
                for i in 0..CHUNK {
                    sum[i] = sum[i].wrapping_add(term[i]);
                }
            }
            // SAFETY: the destination is a slot of 32 lanes of 64 bits.
            unsafe { set_chunk(d, index, sum) };
        }
        // SAFETY: `ops[0]` is the destination.
        unsafe { settle::<u64>(warp, ins.ops[0]) };
        ip.wrapping_add(1)
    }
}

/// The handler of a sum of as many zero-extended 32-bit and 64-bit terms, if there is one.
pub(crate) fn sum(narrow: usize, wide: usize) -> Option<Handler> {
    Some(match (narrow, wide) {
        (0, 3) => handler::<Sum<0, 3>>(),
        (0, 4) => handler::<Sum<0, 4>>(),
        (1, 1) => handler::<Sum<1, 1>>(),
        (1, 2) => handler::<Sum<1, 2>>(),
        (1, 3) => handler::<Sum<1, 3>>(),
        _ => return None,
    })
}

/// Bits of `ext` of [`both`]: turn around the first comparison, the second one, the result.
pub(crate) const NEGATE: [u32; 3] = [1, 2, 4];
/// Bit of `ext` of [`both`]: the operands are signed.
pub(crate) const SIGNED: u32 = 8;

/// `p = a >= b && c >= d`, with negations as `ext` says. `ops`: p, a, b, c, d.
struct Both;
impl Op for Both {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        count(warp, ins.imm as u64);
        // Signed order is unsigned order with the sign bit turned around.
        let bias = if ins.ext & SIGNED != 0 { 1 << 31 } else { 0 };
        let turn = |value: u32, n: usize| {
            if ins.ext & NEGATE[n] != 0 {
                !value
            } else {
                value
            }
        };
        let mut result = u32::MAX;
        for test in 0..2 {
            let (a, b) = (
                warp.slot::<u32>(ins.ops[1 + 2 * test]),
                warp.slot::<u32>(ins.ops[2 + 2 * test]),
            );
            // SAFETY: the operands are slots of 32 lanes.
            let holds = unsafe { lanes_where(a, b, |x, y| x ^ bias >= y ^ bias) };
            result &= turn(holds, test);
        }
        let result = turn(result, 2);
        // SAFETY: `ops[0]` is a predicate.
        unsafe { warp.set_pred(ins.ops[0], result) };
        ip.wrapping_add(1)
    }
}

/// The handler of two comparisons joined.
pub(crate) fn both() -> Handler {
    handler::<Both>()
}
