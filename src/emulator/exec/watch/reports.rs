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
        self.report(kind, warp, lane, origin.pc, use_pc, || {
            let what = unwritten(origin.shared, origin.address, origin.bytes);
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
        let place = format!("a {what} of {bytes} bytes at shared offset {offset:#x}");
        let by = other.map_or(String::new(), |other| self.describe(other));
        let message = match fault {
            SharedFault::Uninitialised => unwritten(true, offset.into(), bytes),
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

/// A read of memory that nobody has written.
pub(super) fn unwritten(shared: bool, address: u64, bytes: u64) -> String {
    if shared {
        format!(
            "a read of {bytes} bytes at shared offset {address:#x} meets bytes that the block has not written"
        )
    } else {
        format!("a read of {bytes} bytes at {address:#x} meets memory that was never written")
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
