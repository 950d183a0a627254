//! What the checked mode sees of a launch: every access, barrier, fence and register use of the block that runs.

use super::access::{ACQUIRE, Addresses, RELEASE, STRONG, space};
use super::block::Launch;
use super::fault::FaultSite;
use super::warp::{LANES, Warp};
use crate::emulator::check::clock::Clocks;
use crate::emulator::check::memory::MemoryShadow;
use crate::emulator::check::ranges::{self, BlockLog, BlockOrder, Range};
use crate::emulator::check::registers::RegisterShadow;
use crate::emulator::check::shared::{self, Access, Other, SharedFault, SharedShadow, Touch};
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
        if unguarded | missing != 0 {
            self.report_register(warp, unguarded, missing);
        }
    }

    #[cold]
    fn report_register(&mut self, warp: u32, guard: u32, missing: u32) {
        let (lanes, what) = if guard != 0 {
            (guard, "the guard")
        } else {
            (missing, "an operand")
        };
        self.report(
            CheckKind::UninitialisedRegister,
            warp,
            lanes.trailing_zeros(),
            self.pc,
            u32::MAX,
            || format!("{what} is a register to which lanes {lanes:#010x} have written nothing"),
        );
    }

    // Memory.

    /// An access of `bytes` bytes a lane, resolved.
    pub(crate) fn access(
        &mut self,
        warp: &Warp,
        all: &Addresses,
        state_space: u32,
        bytes: u64,
        access: Access,
    ) {
        let access = self.strength(access, state_space, warp, all);
        match state_space {
            space::SHARED => self.access_shared(warp, warp.mask, all, bytes, access),
            space::GLOBAL => self.access_global(warp, warp.mask, all, bytes, access),
            space::GENERIC => {
                // Resolved addresses are host pointers, which tell the spaces apart.
                let (shared, window) = (warp.shared as u64, u64::from(warp.shared_bytes));
                let (mut in_shared, mut in_global) = (0, 0);
                for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
                    let address = all.0[lane];
                    if address.wrapping_sub(shared) < window {
                        in_shared |= 1 << lane;
                    } else if self.in_device(address) {
                        in_global |= 1 << lane;
                    }
                }
                self.access_shared(warp, in_shared, all, bytes, access);
                self.access_global(warp, in_global, all, bytes, access);
            }
            _ => {}
        }
    }

    fn in_device(&self, address: u64) -> bool {
        self.memory
            .as_ref()
            .is_some_and(|memory| memory.contains(address))
    }

    /// What the instruction's qualifiers make of an access, and the order between blocks that they make.
    fn strength(&mut self, access: Access, space: u32, warp: &Warp, all: &Addresses) -> Access {
        // SAFETY: the run loop set `pc` to the instruction that runs.
        let ext = unsafe { (*warp.at(self.pc)).ext };
        let access = match access {
            Access::Read if ext & STRONG != 0 => Access::Strong { write: false },
            Access::Write if ext & STRONG != 0 => Access::Strong { write: true },
            other => other,
        };
        if space == space::SHARED || !access.is_atomic() {
            return access;
        }
        if ext & RELEASE != 0 {
            self.order.fence();
        }
        for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
            self.order
                .synchronise(all.0[lane], access.reads(), access.writes());
        }
        if ext & ACQUIRE != 0 {
            self.order.acquire();
        }
        access
    }

    fn access_shared(
        &mut self,
        warp: &Warp,
        mask: u32,
        all: &Addresses,
        bytes: u64,
        access: Access,
    ) {
        if self.is_cluster {
            return;
        }
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let offset = (all.0[lane] - warp.shared as u64) as u32;
            let touch = Touch {
                warp: warp.index,
                lane: if access == Access::Collective {
                    shared::ALL
                } else {
                    lane as u8
                },
                pc: self.pc,
                access,
            };
            let fault = self.shared.touch(&self.clocks, offset, bytes as u32, touch);
            if let Some(fault) = fault {
                self.report_shared(warp.index, lane as u32, offset, bytes, access, fault);
            }
        }
    }

    #[cold]
    fn report_shared(
        &mut self,
        warp: u32,
        lane: u32,
        offset: u32,
        bytes: u64,
        access: Access,
        fault: SharedFault,
    ) {
        let what = if access.writes() { "write" } else { "read" };
        let (kind, other) = match fault {
            SharedFault::Uninitialised => (CheckKind::UninitialisedShared, None),
            SharedFault::NotWaited(other) => (CheckKind::CopyNotWaitedFor, Some(other)),
            SharedFault::Race(other) => (CheckKind::SharedRace, Some(other)),
            SharedFault::WarpRace(other) => (CheckKind::WarpRace, Some(other)),
        };
        let pc = other.map_or(u32::MAX, |other| other.pc);
        if let Some(known) = self.found.get_mut(&(kind, self.pc, pc)) {
            known.times += 1;
            return;
        }
        let place = format!("a {what} of {bytes} bytes at shared offset {offset:#x}");
        let by = other.map_or(String::new(), |other| self.describe(other));
        let message = match fault {
            SharedFault::Uninitialised => {
                format!("{place} meets bytes that the block has not written")
            }
            SharedFault::NotWaited(_) => {
                format!("{place} meets an asynchronous copy that is still under way, {by}")
            }
            SharedFault::Race(_) => format!("{place} is not ordered by a barrier with {by}"),
            SharedFault::WarpRace(_) => {
                format!("{place} is not ordered by bar.warp.sync with {by}")
            }
        };
        self.report(kind, warp, lane, self.pc, pc, || message);
    }

    fn describe(&self, other: Other) -> String {
        let lane = if other.lane >= shared::ALL {
            "several lanes".to_owned()
        } else {
            format!("lane {}", other.lane)
        };
        let what = if other.wrote { "the write" } else { "the read" };
        format!(
            "{what} by warp {}, {lane}, {}",
            other.warp,
            self.place(other.pc)
        )
    }

    /// Where an instruction stands: PTX line and, if known, CUDA line.
    fn place(&self, pc: u32) -> String {
        let site = self.site(0, 0, pc);
        match site.source {
            Some(source) => format!("PTX line {} ({source})", site.line),
            None => format!("PTX line {}", site.line),
        }
    }

    fn access_global(
        &mut self,
        warp: &Warp,
        mask: u32,
        all: &Addresses,
        bytes: u64,
        access: Access,
    ) {
        // Neighbours are looked at together.
        let mut run: Option<(u64, u64, u8)> = None;
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let address = all.0[lane];
            match &mut run {
                Some((start, end, _)) if address >= *start && address <= *end => {
                    *end = (*end).max(address + bytes);
                }
                _ => {
                    if let Some((start, end, first)) = run {
                        self.touch_global(warp.index, first, start, end, access);
                    }
                    run = Some((address, address + bytes, lane as u8));
                }
            }
        }
        if let Some((start, end, first)) = run {
            self.touch_global(warp.index, first, start, end, access);
        }
    }

    fn touch_global(&mut self, warp: u32, lane: u8, start: u64, end: u64, access: Access) {
        let Some(memory) = self.memory.as_mut() else {
            return;
        };
        if !memory.contains(start) {
            return;
        }
        let (bytes, write) = (end - start, access.writes());
        let what = if write { "write" } else { "read" };
        if let Some(fault) = describe_forbidden(memory, start, bytes, self.ticket, what) {
            let (kind, message) = fault;
            return self.report(kind, warp, lane.into(), self.pc, u32::MAX, || message);
        }
        let undefined = if access.reads() {
            memory.undefined(start, bytes)
        } else {
            None
        };
        if write {
            memory.define(start, bytes, true);
        }
        if let Some(at) = undefined {
            self.report(
                CheckKind::UninitialisedGlobal,
                warp,
                lane.into(),
                self.pc,
                u32::MAX,
                || format!("a read of {bytes} bytes at {start:#x} meets memory that was never written, from {at:#x} on"),
            );
        }
        let index = warp as usize;
        if self.logged_clock[index] == u32::MAX {
            self.logged_clock[index] = self.log.clock(self.clocks.of(index));
        }
        self.log.record(Range {
            start,
            end,
            write,
            atomic: access.is_atomic(),
            warp: warp as u16,
            lane,
            pc: self.pc,
            epoch: self.clocks.epoch(index),
            clock: self.logged_clock[index],
            era: self.order.era(),
        });
    }

    /// `cp.async` for the lanes of the warp's mask: `source_bytes` are read at `source` now or later, `bytes` written at
    /// `target` later.
    pub(crate) fn async_copy(
        &mut self,
        warp: &Warp,
        target: &Addresses,
        source: &Addresses,
        source_bytes: &[u8; LANES],
        bytes: u64,
    ) {
        self.access_shared(warp, warp.mask, target, bytes, Access::Pending);
        for lane in (0..LANES).filter(|lane| warp.mask >> lane & 1 != 0) {
            let given = u64::from(source_bytes[lane]);
            if given > 0 {
                let start = source.0[lane];
                self.touch_global(warp.index, lane as u8, start, start + given, Access::Read);
            }
        }
    }

    /// The copies into `target` by the lanes of `mask` are complete.
    pub(crate) fn async_complete(
        &mut self,
        warp: &Warp,
        mask: u32,
        target: &[u64; LANES],
        bytes: u32,
    ) {
        if self.is_cluster {
            return;
        }
        for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
            let offset = (target[lane] - warp.shared as u64) as u32;
            self.shared
                .complete(&self.clocks, offset, bytes, warp.index);
        }
    }

    // Reports.

    fn report_range_race(&mut self, kind: CheckKind, first: &Range, second: &Range, missing: &str) {
        let verb = |range: &Range| match (range.atomic, range.write) {
            (true, _) => "an atomic access",
            (_, true) => "a write",
            _ => "a read",
        };
        let start = first.start.max(second.start);
        let bytes = first.end.min(second.end) - start;
        let grid = self.launch.spec.grid.map(u64::from);
        let coordinates = |linear: u64| {
            [
                linear % grid[0],
                linear / grid[0] % grid[1],
                linear / grid[0] / grid[1],
            ]
            .map(|v| v as u32)
        };
        let who = if kind == CheckKind::BlockRace {
            let [x, y, z] = coordinates(self.order.block_of(first));
            self.block = coordinates(self.order.block_of(second));
            format!("block ({x},{y},{z})")
        } else {
            format!("warp {}, lane {}", first.warp, first.lane)
        };
        let message = format!(
            "{} of {bytes} bytes at {start:#x} is not ordered by {missing} with {} by {who}, {}",
            verb(second),
            verb(first),
            self.place(first.pc)
        );
        self.report(
            kind,
            second.warp.into(),
            second.lane.into(),
            second.pc,
            first.pc,
            || message,
        );
    }

    fn report(
        &mut self,
        kind: CheckKind,
        warp: u32,
        lane: u32,
        pc: u32,
        other: u32,
        message: impl FnOnce() -> String,
    ) {
        if let Some(known) = self.found.get_mut(&(kind, pc, other)) {
            known.times += 1;
            return;
        }
        let report = CheckReport {
            kind,
            site: self.site(warp, lane, pc),
            message: message(),
            times: 1,
        };
        self.found.insert((kind, pc, other), report);
    }

    fn site(&self, warp: u32, lane: u32, pc: u32) -> FaultSite {
        let kernel = self.launch.spec.kernel;
        let code = &kernel.code.instructions;
        let statement = code[(pc as usize).min(code.len() - 1)].statement as usize;
        let mut site = FaultSite {
            kernel: kernel.name.clone(),
            block: self.block,
            warp,
            lane,
            ..FaultSite::default()
        };
        if let Some(statement) = kernel.statements.get(statement) {
            site.line = statement.line;
            site.statement = kernel.text_of(statement);
            site.source = statement.source.clone();
        }
        site
    }
}

/// Why a range may not be touched by work of this ticket, if it may not.
pub(crate) fn describe_forbidden(
    memory: &MemoryShadow,
    start: u64,
    bytes: u64,
    ticket: u64,
    what: &str,
) -> Option<(CheckKind, String)> {
    let (at, zone, before) = memory.forbidden(start, bytes, ticket)?;
    let place = format!("a {what} of {bytes} bytes at {start:#x} touches {at:#x}");
    Some(if zone.released {
        (
            CheckKind::UseAfterRelease,
            format!("{place}, in {}, which was released", zone.name),
        )
    } else {
        let behind = before.map_or(String::new(), |zone| format!(", behind {}", zone.name));
        (
            CheckKind::OutOfBounds,
            format!("{place}, which is {}{behind}", zone.name),
        )
    })
}
