//! Pages with more than one holder: forked sequences and the prefix tree.
//!
//! A page that one sequence holds has no word here, which is nearly every page. The word of a shared page counts the
//! sequences that hold it, and in its low bits how often the prefix tree does. A slab's record says
//! whether it has words that are not zero, so that freeing a page looks here only in slabs that share.

use super::allocator::{Allocator, AllocatorError};
use super::geometry::{GroupId, PageEntry};

/// Once in the prefix tree; there is room for 4,095 times.
const CACHED: u32 = 1;
const CACHED_MASK: u32 = SEQUENCE - 1;
/// Held by one sequence.
const SEQUENCE: u32 = 1 << 12;

/// What is left of a page when a holder lets go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Other sequences hold it.
    Sequences,
    /// Only the prefix tree holds it.
    Cached,
    /// Nobody does; it is to be freed.
    Nobody,
}

impl Allocator {
    /// Another sequence holds a page; returns how many did before.
    ///
    /// # Errors
    /// [`AllocatorError::NotHeld`] for a page that is not in use.
    pub(super) fn share(
        &mut self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<u32, AllocatorError> {
        let (slab, page) = self.locate(group, entry)?;
        let word = self.holder_word(slab, page);
        let before = sequences(word);
        self.set_holders(slab, page, ((before + 1) * SEQUENCE) | (word & CACHED_MASK));
        Ok(before)
    }

    /// The prefix tree holds a page in use, once more if it does already; returns how often it did before.
    ///
    /// # Errors
    /// [`AllocatorError::NotHeld`] for a page that is not in use, [`AllocatorError::Shared`] for one that the tree has too often.
    pub(super) fn cache(
        &mut self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<u32, AllocatorError> {
        let (slab, page) = self.locate(group, entry)?;
        let word = self.holder_word(slab, page);
        let before = word & CACHED_MASK;
        if before == CACHED_MASK {
            return Err(AllocatorError::Shared { group, entry });
        }
        self.set_holders(slab, page, (sequences(word) * SEQUENCE) | (before + CACHED));
        Ok(before)
    }

    /// A sequence lets go of a page.
    ///
    /// # Errors
    /// [`AllocatorError::NotHeld`] for a page that is not in use.
    #[inline]
    pub(super) fn let_go(
        &mut self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<Left, AllocatorError> {
        let (slab, page) = self.locate(group, entry)?;
        let word = if self.is_shared(slab) {
            self.holder_word(slab, page)
        } else {
            0
        };
        if word == 0 {
            return Ok(Left::Nobody);
        }
        let rest = word
            .checked_sub(SEQUENCE)
            .ok_or(AllocatorError::NotHeld { group, entry })?;
        self.set_holders(slab, page, rest);
        Ok(left(rest))
    }

    /// The prefix tree lets go of a page once; returns whether it has it no more.
    ///
    /// # Errors
    /// [`AllocatorError::NotHeld`] for a page that the tree does not hold.
    pub(super) fn uncache(
        &mut self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<(bool, Left), AllocatorError> {
        let (slab, page) = self.locate(group, entry)?;
        let word = self.holder_word(slab, page);
        if word & CACHED_MASK == 0 {
            return Err(AllocatorError::NotHeld { group, entry });
        }
        let rest = word - CACHED;
        self.set_holders(slab, page, rest);
        Ok((rest & CACHED_MASK == 0, left(rest)))
    }

    /// Moves what is known of a page's holders to the page that takes its place; the old one then has none.
    pub(super) fn move_holders(
        &mut self,
        group: GroupId,
        from: PageEntry,
        to: PageEntry,
    ) -> Result<(), AllocatorError> {
        let (slab, page) = self.locate(group, from)?;
        let word = self.holder_word(slab, page);
        if word != 0 {
            self.set_word(slab, page, 0);
            let (slab, page) = self.locate(group, to)?;
            self.set_word(slab, page, word);
        }
        Ok(())
    }

    /// Sequences that hold a page in use, and whether the prefix tree does.
    ///
    /// # Errors
    /// [`AllocatorError::NotHeld`] for a page that is not in use.
    pub fn holders_of(
        &self,
        group: GroupId,
        entry: PageEntry,
    ) -> Result<(u32, bool), AllocatorError> {
        let (slab, page) = self.locate(group, entry)?;
        let word = self.holder_word(slab, page);
        Ok((sequences(word), word & CACHED_MASK != 0))
    }

    #[inline]
    pub(super) fn holder_word(&self, slab: u32, page: u32) -> u32 {
        self.holders
            .get(slab as usize * self.most_pages as usize + page as usize)
            .copied()
            .unwrap_or(0)
    }

    fn set_holders(&mut self, slab: u32, page: u32, word: u32) {
        // One sequence and nothing else is what no word means, and so is nobody.
        self.set_word(slab, page, if word == SEQUENCE { 0 } else { word });
    }

    fn set_word(&mut self, slab: u32, page: u32, word: u32) {
        if self.holders.is_empty() {
            self.holders = vec![0; self.slab_count() * self.most_pages as usize];
            self.shared_pages = vec![0; self.slab_count()];
        }
        let place = slab as usize * self.most_pages as usize + page as usize;
        let before = std::mem::replace(&mut self.holders[place], word);
        let shared_pages = &mut self.shared_pages[slab as usize];
        match (before, word) {
            (0, 1..) => *shared_pages += 1,
            (1.., 0) => *shared_pages -= 1,
            _ => return,
        }
        let shared = *shared_pages > 0;
        self.set_shared(slab, shared);
    }

    pub(super) fn audit_holders(&self, slab: u32, pages: u32) -> Result<(), String> {
        let shared = (0..pages).filter(|&page| self.holder_word(slab, page) != 0);
        let (mut count, mut free) = (0, 0);
        for page in shared {
            count += 1;
            free += u32::from(self.is_free(slab, page));
        }
        let counted = self.shared_pages.get(slab as usize).copied().unwrap_or(0);
        if (count, free) == (counted, 0) && self.is_shared(slab) == (counted > 0) {
            return Ok(());
        }
        Err(format!(
            "slab {slab} counts {counted} shared pages, its words {count}, {free} of them of free pages"
        ))
    }
}

const fn sequences(word: u32) -> u32 {
    match word {
        0 => 1,
        _ => word / SEQUENCE,
    }
}

const fn left(word: u32) -> Left {
    match word {
        0 => Left::Nobody,
        1..=CACHED_MASK => Left::Cached,
        _ => Left::Sequences,
    }
}
