//! The pages that one sequence holds of one layer group, and what an append does to them.

use std::collections::VecDeque;

use super::Phase;
use crate::kv::allocator::Allocator;
use crate::kv::geometry::{GroupId, LayerGroup, PageEntry};
use crate::kv::kv_error::KvError;
use crate::kv::window;

/// One cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct HeldPages {
    /// Page number of `pages[0]`.
    pub first_column: u32,
    pub pages: VecDeque<PageEntry>,
    /// Pages that a planned chunk leaves behind, if any; they die when it settles. Columns ascend.
    // The box keeps the record in its line.
    #[allow(clippy::box_collection)]
    pub closing: Option<Box<VecDeque<(u32, PageEntry)>>>,
    /// First token of the last append that is written.
    pub write_from: u32,
    /// First token whose K and V are there, as far as pages reach back: a chunk longer than the window leaves a gap before it.
    pub valid_from: u32,
    /// Pages before this column may have other holders.
    pub shared_end: u32,
    /// Copies of shared pages that the promise still counts.
    pub copies_left: u32,
}

/// What an append does to the pages of one group.
#[derive(Clone, Debug)]
pub(super) struct GroupAppend {
    pub write_from: u32,
    pub new_columns: std::ops::Range<u32>,
    /// Pages at the front whose window the append closes.
    pub closing: u32,
    /// Those of them whose memory it may take over: no one else holds them.
    pub takeable: u32,
    /// A page at hand that is written and that others hold.
    pub copied: Option<u32>,
}

impl HeldPages {
    /// Takes the oldest page that a chunk left behind, if its column is before `dead`.
    pub fn pop_closing(&mut self, dead: u32) -> Option<PageEntry> {
        let closing = self.closing.as_mut()?;
        closing.front().filter(|page| page.0 < dead)?;
        let entry = closing.pop_front().map(|page| page.1);
        if closing.is_empty() {
            self.closing = None;
        }
        entry
    }

    pub fn closing(&self) -> impl Iterator<Item = (u32, PageEntry)> + '_ {
        self.closing
            .iter()
            .flat_map(|closing| closing.iter().copied())
    }

    pub fn next_column(&self) -> u32 {
        self.first_column + self.pages.len() as u32
    }

    /// Tokens up to the end of the last page.
    pub fn room_tokens(&self, group: &LayerGroup) -> u32 {
        self.next_column().saturating_mul(group.tokens_per_page())
    }

    /// What an append of tokens `begin..end` does, where chunks of the same step read the `left` pages.
    pub fn plan(
        &self,
        allocator: &Allocator,
        group: (GroupId, &LayerGroup),
        (begin, end): (u32, u32),
        phase: Phase,
        rewind_tokens: u32,
        left: &[(GroupId, PageEntry)],
    ) -> Result<GroupAppend, KvError> {
        let (id, group) = group;
        let page_tokens = group.tokens_per_page();
        let (write_from, closing) = match phase {
            Phase::Prefill if window::pages_die(group.kind) => {
                let visible = group.kind.first_visible(end.saturating_sub(rewind_tokens));
                let closing = (visible / page_tokens).saturating_sub(self.first_column);
                (
                    visible.clamp(begin, end),
                    closing.min(self.pages.len() as u32),
                )
            }
            _ => (begin, 0),
        };
        let next = self.next_column();
        let written = write_from / page_tokens;
        let first = next.max(written);
        let last = if write_from == end {
            first
        } else {
            end.div_ceil(page_tokens)
        };
        let mut copied = None;
        if write_from < end && written < next && written < self.shared_end {
            let entry = self.pages[(written - self.first_column) as usize];
            // A prefill writes behind the attention of every chunk of its step, a decode may write before it.
            let read = phase == Phase::Decode && left.contains(&(id, entry));
            let shared = allocator.holders_of(id, entry)? != (1, false);
            copied = (shared || read).then_some(written);
        }
        let mut shared = 0;
        for &entry in self.pages.iter().take(
            self.shared_end
                .saturating_sub(self.first_column)
                .min(closing) as usize,
        ) {
            shared += u32::from(allocator.holders_of(id, entry)? != (1, false));
        }
        Ok(GroupAppend {
            write_from,
            new_columns: first..last.max(first),
            closing,
            takeable: closing - shared,
            copied,
        })
    }
}
