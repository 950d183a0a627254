//! The state of one warp and the loop that runs it.

use super::async_copy::AsyncQueue;
use super::bulk::BulkQueue;
use super::call::Calls;
use super::counters::Counters;
use super::fault::{Fault, FaultSite};
use super::memory::DeviceMemory;
use super::warp_sync::Parked;
use super::watch::Watch;
use crate::emulator::ir::Code;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// All lanes.
pub(crate) const FULL: u32 = u32::MAX;
/// `Ins::guard` of an instruction without one.
pub(crate) const NO_GUARD: u32 = u32::MAX;
/// `Frame::join` when the paths only meet at the end of the kernel.
pub(crate) const NO_JOIN: u32 = u32::MAX;

/// Executes one instruction and returns the next one, or null after setting [`Warp::stop`].
pub(crate) type Handler = unsafe fn(&mut Warp, *const Ins) -> *const Ins;

/// A decoded instruction: one cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Ins {
    pub handler: Handler,
    /// Immediate: address offset, branch target, byte count, ... as the handler defines it.
    pub imm: i64,
    /// Byte offset of the guard predicate in the register file, shifted left by one, plus 1 if negated; or [`NO_GUARD`].
    pub guard: u32,
    /// Index into the kernel's statement table.
    pub statement: u32,
    /// Second immediate.
    pub ext: u32,
    /// Byte offsets of the operands in the register file, destinations first. An instruction with more than eight uses
    /// the `ops` of the entry after it for the rest.
    pub ops: [u32; 8],
}

/// One level of divergence: the lanes of a branch that went both ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Index of the `Join` where the paths meet, or [`NO_JOIN`].
    pub join: u32,
    /// Lanes that took the branch together.
    pub restore: u32,
    /// First instruction of the path that still has to run, if `other_mask` is not 0.
    pub other_pc: u32,
    /// Its lanes.
    pub other_mask: u32,
}

/// Why a warp is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has not stopped, or may go on.
    Ready,
    /// Every lane has exited.
    Done,
    /// It waits at a barrier.
    Barrier(u8),
    /// It gave way to the block's other warps.
    Yield,
    /// It found an mbarrier's phase incomplete, and gave way.
    Wait,
    /// It waits at the cluster's barrier.
    Cluster,
    /// See [`Warp::fault`].
    Fault,
}

/// A barrier as the block sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BarrierRequest {
    /// Threads that must arrive; 0 = all of the block.
    pub threads: u32,
    /// Number of this warp's lanes whose predicate holds (`bar.red`).
    pub votes: u32,
    /// `bar.arrive`: count the arrival and go on.
    pub arrive_only: bool,
}

/// 32 lanes of 64 bits, for results that must be blended under a mask.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Scratch(pub [u64; LANES]);

pub(crate) struct Warp {
    /// Register file; every operand is a byte offset from here.
    pub regs: *mut u8,
    /// Lanes that the current instruction acts for.
    pub mask: u32,
    /// Lanes on the current path (equal to `mask` but during a guarded instruction).
    pub active: u32,
    /// Lanes that exist and have not exited.
    pub live: u32,
    pub code: *const Ins,
    /// Where to go on when run next.
    pub resume: *const Ins,
    pub stop: Stop,
    pub stack: Vec<Frame>,
    /// Lanes that wait at a `bar.warp.sync`; they count as [`Warp::returned`].
    pub parked: Vec<Parked>,
    pub scratch: Scratch,

    pub shared: *mut u8,
    pub shared_bytes: u32,
    /// The warp has accessed the block's shared memory since its last reset.
    pub shared_touched: bool,
    /// Stack memory: lane `l` owns `[l * local_bytes, (l + 1) * local_bytes)`.
    pub local: *mut u8,
    pub local_bytes: u32,
    pub params: *const u8,
    pub param_bytes: u32,
    pub granule_base: u64,
    pub granule_shift: u32,
    pub granule_count: u64,
    pub granule_flags: *const u8,
    pub memory: *const dyn DeviceMemory,

    pub queue: AsyncQueue,
    pub barrier: BarrierRequest,
    /// Result of the last `bar.red` for this warp: lanes that voted yes, and lanes that voted.
    pub barrier_votes: (u32, u32),
    pub branches: u64,
    pub yield_at: u64,
    /// Backward branches from one yield to the next.
    pub turn_branches: u64,
    pub watchdog: u64,
    pub counters: Counters,
    /// To be added to `counters.active_lanes`, modulo 2^64: lanes that handlers count beside the run loop, or take back. Apart
    /// from `warp_instructions`, since loading both at once would wait for the run loop's store of that one.
    pub more_lanes: u64,
    /// Somebody wants to see memory accesses: traffic counters or the checked mode.
    pub count_memory: bool,
    /// Traffic is counted.
    pub count_traffic: bool,
    /// The checked mode's eyes; null without.
    pub watch: *mut Watch<'static>,
    pub fault: Option<Box<Fault>>,
    /// Warp index in its block, for faults and `%warpid`.
    pub index: u32,

    /// The kernel's functions and call sites.
    pub program: *const Code,
    pub calls: Calls,
    /// Lanes that have returned from the function that runs.
    pub returned: u32,
    /// Height of `stack` when the function that runs was called.
    pub floor: usize,
    /// Offset in every lane's stack of the frame of the routine that runs, and of the first free byte.
    pub frame: u32,
    pub top: u32,
    /// What `printf` has printed.
    pub output: Vec<u8>,
    /// Executions by instruction, if they are counted; else null.
    pub executed: *mut u64,

    /// Index among the warps of the cluster.
    pub position: u32,
    /// The block's place among those that run together.
    pub place: u32,
    /// The block's rank in its cluster, and how many there are.
    pub rank: u32,
    pub cluster_ranks: u32,
    /// Shared memory of rank 0, and the bytes from one rank's to the next.
    pub cluster_shared: *mut u8,
    pub cluster_stride: u32,
    /// It has arrived at the cluster's barrier, whose phase is not complete.
    pub cluster_arrived: bool,
    /// It has arrived and not waited.
    pub cluster_owes: bool,
    /// Bulk copies of the cluster.
    pub bulk: *mut BulkQueue,
}

impl Warp {
    /// Pointer to the 32-bit lanes of an operand.
    #[inline(always)]
    pub(crate) fn slot<T>(&self, offset: u32) -> *mut T {
        // The loader's slot offsets lie inside the register file.
        self.regs.wrapping_add(offset as usize).cast()
    }

    /// Reads a predicate.
    ///
    /// # Safety
    /// `offset` is the slot of a predicate in this warp's register file.
    #[inline(always)]
    pub(crate) unsafe fn pred(&self, offset: u32) -> u32 {
        // SAFETY: the caller says that the slot exists; predicate slots are 4-byte aligned.
        unsafe { *self.slot::<u32>(offset) }
    }

    /// Writes the lanes of `mask` of a predicate.
    ///
    /// # Safety
    /// `offset` is the slot of a predicate in this warp's register file.
    #[inline(always)]
    pub(crate) unsafe fn set_pred(&mut self, offset: u32, value: u32) {
        let slot = self.slot::<u32>(offset);
        // SAFETY: the caller says that the slot exists; predicate slots are 4-byte aligned.
        unsafe { *slot = (*slot & !self.mask) | (value & self.mask) };
    }

    /// Copies the 32 lanes of an operand.
    ///
    /// # Safety
    /// `offset` is a slot of 32 lanes of `T` in this warp's register file.
    #[inline(always)]
    pub(crate) unsafe fn read<T: Copy>(&self, offset: u32) -> [T; LANES] {
        // SAFETY: the caller says that the slot exists; slots are 64-byte aligned.
        unsafe { *self.slot::<[T; LANES]>(offset) }
    }

    /// Writes the lanes of `mask` of a 32-bit operand.
    ///
    /// # Safety
    /// `offset` is a slot of 32 lanes of 32 bits in this warp's register file.
    #[inline(always)]
    pub(crate) unsafe fn write32(&mut self, offset: u32, value: &[u32; LANES]) {
        let slot = self.slot::<[u32; LANES]>(offset);
        if self.mask == FULL {
            // SAFETY: the caller says that the slot exists; slots are 64-byte aligned.
            unsafe { *slot = *value };
        } else {
            // SAFETY: as above.
            unsafe { blend32(slot, value, self.mask) };
        }
    }

    /// Writes the lanes of `mask` of a 64-bit operand.
    ///
    /// # Safety
    /// `offset` is a slot of 32 lanes of 64 bits in this warp's register file.
    #[inline(always)]
    pub(crate) unsafe fn write64(&mut self, offset: u32, value: &[u64; LANES]) {
        let slot = self.slot::<[u64; LANES]>(offset);
        if self.mask == FULL {
            // SAFETY: the caller says that the slot exists; slots are 64-byte aligned.
            unsafe { *slot = *value };
        } else {
            // SAFETY: as above.
            unsafe { blend64(slot, value, self.mask) };
        }
    }

    /// Index of an instruction of this warp's code.
    pub(crate) fn pc(&self, ins: *const Ins) -> u32 {
        (ins as usize - self.code as usize).wrapping_div(size_of::<Ins>()) as u32
    }

    /// Pointer to the instruction with that index.
    #[inline(always)]
    pub(crate) fn at(&self, pc: u32) -> *const Ins {
        self.code.wrapping_add(pc as usize)
    }

    /// Stops the warp with a fault; `site` is completed by the block.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(
        &mut self,
        ins: *const Ins,
        lane: u32,
        make: impl FnOnce(Box<FaultSite>) -> Fault,
    ) -> *const Ins {
        let site = Box::new(FaultSite {
            warp: self.index,
            lane,
            ..FaultSite::default()
        });
        self.fault = Some(Box::new(make(site)));
        self.stop = Stop::Fault;
        self.resume = ins;
        std::ptr::null()
    }

    /// Stops the warp because lanes are missing from a collective instruction.
    #[cold]
    #[inline(never)]
    pub(crate) fn fail_divergent(&mut self, ins: *const Ins, wanted: u32) -> *const Ins {
        let (mask, missing) = (self.mask, wanted & !self.mask);
        let lane = if missing != 0 {
            missing
        } else {
            mask & !wanted
        }
        .trailing_zeros();
        let message = if missing != 0 {
            format!("lanes {missing:#010x} are needed here, and only lanes {mask:#010x} came")
        } else {
            format!(
                "lanes {:#010x} execute this without being named in its mask {wanted:#010x}",
                mask & !wanted
            )
        };
        self.fail(ins, lane, |site| Fault::Divergence { site, message })
    }

    /// Counts the instruction with index `pc`, before which `before` instructions had been counted: places where paths meet
    /// take their count back, and joined instructions count for several.
    #[inline(always)]
    pub(super) fn count_executed(&mut self, pc: u32, before: u64) {
        if !self.executed.is_null() {
            let times = self.counters.warp_instructions - before;
            // SAFETY: the runner gave a count for each instruction, and uses them only while no warp runs.
            unsafe { *self.executed.wrapping_add(pc as usize) += times };
        }
    }

    /// Lanes that have neither exited nor returned from the function that runs.
    #[inline(always)]
    pub(crate) fn present(&self) -> u32 {
        self.live & !self.returned
    }

    /// Goes on with whatever path is left after the active lanes stopped existing.
    pub(crate) fn next_path(&mut self) -> *const Ins {
        loop {
            while self.stack.len() > self.floor {
                let present = self.present();
                let Some(top) = self.stack.last_mut() else {
                    break;
                };
                let other = top.other_mask & present;
                top.other_mask = 0;
                if other != 0 {
                    let target = top.other_pc;
                    self.active = other;
                    self.mask = other;
                    return self.at(target);
                }
                let restore = top.restore & present;
                let join = top.join;
                self.stack.pop();
                if restore != 0 && join != NO_JOIN {
                    self.active = restore;
                    self.mask = restore;
                    return self.at(join);
                }
            }
            if !self.parked.is_empty()
                && let Some(next) = self.next_parked()
            {
                return next;
            }
            match self.end_activation() {
                None => {
                    self.stop = Stop::Done;
                    return std::ptr::null();
                }
                Some(next) if self.active != 0 => return next,
                // Every lane of the call has exited.
                Some(_) => {}
            }
        }
    }
}

/// Writes the lanes of `mask`.
///
/// # Safety
/// `slot` may be read and written.
#[inline(always)]
pub(crate) unsafe fn blend32(slot: *mut [u32; LANES], value: &[u32; LANES], mask: u32) {
    // SAFETY: the caller lends the slot for this call.
    let old = unsafe { slot.read() };
    let mut new = [0; LANES];
    for lane in 0..LANES {
        let keep = (mask >> lane & 1).wrapping_sub(1);
        new[lane] = value[lane] & !keep | old[lane] & keep;
    }
    // SAFETY: as above.
    unsafe { slot.write(new) };
}

/// Writes the lanes of `mask`.
///
/// # Safety
/// `slot` may be read and written.
#[inline(always)]
pub(crate) unsafe fn blend64(slot: *mut [u64; LANES], value: &[u64; LANES], mask: u32) {
    // SAFETY: the caller lends the slot for this call.
    let old = unsafe { slot.read() };
    let mut new = [0; LANES];
    for lane in 0..LANES {
        let keep = u64::from(mask >> lane & 1).wrapping_sub(1);
        new[lane] = value[lane] & !keep | old[lane] & keep;
    }
    // SAFETY: as above.
    unsafe { slot.write(new) };
}

/// Runs `warp` from [`Warp::resume`] until it stops.
///
/// # Safety
/// `warp.code` is a kernel's instruction array and the warp's memory pointers and register file fit that kernel.
#[inline(always)]
unsafe fn run_loop<const BY_OPCODE: bool>(warp: &mut Warp) {
    let mut ip = warp.resume;
    warp.stop = Stop::Ready;
    let mut lanes = 0;
    while !ip.is_null() {
        // SAFETY: handlers return pointers into the instruction array, or null.
        let ins = unsafe { &*ip };
        let (pc, before) = (warp.pc(ip), warp.counters.warp_instructions);
        warp.counters.warp_instructions += 1;
        if ins.guard == NO_GUARD {
            lanes += u64::from(warp.mask.count_ones());
            // SAFETY: the loader made this instruction for the handler and this register file.
            ip = unsafe { (ins.handler)(warp, ip) };
        } else {
            // SAFETY: the loader put a predicate there.
            let value = unsafe { warp.pred(ins.guard >> 1) };
            let mask = warp.active & (value ^ (ins.guard & 1).wrapping_neg());
            if mask == 0 {
                // SAFETY: guarded instructions are never the last one.
                ip = unsafe { ip.add(ins.width()) };
            } else {
                lanes += u64::from(mask.count_ones());
                warp.mask = mask;
                // SAFETY: as above.
                ip = unsafe { (ins.handler)(warp, ip) };
                warp.mask = warp.active;
            }
        }
        if BY_OPCODE {
            warp.count_executed(pc, before);
        }
    }
    warp.counters.active_lanes += lanes;
}

impl Ins {
    /// Entries this instruction takes in the code array. Bit 31 of `ext` marks the two-entry ones.
    #[inline(always)]
    pub(crate) fn width(&self) -> usize {
        1 + (self.ext >> 31) as usize
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn run_avx2(warp: &mut Warp) {
    // SAFETY: passed on to the caller.
    unsafe { run_loop::<false>(warp) }
}

/// The run loop that also counts into [`Warp::executed`].
///
/// # Safety
/// As for the other, and there is a count for each instruction.
pub(super) unsafe fn run_by_opcode(warp: &mut Warp) {
    // SAFETY: passed on to the caller.
    unsafe { run_loop::<true>(warp) }
}

unsafe fn run_portable(warp: &mut Warp) {
    // SAFETY: passed on to the caller.
    unsafe { run_loop::<false>(warp) }
}

/// The run loop for this CPU.
pub(crate) fn run_fn() -> unsafe fn(&mut Warp) {
    #[cfg(target_arch = "x86_64")]
    if super::op::has_avx2() {
        return run_avx2;
    }
    run_portable
}
