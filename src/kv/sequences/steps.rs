//! Steps in flight, and what waits for them.

use super::{KvSequences, PageMove, StepId};
use crate::kv::allocator::AllocatorError;
use crate::kv::geometry::{GroupId, PageEntry};
use crate::kv::holders::Left;
use crate::kv::kv_error::KvError;
use crate::kv::window;

impl KvSequences {
    /// A sequence lets go of a page; the last holder frees it, when no step in flight can touch it.
    #[inline]
    pub(super) fn leave(&mut self, group: GroupId, entry: PageEntry) -> Result<(), KvError> {
        if self.is_idle() && !self.reads_left_pages() {
            // Most pages have no other holder and go at once.
            match self.allocator.free_page(group, entry) {
                Err(AllocatorError::Shared { .. }) => {}
                outcome => return Ok(outcome?),
            }
        }
        match self.allocator.let_go(group, entry)? {
            Left::Nobody => self.retire(group, entry),
            Left::Cached => Ok(()),
            Left::Sequences => {
                if !window::pages_die(self.geometry.groups[group.index()].kind) {
                    self.shared[group.index()] -= 1;
                }
                Ok(())
            }
        }
    }

    /// Frees a page that nobody holds, once no step can touch it.
    pub(super) fn retire(&mut self, group: GroupId, entry: PageEntry) -> Result<(), KvError> {
        let last = StepId(self.launched.0 + u64::from(self.reads_left_pages()));
        if last <= self.completed {
            return Ok(self.allocator.free_page(group, entry)?);
        }
        self.retired.push_back((last, group, entry));
        Ok(())
    }

    /// Whether the step being planned reads pages that its sequences no longer hold.
    fn reads_left_pages(&self) -> bool {
        !self.copies.is_empty() || !self.left_pages.is_empty()
    }

    /// Records that a step is launched. Pages released from now on wait for it.
    pub fn begin_step(&mut self) -> StepId {
        self.launched.0 += 1;
        self.left_pages.clear();
        self.copies.clear();
        self.origins.clear();
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

    /// Copies that the page-copy kernel makes at the start of the step being planned, all at once: no target is a source.
    /// Without forks, prefixes and compaction there are none. They are forgotten when the step is launched.
    #[must_use]
    pub fn page_copies(&self) -> &[PageMove] {
        &self.copies
    }

    /// Notes a copy of the step being planned.
    pub(super) fn push_copy(&mut self, group: GroupId, source: PageEntry, target: PageEntry) {
        // A page that is itself a copy of this step is not there yet; what it is copied from is.
        let source = self.origins.get(&source).copied().unwrap_or(source);
        self.origins.insert(target, source);
        self.copies.push(PageMove {
            group,
            source,
            target,
        });
    }
}
