//! `cp.async`: copies from global to shared memory that happen when they are waited for.
//!
//! Hardware may complete such a copy at any moment between its issue and the wait. The interpreter takes the last moment
//! and fills the destination with 0xFF at issue, so that reading too early, or overwriting a buffer that is still read,
//! shows up as NaN instead of passing by luck.

use super::access::{
    NARROW_ADDRESS, addresses, find_shared, granule_ok, resolve, shared_offsets, space,
};
use super::op::{CHUNK, Op, chunk, handler, plain_handler, set_chunk};
use super::warp::{FULL, Handler, Ins, LANES, Warp};
use std::collections::VecDeque;

/// Bytes a lane of a copy of the kind that kernels are made of.
pub(super) const WHOLE: u32 = 16;

/// One warp-level copy: where each lane copies to and from, and how much.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Copy {
    /// Offsets from the cluster's shared memory.
    pub target: [u32; LANES],
    /// Host pointers.
    pub source: [u64; LANES],
    /// Bytes to read; the rest of the destination is zero.
    source_bytes: [u8; LANES],
    mask: u32,
    bytes: u32,
    /// All 32 lanes copy all their bytes, of which there are 16.
    whole: bool,
}

impl Copy {
    const NONE: Copy = Copy {
        target: [0; LANES],
        source: [0; LANES],
        source_bytes: [0; LANES],
        mask: 0,
        bytes: 0,
        whole: false,
    };
}

/// A warp's copies that have not been waited for.
#[derive(Default)]
pub(crate) struct AsyncQueue {
    /// A ring whose length is a power of two, or zero: a copy is filled in where it stays.
    ring: Vec<Copy>,
    /// Index of the oldest copy.
    oldest: usize,
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
        if self.waiting == self.ring.len() {
            self.grow();
        }
        let index = (self.oldest + self.waiting) & (self.ring.len() - 1);
        self.waiting += 1;
        self.open += 1;
        &mut self.ring[index]
    }

    /// [`AsyncQueue::add`] for all bytes of all lanes, of which each copies 16: `target` and `source` are to be filled in.
    #[inline(always)]
    pub(super) fn add_whole(&mut self) -> &mut Copy {
        let copy = self.add();
        (copy.mask, copy.bytes, copy.whole) = (FULL, WHOLE, true);
        copy
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.ring.rotate_left(self.oldest);
        self.oldest = 0;
        let length = (2 * self.ring.len()).max(16);
        self.ring.resize(length, Copy::NONE);
    }
}

/// Copies of 16 bytes. `ops`: shared address, global address, source size (only if `SIZED`). `imm`: offset of the global
/// address; the offset of the shared address is in the next entry's `imm`; `ops[7]`: bytes.
pub(super) struct Issue<const SIZED: bool>;
impl<const SIZED: bool> Op for Issue<SIZED> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction; this one has two entries.
        let (ins, second) = unsafe { (&*ip, &*ip.add(1)) };
        // SAFETY: the operands are what `Issue` has.
        if unsafe { issue_whole::<SIZED>(warp, ins, second) } {
            return ip.wrapping_add(2);
        }
        // SAFETY: as above.
        unsafe { issue_any::<SIZED>(warp, ip) }
    }
}

/// [`Issue`] of any number of bytes, from and to anywhere.
///
/// # Safety
/// The instruction at `ip` has two entries, and the operands of [`Issue`].
#[inline(never)]
unsafe fn issue_any<const SIZED: bool>(warp: &mut Warp, ip: *const Ins) -> *const Ins {
    // SAFETY: passed on to the caller.
    let (ins, second) = unsafe { (&*ip, &*ip.add(1)) };
    let bytes = ins.ops[7];
    // SAFETY: the second entry describes the shared address as the first one does the global one.
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
        for lane in 0..LANES {
            source_bytes[lane] = size[lane].min(bytes) as u8;
            if source_bytes[lane] == 0 {
                reads &= !(1 << lane);
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
    let shared = warp.cluster_shared as u64;
    let copy = warp.queue.add();
    (copy.mask, copy.bytes, copy.whole) = (issued, bytes, false);
    (copy.source, copy.source_bytes) = (source.0, source_bytes);
    let mut rest = issued;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        copy.target[lane] = target.0[lane].wrapping_sub(shared) as u32;
        // SAFETY: the destination has been checked.
        unsafe { std::ptr::write_bytes(target.0[lane] as *mut u8, 0xFF, bytes as usize) };
    }
    ip.wrapping_add(2)
}

/// Issues a copy of the kind that kernels are made of: all lanes copy all of 16 bytes from one granule of device memory to
/// shared addresses of 32 bits, and nobody watches. `false`: it is none, or not a valid one, and nothing has been done.
///
/// # Safety
/// The operands are those of [`Issue`].
#[inline(always)]
unsafe fn issue_whole<const SIZED: bool>(warp: &mut Warp, ins: &Ins, second: &Ins) -> bool {
    const SIGN: u32 = 1 << 31;
    if warp.mask != FULL || warp.count_memory || ins.ext & NARROW_ADDRESS != 0 {
        return false;
    }
    // SAFETY: the operand is the shared address, and the second entry describes it.
    let Some(offsets) = (unsafe { shared_offsets(warp, second, ins.ops[0], WHOLE) }) else {
        return false;
    };
    let sources = warp.slot::<u64>(ins.ops[1]);
    // SAFETY: the operand is a slot of 64-bit lanes.
    let first = unsafe { *sources }.wrapping_add(ins.imm as u64);
    let beyond = u64::MAX << warp.granule_shift;
    let mut amiss = [0u64; CHUNK];
    for index in 0..LANES / CHUNK {
        // SAFETY: as above.
        let source = unsafe { chunk(sources, index) };
        for i in 0..CHUNK {
            let source = source[i].wrapping_add(ins.imm as u64);
            amiss[i] |= (source ^ first) & beyond | source & u64::from(WHOLE - 1);
        }
    }
    if amiss != [0; CHUNK] {
        return false;
    }
    if SIZED {
        let mut short = [0u32; CHUNK];
        for index in 0..LANES / CHUNK {
            // SAFETY: the operand is a slot of 32-bit lanes.
            let sizes: [u32; CHUNK] = unsafe { chunk(warp.slot(ins.ops[2]), index) };
            for i in 0..CHUNK {
                // Sizes that are no `i32` look short as well, and take the other way.
                short[i] |= sizes[i].wrapping_sub(WHOLE) & SIGN;
            }
        }
        if short != [0; CHUNK] {
            return false;
        }
    }
    if !granule_ok(warp, first, false) {
        return false;
    }
    let base = warp.rank * warp.cluster_stride;
    let shared = warp.cluster_shared;
    let copy = warp.queue.add_whole();
    for index in 0..LANES / CHUNK {
        // SAFETY: as above.
        let mut source = unsafe { chunk(sources, index) };
        let mut target = [0; CHUNK];
        for i in 0..CHUNK {
            source[i] = source[i].wrapping_add(ins.imm as u64);
            target[i] = offsets[index * CHUNK + i].wrapping_add(base);
        }
        // SAFETY: both have 32 lanes.
        unsafe { set_chunk(copy.source.as_mut_ptr(), index, source) };
        // SAFETY: as above.
        unsafe { set_chunk(copy.target.as_mut_ptr(), index, target) };
    }
    // SAFETY: the destination has been checked.
    unsafe { begin_whole(copy, shared) };
    count_whole(warp);
    true
}

/// Has this CPU fetch what a copy of all bytes of all lanes reads, and poisons what it writes.
///
/// # Safety
/// The destination lies in the cluster's shared memory, which is `shared`.
#[inline(always)]
pub(super) unsafe fn begin_whole(copy: &Copy, shared: *mut u8) {
    // Four lanes make a cache line where neighbours copy what lies side by side.
    for lane in (0..LANES).step_by(4) {
        prefetch(copy.source[lane]);
    }
    for offset in &copy.target {
        let target = shared.wrapping_add(*offset as usize);
        // SAFETY: passed on to the caller.
        unsafe { target.cast::<[u8; 16]>().write([0xFF; 16]) };
    }
}

/// Counts a copy of all bytes of all lanes.
#[inline(always)]
pub(super) fn count_whole(warp: &mut Warp) {
    let bytes = u64::from(WHOLE) * LANES as u64;
    warp.shared_touched = true;
    warp.counters.global_load_requests += 1;
    warp.counters.global_load_bytes += bytes;
    warp.counters.async_copy_bytes += bytes;
}

/// Has this CPU fetch the cache line at `address`: the copy itself comes later.
#[inline(always)]
fn prefetch(address: u64) {
    #[cfg(target_arch = "x86_64")]
    {
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
    for _ in 0..copies {
        let queue = &mut warp.queue;
        let copy = &queue.ring[queue.oldest];
        // SAFETY: both sides were checked at issue, and device memory stays mapped during the launch.
        unsafe { perform(copy, warp.cluster_shared) };
        if !warp.watch.is_null() {
            let shared = warp.cluster_shared as u64;
            let (mask, bytes) = (copy.mask, copy.bytes);
            let target = copy.target.map(|offset| shared + u64::from(offset));
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            let watch = unsafe { &mut *warp.watch };
            watch.async_complete(warp, mask, &target, bytes);
        }
        let queue = &mut warp.queue;
        queue.oldest = (queue.oldest + 1) & (queue.ring.len() - 1);
        queue.waiting -= 1;
    }
}

/// # Safety
/// Both sides of the copy may be accessed; `shared` is the cluster's shared memory.
#[inline(always)]
unsafe fn perform(copy: &Copy, shared: *mut u8) {
    if copy.whole {
        for lane in 0..LANES {
            let target = shared.wrapping_add(copy.target[lane] as usize);
            // SAFETY: passed on to the caller.
            let piece = unsafe { (copy.source[lane] as *const [u8; 16]).read() };
            // SAFETY: as above.
            unsafe { target.cast::<[u8; 16]>().write(piece) };
        }
        return;
    }
    let mut rest = copy.mask;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let target = shared.wrapping_add(copy.target[lane] as usize);
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
    #[cfg(target_arch = "x86_64")]
    if bytes == WHOLE
        && let Some(handler) = super::staging_x86::issue(sized)
    {
        return handler;
    }
    match (sized, bytes) {
        (true, WHOLE) => handler::<Issue<true>>(),
        (false, WHOLE) => handler::<Issue<false>>(),
        (true, _) => issue_any::<true>,
        (false, _) => issue_any::<false>,
    }
}

pub(crate) fn commit() -> Handler {
    plain_handler::<Commit>()
}

pub(crate) fn wait() -> Handler {
    handler::<Wait>()
}
