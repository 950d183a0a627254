//! `cp.async`: copies from global to shared memory that happen when they are waited for.
//!
//! Hardware may complete such a copy at any moment between its issue and the wait. The interpreter takes the last moment
//! and fills the destination with 0xFF at issue, so that reading too early, or overwriting a buffer that is still read,
//! shows up as NaN instead of passing by luck.

use super::access::{addresses, resolve, space};
use super::op::{Op, handler, plain_handler};
use super::warp::{Handler, Ins, LANES, Warp};

/// One warp-level copy: host pointers and byte counts by lane.
#[derive(Clone, Copy)]
struct Copy {
    mask: u32,
    bytes: u32,
    target: [u64; LANES],
    source: [u64; LANES],
    /// Bytes to read; the rest of the destination is zero.
    source_bytes: [u8; LANES],
}

/// A warp's copies that have not been waited for.
#[derive(Default)]
pub(crate) struct AsyncQueue {
    copies: Vec<Copy>,
    /// `copies` index at which each committed group ends, oldest first.
    groups: Vec<usize>,
}

impl AsyncQueue {
    pub(crate) fn clear(&mut self) {
        self.copies.clear();
        self.groups.clear();
    }
}

/// `ops`: shared address, global address, source size (only if `SIZED`). `imm`: offset of the global address;
/// `ext` bits 9.. : offset of the shared address is in the next entry's `imm`, `ext` bits 16..23: bytes.
struct Issue<const SIZED: bool>;
impl<const SIZED: bool> Op for Issue<SIZED> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction; this one has two entries.
        let (ins, second) = unsafe { (&*ip, &*ip.add(1)) };
        let bytes = ins.ops[7];
        // SAFETY: the second entry describes the shared address in the same way.
        let mut target = unsafe { addresses(warp, second, ins.ops[0]) };
        if resolve(warp, ip, &mut target, space::SHARED, u64::from(bytes), true).is_none() {
            return std::ptr::null();
        }
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
        let mut rest = issued;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // SAFETY: the destination has been checked.
            unsafe { std::ptr::write_bytes(target.0[lane] as *mut u8, 0xFF, bytes as usize) };
        }
        warp.queue.copies.push(Copy {
            mask: issued,
            bytes,
            target: target.0,
            source: source.0,
            source_bytes,
        });
        ip.wrapping_add(2)
    }
}

/// `cp.async.commit_group`
struct Commit;
impl Op for Commit {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        let end = warp.queue.copies.len();
        warp.queue.groups.push(end);
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
        let queue = &mut warp.queue;
        let end = if keep < 0 {
            queue.groups.clear();
            queue.copies.len()
        } else {
            let done = queue.groups.len().saturating_sub(keep as usize);
            let end = if done > 0 { queue.groups[done - 1] } else { 0 };
            queue.groups.drain(..done);
            for group in &mut queue.groups {
                *group -= end;
            }
            end
        };
        for copy in &queue.copies[..end] {
            // SAFETY: both sides were checked at issue, and device memory stays mapped during the launch.
            unsafe { perform(copy) };
        }
        if !warp.watch.is_null() {
            for copy in &warp.queue.copies[..end] {
                // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler
                // runs.
                let watch = unsafe { &mut *warp.watch };
                watch.async_complete(warp, copy.mask, &copy.target, copy.bytes);
            }
        }
        warp.queue.copies.drain(..end);
        ip.wrapping_add(1)
    }
}

impl Warp {
    /// Performs all copies that have been issued.
    pub(super) fn finish_async_copies(&mut self) {
        self.queue.groups.clear();
        for copy in std::mem::take(&mut self.queue.copies) {
            // SAFETY: both sides were checked at issue, and device memory stays mapped during the launch.
            unsafe { perform(&copy) };
            if !self.watch.is_null() {
                // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler
                // runs.
                let watch = unsafe { &mut *self.watch };
                watch.async_complete(self, copy.mask, &copy.target, copy.bytes);
            }
        }
    }
}

#[inline(always)]
unsafe fn perform(copy: &Copy) {
    let mut rest = copy.mask;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        let target = copy.target[lane] as *mut u8;
        let source = copy.source[lane] as *const u8;
        let given = u32::from(copy.source_bytes[lane]);
        if given == 16 {
            // SAFETY: passed on to the caller; both are 16-byte aligned.
            unsafe { target.cast::<u128>().write(source.cast::<u128>().read()) };
        } else {
            // SAFETY: passed on to the caller.
            unsafe { std::ptr::copy_nonoverlapping(source, target, given as usize) };
            // SAFETY: as above.
            unsafe {
                std::ptr::write_bytes(target.add(given as usize), 0, (copy.bytes - given) as usize)
            };
        }
    }
}

pub(crate) fn issue(sized: bool) -> Handler {
    if sized {
        handler::<Issue<true>>()
    } else {
        handler::<Issue<false>>()
    }
}

pub(crate) fn commit() -> Handler {
    plain_handler::<Commit>()
}

pub(crate) fn wait() -> Handler {
    handler::<Wait>()
}
