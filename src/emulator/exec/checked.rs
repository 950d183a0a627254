//! Launches in checked mode, on the calling thread and under the eyes of a [`Watch`]: one block after another, the blocks of a
//! cluster or of a cooperative launch side by side.

use super::block::{Arena, BlockRunner, Launch};
use super::counters::Counters;
use super::fault::Fault;
use super::warp::{NO_GUARD, Stop, Warp};
use super::watch::Watch;
use crate::emulator::check::streams::Footprint;
use crate::emulator::check::{CheckKind, CheckReport, Checker};
use std::sync::Mutex;

/// Blocks whose numbers are kept for shuffling; larger grids are shuffled piece by piece.
const PIECE: u64 = 1 << 16;

/// Runs a launch; the footprint is what it touched of device memory, also when it failed.
pub(super) fn run(
    launch: &Launch<'_>,
    checker: &Checker,
    arena: &mut Arena,
) -> (Result<Counters, Fault>, Footprint) {
    let spec = launch.spec;
    if let Err(fault) = Watch::can_follow(launch) {
        return (Err(fault), Footprint::default());
    }
    let blocks = spec.grid.iter().map(|&n| u64::from(n)).product::<u64>();
    let mut watch = Watch::new(launch, checker);
    let mut counters = Counters::default();
    let mut fault = None;
    let printed = Mutex::new(Vec::new());
    {
        let mut runner = BlockRunner::new(launch, arena);
        runner.watch(&mut watch);
        let blocks = blocks / runner.ranks().max(1);
        let mut first = 0;
        while first < blocks && fault.is_none() {
            let mut piece: Vec<u64> = (first..blocks.min(first + PIECE)).collect();
            first += PIECE;
            // SAFETY: the runner holds the only other path to the watch, and uses it only while it runs a block.
            unsafe { runner.watched() }.shuffle(&mut piece);
            for block in piece {
                if let Err(found) = runner.run(block, &mut counters) {
                    fault = Some(*found);
                    break;
                }
                // SAFETY: as above.
                if checker.options().fail && unsafe { runner.watched() }.has_found() {
                    // The launch fails anyway: no further block begins.
                    first = blocks;
                    break;
                }
            }
        }
        runner.tell_opcodes();
        runner.take_output(&printed);
    }
    launch.options.output.write(&printed);
    let (reports, footprint) = watch.finish();
    let mut first = None;
    for report in reports {
        first.get_or_insert_with(|| report.clone());
        checker.report(report);
    }
    counters.launches = 1;
    let result = match (fault, first) {
        (Some(fault), _) => {
            checker.report(of_fault(&fault));
            Err(fault)
        }
        (None, Some(report)) if checker.options().fail => Err(Fault::Checked {
            report: Box::new(report),
        }),
        _ => Ok(counters),
    };
    (result, footprint)
}

/// A launch's fault as a report.
fn of_fault(fault: &Fault) -> CheckReport {
    let kind = match fault {
        Fault::Divergence { .. } | Fault::BarrierDivergence { .. } => CheckKind::Divergence,
        Fault::OutOfBounds { .. } | Fault::IllegalAddress { .. } => CheckKind::OutOfBounds,
        _ => CheckKind::Fault,
    };
    CheckReport {
        kind,
        site: fault.site().cloned().unwrap_or_default(),
        message: fault.cause(),
        times: 1,
    }
}

/// [`run_loop`](super::warp) with a look at every instruction before it runs.
///
/// # Safety
/// As for the plain run loop, and the warp's watch is alive and used by nobody else meanwhile.
pub(super) unsafe fn run_warp(warp: &mut Warp) {
    let mut ip = warp.resume;
    warp.stop = Stop::Ready;
    let watch = warp.watch;
    // SAFETY: the caller says that the watch is alive; the reference ends with this statement.
    unsafe { &mut *watch }.begin_turn();
    while !ip.is_null() {
        // SAFETY: handlers return pointers into the instruction array, or null.
        let ins = unsafe { &*ip };
        // SAFETY: as above.
        if unsafe { &mut *watch }.turn_over() {
            warp.stop = Stop::Yield;
            warp.resume = ip;
            return;
        }
        let before = warp.counters.warp_instructions;
        warp.counters.warp_instructions += 1;
        let mask = if ins.guard == NO_GUARD {
            warp.mask
        } else {
            // SAFETY: the loader put a predicate there.
            let value = unsafe { warp.pred(ins.guard >> 1) };
            warp.active & (value ^ (ins.guard & 1).wrapping_neg())
        };
        let (index, pc, active) = (warp.position, warp.pc(ip), warp.active);
        // SAFETY: as above.
        unsafe { &mut *watch }.execute(index, pc, mask, active);
        if mask == 0 {
            ip = ip.wrapping_add(ins.width());
        } else {
            warp.counters.active_lanes += u64::from(mask.count_ones());
            warp.mask = mask;
            // SAFETY: the loader made this instruction for the handler and this register file.
            ip = unsafe { (ins.handler)(warp, ip) };
            if ins.guard != NO_GUARD {
                warp.mask = warp.active;
            }
        }
        warp.count_executed(pc, before);
    }
}
