//! Registers that `wgmma` reads and writes behind its warp's back.
//!
//! PTX ISA, "Asynchronous warpgroup level matrix instructions": accumulators and the fragments of A may not be touched before
//! `wgmma.wait_group` says that the group of the instruction is complete, but by further `wgmma` that add to the same
//! accumulators; and `wgmma.fence` stands between other accesses of these registers and the first `wgmma` behind them.

use super::registers::CONSTANT;
use std::collections::HashMap;

/// What is wrong with an instruction's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentFault {
    /// A register is touched that the `wgmma` at `pc` still writes, or written that it still reads.
    NotWaited { pc: u32 },
    /// A register of a `wgmma` was written behind the latest `wgmma.fence`, by the instruction at `pc`.
    NotFenced { pc: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Use {
    pc: u32,
    /// It is an accumulator; otherwise a fragment of A.
    result: bool,
    group: u64,
}

/// The registers of one warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fragments {
    /// Registers of instructions that are not known to be complete.
    busy: HashMap<u32, Use>,
    /// Registers written since the latest `wgmma.fence`, and where.
    written: HashMap<u32, u32>,
    /// Groups committed.
    groups: u64,
    /// Epochs of the reads of committed groups that nobody has waited for, oldest first.
    epochs: Vec<u32>,
}

impl Fragments {
    pub(crate) fn clear(&mut self) {
        *self = Fragments::default();
    }

    /// An instruction that is no `wgmma`.
    pub(crate) fn execute(
        &mut self,
        pc: u32,
        destinations: &[u32],
        sources: &[u32],
    ) -> Option<FragmentFault> {
        let mut found = None;
        if !self.busy.is_empty() {
            let read = sources.iter().filter_map(|source| self.busy.get(source));
            let mut hits = read.filter(|busy| busy.result);
            let written = destinations.iter().filter_map(|d| self.busy.get(d));
            found = hits.next().or(written.into_iter().next());
        }
        let found = found.map(|busy| FragmentFault::NotWaited { pc: busy.pc });
        self.written
            .extend(destinations.iter().map(|&register| (register, pc)));
        found
    }

    /// A `wgmma`: its accumulators and the fragments of A that it has in registers.
    pub(crate) fn issue(
        &mut self,
        pc: u32,
        results: &[u32],
        fragments: &[u32],
    ) -> Option<FragmentFault> {
        let mut found = None;
        for register in results.iter().chain(fragments) {
            if let Some(&pc) = self.written.get(register) {
                found = found.or(Some(FragmentFault::NotFenced { pc }));
            }
        }
        let as_input = fragments
            .iter()
            .filter_map(|register| self.busy.get(register));
        let as_result = results
            .iter()
            .filter_map(|register| self.busy.get(register));
        let clash = as_input
            .filter(|busy| busy.result)
            .chain(as_result.filter(|busy| !busy.result))
            .next();
        let clash = clash.map(|busy| FragmentFault::NotWaited { pc: busy.pc });
        let group = self.groups;
        let named = |register: &&u32| **register != CONSTANT;
        for (registers, result) in [(fragments, false), (results, true)] {
            for &register in registers.iter().filter(named) {
                self.busy.insert(register, Use { pc, result, group });
            }
        }
        clash.or(found)
    }

    /// `wgmma.fence`
    pub(crate) fn fence(&mut self) {
        self.written.clear();
    }

    /// `wgmma.commit_group`, when the reads of the warp's `wgmma` have come to an epoch.
    pub(crate) fn commit(&mut self, epoch: u32) {
        self.groups += 1;
        self.epochs.push(epoch);
    }

    /// `wgmma.wait_group`: `keep` groups may stay open. Gives the epoch up to which reads are complete.
    pub(crate) fn wait(&mut self, keep: u64) -> Option<u32> {
        let done = self.groups.saturating_sub(keep);
        self.busy.retain(|_, busy| busy.group >= done);
        let count = self.epochs.len().saturating_sub(keep as usize);
        self.epochs.drain(..count).next_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accumulators_are_busy_until_their_group_is_waited_for() {
        let mut fragments = Fragments::default();
        assert_eq!(fragments.execute(1, &[10, 11], &[]), None);
        let late = Some(FragmentFault::NotFenced { pc: 1 });
        assert_eq!(fragments.clone().issue(2, &[10, 11], &[4]), late);
        fragments.fence();
        assert_eq!(fragments.issue(2, &[10, 11], &[4]), None);
        assert_eq!(
            fragments.issue(3, &[10, 11], &[4]),
            None,
            "adds to the same"
        );
        fragments.commit(7);
        assert_eq!(fragments.issue(4, &[20], &[5]), None);
        fragments.commit(8);
        assert_eq!(fragments.wait(1), Some(7));
        assert_eq!(fragments.execute(5, &[30], &[10]), None);
        let busy = Some(FragmentFault::NotWaited { pc: 4 });
        assert_eq!(fragments.clone().execute(6, &[30], &[20]), busy);
        assert_eq!(fragments.clone().execute(6, &[5], &[]), busy, "A is read");
        assert_eq!(fragments.clone().execute(6, &[30], &[5]), None);
        assert_eq!(fragments.wait(0), Some(8));
        assert_eq!(fragments.execute(6, &[5], &[20]), None);
    }
}
