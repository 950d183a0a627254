//! What orders `wgmma`: `wgmma.fence`, `commit_group` and `wait_group`.
//!
//! The interpreter performs a `wgmma` when it is issued, so that these change nothing by themselves: they are there for the
//! checked mode.

use super::op::{Op, plain_handler};
use super::warp::{Handler, Ins, Warp};

/// What the instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarpgroupOrder {
    /// `wgmma.fence`
    Fence,
    /// `wgmma.commit_group`
    Commit,
    /// `wgmma.wait_group`; `imm`: groups that may stay open.
    Wait,
}

struct Order<const WHAT: u8>;
impl<const WHAT: u8> Op for Order<WHAT> {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        if !warp.watch.is_null() {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            let watch = unsafe { &mut *warp.watch };
            const FENCE: u8 = WarpgroupOrder::Fence as u8;
            const COMMIT: u8 = WarpgroupOrder::Commit as u8;
            match WHAT {
                FENCE => watch.matrix_fence(warp.position),
                COMMIT => watch.matrix_commit(warp.position),
                // SAFETY: the run loop passes a valid instruction.
                _ => watch.matrix_wait(warp.position, unsafe { &*ip }.imm as u64),
            }
        }
        ip.wrapping_add(1)
    }
}

pub(crate) fn order(order: WarpgroupOrder) -> Handler {
    match order {
        WarpgroupOrder::Fence => plain_handler::<Order<{ WarpgroupOrder::Fence as u8 }>>(),
        WarpgroupOrder::Commit => plain_handler::<Order<{ WarpgroupOrder::Commit as u8 }>>(),
        WarpgroupOrder::Wait => plain_handler::<Order<{ WarpgroupOrder::Wait as u8 }>>(),
    }
}
