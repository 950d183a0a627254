//! What the checked mode sees of a launch: every access, barrier, fence and register use of the block that runs.

mod background;
mod memory;
mod reports;

pub(crate) use background::{BarrierEvent, Issued, Movement};
pub(crate) use reports::describe_forbidden;

use super::block::{Launch, SHARED_ALIGN};
use super::fault::Fault;
use super::warp::LANES;
use crate::emulator::check::clock::{Clocks, cluster_barrier};
use crate::emulator::check::fragments::Fragments;
use crate::emulator::check::memory::MemoryShadow;
use crate::emulator::check::ranges::{self, BlockLog, BlockOrder, Range};
use crate::emulator::check::registers::{Missing, RegisterShadow};
use crate::emulator::check::shared::SharedShadow;
use crate::emulator::check::streams::Footprint;
use crate::emulator::check::{CheckKind, CheckReport, Checker, Shuffle};
use std::collections::HashMap;
use std::sync::MutexGuard;

/// Instructions a warp runs at most before another one gets its turn, in a shuffled launch.
const TURN: u64 = 256;

/// Warps side by side at most: three actors each, in 16 bits.
const WARP_LIMIT: usize = u16::MAX as usize / 3;

/// Blocks of a launch that run together.
fn blocks_together(launch: &Launch<'_>) -> usize {
    let blocks = match launch.spec.cooperative {
        Some(_) => launch.spec.grid,
        None => launch.spec.cluster_dims(),
    };
    blocks.iter().product::<u32>() as usize
}

/// Two ranges that collide, for each pair of instructions.
#[derive(Default)]
struct Pairs(HashMap<(u32, u32), (Range, Range)>);

impl Pairs {
    fn add(&mut self, first: &Range, second: &Range) {
        let pair = (first.pc, second.pc);
        self.0.entry(pair).or_insert((*first, *second));
    }
}

/// The checks of one launch.
///
/// Warps are numbered through all blocks that run together (one block, a cluster, or the grid of a cooperative launch), and
/// shared memory is one range of all of theirs.
pub(crate) struct Watch<'a> {
    launch: &'a Launch<'a>,
    memory: MutexGuard<'a, Option<MemoryShadow>>,
    ticket: u64,
    warps_per_block: usize,
    /// Blocks that run together, and how many of them are a cluster.
    together: usize,
    ranks: usize,
    /// Host address of the first block's shared memory, and bytes from one block's to the next.
    shared_base: u64,
    shared_stride: u32,
    clocks: Clocks,
    shared: SharedShadow,
    registers: RegisterShadow,
    /// By warp; empty if no instruction goes on behind a warp's back.
    fragments: Vec<Fragments>,
    bulk: background::Groups,
    order: BlockOrder,
    log: BlockLog,
    /// Number of each warp's present clock in `log`, or `u32::MAX`.
    logged_clock: Vec<u32>,
    /// By warp: it has exited.
    exited: Vec<bool>,
    /// What all finished blocks touched.
    blocks: Vec<Range>,
    shuffle: Option<Shuffle>,
    /// Instructions left of the running warp's turn.
    turn: u64,
    /// Index of the instruction that runs.
    pc: u32,
    /// It is a store, and some of what it stores holds no value.
    carries: bool,
    /// The first of the blocks that run.
    block: [u32; 3],
    found: HashMap<(CheckKind, u32, u32), CheckReport>,
}

impl<'a> Watch<'a> {
    /// Refuses launches with more warps side by side than records have numbers for.
    pub(super) fn can_follow(launch: &Launch<'_>) -> Result<(), Fault> {
        let warps_per_block = launch
            .spec
            .block
            .iter()
            .product::<u32>()
            .div_ceil(LANES as u32);
        let warps = blocks_together(launch) * warps_per_block as usize;
        if warps <= WARP_LIMIT {
            return Ok(());
        }
        Err(Fault::InvalidLaunch {
            kernel: launch.spec.kernel.name.clone(),
            message: format!(
                "{warps} warps side by side, of which the checked mode follows at most {WARP_LIMIT}"
            ),
        })
    }

    pub(super) fn new(launch: &'a Launch<'a>, checker: &'a Checker) -> Watch<'a> {
        let (spec, kernel) = (launch.spec, launch.spec.kernel);
        let operands = &kernel.code.operands;
        let ranks = spec.cluster_dims().iter().product::<u32>() as usize;
        let threads = spec.block.iter().product::<u32>() as usize;
        let warps_per_block = threads.div_ceil(LANES);
        let together = blocks_together(launch);
        let (warps, clusters) = (warps_per_block * together, together / ranks);
        let shared_bytes = kernel.static_shared_bytes + spec.dynamic_shared_bytes;
        let seed = checker.options().seed;
        let number = checker.next_launch();
        let clocks = Clocks::new(warps, together, operands.has_background);
        let shared_stride = shared_bytes.next_multiple_of(SHARED_ALIGN);
        Watch {
            launch,
            memory: checker.memory(),
            ticket: checker.ticket(),
            warps_per_block,
            together,
            ranks,
            shared_base: 0,
            shared_stride,
            shared: SharedShadow::new(shared_stride as usize * together, clusters, clocks.actors()),
            clocks,
            registers: RegisterShadow::new(operands.registers, warps),
            fragments: vec![Fragments::default(); if operands.has_background { warps } else { 0 }],
            bulk: background::Groups::default(),
            order: BlockOrder::default(),
            log: BlockLog::default(),
            logged_clock: vec![u32::MAX; warps],
            exited: vec![false; warps],
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

    /// Puts block numbers or warp numbers into the launch's order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        if let Some(shuffle) = &mut self.shuffle {
            shuffle.order(items);
        }
    }

    /// A block begins, or the cluster or grid that it is the first of, with its shared memory at a host address.
    pub(super) fn begin_block(&mut self, linear: u64, block: [u32; 3], shared: u64) {
        if self.clocks.begin_block() {
            self.shared.clear();
        }
        self.registers.clear();
        self.fragments.iter_mut().for_each(Fragments::clear);
        self.bulk.clear();
        self.order.begin_block(linear);
        self.logged_clock.fill(u32::MAX);
        self.exited.fill(false);
        (self.block, self.shared_base) = (block, shared);
    }

    /// Compares the warps that ran with each other and keeps what is left for comparisons between blocks.
    pub(super) fn end_block(&mut self) {
        let mut pairs = Pairs::default();
        self.log
            .races(self.clocks.actors(), &mut |a, b| pairs.add(a, b));
        self.report_races(pairs);
        self.blocks.append(&mut self.log.finish());
    }

    /// As [`Watch::end_block`], for what no warp can collide with any more: cooperative launches may run for long.
    #[cold]
    fn settle(&mut self) {
        let settled = self.clocks.settled(&self.exited);
        let mut pairs = Pairs::default();
        let mut done = self.log.settle(&settled, &mut |a, b| pairs.add(a, b));
        self.logged_clock.fill(u32::MAX);
        self.report_races(pairs);
        self.blocks.append(&mut done);
    }

    fn report_races(&mut self, pairs: Pairs) {
        for (first, second) in pairs.0.into_values() {
            let place =
                |range: &Range| self.clocks.warp_of(range.warp.into()) / self.warps_per_block;
            let (kind, missing) = if place(&first) == place(&second) {
                (CheckKind::GlobalRace, "a barrier")
            } else {
                (
                    CheckKind::BlockRace,
                    "a barrier of both blocks, or an atomic with a fence,",
                )
            };
            self.report_range_race(kind, &first, &second, missing);
        }
    }

    /// Compares the blocks with each other, hands the reports over and says what the launch touched.
    pub(super) fn finish(mut self) -> (Vec<CheckReport>, Footprint) {
        let mut all = std::mem::take(&mut self.blocks);
        let mut pairs = Pairs::default();
        self.order.races(&mut all, &mut |a, b| pairs.add(a, b));
        for (first, second) in pairs.0.into_values() {
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

    /// Whether the blocks that run together are all there are. The clocks of their warps know all order there is then.
    fn whole_grid(&self) -> bool {
        self.launch.spec.cooperative.is_some()
    }

    /// A warp has come to its end.
    pub(super) fn exit(&mut self, warp: usize) {
        self.exited[warp] = true;
    }

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

    /// A warp arrives at a barrier of its block.
    pub(super) fn arrive(&mut self, rank: usize, barrier: u8, warp: usize) {
        self.clocks.arrive(16 * rank + usize::from(barrier), warp);
        self.logged_clock[warp] = u32::MAX;
    }

    /// A warp leaves a barrier that is complete.
    pub(super) fn leave(&mut self, rank: usize, barrier: usize, warp: usize) {
        self.clocks.leave(16 * rank + barrier, warp);
        self.logged_clock[warp] = u32::MAX;
        self.order.acquire();
    }

    pub(super) fn reset_barrier(&mut self, rank: usize, barrier: usize) {
        self.clocks.reset(16 * rank + barrier);
    }

    /// `barrier.cluster.arrive`
    pub(super) fn cluster_arrive(&mut self, warp: u32, relaxed: bool) {
        let barrier = self.cluster_barrier_of(warp);
        self.clocks.release(barrier, warp as usize, relaxed);
        self.logged_clock[warp as usize] = u32::MAX;
    }

    /// All have arrived at the barrier of that cluster among those that run together.
    pub(super) fn cluster_complete(&mut self, cluster: usize) {
        self.clocks.complete(cluster_barrier(cluster));
    }

    fn cluster_barrier_of(&self, warp: u32) -> u32 {
        cluster_barrier(warp as usize / (self.warps_per_block * self.ranks))
    }

    /// `barrier.cluster.wait`, when all have arrived.
    pub(super) fn cluster_pass(&mut self, warp: u32) {
        let barrier = self.cluster_barrier_of(warp);
        self.clocks.pass(barrier, warp as usize);
        self.logged_clock[warp as usize] = u32::MAX;
        self.order.acquire();
    }

    /// `bar.warp.sync`
    pub(crate) fn warp_sync(&mut self, warp: u32) {
        self.clocks.advance(warp as usize);
        self.logged_clock[warp as usize] = u32::MAX;
    }

    /// `membar` and `fence`
    pub(crate) fn fence(&mut self, warp: u32) {
        if !self.whole_grid() {
            self.order.fence();
        }
        self.clocks.fence(warp as usize);
        self.logged_clock[warp as usize] = u32::MAX;
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
        if table.has_background && mask != 0 {
            self.execute_fragments(warp, pc);
        }
        self.carries = missing.carries;
        if unguarded != 0 || missing != Missing::default() {
            self.report_register(warp, unguarded, missing);
        }
    }
}
