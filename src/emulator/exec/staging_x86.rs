//! `cp.async` of 16 bytes and `ldmatrix.x4` with AVX-512, in the form that kernels are made of: all lanes take part, with 32-bit
//! addresses in the block's own shared memory, and nobody watches. Everything else, and every fault, is left to the portable
//! handlers.
//!
//! Whole vectors are written where whole vectors will be read: a CPU forwards no store to a load that is wider.

use super::access::{NARROW_ADDRESS, granule_ok};
use super::async_copy::{Issue, WHOLE, begin_whole, count_whole};
use super::matrix::LoadMatrix;
use super::op::{has_avx512, run_avx2};
use super::warp::{FULL, Handler, Ins, LANES, Warp};
use super::wide;
use std::arch::x86_64::*;

/// The handler of a `cp.async` of 16 bytes a lane, if this CPU has one of its own.
pub(super) fn issue(sized: bool) -> Option<Handler> {
    let handler = if sized {
        issue_avx512::<true>
    } else {
        issue_avx512::<false>
    };
    has_avx512().then_some(handler as Handler)
}

/// The handler of `ldmatrix.x4`, if this CPU has one of its own.
pub(super) fn load_matrix(transposed: bool) -> Option<Handler> {
    let handler = if transposed {
        load_avx512::<true>
    } else {
        load_avx512::<false>
    };
    has_avx512().then_some(handler as Handler)
}

/// Offsets in the block's shared memory, of lanes 0 to 15 and 16 to 31.
type Offsets = [__m512i; 2];

/// Where the lanes access 16 bytes each, or `None` if that takes more than adding the immediate to say.
///
/// # Safety
/// `slot` is an address operand of the instruction whose immediate and width of addresses `ins` holds.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn offsets(warp: &Warp, ins: &Ins, slot: u32) -> Option<Offsets> {
    let plain = warp.mask == FULL && !warp.count_memory && ins.ext & NARROW_ADDRESS != 0;
    if !plain || warp.shared_bytes < WHOLE {
        return None;
    }
    let last = _mm512_set1_epi32((warp.shared_bytes - WHOLE) as i32);
    let immediate = _mm512_set1_epi32(ins.imm as i32);
    // SAFETY: the operand is a slot of 32-bit lanes.
    let base = unsafe { wide::fresh_words(warp, slot) };
    let offsets = [
        _mm512_add_epi32(base[0], immediate),
        _mm512_add_epi32(base[1], immediate),
    ];
    let either = _mm512_or_si512(offsets[0], offsets[1]);
    let misaligned = _mm512_test_epi32_mask(either, _mm512_set1_epi32(WHOLE as i32 - 1));
    let low = _mm512_cmpgt_epu32_mask(offsets[0], last);
    let high = _mm512_cmpgt_epu32_mask(offsets[1], last);
    (misaligned | low | high == 0).then_some(offsets)
}

#[target_feature(enable = "avx512f")]
unsafe fn issue_avx512<const SIZED: bool>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: passed on to the caller.
    if unsafe { issue_whole::<SIZED>(warp, ip) } {
        return ip.wrapping_add(2);
    }
    // SAFETY: as above, and a CPU with AVX-512 that this module uses has AVX2.
    unsafe { run_avx2::<Issue<SIZED>>(warp, ip) }
}

/// Issues a copy of all bytes of all lanes from one granule. `false`: it is none, and nothing has been done.
///
/// # Safety
/// The instruction at `ip` is an [`Issue`].
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn issue_whole<const SIZED: bool>(warp: &mut Warp, ip: *const Ins) -> bool {
    // SAFETY: passed on to the caller; the instruction has two entries.
    let (ins, second) = unsafe { (&*ip, &*ip.add(1)) };
    if ins.ext & NARROW_ADDRESS != 0 {
        return false;
    }
    // SAFETY: the first operand is the shared address, which the second entry describes.
    let Some(offsets) = (unsafe { offsets(warp, second, ins.ops[0]) }) else {
        return false;
    };
    // SAFETY: the operand is a slot of 32 lanes of 64 bits.
    let first = unsafe { *warp.slot::<u64>(ins.ops[1]) }.wrapping_add(ins.imm as u64);
    // SAFETY: as above.
    let mut sources = unsafe { wide::fresh_double_words(warp, ins.ops[1]) };
    let mut differ = _mm512_setzero_si512();
    for source in &mut sources {
        *source = _mm512_add_epi64(*source, _mm512_set1_epi64(ins.imm));
        let difference = _mm512_xor_si512(*source, _mm512_set1_epi64(first as i64));
        differ = _mm512_or_si512(differ, difference);
    }
    // Aligned like the first, and in its granule.
    let same = u64::MAX << warp.granule_shift | u64::from(WHOLE - 1);
    let mut amiss = u32::from(_mm512_test_epi64_mask(
        differ,
        _mm512_set1_epi64(same as i64),
    ));
    if SIZED {
        // SAFETY: the operand is a slot of 32 lanes of 32 bits.
        for sizes in unsafe { wide::fresh_words(warp, ins.ops[2]) } {
            let short = _mm512_cmplt_epu32_mask(sizes, _mm512_set1_epi32(WHOLE as i32));
            amiss |= u32::from(short);
        }
    }
    let aligned = first.is_multiple_of(WHOLE.into());
    if amiss != 0 || !aligned || !granule_ok(warp, first, false) {
        return false;
    }
    let base = _mm512_set1_epi32((warp.rank * warp.cluster_stride) as i32);
    let shared = warp.cluster_shared;
    let copy = warp.queue.add_whole();
    let (target, source) = (copy.target.as_mut_ptr(), copy.source.as_mut_ptr());
    for part in 0..2 {
        let offsets = _mm512_add_epi32(offsets[part], base);
        // SAFETY: the copy has 32 lanes.
        unsafe { _mm512_storeu_si512(target.cast::<__m512i>().add(part), offsets) };
    }
    for part in 0..4 {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(source.cast::<__m512i>().add(part), sources[part]) };
    }
    // SAFETY: the destination has been checked.
    unsafe { begin_whole(copy, shared) };
    count_whole(warp);
    true
}

/// 32 words in memory.
#[repr(C, align(64))]
struct Lanes([u32; LANES]);

#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_avx512<const TRANSPOSED: bool>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: the run loop passes a valid instruction.
    let ins = unsafe { &*ip };
    // SAFETY: the operand after the four destinations is the address.
    let Some(offsets) = (unsafe { offsets(warp, ins, ins.ops[4]) }) else {
        // SAFETY: passed on to the caller; a CPU with AVX-512 that this module uses has AVX2.
        return unsafe { run_avx2::<LoadMatrix<4, TRANSPOSED>>(warp, ip) };
    };
    warp.shared_touched = true;
    warp.counters.shared_requests += 1;
    let mut lanes = Lanes([0; LANES]);
    for part in 0..2 {
        let at = (&raw mut lanes).cast::<__m512i>();
        // Volatile, so that each lane is loaded from there: taking vectors apart is what keeps this CPU busy here.
        // SAFETY: there are 32 lanes, aligned to 64 bytes.
        unsafe { at.add(part).write_volatile(offsets[part]) };
    }
    for n in 0..4 {
        let row = |row: usize| {
            let offset = lanes.0[8 * n + row] as usize;
            // SAFETY: 16 bytes there lie in the block's shared memory.
            unsafe { _mm_loadu_si128(warp.shared.wrapping_add(offset).cast()) }
        };
        let four = |first: usize| {
            let rows = _mm512_castsi128_si512(row(first));
            let rows = _mm512_inserti32x4::<1>(rows, row(first + 1));
            let rows = _mm512_inserti32x4::<2>(rows, row(first + 2));
            _mm512_inserti32x4::<3>(rows, row(first + 3))
        };
        let (mut low, mut high) = (four(0), four(4));
        if TRANSPOSED {
            (low, high) = transpose(low, high);
        }
        // Lane 4 g + t takes words of row g in order.
        let d = warp.slot::<__m512i>(ins.ops[n]);
        // SAFETY: the destination is a slot of 32 words, all of whose lanes are on.
        unsafe { _mm512_store_si512(d, low) };
        // SAFETY: as above.
        unsafe { _mm512_store_si512(d.add(1), high) };
    }
    ip.wrapping_add(1)
}

/// The transpose of 8 by 8 16-bit elements, by rows 0 to 3 and 4 to 7.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn transpose(low: __m512i, high: __m512i) -> (__m512i, __m512i) {
    /// Where the elements of four rows from `first` on come from.
    const fn column_wise(first: usize) -> [u16; 32] {
        let mut from = [0; 32];
        let mut i = 0;
        while i < 32 {
            let (row, column) = (first + i / 8, i % 8);
            from[i] = (8 * column + row) as u16;
            i += 1;
        }
        from
    }
    const LOW: [u16; 32] = column_wise(0);
    const HIGH: [u16; 32] = column_wise(4);
    // SAFETY: the arrays have 64 bytes.
    let from = unsafe {
        [
            _mm512_loadu_si512(LOW.as_ptr().cast()),
            _mm512_loadu_si512(HIGH.as_ptr().cast()),
        ]
    };
    (
        _mm512_permutex2var_epi16(low, from[0], high),
        _mm512_permutex2var_epi16(low, from[1], high),
    )
}
