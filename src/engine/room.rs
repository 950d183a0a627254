//! Making room (I8): when pages that a sequence was promised are not free at the moment, cached prefixes are evicted, then what is
//! planned runs, then pages move together so that slabs become free.

use crate::kv::{GroupId, PageMove};

use super::EngineError;
use super::runner::Runner;

/// Pages moved by one round of compaction, where a slab does not hold more.
const ROUND_PAGES: u32 = 256;

impl Runner {
    /// Evicts cached prefixes until the pages of the append that was refused last are free. `false` when that is not enough: the
    /// rest is held by steps, planned ones included, or lies scattered.
    pub(super) fn evict(&mut self) -> Result<bool, EngineError> {
        let Some(tree) = &mut self.prefixes else {
            return Ok(false);
        };
        let sequences = &mut self.sequences;
        let demand = sequences.refused_pages().to_vec();
        let mut others = Vec::new();
        for (group, pages) in (0..).map(GroupId).zip(&demand) {
            match pages.saturating_sub(sequences.allocator().free_pages(group)) {
                0 => others.push(group),
                missing => {
                    tree.evict(sequences, group, missing)?;
                }
            }
        }
        // Slabs that the other pools empty serve the one that lacks pages: a slab's worth at a time.
        while !sequences.allocator().fits(&demand) {
            let mut freed = 0;
            for group in &others {
                let slab = sequences.allocator().layout().pools[group.index()].pages_per_slab;
                freed += tree.evict(sequences, *group, slab.into())?;
            }
            if freed == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Moves pages out of the sparsest slabs, as a step of its own; `false` when no slab can be emptied. No step may be planned.
    pub(super) fn compact(&mut self) -> Result<bool, EngineError> {
        let pools = &self.sequences.allocator().layout().pools;
        let slab = pools.iter().map(|pool| pool.pages_per_slab).max();
        let most_pages = slab.unwrap_or(0).max(ROUND_PAGES) as usize;
        let moves = self.sequences.compact(most_pages, &mut self.updates)?;
        self.move_pages(&moves)?;
        Ok(!moves.is_empty())
    }

    /// Runs the copies of pages that compaction or shrinking moved and waits for them; tables and cached prefixes follow.
    pub(super) fn move_pages(&mut self, moves: &[PageMove]) -> Result<(), EngineError> {
        self.note_updates();
        if moves.is_empty() {
            return Ok(());
        }
        self.num_moved_pages += moves.len() as u64;
        if let Some(tree) = &mut self.prefixes {
            tree.moved(moves);
        }
        let copies = self.sequences.page_copies().to_vec();
        let step = self.sequences.begin_step();
        self.prepare(&copies)?;
        self.stream.synchronize()?;
        Ok(self.sequences.complete_step(step)?)
    }

    /// Lets go of every cached prefix; `false` when there was none.
    pub(super) fn clear_prefixes(&mut self) -> Result<bool, EngineError> {
        let Some(tree) = &mut self.prefixes else {
            return Ok(false);
        };
        let cached = tree.counters().cached_pages.iter().sum::<u64>();
        tree.clear(&mut self.sequences)?;
        Ok(cached > 0)
    }
}
