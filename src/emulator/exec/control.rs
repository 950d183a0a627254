//! Branches, reconvergence, exits, barriers.
//!
//! Divergence is handled with a stack: a branch whose lanes go both ways runs the fall-through path first and pushes the
//! other one; both end at the `Join` that the loader put at the branch's immediate post-dominator.

use super::fault::Fault;
use super::op::{Op, plain_handler};
use super::warp::{BarrierRequest, Frame, Handler, Ins, Stop, Warp};
use crate::emulator::ir::Leave;

/// Backward branches a warp may take before the block's other warps get a turn.
pub(crate) const YIELD_BRANCHES: u64 = 1 << 14;

/// `bra` without a condition. `imm`: index of the target.
struct Jump<const BACKWARD: bool>;
impl<const BACKWARD: bool> Op for Jump<BACKWARD> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let target = unsafe { &*ip }.imm as u32;
        let next = warp.at(target);
        if BACKWARD {
            back_edge(warp, ip, next)
        } else {
            next
        }
    }
}

/// `@p bra`. `imm`: index of the target; `ext`: index of the join; `ops[0]`: predicate; `ops[1]`: all ones to negate it.
struct Branch<const BACKWARD: bool>;
impl<const BACKWARD: bool> Op for Branch<BACKWARD> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        // SAFETY: `ops[0]` is a predicate.
        let taken = warp.active & unsafe { warp.pred(ins.ops[0]) ^ ins.ops[1] };
        let target = ins.imm as u32;
        if taken == 0 {
            return ip.wrapping_add(1);
        }
        let next = if taken == warp.active {
            warp.at(target)
        } else {
            diverge(warp, ip, target, ins.ext, taken)
        };
        if BACKWARD {
            back_edge(warp, ip, next)
        } else {
            next
        }
    }
}

#[cold]
#[inline(never)]
fn diverge(warp: &mut Warp, ip: *const Ins, target: u32, join: u32, taken: u32) -> *const Ins {
    warp.counters.divergent_branches += 1;
    let fall_through = warp.pc(ip) + 1;
    let straight = warp.active & !taken;
    // Lanes that go directly to the join only have to wait there; if an enclosing frame already waits at this join,
    // no new one is needed. That keeps the stack flat in loops whose lanes leave one by one.
    let (path, path_mask, other, other_mask) = if target == join {
        (fall_through, straight, target, 0)
    } else if fall_through == join {
        (target, taken, fall_through, 0)
    } else {
        (fall_through, straight, target, taken)
    };
    let waiting = warp.stack[warp.floor..]
        .last()
        .is_some_and(|top| top.join == join && top.other_mask == 0);
    if other_mask != 0 || !waiting {
        warp.stack.push(Frame {
            join,
            restore: warp.active,
            other_pc: other,
            other_mask,
        });
    }
    warp.active = path_mask;
    warp.mask = path_mask;
    warp.at(path)
}

/// Counts a backward branch: lets other warps run now and then, and stops a warp that never ends.
#[inline(always)]
fn back_edge(warp: &mut Warp, ip: *const Ins, next: *const Ins) -> *const Ins {
    warp.branches += 1;
    if warp.branches < warp.yield_at {
        return next;
    }
    give_way(warp, ip, next)
}

#[cold]
#[inline(never)]
fn give_way(warp: &mut Warp, ip: *const Ins, next: *const Ins) -> *const Ins {
    warp.yield_at = warp.branches + warp.turn_branches;
    let branches = warp.branches;
    if branches >= warp.watchdog {
        let lane = warp.active.trailing_zeros();
        return warp.fail(ip, lane, |site| Fault::Watchdog { site, branches });
    }
    warp.stop = Stop::Yield;
    warp.resume = next;
    std::ptr::null()
}

/// The place where the paths of a branch meet.
struct Join;
impl Op for Join {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // Not an instruction of the program.
        warp.counters.warp_instructions -= 1;
        let lanes = u64::from(warp.mask.count_ones());
        warp.more_lanes = warp.more_lanes.wrapping_sub(lanes);
        let here = warp.pc(ip);
        let (floor, present) = (warp.floor, warp.present());
        while let Some(top) = warp.stack[floor..]
            .last_mut()
            .filter(|top| top.join == here)
        {
            let other = top.other_mask & present;
            top.other_mask = 0;
            if other != 0 {
                let target = top.other_pc;
                warp.active = other;
                warp.mask = other;
                return warp.at(target);
            }
            warp.active = top.restore & present;
            warp.mask = warp.active;
            warp.stack.pop();
        }
        ip.wrapping_add(1)
    }
}

/// `exit`, and `ret` of a kernel or (`RETURNS`) of a function. `ops[0]`: predicate, if `CONDITIONAL`; `ops[1]`: all ones to
/// negate it.
struct Exit<const CONDITIONAL: bool, const RETURNS: bool>;
impl<const CONDITIONAL: bool, const RETURNS: bool> Op for Exit<CONDITIONAL, RETURNS> {
    #[inline(always)]
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        let mut leaving = warp.active;
        if CONDITIONAL {
            // SAFETY: the run loop passes a valid instruction.
            let ins = unsafe { &*ip };
            // SAFETY: `ops[0]` is a predicate.
            leaving &= unsafe { warp.pred(ins.ops[0]) ^ ins.ops[1] };
        }
        if RETURNS {
            warp.returned |= leaving;
        } else {
            warp.live &= !leaving;
        }
        warp.active &= !leaving;
        warp.mask = warp.active;
        if warp.active == 0 {
            warp.next_path()
        } else {
            ip.wrapping_add(1)
        }
    }
}

/// `trap` and `brkpt`
struct Trap;
impl Op for Trap {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        let lane = warp.mask.trailing_zeros();
        warp.fail(ip, lane, |site| Fault::Trap { site })
    }
}

/// `nanosleep`: lets the block's other warps run.
struct Sleep;
impl Op for Sleep {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        warp.stop = Stop::Yield;
        warp.resume = ip.wrapping_add(1);
        std::ptr::null()
    }
}

/// Instructions that change nothing here: prefetches, hints. One thread runs a block, and blocks share memory
/// through sequentially consistent atomics.
struct Nothing;
impl Op for Nothing {
    unsafe fn run(_: &mut Warp, ip: *const Ins) -> *const Ins {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        ip.wrapping_add(1)
    }
}

/// `membar` and `fence`, which order blocks in the eyes of the checked mode.
struct Fence;
impl Op for Fence {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if !warp.watch.is_null() {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            unsafe { &mut *warp.watch }.fence(warp.position);
        }
        ip.wrapping_add(1)
    }
}

/// What a barrier instruction does besides waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    /// `bar.sync`
    Sync,
    /// `bar.arrive`
    Arrive,
    /// `bar.red`
    Reduce,
}

/// `ops[0]`: barrier number; `ops[1]`: thread count (0 = all); `ops[2]`: predicate of `bar.red`; `ops[3]`: its negation.
struct Barrier<const KIND: u8>;
impl<const KIND: u8> Op for Barrier<KIND> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        if warp.mask != warp.live {
            let live = warp.live;
            return warp.fail_divergent(ip, live);
        }
        let lane = warp.mask.trailing_zeros() as usize & 31;
        // SAFETY: the operands are slots of 32 lanes.
        let (id, threads) = unsafe {
            (
                *warp.slot::<u32>(ins.ops[0]).add(lane),
                *warp.slot::<u32>(ins.ops[1]).add(lane),
            )
        };
        if id > 15 || threads % 32 != 0 {
            let message = format!(
                "barrier {id} for {threads} threads: barriers are 0 to 15, for multiples of 32 threads"
            );
            return warp.fail(ip, lane as u32, |site| Fault::Unsupported { site, message });
        }
        let votes = if KIND == BarrierKind::Reduce as u8 {
            // SAFETY: `ops[2]` is a predicate.
            (unsafe { warp.pred(ins.ops[2]) ^ ins.ops[3] } & warp.mask).count_ones()
        } else {
            0
        };
        warp.counters.barriers += 1;
        let arrive_only = KIND == BarrierKind::Arrive as u8;
        warp.barrier = BarrierRequest {
            threads,
            votes,
            arrive_only,
        };
        warp.stop = Stop::Barrier(id as u8);
        warp.resume = ip.wrapping_add(1);
        std::ptr::null()
    }
}

/// Result of the `bar.red` before it. `ops[0]`: destination; `ext`: 0 popc, 1 and, 2 or.
struct BarrierResult;
impl Op for BarrierResult {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let (yes, all) = warp.barrier_votes;
        let truth = |holds: bool| if holds { u32::MAX } else { 0 };
        match ins.ext {
            // SAFETY: `ops[0]` is a 32-bit destination.
            0 => unsafe { warp.write32(ins.ops[0], &[yes; super::warp::LANES]) },
            // SAFETY: `ops[0]` is a predicate.
            1 => unsafe { warp.set_pred(ins.ops[0], truth(yes == all)) },
            // SAFETY: `ops[0]` is a predicate.
            _ => unsafe { warp.set_pred(ins.ops[0], truth(yes > 0)) },
        }
        ip.wrapping_add(1)
    }
}

/// Refuses to go on unless all lanes of the warp are there. Put before collective instructions without a mask.
#[inline(always)]
pub(crate) fn converged(warp: &Warp) -> bool {
    warp.mask == warp.live
}

pub(crate) fn jump(backward: bool) -> Handler {
    if backward {
        plain_handler::<Jump<true>>()
    } else {
        plain_handler::<Jump<false>>()
    }
}

pub(crate) fn branch(backward: bool) -> Handler {
    if backward {
        plain_handler::<Branch<true>>()
    } else {
        plain_handler::<Branch<false>>()
    }
}

pub(crate) fn join() -> Handler {
    plain_handler::<Join>()
}

pub(crate) fn leave(leave: Leave, conditional: bool) -> Handler {
    match (leave, conditional) {
        (Leave::Thread, false) => plain_handler::<Exit<false, false>>(),
        (Leave::Thread, true) => plain_handler::<Exit<true, false>>(),
        (Leave::Function, false) => plain_handler::<Exit<false, true>>(),
        (Leave::Function, true) => plain_handler::<Exit<true, true>>(),
    }
}

pub(crate) fn trap() -> Handler {
    plain_handler::<Trap>()
}

pub(crate) fn sleep() -> Handler {
    plain_handler::<Sleep>()
}

pub(crate) fn nothing() -> Handler {
    plain_handler::<Nothing>()
}

pub(crate) fn fence() -> Handler {
    plain_handler::<Fence>()
}

pub(crate) fn barrier(kind: BarrierKind) -> Handler {
    match kind {
        BarrierKind::Sync => plain_handler::<Barrier<{ BarrierKind::Sync as u8 }>>(),
        BarrierKind::Arrive => plain_handler::<Barrier<{ BarrierKind::Arrive as u8 }>>(),
        BarrierKind::Reduce => plain_handler::<Barrier<{ BarrierKind::Reduce as u8 }>>(),
    }
}

pub(crate) fn barrier_result() -> Handler {
    plain_handler::<BarrierResult>()
}
