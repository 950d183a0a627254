//! Sequences that start on pages which others hold: forks and cached prefixes.

use super::{KvError, KvSequences, SequenceId, TableUpdate};
use crate::kv::geometry::{GroupId, PageEntry};
use crate::kv::holders::Left;
use crate::kv::prefix_tree::Uncached;
use crate::kv::window;

/// The pages of a cached prefix, by layer group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixPages {
    /// Tokens of the prefix, a whole number of pages of every group.
    pub tokens: u32,
    /// First column and pages of each group, up to `tokens`; a windowed group has those of its window only.
    pub groups: Vec<(u32, Vec<PageEntry>)>,
}

impl KvSequences {
    /// Admits a sequence that starts with the tokens of `prefix`, which the prefix tree holds; only what other sequences hold is
    /// not charged again. `updates` receives the entries of its block tables.
    ///
    /// # Errors
    /// [`KvError::Prefix`] when `max_tokens` is less than the prefix, [`KvError::Allocator`] when its pages are gone, and those of
    /// [`create`](Self::create).
    pub fn create_with_prefix(
        &mut self,
        max_tokens: u32,
        prefix: &PrefixPages,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<SequenceId, KvError> {
        if prefix.tokens == 0 {
            return self.create(max_tokens);
        }
        if prefix.groups.len() != self.geometry.groups.len() {
            return Err(KvError::Prefix {
                tokens: prefix.tokens,
                max_tokens,
            });
        }
        // It is never cut below the prefix, so it never writes into its pages.
        let copies = vec![0; prefix.groups.len()];
        let id = self.admit_shared(
            max_tokens,
            prefix.tokens,
            &copies,
            |_, group| prefix.groups[group].clone(),
            updates,
        )?;
        let sequence = &mut self.sequences[id.slot as usize];
        sequence.settled_tokens = prefix.tokens;
        // Nothing before the windows at the boundary is held.
        sequence.given_up = prefix.tokens.saturating_add(self.rewind_tokens);
        Ok(id)
    }

    /// Admits a sequence of `tokens` tokens on `pages(group)`, first column and entries, `copies` of which it may come to replace.
    pub(super) fn admit_shared(
        &mut self,
        max_tokens: u32,
        tokens: u32,
        copies: &[u64],
        pages: impl Fn(&Self, usize) -> (u32, Vec<PageEntry>),
        updates: &mut Vec<TableUpdate>,
    ) -> Result<SequenceId, KvError> {
        if tokens > max_tokens {
            return Err(KvError::Prefix { tokens, max_tokens });
        }
        let groups = self.geometry.groups.len();
        let need = self.pages_for(max_tokens);
        let mut saved = vec![0; groups];
        let mut held = Vec::with_capacity(groups);
        for group_id in self.geometry.group_ids() {
            let (first_column, entries) = pages(self, group_id.index());
            let is_full = !window::pages_die(self.geometry.groups[group_id.index()].kind);
            for &entry in &entries {
                let (sequences, _) = self.allocator.holders_of(group_id, entry)?;
                saved[group_id.index()] += u64::from(is_full && sequences > 0);
            }
            held.push((first_column, entries));
        }
        let id = self.admit(max_tokens, &need, copies, &saved)?;
        for (group_id, (first_column, entries)) in self.geometry.group_ids().zip(held) {
            for (column, &entry) in (first_column..).zip(&entries) {
                self.allocator.share(group_id, entry)?;
                updates.push(TableUpdate {
                    group: group_id.0,
                    seq_slot: id.slot,
                    column,
                    entry: entry.0,
                });
            }
            self.shared[group_id.index()] += saved[group_id.index()];
            let kind = self.geometry.groups[group_id.index()].kind;
            let group = &mut self.sequences[id.slot as usize].groups[group_id.index()];
            group.first_column = first_column;
            group.pages.clear();
            group.pages.extend(entries);
            group.shared_end = group.next_column();
            // Not more than the pages of a sequence.
            group.copies_left = copies[group_id.index()] as u32;
            group.write_from = tokens;
            // At the boundary; what is before in the first page may not be there.
            group.valid_from = kind.first_visible(tokens);
        }
        let sequence = &mut self.sequences[id.slot as usize];
        (sequence.tokens, sequence.append_begin) = (tokens, tokens);
        self.sequences[id.slot as usize].next_death_tokens = self.next_death_tokens(id);
        Ok(id)
    }

    /// The prefix tree takes hold of a page that a sequence holds and has written in full; whether it did not hold it before.
    pub(in crate::kv) fn cache_page(
        &mut self,
        id: SequenceId,
        group: GroupId,
        column: u32,
    ) -> Result<(PageEntry, bool), KvError> {
        self.live(id)?;
        let held = &mut self.sequences[id.slot as usize].groups[group.index()];
        let place = column
            .checked_sub(held.first_column)
            .map(|place| place as usize);
        let Some(&entry) = place.and_then(|place| held.pages.get(place)) else {
            return Err(KvError::NoPage {
                slot: id.slot,
                column,
                group,
            });
        };
        held.shared_end = held.shared_end.max(column + 1);
        Ok((entry, self.cache_entry(group, entry)?))
    }

    /// As [`cache_page`](Self::cache_page), for any page in use.
    pub(in crate::kv) fn cache_entry(
        &mut self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<bool, KvError> {
        Ok(self.allocator.cache(group, entry)? == 0)
    }

    /// The prefix tree lets go of a page once.
    pub(in crate::kv) fn uncache_entry(
        &mut self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<Uncached, KvError> {
        let (left_tree, left) = self.allocator.uncache(group, entry)?;
        let freed = left == Left::Nobody;
        if freed {
            self.retire(group, entry)?;
        }
        Ok(Uncached { left_tree, freed })
    }

    /// First token from which on the keys of a group are all there.
    pub(in crate::kv) fn valid_from(&self, id: SequenceId, group: GroupId) -> u32 {
        let held = &self.sequences[id.slot as usize].groups[group.index()];
        let page_tokens = self.geometry.groups[group.index()].tokens_per_page();
        held.valid_from
            .max(held.first_column.saturating_mul(page_tokens))
    }

    /// Tokens of a sequence that have settled.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`] for a released sequence.
    pub fn settled_tokens(&self, id: SequenceId) -> Result<u32, KvError> {
        Ok(self.live(id)?.settled_tokens)
    }
}
