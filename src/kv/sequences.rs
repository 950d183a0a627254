//! Which pages a sequence holds, what its block tables say, and when a page may be used again.
//!
//! A sequence grows by [`KvSequences::append`] when a step is planned, and its windows move on by
//! [`KvSequences::settle`] when the step has completed. Block tables are indexed by absolute page number, so an
//! update names a column once and never moves it; columns of dead or never written pages keep stale entries, which
//! kernels do not read.
//!
//! # Prefill into a window (I10)
//! The keys of a chunk are read from its activations, so a chunk writes to SWA pages only what the query after it
//! can see. The pages whose window the chunk closes are read by its attention and then, **in the same layer of the
//! same step, overwritten**: their entries move to the chunk's new columns. A layer's prefill must therefore
//! run its attention before its append. A prefilling sequence so never holds more pages than a decoding one.
//!
//! # Reuse (I9)
//! A page leaves its sequence at exactly `dead_pages(n)` on settled tokens, and is handed out again when the newest
//! step launched before that has completed.

use std::collections::VecDeque;

use thiserror::Error;

use super::allocator::{Allocator, AllocatorError};
use super::fit::FreeMemory;
use super::geometry::{AttentionKind, Geometry, GroupId, LayerGroup, PageEntry};
use super::slab::SlabLayout;
use super::window;

/// Slot of a token that no later query can see: its K and V are not written.
pub const DO_NOT_WRITE: u64 = u64::MAX;

/// One new entry of one block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableUpdate {
    /// Layer group.
    pub group: u32,
    /// Row of the block table.
    pub seq_slot: u32,
    /// Absolute page number in the sequence.
    pub column: u32,
    /// The [`PageEntry`].
    pub entry: u32,
}

/// A sequence that holds pages. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId {
    slot: u32,
    generation: u32,
}

impl SequenceId {
    /// The row of the block tables that this sequence has while it lives.
    #[must_use]
    pub const fn seq_slot(self) -> u32 {
        self.slot
    }
}

/// A step that was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StepId(u64);

/// How the tokens of an append get their K and V into pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Attention reads the chunk's own keys from its activations; pages are written after it.
    Prefill,
    /// Pages are written first and attention reads every key from them.
    Decode,
}

#[derive(Clone, Debug, Default)]
struct HeldPages {
    /// Page number of `pages[0]`.
    first_column: u32,
    pages: VecDeque<PageEntry>,
    /// Pages that a planned chunk leaves behind; they die when it settles. Columns ascend.
    closing: VecDeque<(u32, PageEntry)>,
    /// First token of the last append that is written.
    write_from: u32,
}

/// What an append does to the pages of one group.
struct GroupAppend {
    write_from: u32,
    new_columns: std::ops::Range<u32>,
    /// Pages at the front whose window the append closes and whose memory it may take over.
    closing: u32,
}

impl HeldPages {
    fn plan(&self, group: &LayerGroup, begin: u32, end: u32, phase: Phase) -> GroupAppend {
        let page_tokens = group.page_size().tokens();
        let (write_from, closing) = match (group.kind, phase) {
            (AttentionKind::Sliding { window }, Phase::Prefill) => {
                let visible = window::first_visible(end, window);
                let closing = (visible / page_tokens).saturating_sub(self.first_column);
                (
                    visible.clamp(begin, end),
                    closing.min(self.pages.len() as u32),
                )
            }
            _ => (begin, 0),
        };
        let next = self.first_column + self.pages.len() as u32;
        let first = next.max(write_from / page_tokens);
        let last = if write_from == end {
            first
        } else {
            group.page_size().pages_for(end)
        };
        GroupAppend {
            write_from,
            new_columns: first..last.max(first),
            closing,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    generation: u32,
    live: bool,
    max_tokens: u32,
    /// Tokens appended, in flight included.
    tokens: u32,
    settled_tokens: u32,
    /// First token of the last append.
    append_begin: u32,
    groups: Vec<HeldPages>,
}

/// The sequences of a carve and their pages.
#[derive(Clone, Debug)]
pub struct KvSequences {
    geometry: Geometry,
    allocator: Allocator,
    total_slabs: u32,
    sequences: Vec<Sequence>,
    free_slots: Vec<u32>,
    /// Pages of each group that live sequences were promised.
    promised: Vec<u64>,
    launched: StepId,
    completed: StepId,
    /// Pages that left their sequence, with the newest step that had been launched then; steps ascend.
    retired: VecDeque<(StepId, GroupId, PageEntry)>,
    demand: Vec<u64>,
}

impl KvSequences {
    /// Room for `max_sequences` sequences in a carve of `slabs` slabs.
    ///
    /// # Errors
    /// [`KvError::Allocator`] when the slabs cannot hold the null pages or exceed the reach of block tables.
    pub fn new(
        geometry: Geometry,
        layout: &SlabLayout,
        slabs: u32,
        max_sequences: u32,
    ) -> Result<Self, KvError> {
        let groups = geometry.groups.len();
        let sequence = Sequence {
            groups: vec![HeldPages::default(); groups],
            ..Sequence::default()
        };
        Ok(Self {
            allocator: Allocator::new(layout, slabs)?,
            total_slabs: slabs,
            sequences: vec![sequence; max_sequences as usize],
            free_slots: (0..max_sequences).rev().collect(),
            promised: vec![0; groups],
            launched: StepId(0),
            completed: StepId(0),
            retired: VecDeque::new(),
            demand: Vec::with_capacity(groups),
            geometry,
        })
    }

    /// Admits a sequence that will never exceed `max_tokens` tokens: with it, everything promised still fits the
    /// carve by the function of the capacity report (I8).
    ///
    /// # Errors
    /// [`KvError::NeverFits`] when the carve could not hold it even alone; [`KvError::NoRoomNow`] and
    /// [`KvError::NoSlot`] when it must wait for others to finish.
    pub fn create(&mut self, max_tokens: u32) -> Result<SequenceId, KvError> {
        let together = self.promise_with(max_tokens, 0)?;
        let slot = self.free_slots.pop().ok_or(KvError::NoSlot {
            sequences: self.sequences.len(),
        })?;
        self.promised = together;
        let sequence = &mut self.sequences[slot as usize];
        (sequence.live, sequence.max_tokens) = (true, max_tokens);
        (
            sequence.tokens,
            sequence.settled_tokens,
            sequence.append_begin,
        ) = (0, 0, 0);
        Ok(SequenceId {
            slot,
            generation: sequence.generation,
        })
    }

    /// Raises what a sequence was admitted with to `max_tokens` tokens, by the same function as [`create`](Self::create);
    /// a lower number changes nothing.
    ///
    /// # Errors
    /// [`KvError::NeverFits`] and [`KvError::NoRoomNow`] as for [`create`](Self::create), [`KvError::UnknownSequence`] for
    /// a released sequence; the promise then stays what it was.
    pub fn raise(&mut self, id: SequenceId, max_tokens: u32) -> Result<(), KvError> {
        let promised_tokens = self.live(id)?.max_tokens;
        if max_tokens > promised_tokens {
            self.promised = self.promise_with(max_tokens, promised_tokens)?;
            live(&mut self.sequences, id)?.max_tokens = max_tokens;
        }
        Ok(())
    }

    /// What is promised when one sequence may have `max_tokens` tokens instead of `instead_of_tokens`, if that fits.
    fn promise_with(&self, max_tokens: u32, instead_of_tokens: u32) -> Result<Vec<u64>, KvError> {
        let need = self.geometry.pages_for(max_tokens);
        let whole = FreeMemory::empty(self.allocator.layout(), u64::from(self.total_slabs));
        if !whole.fits(&need) {
            let longest_tokens = whole.longest_request_tokens(&self.geometry, max_tokens);
            return Err(KvError::NeverFits {
                tokens: max_tokens,
                longest_tokens,
            });
        }
        let before = self.geometry.pages_for(instead_of_tokens);
        let pages = self.promised.iter().zip(&before).zip(&need);
        let together = pages
            .map(|((promised, before), need)| promised - before + need)
            .collect::<Vec<_>>();
        if !whole.fits(&together) {
            return Err(KvError::NoRoomNow { tokens: max_tokens });
        }
        Ok(together)
    }

    /// Grows a sequence by `tokens` tokens of a step being planned, and adds the block-table entries that are new to
    /// `updates`. All or nothing: after an error nothing has changed.
    ///
    /// # Errors
    /// [`KvError::OutOfPages`] when the pages are not there now, although promised: they are in slabs that other
    /// pools hold sparsely, or retired by a step in flight; complete steps, or release a sequence, and try again.
    /// [`KvError::BeyondPromise`] beyond `max_tokens`, [`KvError::UnknownSequence`] for a released one.
    pub fn append(
        &mut self,
        id: SequenceId,
        tokens: u32,
        phase: Phase,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<(), KvError> {
        let sequence = live(&mut self.sequences, id)?;
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
        self.demand.clear();
        for (group, held) in self.geometry.groups.iter().zip(&sequence.groups) {
            let plan = held.plan(group, begin, end, phase);
            let new_pages = plan.new_columns.end - plan.new_columns.start;
            self.demand
                .push(u64::from(new_pages.saturating_sub(plan.closing)));
        }
        if !self.allocator.fits(&self.demand) {
            return Err(KvError::OutOfPages {
                tokens,
                pages: self.demand.iter().sum(),
            });
        }
        for ((id_of_group, group), held) in self
            .geometry
            .group_ids()
            .zip(&self.geometry.groups)
            .zip(&mut sequence.groups)
        {
            let plan = held.plan(group, begin, end, phase);
            held.write_from = plan.write_from;
            for _ in 0..plan.closing {
                if let Some(entry) = held.pages.pop_front() {
                    held.closing.push_back((held.first_column, entry));
                    held.first_column += 1;
                }
            }
            if held.pages.is_empty() {
                held.first_column = plan.new_columns.start;
            }
            let mut to_take_over = plan.closing;
            for column in plan.new_columns {
                let taken_over = if to_take_over > 0 {
                    held.closing.pop_back()
                } else {
                    None
                };
                to_take_over = to_take_over.saturating_sub(1);
                let entry = match taken_over {
                    Some((_, entry)) => entry,
                    // `fits` has counted every page of every group, so this is there.
                    None => self
                        .allocator
                        .alloc_page(id_of_group)
                        .ok_or(KvError::OutOfPages { tokens, pages: 1 })?,
                };
                held.pages.push_back(entry);
                updates.push(TableUpdate {
                    group: id_of_group.0,
                    seq_slot: id.slot,
                    column,
                    entry: entry.0,
                });
            }
        }
        sequence.append_begin = begin;
        sequence.tokens = end;
        Ok(())
    }
    /// Appends to `slots` one slot for each token of the last [`append`](Self::append), in order:
    /// `entry << 32 | token_in_page`, or [`DO_NOT_WRITE`].
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`] for a released sequence.
    ///
    /// # Panics
    /// When `group` is not one of the geometry's.
    pub fn push_slots(
        &self,
        id: SequenceId,
        group: GroupId,
        slots: &mut Vec<u64>,
    ) -> Result<(), KvError> {
        let sequence = self.live(id)?;
        let held = &sequence.groups[group.index()];
        let page_tokens = self.geometry.page_size.tokens();
        slots.extend((sequence.append_begin..sequence.tokens).map(|position| {
            let place = (position / page_tokens).checked_sub(held.first_column);
            let page = place
                .and_then(|place| held.pages.get(place as usize))
                .filter(|_| position >= held.write_from);
            page.map_or(DO_NOT_WRITE, |entry| {
                u64::from(entry.0) << 32 | u64::from(position % page_tokens)
            })
        }));
        Ok(())
    }

    /// Says that the first `tokens` tokens of a sequence are settled: their steps have completed and they cannot be
    /// rolled back. Releases the pages that no later query can see, those and no others (I9).
    ///
    /// # Errors
    /// [`KvError::Settle`] when `tokens` goes back or beyond what was appended; [`KvError::UnknownSequence`].
    pub fn settle(&mut self, id: SequenceId, tokens: u32) -> Result<(), KvError> {
        let Self {
            geometry,
            allocator,
            sequences,
            retired,
            launched,
            completed,
            ..
        } = self;
        let sequence = live(sequences, id)?;
        if tokens < sequence.settled_tokens || tokens > sequence.tokens {
            return Err(KvError::Settle {
                tokens,
                settled_tokens: sequence.settled_tokens,
                appended_tokens: sequence.tokens,
            });
        }
        sequence.settled_tokens = tokens;
        let mut retire = |group: GroupId, entry: PageEntry| {
            if launched == completed {
                return allocator.free_page(group, entry);
            }
            retired.push_back((*launched, group, entry));
            Ok(())
        };
        for ((id_of_group, group), held) in geometry
            .group_ids()
            .zip(&geometry.groups)
            .zip(&mut sequence.groups)
        {
            let AttentionKind::Sliding { window } = group.kind else {
                continue;
            };
            let dead = window::dead_pages(tokens, window, group.page_size().tokens());
            while let Some(&(_, entry)) = held.closing.front().filter(|(column, _)| *column < dead)
            {
                held.closing.pop_front();
                retire(id_of_group, entry)?;
            }
            while held.first_column < dead {
                let Some(entry) = held.pages.pop_front() else {
                    break;
                };
                held.first_column += 1;
                retire(id_of_group, entry)?;
            }
        }
        Ok(())
    }

    /// Ends a sequence: its slot is free at once, its pages when the steps now in flight have completed.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`] when it was released before.
    pub fn release(&mut self, id: SequenceId) -> Result<(), KvError> {
        let sequence = live(&mut self.sequences, id)?;
        sequence.live = false;
        sequence.generation = sequence.generation.wrapping_add(1);
        for (promised, pages) in self
            .promised
            .iter_mut()
            .zip(self.geometry.pages_for(sequence.max_tokens))
        {
            *promised -= pages;
        }
        self.free_slots.push(id.slot);
        for (group, held) in self.geometry.group_ids().zip(&mut sequence.groups) {
            held.first_column = 0;
            let closing = held.closing.drain(..).map(|(_, entry)| entry);
            for entry in closing.chain(held.pages.drain(..)) {
                if self.launched == self.completed {
                    self.allocator.free_page(group, entry)?;
                } else {
                    self.retired.push_back((self.launched, group, entry));
                }
            }
        }
        Ok(())
    }

    /// Records that a step is launched. Pages released from now on wait for it.
    pub fn begin_step(&mut self) -> StepId {
        self.launched.0 += 1;
        self.launched
    }

    /// Records that a step, and so every earlier one of its stream, has completed; frees the pages that waited for it.
    ///
    /// # Errors
    /// [`KvError::NotLaunched`] for a step of another engine.
    pub fn complete_step(&mut self, step: StepId) -> Result<(), KvError> {
        if step > self.launched {
            return Err(KvError::NotLaunched {
                step: step.0,
                launched: self.launched.0,
            });
        }
        self.completed = self.completed.max(step);
        while let Some(&(_, group, entry)) = self
            .retired
            .front()
            .filter(|(last, ..)| *last <= self.completed)
        {
            self.retired.pop_front();
            self.allocator.free_page(group, entry)?;
        }
        Ok(())
    }

    /// Tokens appended so far, in flight included.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`] for a released sequence.
    pub fn tokens(&self, id: SequenceId) -> Result<u32, KvError> {
        Ok(self.live(id)?.tokens)
    }

    /// `(column, entry)` of the pages that a sequence holds in a group and that later queries can see.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`] for a released sequence.
    ///
    /// # Panics
    /// When `group` is not one of the geometry's.
    pub fn table(
        &self,
        id: SequenceId,
        group: GroupId,
    ) -> Result<impl ExactSizeIterator<Item = (u32, PageEntry)> + '_, KvError> {
        let held = &self.live(id)?.groups[group.index()];
        Ok(held
            .pages
            .iter()
            .enumerate()
            .map(|(place, &entry)| (held.first_column + place as u32, entry)))
    }

    /// Pages that a sequence holds in a group, those that a planned chunk leaves behind included.
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`] for a released sequence.
    ///
    /// # Panics
    /// When `group` is not one of the geometry's.
    pub fn held_pages(&self, id: SequenceId, group: GroupId) -> Result<usize, KvError> {
        let held = &self.live(id)?.groups[group.index()];
        Ok(held.pages.len() + held.closing.len())
    }

    /// Pages that left their sequence and wait for a step.
    #[must_use]
    pub fn retired_pages(&self) -> usize {
        self.retired.len()
    }

    /// The pages and slabs underneath.
    #[must_use]
    pub const fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// The geometry the sequences were made for.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn live(&self, id: SequenceId) -> Result<&Sequence, KvError> {
        let sequence = self.sequences.get(id.slot as usize);
        sequence
            .filter(|s| s.live && s.generation == id.generation)
            .ok_or(KvError::UnknownSequence { slot: id.slot })
    }
}

fn live(sequences: &mut [Sequence], id: SequenceId) -> Result<&mut Sequence, KvError> {
    let sequence = sequences.get_mut(id.slot as usize);
    sequence
        .filter(|s| s.live && s.generation == id.generation)
        .ok_or(KvError::UnknownSequence { slot: id.slot })
}

/// Why a sequence cannot be handled so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KvError {
    /// Longer than the whole carve holds.
    #[error(
        "a sequence of {tokens} tokens never fits: the KV pools hold one of at most {longest_tokens}; shorten the \
         prompt, generate less, or give KV more memory"
    )]
    NeverFits {
        /// Tokens asked for.
        tokens: u32,
        /// The longest sequence that fits alone.
        longest_tokens: u32,
    },
    /// What is promised to others leaves too little.
    #[error(
        "a sequence of {tokens} tokens does not fit beside those admitted; wait until one of them ends"
    )]
    NoRoomNow {
        /// Tokens asked for.
        tokens: u32,
    },
    /// Every row of the block tables is taken.
    #[error(
        "all {sequences} sequence slots are taken; wait until a sequence ends, or start with more slots"
    )]
    NoSlot {
        /// Slots there are.
        sequences: usize,
    },
    /// The pages are not there at this moment.
    #[error(
        "{pages} pages for {tokens} more tokens are not free now; complete a step or release a sequence"
    )]
    OutOfPages {
        /// Tokens to append.
        tokens: u32,
        /// Pages they need, all groups together.
        pages: u64,
    },
    /// A sequence grows beyond what it was admitted with.
    #[error(
        "a sequence cannot grow to {tokens} tokens, it was admitted with {max_tokens}; admit it with more"
    )]
    BeyondPromise {
        /// Tokens it would have.
        tokens: u64,
        /// Tokens it was admitted with.
        max_tokens: u32,
    },
    /// Settled tokens only grow, up to those appended.
    #[error(
        "{tokens} tokens cannot be settled: {settled_tokens} are, and {appended_tokens} were appended"
    )]
    Settle {
        /// Tokens said to be settled.
        tokens: u32,
        /// Tokens settled before.
        settled_tokens: u32,
        /// Tokens appended.
        appended_tokens: u32,
    },
    /// The sequence was released.
    #[error("the sequence of slot {slot} has been released; its id cannot be used again")]
    UnknownSequence {
        /// The slot it had.
        slot: u32,
    },
    /// The step was not launched here.
    #[error(
        "step {step} completed but only {launched} were launched; steps belong to one set of sequences"
    )]
    NotLaunched {
        /// The step.
        step: u64,
        /// Steps launched.
        launched: u64,
    },
    /// The pages underneath disagree.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
}

#[cfg(test)]
mod tests;
