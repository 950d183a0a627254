//! Instructions that stand for several of the program, as [`ir::fuse`](crate::emulator::ir) joins them. Each counts as many as
//! it stands for.

use super::op::{CHUNK, Op, chunk, handler, lanes_where, out, set_chunk, settle};
use super::warp::{Handler, Ins, LANES, Warp};
#[cfg(target_arch = "x86_64")]
use super::wide;

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
        let mut holds = [0; 2];
        for (test, holds) in holds.iter_mut().enumerate() {
            let [a, b] = [1, 2].map(|n| warp.slot::<u32>(ins.ops[n + 2 * test]));
            // SAFETY: the operands are slots of 32 lanes.
            *holds = unsafe { lanes_where(a, b, |x, y| x ^ bias(ins) >= y ^ bias(ins)) };
        }
        // SAFETY: `ops[0]` is a predicate.
        unsafe { warp.set_pred(ins.ops[0], joined(ins, holds)) };
        ip.wrapping_add(1)
    }
}

/// What turns the order of the operands of [`both`] into that of unsigned numbers.
#[inline(always)]
fn bias(ins: &Ins) -> u32 {
    if ins.ext & SIGNED != 0 { 1 << 31 } else { 0 }
}

/// The result of [`both`], by lane, where its comparisons hold.
#[inline(always)]
fn joined(ins: &Ins, holds: [u32; 2]) -> u32 {
    let turn = |value: u32, n: usize| {
        let negated = ins.ext & NEGATE[n] != 0;
        if negated { !value } else { value }
    };
    turn(turn(holds[0], 0) & turn(holds[1], 1), 2)
}

/// [`Both`] with comparisons that give lane masks.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn both_avx512(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    use std::arch::x86_64::{_mm512_cmpge_epu32_mask, _mm512_set1_epi32, _mm512_xor_si512};
    // SAFETY: the run loop passes a valid instruction.
    let ins = unsafe { &*ip };
    count(warp, ins.imm as u64);
    let bias = _mm512_set1_epi32(bias(ins) as i32);
    let mut holds = [0; 2];
    for (test, holds) in holds.iter_mut().enumerate() {
        // SAFETY: the operands are slots of 32 lanes of 32 bits.
        let a = unsafe { wide::fresh_words(warp, ins.ops[1 + 2 * test]) };
        // SAFETY: as above.
        let b = unsafe { wide::fresh_words(warp, ins.ops[2 + 2 * test]) };
        for half in 0..2 {
            let (a, b) = (
                _mm512_xor_si512(a[half], bias),
                _mm512_xor_si512(b[half], bias),
            );
            *holds |= u32::from(_mm512_cmpge_epu32_mask(a, b)) << (16 * half);
        }
    }
    // SAFETY: `ops[0]` is a predicate.
    unsafe { warp.set_pred(ins.ops[0], joined(ins, holds)) };
    ip.wrapping_add(1)
}

/// The handler of two comparisons joined.
pub(crate) fn both() -> Handler {
    #[cfg(target_arch = "x86_64")]
    if super::op::has_avx512() {
        return both_avx512;
    }
    handler::<Both>()
}
