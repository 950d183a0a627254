//! Which pages a sequence holds, what its block tables say, and when a page may be used again.
//!
//! A sequence grows by [`KvSequences::append`] when a step is planned, and its windows move on by
//! [`KvSequences::settle`] when the step has completed. Block tables are indexed by absolute page number, so an
//! update names a column once; columns of dead or never written pages keep stale entries, which kernels do not read.
//!
//! # Prefill into a window (I10)
//! The keys of a chunk are read from its activations, so a chunk writes to SWA pages only what the query after it
//! can see. The pages whose window the chunk closes are read by its attention and then, **in the same layer of the
//! same step, overwritten**: their entries move to the chunk's new columns. A layer's prefill must therefore
//! run its attention before its append. A prefilling sequence so never holds more pages than a decoding one.
//!
//! # Reuse (I9)
//! A page leaves its sequence at exactly `dead_pages(n)` on settled tokens, less the rewind allowance, and is handed out
//! again when the newest step launched before that has completed.
//!
//! # Shared pages
//! Forks and cached prefixes share pages. A write into a shared page first makes a copy of it, for the page-copy kernel to
//! run at the start of the step: [`KvSequences::page_copies`]. So does a decode into a page that a chunk of the same step leaves
//! to it, for the chunk still reads it. What leaves a sequence between such a copy and the launch of its
//! step waits for that step, so no page is both read and overwritten by one step.
//!
//! # What admission promises (I8)
//! A live sequence may grow to `max_tokens` whatever the others do. Promised are the pages of each at its longest, less the
//! full-attention pages that several sequences hold, each of which is charged once. What keeps the promise, in this order:
//! pages free now, cached prefixes evicted, steps in flight completed, slabs emptied by [`KvSequences::compact`], and at last the
//! prefix tree cleared: a chunk cannot take over pages of its own sequence that the tree holds too.

use std::collections::{HashMap, VecDeque};

use super::allocator::Allocator;
use super::fit::FreeMemory;
use super::geometry::{AttentionKind, Geometry, GroupId, LayerGroup, PageEntry};
use super::kv_error::KvError;
use super::slab::SlabLayout;
use super::window;

mod append;
mod compact;
mod fixed;
mod fork;
mod held;
mod prefix;
mod steps;

use held::{GroupAppend, HeldPages};

pub use compact::PageMove;
pub use prefix::PrefixPages;

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

/// One cache line: all that a decode step within a page touches.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Sequence {
    generation: u32,
    live: bool,
    max_tokens: u32,
    /// Tokens appended, in flight included.
    tokens: u32,
    settled_tokens: u32,
    /// First token of the last append.
    append_begin: u32,
    /// Tokens that fit the pages at hand of every group, none of them shared; 0 when that is not known.
    room_tokens: u32,
    /// Settled tokens at which the next page dies.
    next_death_tokens: u32,
    /// Tokens of which the windows' keys before them, less the rewind allowance, may be given up; never goes back.
    given_up: u32,
    /// The step of the last append, launched or yet to be; its low bits.
    step: u32,
    groups: Box<[HeldPages]>,
}

/// The sequences of a carve and their pages.
#[derive(Clone, Debug)]
pub struct KvSequences {
    geometry: Geometry,
    allocator: Allocator,
    rewind_tokens: u32,
    sequences: Vec<Sequence>,
    free_slots: Vec<u32>,
    /// By slot and group: the page of the last token, where a sequence has `room_tokens`.
    last_pages: Vec<PageEntry>,
    /// Pages of each group that live sequences were promised.
    promised: Vec<u64>,
    /// Pages of each group that may be promised at most: what a static policy gives its pool.
    most_pages: Vec<u64>,
    /// By how much the sequences' full pages exceed the distinct ones among them.
    shared: Vec<u64>,
    launched: StepId,
    completed: StepId,
    /// Pages that nobody holds any more, with the step that must complete before they are free; steps ascend.
    retired: VecDeque<(StepId, GroupId, PageEntry)>,
    /// Copies that the next step makes before anything else.
    copies: Vec<PageMove>,
    /// Of each page that these copies fill, where it comes from.
    origins: HashMap<PageEntry, PageEntry>,
    /// Pages that a chunk of the next step reads, that its sequence no longer holds and that others held beside it.
    left_pages: Vec<(GroupId, PageEntry)>,
    demand: Vec<u64>,
    plans: Vec<GroupAppend>,
    /// Binary logarithm of the tokens of each group's page, where a row is a token.
    page_shifts: Vec<Option<u32>>,
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
            groups: vec![HeldPages::default(); groups].into(),
            ..Sequence::default()
        };
        Ok(Self {
            allocator: Allocator::new(layout, slabs)?,
            rewind_tokens: 0,
            sequences: vec![sequence; max_sequences as usize],
            last_pages: vec![PageEntry(0); max_sequences as usize * groups],
            free_slots: (0..max_sequences).rev().collect(),
            promised: vec![0; groups],
            most_pages: vec![u64::MAX; groups],
            shared: vec![0; groups],
            launched: StepId(0),
            completed: StepId(0),
            retired: VecDeque::new(),
            copies: Vec::new(),
            origins: HashMap::new(),
            left_pages: Vec::new(),
            demand: Vec::with_capacity(groups),
            plans: Vec::with_capacity(groups),
            page_shifts: geometry.groups.iter().map(page_shift).collect(),
            geometry,
        })
    }

    /// Keeps window pages so long that a sequence can be cut by `tokens` tokens below what has settled. A step may append as
    /// many tokens beyond the next one. Prefix caching needs the tokens of two pages less one, so that the window before the
    /// last page boundary is whole.
    #[must_use]
    pub fn with_rewind(mut self, tokens: u32) -> Self {
        self.rewind_tokens = tokens;
        self
    }

    /// Pages of each group that a sequence of at most `max_tokens` tokens may hold, the rewind allowance included.
    #[must_use]
    pub fn pages_for(&self, max_tokens: u32) -> Vec<u64> {
        let groups = self.geometry.groups.iter();
        // Rewound tokens below the window, and as many drafted ones beyond it.
        let slack = self.rewind_tokens.saturating_mul(2);
        groups
            .map(|group| {
                let page_tokens = group.tokens_per_page();
                let span = match group.kind {
                    AttentionKind::Sliding { window: span }
                    | AttentionKind::Chunked { chunk: span } => Some(span),
                    _ => None,
                };
                u64::from(match span {
                    Some(span) if slack > 0 => max_tokens.div_ceil(page_tokens).min(
                        window::max_live_pages(span.saturating_add(slack), page_tokens),
                    ),
                    _ => group.pages_for(max_tokens),
                })
            })
            .collect()
    }

    /// Admits a sequence that will never exceed `max_tokens` tokens: with it, everything promised still fits the
    /// carve by the function of the capacity report (I8).
    ///
    /// # Errors
    /// [`KvError::NeverFits`] when the carve could not hold it even alone; [`KvError::NoRoomNow`] and
    /// [`KvError::NoSlot`] when it must wait for others to finish.
    pub fn create(&mut self, max_tokens: u32) -> Result<SequenceId, KvError> {
        let need = self.pages_for(max_tokens);
        let nothing = vec![0; need.len()];
        self.admit(max_tokens, &need, &nothing, &nothing)
    }

    /// Admits a sequence that needs `need` pages of each group, `saved` of which other sequences hold already, and
    /// `copies` more while it shares pages with them.
    fn admit(
        &mut self,
        max_tokens: u32,
        need: &[u64],
        copies: &[u64],
        saved: &[u64],
    ) -> Result<SequenceId, KvError> {
        let more = need.iter().zip(copies).zip(saved);
        // Of what others hold it needs no pages of its own; there are never more of those than it needs.
        let more = more.map(|((need, copies), saved)| need + copies - saved);
        self.check_room(max_tokens, need, &more.collect::<Vec<_>>())?;
        let slot = self.free_slots.pop().ok_or(KvError::NoSlot {
            sequences: self.sequences.len(),
        })?;
        for ((promised, pages), copies) in self.promised.iter_mut().zip(need).zip(copies) {
            *promised += pages + copies;
        }
        let sequence = &mut self.sequences[slot as usize];
        let generation = sequence.generation;
        let groups = std::mem::take(&mut sequence.groups);
        *sequence = Sequence {
            generation,
            live: true,
            max_tokens,
            next_death_tokens: u32::MAX,
            groups,
            ..Sequence::default()
        };
        for held in &mut sequence.groups {
            (held.first_column, held.write_from) = (0, 0);
            (held.valid_from, held.shared_end, held.copies_left) = (0, 0, 0);
        }
        Ok(SequenceId { slot, generation })
    }

    /// Raises what a sequence was admitted with to `max_tokens` tokens, by the same function as [`create`](Self::create);
    /// a lower number changes nothing.
    ///
    /// # Errors
    /// [`KvError::NeverFits`] and [`KvError::NoRoomNow`] as for [`create`](Self::create), [`KvError::UnknownSequence`] for
    /// a released sequence; the promise then stays what it was.
    pub fn raise(&mut self, id: SequenceId, max_tokens: u32) -> Result<(), KvError> {
        let before_tokens = self.live(id)?.max_tokens;
        if max_tokens <= before_tokens {
            return Ok(());
        }
        let need = self.pages_for(max_tokens);
        let before = self.pages_for(before_tokens);
        let more = need.iter().zip(&before).map(|(need, before)| need - before);
        let more = more.collect::<Vec<_>>();
        self.check_room(max_tokens, &need, &more)?;
        for (promised, pages) in self.promised.iter_mut().zip(&more) {
            *promised += pages;
        }
        live(&mut self.sequences, id)?.max_tokens = max_tokens;
        Ok(())
    }

    /// Whether a sequence that needs `alone` pages of each group fits at all, and whether `more` pages can be promised.
    fn check_room(&self, max_tokens: u32, alone: &[u64], more: &[u64]) -> Result<(), KvError> {
        let slabs = u64::from(self.allocator.online_slabs());
        let whole = FreeMemory::empty(self.allocator.layout(), slabs);
        if !self.can_hold(&whole, alone) {
            let longest_tokens = self.longest_tokens(&whole, max_tokens);
            return Err(KvError::NeverFits {
                tokens: max_tokens,
                longest_tokens,
            });
        }
        let groups = self.promised.iter().zip(&self.shared).zip(more);
        let charged = groups.map(|((promised, shared), more)| promised + more - shared);
        if self.can_hold(&whole, &charged.collect::<Vec<_>>()) {
            Ok(())
        } else {
            Err(KvError::NoRoomNow { tokens: max_tokens })
        }
    }

    /// The longest sequence that fits alone, up to `most_tokens`.
    fn longest_tokens(&self, whole: &FreeMemory<'_>, most_tokens: u32) -> u32 {
        let (mut low, mut high) = (0, most_tokens);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.can_hold(whole, &self.pages_for(middle)) {
                low = middle
            } else {
                high = middle - 1
            }
        }
        low
    }

    /// Grows a sequence by `tokens` tokens of a step being planned, and adds the block-table entries that are new to
    /// `updates`. All or nothing: after an error nothing has changed.
    ///
    /// # Errors
    /// [`KvError::OutOfPages`] when the pages are not there now, although promised: they are cached prefixes, in slabs that
    /// other pools hold sparsely, or retired by a step in flight; evict, complete steps, compact or clear the tree, and try again.
    /// [`KvError::BeyondPromise`] beyond `max_tokens`, [`KvError::UnknownSequence`] for a released one.
    #[inline]
    pub fn append(
        &mut self,
        id: SequenceId,
        tokens: u32,
        phase: Phase,
        updates: &mut Vec<TableUpdate>,
    ) -> Result<(), KvError> {
        let step = self.planned_step();
        let sequence = live(&mut self.sequences, id)?;
        let end = sequence.tokens.saturating_add(tokens);
        // `room_tokens` never exceeds the promise. A chunk gives up the keys before its window, so it is planned in full.
        if phase == Phase::Decode && end <= sequence.room_tokens {
            sequence.append_begin = sequence.tokens;
            sequence.tokens = end;
            sequence.step = step;
            return Ok(());
        }
        self.append_pages(id, tokens, phase, updates)
    }

    /// Appends to `slots` one slot for each token of the last [`append`](Self::append), in order:
    /// `entry << 32 | token_in_page`, or [`DO_NOT_WRITE`].
    ///
    /// # Errors
    /// [`KvError::UnknownSequence`] for a released sequence.
    ///
    /// # Panics
    /// When `group` is not one of the geometry's.
    #[inline]
    pub fn push_slots(
        &self,
        id: SequenceId,
        group: GroupId,
        slots: &mut Vec<u64>,
    ) -> Result<(), KvError> {
        let sequence = self.live(id)?;
        let shift = self.page_shifts[group.index()];
        if let Some(shift) = shift
            && sequence.tokens - sequence.append_begin == 1
            && sequence.tokens <= sequence.room_tokens
        {
            let entry = self.last_pages[id.slot as usize * self.page_shifts.len() + group.index()];
            let token_in_page = sequence.append_begin & ((1 << shift) - 1);
            slots.push((u64::from(entry.0) << 32) | u64::from(token_in_page));
            return Ok(());
        }
        let held = &sequence.groups[group.index()];
        let group = &self.geometry.groups[group.index()];
        let (page_tokens, row_tokens) = (group.tokens_per_page(), group.kind.tokens_per_row());
        let slot = |position: u32| {
            let place = (position / page_tokens).checked_sub(held.first_column);
            let page = place
                .and_then(|place| held.pages.get(place as usize))
                .filter(|_| position >= held.write_from);
            page.map_or(DO_NOT_WRITE, |entry| {
                (u64::from(entry.0) << 32) | u64::from(position % page_tokens / row_tokens)
            })
        };
        slots.extend((sequence.append_begin..sequence.tokens).map(slot));
        Ok(())
    }

    /// Says that the first `tokens` tokens of a sequence are settled: their steps have completed and they cannot be
    /// rolled back, but for the rewind allowance. Releases the pages that no later query can see, those and no others (I9).
    ///
    /// # Errors
    /// [`KvError::Settle`] when `tokens` goes back or beyond what was appended; [`KvError::UnknownSequence`].
    #[inline]
    pub fn settle(&mut self, id: SequenceId, tokens: u32) -> Result<(), KvError> {
        let sequence = live(&mut self.sequences, id)?;
        if tokens < sequence.settled_tokens || tokens > sequence.tokens {
            return Err(KvError::Settle {
                tokens,
                settled_tokens: sequence.settled_tokens,
                appended_tokens: sequence.tokens,
            });
        }
        sequence.settled_tokens = tokens;
        if tokens < sequence.next_death_tokens {
            return Ok(());
        }
        self.release_dead_pages(id, tokens)
    }

    fn release_dead_pages(&mut self, id: SequenceId, settled_tokens: u32) -> Result<(), KvError> {
        let kept_tokens = settled_tokens.saturating_sub(self.rewind_tokens);
        for group_id in self.geometry.group_ids() {
            let group = &self.geometry.groups[group_id.index()];
            if !window::pages_die(group.kind) {
                continue;
            }
            let dead = group.kind.first_visible(kept_tokens) / group.tokens_per_page();
            loop {
                let held = &mut self.sequences[id.slot as usize].groups[group_id.index()];
                let entry = if let Some(entry) = held.pop_closing(dead) {
                    Some(entry)
                } else if held.first_column < dead && !held.pages.is_empty() {
                    held.first_column += 1;
                    held.pages.pop_front()
                } else {
                    None
                };
                let Some(entry) = entry else { break };
                self.leave(group_id, entry)?;
            }
        }
        let next_death_tokens = self.next_death_tokens(id);
        self.sequences[id.slot as usize].next_death_tokens = next_death_tokens;
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
        let max_tokens = sequence.max_tokens;
        let need = self.pages_for(max_tokens);
        for group_id in self.geometry.group_ids() {
            let held = &mut self.sequences[id.slot as usize].groups[group_id.index()];
            self.promised[group_id.index()] -= need[group_id.index()] + u64::from(held.copies_left);
            let closing = held.closing.take().unwrap_or_default();
            let mut pages = std::mem::take(&mut held.pages);
            // The tail first: the next to use these pages takes what is least likely to be wanted again.
            let entries = closing
                .into_iter()
                .map(|page| page.1)
                .chain(pages.drain(..).rev());
            for entry in entries {
                self.leave(group_id, entry)?;
            }
            let held = &mut self.sequences[id.slot as usize].groups[group_id.index()];
            // Its allocation serves the slot's next sequence.
            (held.pages, held.first_column) = (pages, 0);
        }
        self.free_slots.push(id.slot);
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
        Ok(held.pages.len() + held.closing().count())
    }

    /// Pages that left their sequence and wait for a step.
    #[must_use]
    pub fn retired_pages(&self) -> usize {
        self.retired.len()
    }

    /// Pages of a group that live sequences may come to hold, each charged once: what admission compares with the carve.
    ///
    /// # Panics
    /// When `group` is not one of the geometry's.
    #[must_use]
    pub fn charged_pages(&self, group: GroupId) -> u64 {
        self.promised[group.index()] - self.shared[group.index()]
    }

    /// Whether every step launched has completed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.launched == self.completed
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

    #[inline]
    fn live(&self, id: SequenceId) -> Result<&Sequence, KvError> {
        let sequence = self.sequences.get(id.slot as usize);
        sequence
            .filter(|s| s.live && s.generation == id.generation)
            .ok_or(KvError::UnknownSequence { slot: id.slot })
    }
}

/// Binary logarithm of the tokens of a page, where a row is a token.
fn page_shift(group: &LayerGroup) -> Option<u32> {
    let page_tokens = group.page_size().tokens();
    (group.tokens_per_page() == page_tokens).then(|| page_tokens.trailing_zeros())
}

#[inline]
fn live(sequences: &mut [Sequence], id: SequenceId) -> Result<&mut Sequence, KvError> {
    let sequence = sequences.get_mut(id.slot as usize);
    sequence
        .filter(|s| s.live && s.generation == id.generation)
        .ok_or(KvError::UnknownSequence { slot: id.slot })
}

#[cfg(test)]
mod tests;
