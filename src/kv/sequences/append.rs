//! Appends that need pages.

use super::held::GroupAppend;
use super::{KvSequences, Phase, SequenceId, TableUpdate, live};
use crate::kv::geometry::{GroupId, PageEntry};
use crate::kv::kv_error::KvError;
use crate::kv::window;

impl KvSequences {
    /// Pages of each group that the last append which ended with [`KvError::OutOfPages`] needed: what to make room for. Any other
    /// append overwrites it.
    #[must_use]
    pub fn refused_pages(&self) -> &[u64] {
        &self.demand
    }

    pub(super) fn append_pages(
        &mut self,
        id: SequenceId,
        tokens: u32,
        phase: Phase,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<(), KvError> {
        let Self {
            geometry,
            allocator,
            sequences,
            demand,
            plans,
            rewind_tokens,
            left_pages,
            ..
        } = &mut *self;
        let sequence = live(sequences, id)?;
        let begin = sequence.tokens;
        let end = begin
            .checked_add(tokens)
            .filter(|&end| end <= sequence.max_tokens);
        let Some(end) = end else {
            return Err(KvError::BeyondPromise {
                tokens: u64::from(begin) + u64::from(tokens),
                max_tokens: sequence.max_tokens,
            });
        };
        // `room_tokens` says that the pages at hand are full and that no one else holds the last of them.
        if phase == Phase::Decode && tokens == 1 && begin > 0 && begin == sequence.room_tokens {
            return self.append_past_room(id, updates);
        }
        demand.clear();
        plans.clear();
        for ((group_id, group), held) in geometry
            .group_ids()
            .zip(&geometry.groups)
            .zip(&sequence.groups)
        {
            let plan = held.plan(
                allocator,
                (group_id, group),
                (begin, end),
                phase,
                *rewind_tokens,
                left_pages,
            )?;
            let new_pages = plan.new_columns.len() as u32;
            let pages = new_pages.saturating_sub(plan.takeable) + u32::from(plan.copied.is_some());
            demand.push(u64::from(pages));
            plans.push(plan);
        }
        if !allocator.fits(demand) {
            return Err(KvError::OutOfPages {
                tokens,
                pages: demand.iter().sum(),
            });
        }
        for group_id in self.geometry.group_ids() {
            let plan = self.plans[group_id.index()].clone();
            self.append_to_group(id, group_id, (begin, end), plan, updates)?;
        }
        self.note_append(id, (begin, end));
        let next_death_tokens = self.next_death_tokens(id);
        let sequence = &mut self.sequences[id.slot as usize];
        sequence.next_death_tokens = next_death_tokens;
        if phase == Phase::Prefill {
            sequence.given_up = sequence.given_up.max(end);
        }
        Ok(())
    }

    /// The one token that follows a sequence's `room_tokens`: a page more in the groups whose pages are full, and nothing else.
    /// What every `page_tokens`-th decode step does; the plan for any append comes to the same.
    fn append_past_room(
        &mut self,
        id: SequenceId,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<(), KvError> {
        let sequence = &mut self.sequences[id.slot as usize];
        let begin = sequence.tokens;
        let groups = self.geometry.groups.iter().zip(&sequence.groups);
        self.demand.clear();
        self.demand
            .extend(groups.map(|(group, held)| u64::from(held.room_tokens(group) == begin)));
        let out_of_pages = || KvError::OutOfPages {
            tokens: 1,
            pages: self.demand.iter().sum(),
        };
        if !self.allocator.fits(&self.demand) {
            return Err(out_of_pages());
        }
        for (group, held) in (0..).zip(&mut sequence.groups) {
            held.write_from = begin;
            if self.demand[group as usize] > 0 {
                let entry = self.allocator.alloc_page(GroupId(group));
                // `fits` has counted it.
                let entry = entry.ok_or_else(out_of_pages)?;
                updates.push(TableUpdate {
                    group,
                    seq_slot: id.slot,
                    column: held.next_column(),
                    entry: entry.0,
                });
                held.pages.push_back(entry);
            }
        }
        self.note_append(id, (begin, begin + 1));
        Ok(())
    }

    /// Notes that the pages for tokens `begin..end` are there.
    fn note_append(&mut self, id: SequenceId, (begin, end): (u32, u32)) {
        self.note_last_pages(id);
        let room_tokens = self.room_tokens(id, end);
        let step = self.planned_step();
        let sequence = &mut self.sequences[id.slot as usize];
        (sequence.append_begin, sequence.tokens) = (begin, end);
        (sequence.room_tokens, sequence.step) = (room_tokens, step);
    }

    /// Does what [`HeldPages::plan`] says; the pages have been counted.
    pub(super) fn append_to_group(
        &mut self,
        id: SequenceId,
        group_id: GroupId,
        (begin, end): (u32, u32),
        plan: GroupAppend,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<(), KvError> {
        let out_of_pages = KvError::OutOfPages {
            tokens: end - begin,
            pages: 1,
        };
        let held = &mut self.sequences[id.slot as usize].groups[group_id.index()];
        held.write_from = plan.write_from;
        if plan.write_from > begin {
            held.valid_from = plan.write_from;
        }
        let update = |column, entry: PageEntry| TableUpdate {
            group: group_id.0,
            seq_slot: id.slot,
            column,
            entry: entry.0,
        };
        if let Some(column) = plan.copied {
            let target = self
                .allocator
                .alloc_page(group_id)
                .ok_or(out_of_pages.clone())?;
            let place = (column - held.first_column) as usize;
            let source = std::mem::replace(&mut held.pages[place], target);
            if held.copies_left > 0 {
                held.copies_left -= 1;
                self.promised[group_id.index()] -= 1;
            }
            updates.push(update(column, target));
            self.push_copy(group_id, source, target);
            self.leave(group_id, source)?;
        }
        for _ in 0..plan.closing {
            let held = &mut self.sequences[id.slot as usize].groups[group_id.index()];
            let Some(entry) = held.pages.pop_front() else {
                break;
            };
            let column = held.first_column;
            held.first_column += 1;
            let shared = column < held.shared_end
                && self.allocator.holders_of(group_id, entry)? != (1, false);
            if shared {
                // It cannot be overwritten, and the chunk still reads it.
                self.left_pages.push((group_id, entry));
                self.leave(group_id, entry)?;
            } else {
                held.closing
                    .get_or_insert_default()
                    .push_back((column, entry));
            }
        }
        let held = &mut self.sequences[id.slot as usize].groups[group_id.index()];
        if held.pages.is_empty() {
            held.first_column = plan.new_columns.start;
        }
        let mut takeable = plan.takeable;
        for column in plan.new_columns {
            let taken_over = if takeable > 0 {
                held.closing.as_mut().and_then(|closing| closing.pop_back())
            } else {
                None
            };
            takeable = takeable.saturating_sub(1);
            let entry = match taken_over {
                Some((_, entry)) => entry,
                // `fits` has counted every page of every group, so this is there.
                None => self
                    .allocator
                    .alloc_page(group_id)
                    .ok_or(out_of_pages.clone())?,
            };
            held.pages.push_back(entry);
            updates.push(update(column, entry));
        }
        if held
            .closing
            .as_ref()
            .is_some_and(|closing| closing.is_empty())
        {
            held.closing = None;
        }
        Ok(())
    }

    /// The step that is planned now, in the low bits.
    pub(super) const fn planned_step(&self) -> u32 {
        (self.launched.0 as u32).wrapping_add(1)
    }

    /// Keeps the last page of each group where a decode step finds it.
    pub(super) fn note_last_pages(&mut self, id: SequenceId) {
        let groups = &self.sequences[id.slot as usize].groups;
        let places = &mut self.last_pages[id.slot as usize * groups.len()..][..groups.len()];
        for (place, held) in places.iter_mut().zip(groups) {
            *place = held.pages.back().copied().unwrap_or(PageEntry(0));
        }
    }

    /// Tokens up to which no append needs a page, in a sequence of `end` tokens whose last append is done.
    pub(super) fn room_tokens(&self, id: SequenceId, end: u32) -> u32 {
        let sequence = &self.sequences[id.slot as usize];
        let groups = self.geometry.groups.iter().zip(&sequence.groups);
        let room = groups.map(|(group, held)| {
            let tokens = held.room_tokens(group);
            // The page of the last token was written by it, hence is not shared, unless nothing was.
            if held.write_from < end && tokens >= end {
                tokens
            } else {
                0
            }
        });
        room.min().unwrap_or(0).min(sequence.max_tokens)
    }

    /// Settled tokens at which a page of a sequence dies next.
    pub(super) fn next_death_tokens(&self, id: SequenceId) -> u32 {
        let sequence = &self.sequences[id.slot as usize];
        let groups = self.geometry.groups.iter().zip(&sequence.groups);
        let deaths = groups.filter_map(|(group, held)| {
            if !window::pages_die(group.kind) {
                return None;
            }
            let column = held
                .closing()
                .next()
                .map_or(held.first_column, |closing| closing.0);
            window::death_of_page(group.kind, column, group.tokens_per_page())
        });
        deaths
            .min()
            .unwrap_or(u32::MAX)
            .saturating_add(self.rewind_tokens)
    }
}
