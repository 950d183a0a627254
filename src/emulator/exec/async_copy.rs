//! `cp.async`: copies from global to shared memory that happen when they are waited for.
//!
//! Hardware may complete such a copy at any moment between its issue and the wait. The interpreter takes the last moment
//! and fills the destination with 0xFF at issue, so that reading too early, or overwriting a buffer that is still read,
//! shows up as NaN instead of passing by luck.

use super::access::{NARROW_ADDRESS, addresses, find_shared, granule_ok, resolve, space};
use super::op::{Op, handler, plain_handler};
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

    /// A copy at the queue's end, to be filled in.
    #[inline(always)]
    fn add(&mut self) -> &mut Copy {
        if self.waiting == self.copies.len() {
            self.copies.push_back(Box::default());
        }
        self.waiting += 1;
        self.open += 1;
        &mut self.copies[self.waiting - 1]
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
        // SAFETY: the operands are what `Issue` has.
        if WIDE && unsafe { issue_whole::<SIZED>(warp, ins, second) } {
            return ip.wrapping_add(2);
        }
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
        if SIZED {
            // SAFETY: the operand is the size.
            let size = unsafe { warp.read::<u32>(ins.ops[2]) };
            let mut least = bytes;
            for lane in 0..LANES {
                least = least.min(size[lane]);
            }
            if least < bytes {
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
        let mut rest = issued;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // SAFETY: the destination has been checked.
            unsafe { std::ptr::write_bytes(target.0[lane] as *mut u8, 0xFF, bytes as usize) };
        }
        let copy = warp.queue.add();
        (copy.mask, copy.bytes, copy.whole) = (issued, bytes, false);
        (copy.target, copy.source) = (target.0, source.0);
        copy.source_bytes = source_bytes;
        ip.wrapping_add(2)
    }
}

/// Issues a copy of the kind that kernels are made of: all lanes copy all of 16 bytes from one granule of device memory to
/// shared addresses of 32 bits, and nobody watches. `false`: it is none, or not a valid one, and nothing has been done.
///
/// # Safety
/// The operands are those of [`Issue`].
#[inline(always)]
unsafe fn issue_whole<const SIZED: bool>(warp: &mut Warp, ins: &Ins, second: &Ins) -> bool {
    const BYTES: u32 = 16;
    if warp.mask != FULL || warp.count_memory {
        return false;
    }
    if second.ext & NARROW_ADDRESS == 0 || ins.ext & NARROW_ADDRESS != 0 {
        return false;
    }
    // SAFETY: the operand is a slot of 32-bit lanes.
    let offsets = unsafe { &*warp.slot::<[u32; LANES]>(ins.ops[0]) };
    // SAFETY: the operand is a slot of 64-bit lanes.
    let sources = unsafe { &*warp.slot::<[u64; LANES]>(ins.ops[1]) };
    let (mut unaligned, mut highest) = (0, 0);
    for lane in 0..LANES {
        let offset = offsets[lane].wrapping_add(second.imm as u32);
        unaligned |= offset;
        highest = highest.max(offset);
    }
    let first = sources[0].wrapping_add(ins.imm as u64);
    let (mut any, mut differ) = (0, 0);
    for lane in 0..LANES {
        let source = sources[lane].wrapping_add(ins.imm as u64);
        any |= source;
        differ |= source ^ first;
    }
    let mut least = BYTES;
    if SIZED {
        // SAFETY: the operand is a slot of 32-bit lanes.
        let sizes = unsafe { &*warp.slot::<[u32; LANES]>(ins.ops[2]) };
        for lane in 0..LANES {
            least = least.min(sizes[lane]);
        }
    }
    let misaligned = (any as u32 | unaligned) & (BYTES - 1) != 0;
    let outside = u64::from(highest) + u64::from(BYTES) > warp.shared_bytes.into();
    if misaligned || outside || least < BYTES || differ >> warp.granule_shift != 0 {
        return false;
    }
    if !granule_ok(warp, first, false) {
        return false;
    }
    let shared = warp.shared as u64;
    let copy = warp.queue.add();
    (copy.mask, copy.bytes, copy.whole) = (FULL, BYTES, true);
    for lane in 0..LANES {
        let offset = offsets[lane].wrapping_add(second.imm as u32);
        copy.target[lane] = shared.wrapping_add(offset.into());
        copy.source[lane] = sources[lane].wrapping_add(ins.imm as u64);
    }
    for lane in 0..LANES {
        prefetch(copy.source[lane]);
        // SAFETY: the destination has been checked.
        unsafe { (copy.target[lane] as *mut [u8; 16]).write([0xFF; 16]) };
    }
    warp.shared_touched = true;
    let bytes = u64::from(BYTES) * LANES as u64;
    warp.counters.global_load_requests += 1;
    warp.counters.global_load_bytes += bytes;
    warp.counters.async_copy_bytes += bytes;
    true
}

/// Has this CPU fetch the cache line that begins at `address`, if one does: the copy itself comes later.
#[inline(always)]
fn prefetch(address: u64) {
    #[cfg(target_arch = "x86_64")]
    if address.is_multiple_of(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address as *const i8) };
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
