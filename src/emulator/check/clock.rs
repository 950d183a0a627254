//! Happens-before between the warps of the blocks that run together (one block, a cluster, or the grid of a cooperative launch):
//! one vector clock a warp.
//!
//! A warp's own entry is its *epoch*: it advances whenever the warp's earlier accesses become ordered before something
//! (a barrier arrival, `bar.warp.sync`). Warp `a`'s access at epoch `e` is ordered before what warp `b` does now exactly
//! when `b`'s clock has `a` at `e` or more. Epochs go on counting from block to block, so that what an earlier block left in
//! a shadow reads as "not of this block" without being cleared.
//!
//! Where instructions go on behind a warp's back (bulk copies, `wgmma`, `st.async`), each warp has two more entries, one for
//! what they read and one for what they write. Their epochs count such instructions, and others learn of them only through
//! what waits for their completion.

use std::collections::HashMap;

/// Barriers a block has.
const BARRIERS: usize = 16;

/// What has been released through a barrier that works in phases.
#[derive(Debug, Default)]
struct Phases {
    /// For the phase that is not complete.
    current: Vec<u32>,
    /// In all complete phases.
    complete: Vec<u32>,
}

/// Which barrier that works in phases: the mbarrier at an offset of shared memory, or [`cluster_barrier`].
pub(crate) type PhaseBarrier = u32;

/// The barrier of a cluster's own, by the cluster's number among those that run together.
pub(crate) fn cluster_barrier(cluster: usize) -> PhaseBarrier {
    u32::MAX - cluster as u32
}

/// The clocks of the warps and barriers of the blocks that run together.
#[derive(Debug)]
pub(crate) struct Clocks {
    warps: usize,
    /// Entries of a clock: [`Clocks::warps`] or three times as many.
    actors: usize,
    /// `[warp][actor]`.
    of_warp: Vec<u32>,
    /// Epochs of the actors that are not warps.
    background: Vec<u32>,
    /// What has arrived, by barrier, 16 of them a block; empty if nothing has.
    of_barrier: Vec<Vec<u32>>,
    of_phases: HashMap<PhaseBarrier, Phases>,
    /// What atomics and strong stores have published, by address.
    of_word: HashMap<u64, Vec<u32>>,
    /// `[warp]`: its clock at its last fence, which its atomics publish; empty before.
    fenced: Vec<Vec<u32>>,
    /// `[warp]`: picked up by an atomic or strong load and not yet followed by a fence or barrier; empty if nothing is.
    picked_up: Vec<Vec<u32>>,
    /// First epoch of the present block.
    base: u32,
}

fn join(into: &mut Vec<u32>, from: &[u32]) {
    into.resize(from.len().max(into.len()), 0);
    for (known, &new) in into.iter_mut().zip(from) {
        *known = (*known).max(new);
    }
}

impl Clocks {
    /// Clocks of `warps` warps in `blocks` blocks, some of whose instructions go on behind their back if `background`.
    pub(crate) fn new(warps: usize, blocks: usize, background: bool) -> Clocks {
        let actors = if background { 3 * warps } else { warps };
        Clocks {
            warps,
            actors,
            of_warp: vec![0; warps * actors],
            background: vec![0; actors - warps],
            of_barrier: vec![Vec::new(); blocks * BARRIERS],
            of_phases: HashMap::new(),
            of_word: HashMap::new(),
            fenced: vec![Vec::new(); warps],
            picked_up: vec![Vec::new(); warps],
            base: 0,
        }
    }

    /// Starts a block: nothing of an earlier one counts. True when epochs have begun anew, and shadows must be cleared.
    pub(crate) fn begin_block(&mut self) -> bool {
        let all = self.of_warp.iter().chain(&self.background);
        let highest = all.copied().max().unwrap_or(0);
        let wrapped = highest > u32::MAX / 2;
        self.base = if wrapped { 1 } else { highest + 1 };
        self.of_warp.fill(self.base - 1);
        self.background.fill(self.base - 1);
        self.of_barrier.iter_mut().for_each(Vec::clear);
        self.of_phases.clear();
        self.of_word.clear();
        for warp in 0..self.warps {
            self.of_warp[warp * self.actors + warp] = self.base;
            self.fenced[warp].clear();
            self.picked_up[warp].clear();
        }
        wrapped
    }

    /// First epoch of the present block.
    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    /// Warps there are: the first entries of a clock.
    pub(crate) fn warps(&self) -> usize {
        self.warps
    }

    /// Entries of a clock.
    pub(crate) fn actors(&self) -> usize {
        self.actors
    }

    /// The clock of a warp.
    pub(crate) fn of(&self, warp: usize) -> &[u32] {
        &self.of_warp[warp * self.actors..(warp + 1) * self.actors]
    }

    /// The present epoch of a warp, or of what goes on behind its back.
    pub(crate) fn epoch(&self, actor: usize) -> u32 {
        match actor.checked_sub(self.warps) {
            None => self.of_warp[actor * self.actors + actor],
            Some(background) => self.background[background],
        }
    }

    /// Begins a new epoch of a warp: its lanes have met at `bar.warp.sync`.
    pub(crate) fn advance(&mut self, warp: usize) {
        self.of_warp[warp * self.actors + warp] += 1;
    }

    /// What a warp's instructions read behind its back.
    pub(crate) fn reader(&self, warp: usize) -> usize {
        self.warps + warp
    }

    /// What a warp's instructions write behind its back.
    pub(crate) fn writer(&self, warp: usize) -> usize {
        2 * self.warps + warp
    }

    /// The warp that an actor belongs to.
    pub(crate) fn warp_of(&self, actor: usize) -> usize {
        actor % self.warps
    }

    /// An instruction begins that goes on behind its warp's back.
    pub(crate) fn begin_background(&mut self, actor: usize) -> u32 {
        let epoch = &mut self.background[actor - self.warps];
        *epoch += 1;
        *epoch
    }

    /// A warp has waited for what an actor did up to an epoch.
    pub(crate) fn learn(&mut self, warp: usize, actor: usize, epoch: u32) {
        let known = &mut self.of_warp[warp * self.actors + actor];
        *known = (*known).max(epoch);
    }

    /// A warp arrives at a barrier: what it did is ordered before whoever leaves it.
    pub(crate) fn arrive(&mut self, barrier: usize, warp: usize) {
        self.acquire(warp);
        let clock = &self.of_warp[warp * self.actors..(warp + 1) * self.actors];
        join(&mut self.of_barrier[barrier], clock);
        self.advance(warp);
    }

    /// A warp leaves a complete barrier.
    pub(crate) fn leave(&mut self, barrier: usize, warp: usize) {
        let clock = &mut self.of_warp[warp * self.actors..(warp + 1) * self.actors];
        for (known, &arrived) in clock.iter_mut().zip(&self.of_barrier[barrier]) {
            *known = (*known).max(arrived);
        }
    }

    /// The barrier is complete and starts anew.
    pub(crate) fn reset(&mut self, barrier: usize) {
        self.of_barrier[barrier].clear();
    }

    /// A warp arrives at a barrier that works in phases, for the one that is not complete. With `relaxed` only what came
    /// before its last fence is ordered.
    pub(crate) fn release(&mut self, barrier: PhaseBarrier, warp: usize, relaxed: bool) {
        self.acquire(warp);
        let phases = self.of_phases.entry(barrier).or_default();
        let clock = &self.of_warp[warp * self.actors..(warp + 1) * self.actors];
        join(
            &mut phases.current,
            if relaxed { &self.fenced[warp] } else { clock },
        );
        self.advance(warp);
    }

    /// Something that went on behind a warp's back is complete, and counts for the present phase.
    pub(crate) fn tell(&mut self, barrier: PhaseBarrier, actor: usize, epoch: u32) {
        let current = &mut self.of_phases.entry(barrier).or_default().current;
        current.resize(self.actors, 0);
        current[actor] = current[actor].max(epoch);
    }

    /// The present phase is complete.
    pub(crate) fn complete(&mut self, barrier: PhaseBarrier) {
        let phases = self.of_phases.entry(barrier).or_default();
        let current = std::mem::take(&mut phases.current);
        join(&mut phases.complete, &current);
    }

    /// A warp has found a phase complete. What was released for earlier ones counts as well: each phase began when the one
    /// before it was complete.
    pub(crate) fn pass(&mut self, barrier: PhaseBarrier, warp: usize) {
        if let Some(phases) = self.of_phases.get(&barrier) {
            let clock = &mut self.of_warp[warp * self.actors..(warp + 1) * self.actors];
            for (known, &released) in clock.iter_mut().zip(&phases.complete) {
                *known = (*known).max(released);
            }
        }
    }

    /// A new barrier lies there.
    pub(crate) fn forget(&mut self, barrier: PhaseBarrier) {
        self.of_phases.remove(&barrier);
    }

    /// A warp's fence: later atomics publish what came before it, and what earlier ones picked up counts.
    pub(crate) fn fence(&mut self, warp: usize) {
        self.acquire(warp);
        let clock = &self.of_warp[warp * self.actors..(warp + 1) * self.actors];
        self.fenced[warp].clear();
        self.fenced[warp].extend_from_slice(clock);
        self.advance(warp);
    }

    /// What a warp's atomics picked up counts from here on. True if any of it is new to the warp.
    pub(crate) fn acquire(&mut self, warp: usize) -> bool {
        let clock = &mut self.of_warp[warp * self.actors..(warp + 1) * self.actors];
        let mut learned = false;
        for (known, picked_up) in clock.iter_mut().zip(self.picked_up[warp].drain(..)) {
            learned |= picked_up > *known;
            *known = (*known).max(picked_up);
        }
        learned
    }

    /// Epochs by actor: whatever the warps that have not `exited` still do is ordered behind what the actor did up to then.
    pub(crate) fn settled(&self, exited: &[bool]) -> Vec<u32> {
        let mut settled = vec![u32::MAX; self.actors];
        for warp in (0..self.warps).filter(|&warp| !exited[warp]) {
            for (actor, (all, &known)) in settled.iter_mut().zip(self.of(warp)).enumerate() {
                if actor != warp {
                    *all = (*all).min(known);
                }
            }
        }
        settled
    }

    /// An atomic or strong access of a word by a warp.
    pub(crate) fn synchronise(&mut self, warp: usize, address: u64, reads: bool, writes: bool) {
        if reads && let Some(there) = self.of_word.get(&address) {
            join(&mut self.picked_up[warp], there);
        }
        if writes && !self.fenced[warp].is_empty() {
            join(self.of_word.entry(address).or_default(), &self.fenced[warp]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_orders_arrivals_before_departures_and_an_arrival_alone_learns_nothing() {
        let mut clocks = Clocks::new(3, 1, false);
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
        let mut clocks = Clocks::new(2, 1, true);
        clocks.begin_block();
        let old = clocks.epoch(0);
        let reader = clocks.reader(1);
        let read = clocks.begin_background(reader);
        assert!(!clocks.begin_block());
        assert!(old < clocks.base() && clocks.epoch(0) == clocks.base());
        assert!(read < clocks.base() && clocks.epoch(reader) < clocks.base());
    }

    #[test]
    fn phases_order_only_what_was_released_for_them() {
        let mut clocks = Clocks::new(3, 1, true);
        clocks.begin_block();
        let first = clocks.epoch(0);
        clocks.release(64, 0, false);
        clocks.pass(64, 1);
        assert!(clocks.of(1)[0] < first, "not complete");
        clocks.complete(64);
        // An arrival for the next phase.
        let second = clocks.epoch(2);
        clocks.release(64, 2, false);
        clocks.pass(64, 1);
        assert!(clocks.of(1)[0] >= first);
        assert!(clocks.of(1)[2] < second, "the next phase is not complete");
        // A copy that brings data.
        let writer = clocks.writer(0);
        let written = clocks.begin_background(writer);
        clocks.tell(64, writer, written);
        clocks.complete(64);
        assert!(clocks.of(1)[writer] < written);
        clocks.pass(64, 1);
        assert!(clocks.of(1)[writer] >= written && clocks.of(1)[2] >= second);
        assert_eq!(clocks.warp_of(writer), 0);
    }

    #[test]
    fn warps_meet_through_a_word_only_with_fences() {
        for (release, acquire) in [(true, true), (false, true), (true, false)] {
            let mut clocks = Clocks::new(2, 1, false);
            clocks.begin_block();
            let written = clocks.epoch(0);
            if release {
                clocks.fence(0);
            }
            clocks.synchronise(0, 8, false, true);
            clocks.synchronise(1, 8, true, false);
            if acquire {
                clocks.fence(1);
            }
            assert_eq!(clocks.of(1)[0] >= written, release && acquire);
        }
    }
}
