//! Happens-before between the warps of a block: one vector clock a warp.
//!
//! A warp's own entry is its *epoch*: it advances whenever the warp's earlier accesses become ordered before something
//! (a barrier arrival, `bar.warp.sync`). Warp `a`'s access at epoch `e` is ordered before what warp `b` does now exactly
//! when `b`'s clock has `a` at `e` or more. Epochs go on counting from block to block, so that what an earlier block left in
//! a shadow reads as "not of this block" without being cleared.

use std::collections::HashMap;

/// Barriers a block has.
const BARRIERS: usize = 16;

/// The clocks of one block's warps and barriers.
#[derive(Debug)]
pub(crate) struct Clocks {
    warps: usize,
    /// `[warp][warp]`.
    of_warp: Vec<u32>,
    /// `[barrier][warp]`: what has arrived.
    of_barrier: Vec<u32>,
    /// What has been released through each mbarrier, by its offset in shared memory.
    of_mbarrier: HashMap<u32, Vec<u32>>,
    /// First epoch of the present block.
    base: u32,
}

impl Clocks {
    pub(crate) fn new(warps: usize) -> Clocks {
        Clocks {
            warps,
            of_warp: vec![0; warps * warps],
            of_barrier: vec![0; BARRIERS * warps],
            of_mbarrier: HashMap::new(),
            base: 0,
        }
    }

    /// Starts a block: nothing of an earlier one counts. True when epochs have begun anew, and shadows must be cleared.
    pub(crate) fn begin_block(&mut self) -> bool {
        let highest = self.of_warp.iter().copied().max().unwrap_or(0);
        let wrapped = highest > u32::MAX / 2;
        self.base = if wrapped { 1 } else { highest + 1 };
        self.of_warp.fill(self.base - 1);
        self.of_barrier.fill(0);
        self.of_mbarrier.clear();
        for warp in 0..self.warps {
            self.of_warp[warp * self.warps + warp] = self.base;
        }
        wrapped
    }

    /// First epoch of the present block.
    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    /// The clock of a warp.
    pub(crate) fn of(&self, warp: usize) -> &[u32] {
        &self.of_warp[warp * self.warps..(warp + 1) * self.warps]
    }

    pub(crate) fn epoch(&self, warp: usize) -> u32 {
        self.of_warp[warp * self.warps + warp]
    }

    /// Begins a new epoch of a warp: its lanes have met at `bar.warp.sync`.
    pub(crate) fn advance(&mut self, warp: usize) {
        self.of_warp[warp * self.warps + warp] += 1;
    }

    /// A warp arrives at a barrier: what it did is ordered before whoever leaves it.
    pub(crate) fn arrive(&mut self, barrier: usize, warp: usize) {
        for other in 0..self.warps {
            let arrived = &mut self.of_barrier[barrier * self.warps + other];
            *arrived = (*arrived).max(self.of_warp[warp * self.warps + other]);
        }
        self.advance(warp);
    }

    /// A warp leaves a complete barrier.
    pub(crate) fn leave(&mut self, barrier: usize, warp: usize) {
        for other in 0..self.warps {
            let known = &mut self.of_warp[warp * self.warps + other];
            *known = (*known).max(self.of_barrier[barrier * self.warps + other]);
        }
    }

    /// A warp arrives at an mbarrier, or brings data that it completes.
    pub(crate) fn release(&mut self, mbarrier: u32, warp: usize) {
        let clock = &self.of_warp[warp * self.warps..(warp + 1) * self.warps];
        let released = self.of_mbarrier.entry(mbarrier).or_default();
        released.resize(clock.len(), 0);
        for (released, known) in released.iter_mut().zip(clock) {
            *released = (*released).max(*known);
        }
        self.advance(warp);
    }

    /// A warp has found a phase of an mbarrier complete. What was released for a later phase counts as well, so that a race
    /// between phases may go unseen.
    pub(crate) fn acquire(&mut self, mbarrier: u32, warp: usize) {
        if let Some(released) = self.of_mbarrier.get(&mbarrier) {
            let clock = &mut self.of_warp[warp * self.warps..(warp + 1) * self.warps];
            for (known, released) in clock.iter_mut().zip(released) {
                *known = (*known).max(*released);
            }
        }
    }

    /// The barrier is complete and starts anew.
    pub(crate) fn reset(&mut self, barrier: usize) {
        self.of_barrier[barrier * self.warps..(barrier + 1) * self.warps].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_orders_arrivals_before_departures_and_an_arrival_alone_learns_nothing() {
        let mut clocks = Clocks::new(3);
        clocks.begin_block();
        let before: Vec<u32> = (0..3).map(|warp| clocks.epoch(warp)).collect();
        clocks.arrive(1, 0);
        clocks.arrive(1, 1);
        clocks.leave(1, 1);
        clocks.reset(1);
        assert!(clocks.of(1)[0] >= before[0]);
        assert!(clocks.of(0)[1] < before[1], "warp 0 only arrived");
        assert!(clocks.of(2)[0] < before[0]);
        clocks.arrive(1, 2);
        clocks.leave(1, 2);
        assert!(clocks.of(2)[0] < before[0], "the barrier had begun anew");
    }

    #[test]
    fn blocks_do_not_see_each_other() {
        let mut clocks = Clocks::new(2);
        clocks.begin_block();
        let old = clocks.epoch(0);
        assert!(!clocks.begin_block());
        assert!(old < clocks.base() && clocks.epoch(0) == clocks.base());
    }
}
