//! What the checked mode has to say about a launch.

use super::super::fault::FaultSite;
use super::Watch;
use crate::emulator::check::memory::MemoryShadow;
use crate::emulator::check::ranges::Range;
use crate::emulator::check::registers::{Missing, Origin};
use crate::emulator::check::shared::{self, Access, Other, SharedFault};
use crate::emulator::check::{CheckKind, CheckReport};

impl Watch<'_> {
    #[cold]
    pub(super) fn report_register(&mut self, warp: u32, guard: u32, missing: Missing) {
        if let Some((lanes, origin)) = missing.loaded {
            self.report_loaded(warp, lanes, origin);
        }
        let (lanes, what) = if guard != 0 {
            (guard, "the guard")
        } else {
            (missing.unwritten, "an operand")
        };
        if lanes == 0 {
            return;
        }
        self.report(
            CheckKind::UninitialisedRegister,
            warp,
            lanes.trailing_zeros(),
            self.pc,
            u32::MAX,
            || format!("{what} is a register to which lanes {lanes:#010x} have written nothing"),
        );
    }

    /// The instruction uses what a load took from memory that nobody has written.
    fn report_loaded(&mut self, warp: u32, lanes: u32, origin: Origin) {
        let kind = if origin.shared {
            CheckKind::UninitialisedShared
        } else {
            CheckKind::UninitialisedGlobal
        };
        let (use_pc, lane) = (self.pc, lanes.trailing_zeros());
        let user = self.place(use_pc);
        let place = if origin.shared {
            self.shared_place(origin.address as u32)
        } else {
            format!("{:#x}", origin.address)
        };
        self.report(kind, warp, lane, origin.pc, use_pc, || {
            let what = unwritten(&place, origin.bytes);
            format!("{what}, and lanes {lanes:#010x} use it in {user}")
        });
    }

    #[cold]
    pub(super) fn report_shared(
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
        let at = self.shared_place(offset);
        let place = format!("a {what} of {bytes} bytes at {at}");
        let by = other.map_or(String::new(), |other| self.describe(other));
        let message = match fault {
            SharedFault::Uninitialised => unwritten(&at, bytes),
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
            "{what} by {}, {lane}, {}",
            self.actor(other.actor),
            self.place(other.pc)
        )
    }

    /// A warp, or what goes on behind the back of one, in words.
    fn actor(&self, actor: u32) -> String {
        let warp = self.clocks.warp_of(actor as usize);
        let manner = if warp == actor as usize {
            "warp"
        } else {
            "an asynchronous instruction of warp"
        };
        let block = if self.together > 1 {
            let [x, y, z] = self.block_of(self.block, warp);
            format!(" of block ({x},{y},{z})")
        } else {
            String::new()
        };
        format!("{manner} {}{block}", warp % self.warps_per_block)
    }

    /// An offset of the shared memory of the blocks that run, in words.
    fn shared_place(&self, offset: u32) -> String {
        let stride = self.shared_stride.max(1);
        let own = format!("shared offset {:#x}", offset % stride);
        if self.together == 1 {
            return own;
        }
        let place = (offset / stride) as usize;
        let [x, y, z] = self.block_of(self.block, place * self.warps_per_block);
        format!("{own} of block ({x},{y},{z})")
    }

    /// The block of a warp, where `first` is the first block of those that run together.
    fn block_of(&self, first: [u32; 3], warp: usize) -> [u32; 3] {
        let unfold = |n: u32, [x, y, _]: [u32; 3]| [n % x, n / x % y, n / x / y];
        let (grid, dims) = (self.launch.spec.grid, self.launch.spec.cluster_dims());
        let place = warp / self.warps_per_block;
        let clusters = [0, 1, 2].map(|axis| grid[axis] / dims[axis]);
        let cluster = unfold((place / self.ranks) as u32, clusters);
        let inside = unfold((place % self.ranks) as u32, dims);
        [0, 1, 2].map(|axis| first[axis] + cluster[axis] * dims[axis] + inside[axis])
    }

    /// Where an instruction stands: PTX line and, if known, CUDA line.
    pub(super) fn place(&self, pc: u32) -> String {
        let site = self.site(0, 0, pc);
        match site.source {
            Some(source) => format!("PTX line {} ({source})", site.line),
            None => format!("PTX line {}", site.line),
        }
    }

    pub(super) fn report_range_race(
        &mut self,
        kind: CheckKind,
        first: &Range,
        second: &Range,
        missing: &str,
    ) {
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
        let party = |range: &Range| self.clocks.warp_of(range.warp.into());
        let who = if kind == CheckKind::BlockRace {
            let [x, y, z] = self.block_of(coordinates(self.order.block_of(first)), party(first));
            self.block = coordinates(self.order.block_of(second));
            format!("block ({x},{y},{z})")
        } else {
            format!("{}, lane {}", self.actor(first.warp.into()), first.lane)
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

    pub(super) fn report(
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

    fn site(&self, actor: u32, lane: u32, pc: u32) -> FaultSite {
        let position = self.clocks.warp_of(actor as usize);
        let kernel = self.launch.spec.kernel;
        let code = &kernel.code.instructions;
        let statement = code[(pc as usize).min(code.len() - 1)].statement as usize;
        let mut site = FaultSite {
            kernel: kernel.name.clone(),
            block: self.block_of(self.block, position),
            warp: (position % self.warps_per_block) as u32,
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

/// A read of memory that nobody has written.
pub(super) fn unwritten(place: &str, bytes: u64) -> String {
    format!("a read of {bytes} bytes at {place} meets memory that was never written")
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
