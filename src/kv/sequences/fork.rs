//! Sequences that share pages, and sequences that are cut back.

use super::{KvError, KvSequences, SequenceId, TableUpdate, live};
use crate::kv::geometry::AttentionKind;
use crate::kv::window;

impl KvSequences {
    /// A sequence that continues from all tokens of `parent` and may grow to `max_tokens`. It shares the parent's pages; whoever
    /// writes into a shared page first gets a copy of it. `updates` receives the entries of the new sequence's block tables.
    ///
    /// # Errors
    /// [`KvError::StepPlanned`] while tokens of the parent are planned and not launched, [`KvError::Prefix`] when `max_tokens` is
    /// less than the parent has, and those of [`create`](Self::create).
    pub fn fork(
        &mut self,
        parent: SequenceId,
        max_tokens: u32,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<SequenceId, KvError> {
        let from = self.live(parent)?;
        let (tokens, settled_tokens) = (from.tokens, from.settled_tokens);
        let given_up = from.given_up.max(settled_tokens);
        if from.step == self.planned_step() {
            return Err(KvError::StepPlanned);
        }
        let groups = 0..self.geometry.groups.len();
        let copies = groups
            .map(|group| u64::from(self.copies_for(group, tokens)))
            .collect::<Vec<_>>();
        let id = self.admit_shared(
            max_tokens,
            tokens,
            &copies,
            |kv, group| {
                let held = &kv.sequences[parent.slot as usize].groups[group];
                (held.first_column, held.pages.iter().copied().collect())
            },
            updates,
        )?;
        for sequence in [parent, id] {
            // The page of the next token may be shared now.
            self.sequences[sequence.slot as usize].room_tokens = 0;
        }
        for group in 0..self.geometry.groups.len() {
            let held = &mut self.sequences[parent.slot as usize].groups[group];
            held.shared_end = held.next_column();
            let valid_from = held.valid_from;
            self.sequences[id.slot as usize].groups[group].valid_from = valid_from;
        }
        let sequence = &mut self.sequences[id.slot as usize];
        (sequence.settled_tokens, sequence.given_up) = (settled_tokens, given_up);
        Ok(id)
    }

    /// Cuts a sequence back to its first `tokens` tokens: rejected drafts, or a step that is taken back after its launch. Pages that
    /// held only later tokens leave it. A recurrent state cannot be taken back: a model that has one is not cut.
    ///
    /// # Errors
    /// [`KvError::Truncate`] below what the rewind allowance keeps, or beyond what was appended; [`KvError::StepPlanned`] while
    /// tokens of the sequence are planned and not launched; [`KvError::UnknownSequence`].
    pub fn truncate(&mut self, id: SequenceId, tokens: u32) -> Result<(), KvError> {
        let planned_step = self.planned_step();
        let sequence = live(&mut self.sequences, id)?;
        if sequence.step == planned_step {
            return Err(KvError::StepPlanned);
        }
        sequence.given_up = sequence.given_up.max(sequence.settled_tokens);
        let mut groups = self.geometry.groups.iter();
        let floor_tokens = if groups.any(|group| is_state(group.kind)) {
            sequence.tokens
        } else {
            sequence.given_up.saturating_sub(self.rewind_tokens)
        };
        if !(floor_tokens..=sequence.tokens).contains(&tokens) {
            return Err(KvError::Truncate {
                tokens,
                floor_tokens,
                appended_tokens: sequence.tokens,
            });
        }
        (sequence.tokens, sequence.append_begin) = (tokens, tokens);
        sequence.settled_tokens = sequence.settled_tokens.min(tokens);
        sequence.room_tokens = 0;
        for group_id in self.geometry.group_ids() {
            let page_tokens = self.geometry.groups[group_id.index()].tokens_per_page();
            let pages = tokens.div_ceil(page_tokens);
            loop {
                let held = &mut self.sequences[id.slot as usize].groups[group_id.index()];
                held.write_from = held.write_from.min(tokens);
                if held.next_column() <= pages {
                    break;
                }
                let Some(entry) = held.pages.pop_back() else {
                    held.first_column = pages;
                    break;
                };
                self.leave(group_id, entry)?;
            }
        }
        self.sequences[id.slot as usize].next_death_tokens = self.next_death_tokens(id);
        Ok(())
    }

    /// Pages of a full group, in a sequence that starts with `tokens` shared tokens, that may have to be copied: what is cut back
    /// and written again.
    fn copies_for(&self, group: usize, tokens: u32) -> u32 {
        let group = &self.geometry.groups[group];
        if window::pages_die(group.kind) {
            // Charged as if nothing was shared.
            return 0;
        }
        let page_tokens = group.tokens_per_page();
        tokens.div_ceil(page_tokens) - tokens.saturating_sub(self.rewind_tokens) / page_tokens
    }
}

/// Whether a page holds what all tokens together have come to.
const fn is_state(kind: AttentionKind) -> bool {
    matches!(kind, AttentionKind::Recurrent { .. })
}
