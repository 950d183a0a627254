//! `cp.async`: copies from global to shared memory that happen when they are waited for.
//!
//! Hardware may complete such a copy at any moment between its issue and the wait. The interpreter takes the last moment
//! and fills the destination with 0xFF at issue, so that reading too early, or overwriting a buffer that is still read,
//! shows up as NaN instead of passing by luck.

use super::access::{addresses, find_shared, resolve, space};
use super::op::{CHUNK, Op, handler, plain_handler};
use super::warp::{FULL, Handler, Ins, LANES, Warp};
use std::collections::VecDeque;

/// One warp-level copy: host pointers and byte counts by lane.
#[derive(Default)]
struct Copy {
    mask: u32,
    bytes: u32,
    /// All 32 lanes copy all their bytes, of which there are 16.
    whole: bool,
    target: [u64; LANES],
    source: [u64; LANES],
    /// Bytes to read; the rest of the destination is zero.
    source_bytes: [u8; LANES],
}

/// A warp's copies that have not been waited for.
#[derive(Default)]
pub(crate) struct AsyncQueue {
    /// `waiting` copies, oldest first, then performed ones to be used again. Boxed, since filling one in place is cheaper than
    /// moving it here.
    copies: VecDeque<Box<Copy>>,
    waiting: usize,
    /// Copies of each committed group, oldest first.
    groups: VecDeque<usize>,
    /// Copies that belong to no group yet.
    open: usize,
}

impl AsyncQueue {
    pub(crate) fn clear(&mut self) {
        self.waiting = 0;
        self.groups.clear();
        self.open = 0;
    }
}

/// `ops`: shared address, global address, source size (only if `SIZED`). `imm`: offset of the global address; the offset of
/// the shared address is in the next entry's `imm`; `ops[7]`: bytes, which are 16 if `WIDE`.
struct Issue<const SIZED: bool, const WIDE: bool>;
impl<const SIZED: bool, const WIDE: bool> Op for Issue<SIZED, WIDE> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction; this one has two entries.
        let (ins, second) = unsafe { (&*ip, &*ip.add(1)) };
        let bytes = if WIDE { 16 } else { ins.ops[7] };
        // SAFETY: the second entry describes the shared address in the same way.
        let found = unsafe { find_shared(warp, ip, second, ins.ops[0], bytes.into(), true) };
        let Some((target, _)) = found else {
            return std::ptr::null();
        };
        // SAFETY: the operand is the global address.
        let mut source = unsafe { addresses(warp, ins, ins.ops[1]) };
        let mut source_bytes = [bytes as u8; LANES];
        let mut reads = warp.mask;
        let mut whole = WIDE && warp.mask == FULL;
        if SIZED {
            // SAFETY: the operand is the size.
            let size = unsafe { warp.read::<u32>(ins.ops[2]) };
            let mut least = bytes;
            for lane in 0..LANES {
                least = least.min(size[lane]);
            }
            if least < bytes {
                whole = false;
                for lane in 0..LANES {
                    source_bytes[lane] = size[lane].min(bytes) as u8;
                    if source_bytes[lane] == 0 {
                        reads &= !(1 << lane);
                    }
                }
            }
        }
        // A lane that reads nothing may point anywhere.
        let issued = warp.mask;
        if reads != 0 {
            if reads != issued {
                let first = source.0[reads.trailing_zeros() as usize & 31];
                for lane in 0..LANES {
                    source.0[lane] = if reads >> lane & 1 != 0 {
                        source.0[lane]
                    } else {
                        first
                    };
                }
            }
            warp.mask = reads;
            let found = resolve(
                warp,
                ip,
                &mut source,
                space::GLOBAL,
                u64::from(bytes),
                false,
            );
            if found.is_none() {
                return std::ptr::null();
            }
            super::access::tally(warp, space::GLOBAL, u64::from(bytes), false);
            if warp.count_traffic {
                super::traffic::tally(warp, &source, space::GLOBAL, u64::from(bytes), false);
            }
            warp.mask = issued;
        }
        warp.counters.async_copy_bytes += u64::from(issued.count_ones()) * u64::from(bytes);
        if warp.count_traffic {
            super::traffic::tally(warp, &target, space::SHARED, u64::from(bytes), true);
        }
        if !warp.watch.is_null() {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            let watch = unsafe { &mut *warp.watch };
            watch.async_copy(warp, &target, &source, &source_bytes, u64::from(bytes));
        }
        if whole {
            for lane in 0..LANES {
                prefetch(source.0[lane]);
                // SAFETY: the destination has been checked.
                unsafe { (target.0[lane] as *mut [u8; 16]).write([0xFF; 16]) };
            }
        } else {
            let mut rest = issued;
            while rest != 0 {
                let lane = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                // SAFETY: the destination has been checked.
                unsafe { std::ptr::write_bytes(target.0[lane] as *mut u8, 0xFF, bytes as usize) };
            }
        }
        let queue = &mut warp.queue;
        if queue.waiting == queue.copies.len() {
            queue.copies.push_back(Box::default());
        }
        let copy = &mut queue.copies[queue.waiting];
        (copy.mask, copy.bytes, copy.whole) = (issued, bytes, whole);
        // In pieces, which take vector moves where the whole takes a call.
        for (to, from) in [(&mut copy.target, &target), (&mut copy.source, &source)] {
            for (place, piece) in to
                .as_chunks_mut::<CHUNK>()
                .0
                .iter_mut()
                .zip(from.0.as_chunks().0)
            {
                *place = *piece;
            }
        }
        copy.source_bytes = source_bytes;
        queue.waiting += 1;
        queue.open += 1;
        ip.wrapping_add(2)
    }
}

/// Has this CPU fetch the cache line that begins at `address`, if one does: the copy itself comes later.
#[inline(always)]
fn prefetch(address: u64) {
    #[cfg(target_arch = "x86_64")]
    if address.is_multiple_of(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address as *const i8) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// `cp.async.commit_group`
struct Commit;
impl Op for Commit {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        let copies = std::mem::take(&mut warp.queue.open);
        warp.queue.groups.push_back(copies);
        ip.wrapping_add(1)
    }
}

/// `cp.async.wait_group`: `imm` is the number of groups that may stay open, or -1 for `wait_all`.
struct Wait;
impl Op for Wait {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let keep = unsafe { &*ip }.imm;
        if keep < 0 {
            warp.finish_async_copies();
        } else {
            let done = warp.queue.groups.len().saturating_sub(keep as usize);
            let copies = warp.queue.groups.drain(..done).sum();
            perform_oldest(warp, copies);
        }
        ip.wrapping_add(1)
    }
}

impl Warp {
    /// Performs all copies that have been issued.
    pub(super) fn finish_async_copies(&mut self) {
        self.queue.groups.clear();
        self.queue.open = 0;
        let copies = self.queue.waiting;
        perform_oldest(self, copies);
    }
}

/// Performs as many of the oldest copies and takes them off the queue.
#[inline(always)]
fn perform_oldest(warp: &mut Warp, copies: usize) {
    for copy in warp.queue.copies.iter().take(copies) {
        // SAFETY: both sides were checked at issue, and device memory stays mapped during the launch.
        unsafe { perform(copy) };
        if !warp.watch.is_null() {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            let watch = unsafe { &mut *warp.watch };
            watch.async_complete(warp, copy.mask, &copy.target, copy.bytes);
        }
    }
    warp.queue.copies.rotate_left(copies);
    warp.queue.waiting -= copies;
}

#[inline(always)]
unsafe fn perform(copy: &Copy) {
    if copy.whole {
        for lane in 0..LANES {
            let (target, source) = (copy.target[lane], copy.source[lane]);
            // SAFETY: passed on to the caller.
            let piece = unsafe { (source as *const [u8; 16]).read() };
            // SAFETY: as above.
            unsafe { (target as *mut [u8; 16]).write(piece) };
        }
        return;
    }
    let mut rest = copy.mask;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let target = copy.target[lane] as *mut u8;
        let source = copy.source[lane] as *const u8;
        let given = u32::from(copy.source_bytes[lane]);
        // SAFETY: passed on to the caller.
        unsafe { std::ptr::copy_nonoverlapping(source, target, given as usize) };
        // SAFETY: as above.
        unsafe {
            std::ptr::write_bytes(target.add(given as usize), 0, (copy.bytes - given) as usize)
        };
    }
}

/// The handler of a copy of `bytes` bytes a lane, `sized` if an operand says how many of them are read.
pub(crate) fn issue(sized: bool, bytes: u32) -> Handler {
    match (sized, bytes) {
        (true, 16) => handler::<Issue<true, true>>(),
        (false, 16) => handler::<Issue<false, true>>(),
        (true, _) => plain_handler::<Issue<true, false>>(),
        (false, _) => plain_handler::<Issue<false, false>>(),
    }
}

pub(crate) fn commit() -> Handler {
    plain_handler::<Commit>()
}

pub(crate) fn wait() -> Handler {
    handler::<Wait>()
}
