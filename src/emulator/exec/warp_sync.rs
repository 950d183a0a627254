//! `bar.warp.sync`: lanes of a warp wait for each other wherever they are.
//!
//! Lanes that come before the others are set aside, and the warp goes on with another of its paths: the lanes that are
//! missing may come to this instruction, or to another `bar.warp.sync`, or exit. The checked mode reports lanes that do not
//! come together to the same one instead: no architecture before Volta waits for them.

use super::op::{Op, plain_handler};
use super::warp::{Frame, Handler, Ins, NO_JOIN, Warp};

/// Lanes that wait, in no frame of the warp's stack meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    /// Index of the instruction they wait at.
    pc: u32,
    lanes: u32,
    /// Lanes that they wait for, themselves included.
    wanted: u32,
    /// Nesting of calls they are in.
    depth: usize,
}

impl Warp {
    fn depth(&self) -> usize {
        self.calls.depth()
    }

    /// Lanes that wait for `wanted` in the routine that runs.
    fn parked_lanes(&self, wanted: u32) -> u32 {
        let depth = self.depth();
        let alike = self
            .parked
            .iter()
            .filter(|parked| parked.wanted == wanted && parked.depth == depth);
        alike.fold(0, |lanes, parked| lanes | parked.lanes)
    }

    /// Sets the masked lanes aside and goes on without them.
    fn park(&mut self, ip: *const Ins, wanted: u32) -> *const Ins {
        let lanes = self.mask;
        self.parked.push(Parked {
            pc: self.pc(ip),
            lanes,
            wanted,
            depth: self.depth(),
        });
        // Whoever looks for lanes that are left finds them as little as lanes that have returned.
        self.returned |= lanes;
        for frame in &mut self.stack[self.floor..] {
            frame.restore &= !lanes;
        }
        self.active &= !lanes;
        self.mask = self.active;
        if self.active == 0 {
            self.next_path()
        } else {
            ip.wrapping_add(1)
        }
    }

    /// Takes lanes that wait for `wanted` back: those at `pc` into the current path, others as paths of their own.
    fn unpark(&mut self, wanted: u32, pc: u32) {
        let (depth, floor) = (self.depth(), self.floor);
        let parked = std::mem::take(&mut self.parked);
        for group in parked {
            if group.wanted != wanted || group.depth != depth {
                self.parked.push(group);
                continue;
            }
            self.returned &= !group.lanes;
            if group.pc == pc {
                self.active |= group.lanes;
                for frame in &mut self.stack[floor..] {
                    frame.restore |= group.lanes;
                }
            } else {
                self.stack.insert(
                    floor,
                    Frame {
                        join: NO_JOIN,
                        restore: 0,
                        other_pc: group.pc + 1,
                        other_mask: group.lanes,
                    },
                );
            }
        }
        self.mask = self.active;
    }

    /// When no path of the routine is left: goes on with lanes whose wait is over, as those they waited for have exited, or
    /// says that it never will be. `None` where no lanes wait here.
    #[cold]
    pub(crate) fn next_parked(&mut self) -> Option<*const Ins> {
        let depth = self.depth();
        let here: Vec<Parked> = self
            .parked
            .iter()
            .filter(|parked| parked.depth == depth)
            .copied()
            .collect();
        let over = here
            .iter()
            .find(|parked| parked.wanted & self.live & !self.parked_lanes(parked.wanted) == 0);
        if let Some(&Parked { pc, wanted, .. }) = over {
            self.unpark(wanted, pc);
            return Some(self.at(pc + 1));
        }
        let &Parked {
            pc, lanes, wanted, ..
        } = here.first()?;
        self.mask = lanes;
        Some(self.fail_divergent(self.at(pc), wanted & self.live))
    }
}

/// `bar.warp.sync`. `ops`: mask.
struct SyncWarp;
impl Op for SyncWarp {
    unsafe fn run(warp: &mut Warp, ip: *const Ins) -> *const Ins {
        // SAFETY: the run loop passes a valid instruction.
        let ins = unsafe { &*ip };
        let lane = warp.mask.trailing_zeros() as usize & 31;
        // SAFETY: `ops[0]` is the mask, a slot of 32 lanes.
        let wanted = unsafe { *warp.slot::<u32>(ins.ops[0]).add(lane) };
        let (named, strict) = (wanted & warp.live, !warp.watch.is_null());
        let missing = named & !warp.mask;
        if warp.mask & !wanted != 0 || (strict && missing != 0) {
            return warp.fail_divergent(ip, named);
        }
        if strict {
            // SAFETY: a watch that is set outlives the warps, and the block's runner does not use it while a handler runs.
            unsafe { &mut *warp.watch }.warp_sync(warp.position);
        }
        if missing == 0 {
            return ip.wrapping_add(1);
        }
        if missing & !warp.parked_lanes(wanted) != 0 {
            return warp.park(ip, wanted);
        }
        warp.unpark(wanted, warp.pc(ip));
        ip.wrapping_add(1)
    }
}

pub(crate) fn sync_warp() -> Handler {
    plain_handler::<SyncWarp>()
}
