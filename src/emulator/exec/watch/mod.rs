//! What the checked mode sees of a launch: every access, barrier, fence and register use of the block that runs.

mod memory;
mod reports;

pub(crate) use reports::describe_forbidden;

use super::block::Launch;
use super::warp::Warp;
use crate::emulator::check::clock::Clocks;
use crate::emulator::check::memory::MemoryShadow;
use crate::emulator::check::ranges::{self, BlockLog, BlockOrder, Range};
use crate::emulator::check::registers::{Missing, RegisterShadow};
use crate::emulator::check::shared::{self, Access, SharedShadow, Touch};
use crate::emulator::check::streams::Footprint;
use crate::emulator::check::{CheckKind, CheckReport, Checker, Shuffle};
use std::collections::HashMap;
use std::sync::MutexGuard;

/// Instructions a warp runs at most before another one gets its turn, in a shuffled launch.
const TURN: u64 = 256;

/// The checks of one launch.
pub(crate) struct Watch<'a> {
    launch: &'a Launch<'a>,
    memory: MutexGuard<'a, Option<MemoryShadow>>,
    ticket: u64,
    warps: usize,
    /// Blocks run in clusters, whose shared memory and barriers are not followed: only device memory and registers are.
    is_cluster: bool,
    clocks: Clocks,
    shared: SharedShadow,
    registers: RegisterShadow,
    order: BlockOrder,
    log: BlockLog,
    /// Number of each warp's present clock in `log`, or `u32::MAX`.
    logged_clock: Vec<u32>,
    /// What all finished blocks touched.
    blocks: Vec<Range>,
    shuffle: Option<Shuffle>,
    /// Instructions left of the running warp's turn.
    turn: u64,
    /// Index of the instruction that runs.
    pc: u32,
    /// It is a store, and some of what it stores holds no value.
    carries: bool,
    block: [u32; 3],
    found: HashMap<(CheckKind, u32, u32), CheckReport>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(launch: &'a Launch<'a>, checker: &'a Checker, warps: usize) -> Watch<'a> {
        let kernel = launch.spec.kernel;
        let shared_bytes = kernel.static_shared_bytes + launch.spec.dynamic_shared_bytes;
        let seed = checker.options().seed;
        let number = checker.next_launch();
        Watch {
            launch,
            memory: checker.memory(),
            ticket: checker.ticket(),
            warps,
            is_cluster: false,
            clocks: Clocks::new(warps),
            shared: SharedShadow::new(shared_bytes as usize, warps),
            registers: RegisterShadow::new(kernel.code.operands.registers, warps),
            order: BlockOrder::default(),
            log: BlockLog::default(),
            logged_clock: vec![u32::MAX; warps],
            blocks: Vec::new(),
            shuffle: (seed != 0).then(|| Shuffle::new(seed, number)),
            turn: 0,
            pc: 0,
            carries: false,
            block: [0; 3],
            found: HashMap::new(),
        }
    }

    /// Whether something has been found.
    pub(super) fn has_found(&self) -> bool {
        !self.found.is_empty()
    }

    /// Several blocks run together.
    pub(super) fn set_cluster(&mut self) {
        self.is_cluster = true;
    }

    /// Puts block numbers or warp numbers into the launch's order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        if let Some(shuffle) = &mut self.shuffle {
            shuffle.order(items);
        }
    }

    pub(super) fn begin_block(&mut self, linear: u64, block: [u32; 3]) {
        if self.clocks.begin_block() {
            self.shared.clear();
        }
        self.registers.clear();
        self.order.begin_block(linear);
        self.logged_clock.fill(u32::MAX);
        self.block = block;
    }

    /// Compares the block's warps with each other and keeps what is left for comparisons between blocks.
    pub(super) fn end_block(&mut self) {
        let mut pairs: HashMap<(u32, u32), (Range, Range)> = HashMap::new();
        if !self.is_cluster {
            self.log.races(self.warps, &mut |a, b| {
                pairs.entry((a.pc, b.pc)).or_insert((*a, *b));
            });
        }
        for (first, second) in pairs.into_values() {
            self.report_range_race(CheckKind::GlobalRace, &first, &second, "a barrier");
        }
        self.blocks.append(&mut self.log.finish());
    }

    /// Compares the blocks with each other, hands the reports over and says what the launch touched.
    pub(super) fn finish(mut self) -> (Vec<CheckReport>, Footprint) {
        let mut all = std::mem::take(&mut self.blocks);
        let mut pairs: HashMap<(u32, u32), (Range, Range)> = HashMap::new();
        self.order.races(&mut all, &mut |a, b| {
            pairs.entry((a.pc, b.pc)).or_insert((*a, *b));
        });
        for (first, second) in pairs.into_values() {
            self.report_range_race(
                CheckKind::BlockRace,
                &first,
                &second,
                "an atomic with a fence",
            );
        }
        self.order.clear();
        let set = |write: bool| {
            let of = all.iter().filter(|range| range.write == write);
            ranges::merge(of.map(|range| (range.start, range.end)).collect())
        };
        let footprint = Footprint {
            reads: set(false),
            writes: set(true),
        };
        let mut reports: Vec<CheckReport> = self.found.into_values().collect();
        reports.sort_by_key(|report| (report.site.line, report.kind.to_string()));
        (reports, footprint)
    }

    // Order.

    /// Whether the running warp's turn is over. Called before each instruction.
    #[inline(always)]
    pub(super) fn turn_over(&mut self) -> bool {
        self.turn = self.turn.wrapping_sub(1);
        self.turn == 0
    }

    /// A warp begins a turn.
    pub(super) fn begin_turn(&mut self) {
        // One more than the instructions of the turn; 0 wraps around to no end.
        self.turn = match &mut self.shuffle {
            Some(shuffle) => 2 + shuffle.below(TURN),
            None => 0,
        };
    }

    pub(super) fn arrive(&mut self, barrier: u8, warp: usize) {
        if self.is_cluster {
            return;
        }
        self.clocks.arrive(barrier.into(), warp);
        self.logged_clock[warp] = u32::MAX;
    }

    pub(super) fn leave(&mut self, barrier: usize, warp: usize) {
        if self.is_cluster {
            return self.order.acquire();
        }
        self.clocks.leave(barrier, warp);
        self.logged_clock[warp] = u32::MAX;
        self.order.acquire();
    }

    pub(super) fn reset_barrier(&mut self, barrier: usize) {
        self.clocks.reset(barrier);
    }

    /// A warp arrives at the mbarrier at an offset of shared memory.
    pub(super) fn release(&mut self, mbarrier: u32, warp: u32) {
        self.clocks.release(mbarrier, warp as usize);
        self.logged_clock[warp as usize] = u32::MAX;
    }

    /// A warp has found a phase of an mbarrier complete.
    pub(super) fn acquire(&mut self, mbarrier: u32, warp: u32) {
        self.clocks.acquire(mbarrier, warp as usize);
        self.logged_clock[warp as usize] = u32::MAX;
    }

    /// A bulk copy has brought `bytes` bytes to an offset of shared memory, which the warp that waited for them releases
    /// through the mbarrier.
    pub(super) fn bulk_written(&mut self, warp: &Warp, offset: u32, bytes: u32) {
        if self.is_cluster {
            return;
        }
        let touch = Touch {
            warp: warp.index,
            lane: shared::ALL,
            pc: self.pc,
            access: Access::Write,
            undefined: 0,
        };
        if let Some(fault) = self.shared.touch(&self.clocks, offset, bytes, touch) {
            let bytes = bytes.into();
            self.report_shared(warp.index, 0, offset, bytes, Access::Write, fault);
        }
    }

    /// `bar.warp.sync`
    pub(crate) fn warp_sync(&mut self, warp: u32) {
        self.clocks.advance(warp as usize);
        self.logged_clock[warp as usize] = u32::MAX;
    }

    /// `membar` and `fence`
    pub(crate) fn fence(&mut self) {
        self.order.fence();
    }

    // Registers.

    /// The instruction at `pc` is about to run for `mask`; `active` are the lanes that evaluate its guard.
    #[inline]
    pub(super) fn execute(&mut self, warp: u32, pc: u32, mask: u32, active: u32) {
        self.pc = pc;
        let table = &self.launch.spec.kernel.code.operands;
        let at = pc as usize;
        let unguarded = self.registers.guard(warp as usize, table, at, active);
        let missing = self.registers.execute(warp as usize, table, at, mask);
        self.carries = missing.carries;
        if unguarded != 0 || missing != Missing::default() {
            self.report_register(warp, unguarded, missing);
        }
    }
}
