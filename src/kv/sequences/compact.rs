//! Moving pages so that slabs become empty, and giving slabs back.

use std::collections::{BTreeMap, BTreeSet};

use super::{KvError, KvSequences, TableUpdate};
use crate::kv::fit::FreeMemory;
use crate::kv::geometry::{GroupId, PageEntry};

/// A page that the page-copy kernel copies, all layers of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMove {
    /// Layer group.
    pub group: GroupId,
    /// The page read.
    pub source: PageEntry,
    /// The page written.
    pub target: PageEntry,
}

impl KvSequences {
    /// Moves the pages of the sparsest slabs into fuller ones of their pools, at most `most_pages` of them, so that whole slabs
    /// become free (I11). The copies join [`page_copies`](Self::page_copies), the block-table entries that change go to `updates`; both are part of
    /// the next step, and the slabs are free when that step has completed. The prefix tree must be told of what is
    /// returned. Nothing is moved that empties no slab.
    ///
    /// # Errors
    /// [`KvError::StepPlanned`] while a step is planned and not launched: its slots name pages that would move.
    pub fn compact(
        &mut self,
        most_pages: usize,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<Vec<PageMove>, KvError> {
        self.refuse_while_planned()?;
        let staying = self.staying_pages();
        // All slabs first, then their pages: a page that moved is not in a slab that is emptied after it.
        let mut pages = Vec::new();
        let mut moving = vec![0; self.geometry.groups.len()];
        while let Some((group, slab)) = self.slab_to_empty(&moving) {
            let movable = self.movable_pages(slab, &staying);
            if pages.len() + movable.len() > most_pages {
                break;
            }
            self.allocator.drain(slab);
            moving[group.index()] += movable.len() as u64;
            pages.extend(movable);
        }
        self.move_pages(pages, updates)
    }

    /// The slab whose pages weigh least, among those whose pool can take them elsewhere beside `moving[g]` others.
    fn slab_to_empty(&self, moving: &[u64]) -> Option<(GroupId, u32)> {
        let candidates = self.geometry.group_ids().filter_map(|group| {
            let slab = self.allocator.sparsest_slab(group)?;
            let pool = &self.allocator.layout().pools[group.index()];
            // All the pool's free pages but this slab's own must hold its used pages.
            let needed_pages = moving[group.index()] + u64::from(pool.pages_per_slab);
            (self.allocator.free_pages(group) >= needed_pages).then(|| {
                let used_pages = u64::from(self.allocator.slab_used_pages(slab));
                (used_pages * pool.page_bytes, slab, group)
            })
        });
        candidates.min().map(|(_, slab, group)| (group, slab))
    }

    /// Pages that nobody will read after the steps in flight; they leave by themselves.
    fn staying_pages(&self) -> BTreeSet<PageEntry> {
        let retired = self.retired.iter().map(|retired| retired.2);
        let sequences = self.sequences.iter().filter(|sequence| sequence.live);
        let closing = sequences
            .flat_map(|sequence| &sequence.groups)
            .flat_map(|held| held.closing());
        retired.chain(closing.map(|closing| closing.1)).collect()
    }

    fn movable_pages(&self, slab: u32, staying: &BTreeSet<PageEntry>) -> Vec<(GroupId, PageEntry)> {
        let pages = self.allocator.used_entries(slab);
        pages
            .filter(|(_, entry)| !staying.contains(entry))
            .collect()
    }

    /// Moves pages to free ones of their pools, of which there are enough.
    fn move_pages(
        &mut self,
        pages: Vec<(GroupId, PageEntry)>,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<Vec<PageMove>, KvError> {
        let mut moves = Vec::with_capacity(pages.len());
        for (group, source) in pages {
            let target = self
                .allocator
                .alloc_page(group)
                .ok_or(KvError::OutOfPages {
                    tokens: 0,
                    pages: 1,
                })?;
            self.allocator.move_holders(group, source, target)?;
            self.push_copy(group, source, target);
            moves.push(PageMove {
                group,
                source,
                target,
            });
        }
        self.rename(&moves, updates)?;
        Ok(moves)
    }

    /// Puts the new entries into the tables of every sequence, and retires the old pages behind the step that copies them.
    fn rename(
        &mut self,
        moves: &[PageMove],
        updates: &mut Vec<TableUpdate>,
    ) -> Result<(), KvError> {
        if moves.is_empty() {
            return Ok(());
        }
        let targets = moves
            .iter()
            .map(|page| (page.source, page.target))
            .collect::<BTreeMap<_, _>>();
        let slabs = moves
            .iter()
            .map(|page| self.allocator.slab_of(page.source))
            .collect::<BTreeSet<_>>();
        let mut emptied = vec![false; self.allocator.slab_count()];
        for slab in slabs {
            emptied[slab as usize] = true;
        }
        let allocator = &self.allocator;
        for (slot, sequence) in (0..)
            .zip(&mut self.sequences)
            .filter(|(_, sequence)| sequence.live)
        {
            for (group, held) in (0..).zip(&mut sequence.groups) {
                for (column, entry) in (held.first_column..).zip(&mut held.pages) {
                    if emptied[allocator.slab_of(*entry) as usize]
                        && let Some(&target) = targets.get(entry)
                    {
                        *entry = target;
                        updates.push(TableUpdate {
                            group,
                            seq_slot: slot,
                            column,
                            entry: target.0,
                        });
                    }
                }
            }
        }
        for (slot, sequence) in (0..)
            .zip(&self.sequences)
            .filter(|(_, sequence)| sequence.live)
        {
            let groups = sequence.groups.len();
            for (place, held) in self.last_pages[slot * groups..]
                .iter_mut()
                .zip(&sequence.groups)
            {
                *place = held.pages.back().copied().unwrap_or(PageEntry(0));
            }
        }
        for page in moves {
            self.retire(page.group, page.source)?;
        }
        Ok(())
    }

    /// Takes the slabs from `slabs` on out of use: moves their pages below, as [`compact`](Self::compact) does. When the step with the copies
    /// has completed and [`stranded_slabs`](crate::kv::Allocator::stranded_slabs) is 0, their memory can be unmapped (I12).
    ///
    /// # Errors
    /// [`KvError::Shrink`] when what is promised does not fit into so few, or what is in use cannot be moved below now;
    /// [`KvError::StepPlanned`] as for `compact`.
    pub fn shrink(
        &mut self,
        slabs: u32,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<Vec<PageMove>, KvError> {
        self.refuse_while_planned()?;
        let online = self.allocator.online_slabs();
        if slabs >= online {
            return Ok(Vec::new());
        }
        let pools = self.geometry.groups.len() as u64;
        let charged = self
            .geometry
            .group_ids()
            .map(|group| self.charged_pages(group))
            .collect::<Vec<_>>();
        let layout = self.allocator.layout();
        let promised_slabs =
            FreeMemory::empty(layout, pools).slabs_needed(&charged) + u128::from(pools);
        let staying = self.staying_pages();
        let pages = (slabs..online)
            .flat_map(|slab| self.movable_pages(slab, &staying))
            .collect::<Vec<_>>();
        let mut demand = vec![0_u64; self.geometry.groups.len()];
        for (group, _) in &pages {
            demand[group.index()] += 1;
        }
        let below = self.allocator.free_below(slabs);
        let missing = below.slabs_needed(&demand);
        if promised_slabs > u128::from(slabs) || !below.fits(&demand) {
            let needed_slabs = promised_slabs.max(u128::from(slabs) + missing.max(1));
            return Err(KvError::Shrink {
                slabs,
                needed_slabs: u64::try_from(needed_slabs).unwrap_or(u64::MAX),
            });
        }
        self.allocator.set_online(slabs)?;
        self.move_pages(pages, updates)
    }

    /// Brings slabs below `slabs` into use again, or for the first time; their memory must be mapped.
    ///
    /// # Errors
    /// [`KvError::Allocator`] beyond what block tables address.
    pub fn grow(&mut self, slabs: u32) -> Result<(), KvError> {
        if slabs > self.allocator.online_slabs() {
            self.allocator.set_online(slabs)?;
        }
        Ok(())
    }

    /// Whether all memory of the arena may be given back: what it holds would be lost.
    ///
    /// # Errors
    /// [`KvError::InUse`] while a page is in use or waits for a step.
    pub fn check_asleep(&self) -> Result<(), KvError> {
        let pages = self
            .geometry
            .group_ids()
            .map(|group| self.allocator.used_pages(group))
            .sum();
        if pages == 0 && self.is_idle() {
            Ok(())
        } else {
            Err(KvError::InUse { pages })
        }
    }

    fn refuse_while_planned(&self) -> Result<(), KvError> {
        let planned =
            |sequence: &super::Sequence| sequence.live && sequence.step == self.planned_step();
        if self.sequences.iter().any(planned) {
            Err(KvError::StepPlanned)
        } else {
            Ok(())
        }
    }
}
