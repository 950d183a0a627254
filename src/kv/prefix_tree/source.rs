//! Whose pages the tree caches.

use crate::kv::geometry::{GroupId, PageEntry};
use crate::kv::kv_error::KvError;
use crate::kv::sequences::{KvSequences, SequenceId};

/// What became of a page that the tree lets go of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uncached {
    /// No other part of the tree holds it.
    pub left_tree: bool,
    /// Nobody holds it: it is free, or will be with the steps in flight.
    pub freed: bool,
}

/// Counts the holders of pages.
pub trait PageHolder {
    /// The tree holds a page that it holds already once more.
    ///
    /// # Errors
    /// When it does not, or too often.
    fn cache_again(&mut self, group: GroupId, entry: PageEntry) -> Result<(), KvError>;

    /// The tree lets go of a page once.
    ///
    /// # Errors
    /// When it does not hold it.
    fn uncache(&mut self, group: GroupId, entry: PageEntry) -> Result<Uncached, KvError>;

    /// Sequences that hold a page.
    ///
    /// # Errors
    /// When the page is not in use.
    fn sequences_of(&self, group: GroupId, entry: PageEntry) -> Result<u32, KvError>;
}

/// A sequence whose pages can be cached.
pub trait PageSource: PageHolder {
    /// First token from which on a windowed group's keys are there without a gap.
    fn valid_from(&self, group: GroupId) -> u32;

    /// The tree takes hold of the page at `column`; whether it did not hold it before.
    ///
    /// # Errors
    /// When the sequence does not hold it.
    fn cache(&mut self, group: GroupId, column: u32) -> Result<(PageEntry, bool), KvError>;
}

impl PageHolder for KvSequences {
    fn cache_again(&mut self, group: GroupId, entry: PageEntry) -> Result<(), KvError> {
        self.cache_entry(group, entry).map(|_| ())
    }

    fn uncache(&mut self, group: GroupId, entry: PageEntry) -> Result<Uncached, KvError> {
        self.uncache_entry(group, entry)
    }

    fn sequences_of(&self, group: GroupId, entry: PageEntry) -> Result<u32, KvError> {
        Ok(self.allocator().holders_of(group, entry)?.0)
    }
}

pub(super) struct OfSequence<'a> {
    pub kv: &'a mut KvSequences,
    pub id: SequenceId,
}

impl PageHolder for OfSequence<'_> {
    fn cache_again(&mut self, group: GroupId, entry: PageEntry) -> Result<(), KvError> {
        self.kv.cache_again(group, entry)
    }

    fn uncache(&mut self, group: GroupId, entry: PageEntry) -> Result<Uncached, KvError> {
        self.kv.uncache(group, entry)
    }

    fn sequences_of(&self, group: GroupId, entry: PageEntry) -> Result<u32, KvError> {
        self.kv.sequences_of(group, entry)
    }
}

impl PageSource for OfSequence<'_> {
    fn valid_from(&self, group: GroupId) -> u32 {
        self.kv.valid_from(self.id, group)
    }

    fn cache(&mut self, group: GroupId, column: u32) -> Result<(PageEntry, bool), KvError> {
        self.kv.cache_page(self.id, group, column)
    }
}
