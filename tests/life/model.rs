//! What the plain model knows of layer groups and sequences.

use std::collections::VecDeque;

use neap::kv::{AttentionKind, SequenceId};

use super::fuzzing::mixed;

/// What the model knows of a layer group.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) kind: AttentionKind,
    /// Tokens of a page, and of each of its rows.
    pub(super) page: u32,
    pub(super) row: u32,
}

impl Group {
    pub(super) fn new(kind: AttentionKind, page_rows: u32) -> Self {
        let row = match kind {
            AttentionKind::Compressed { ratio, .. } => ratio,
            AttentionKind::Recurrent { .. } => u32::MAX,
            _ => 1,
        };
        let page = page_rows.saturating_mul(row);
        Self { kind, page, row }
    }

    /// First token that the query at `position` reads.
    pub(super) fn first_visible(self, position: u32) -> u32 {
        match self.kind {
            AttentionKind::Sliding { window } => (position + 1).saturating_sub(window),
            AttentionKind::Chunked { chunk } => position / chunk * chunk,
            _ => 0,
        }
    }

    /// Pages that no query from `position` on reads.
    pub(super) fn dead_pages(self, position: u32) -> u32 {
        self.first_visible(position) / self.page
    }

    /// Tokens that one query may see, if that has a bound.
    pub(super) fn span(self) -> Option<u32> {
        match self.kind {
            AttentionKind::Sliding { window: span } | AttentionKind::Chunked { chunk: span } => {
                Some(span)
            }
            _ => None,
        }
    }

    /// The last of `end` tokens that is in the row of `position`, if the row can be read: a compressed one once it is complete.
    pub(super) fn last_of_row(self, position: u32, end: u32) -> Option<u32> {
        let row_end = (position / self.row + 1).saturating_mul(self.row);
        let state = self.row == u32::MAX;
        (state || row_end <= end).then_some(row_end.min(end) - 1)
    }

    /// Which row of its page `position` is in.
    pub(super) fn row_in_page(self, position: u32) -> u32 {
        position % self.page / self.row
    }
}

/// What a sequence must be.
pub(super) struct Model {
    pub(super) id: SequenceId,
    pub(super) max_tokens: u32,
    pub(super) tokens: Vec<u32>,
    /// Hash of all tokens up to each.
    pub(super) stamps: Vec<u64>,
    pub(super) prompt: Vec<u32>,
    pub(super) settled: u32,
    /// Tokens of each step in flight that names it, to settle one after the other.
    pub(super) launched: VecDeque<(u64, u32)>,
    pub(super) planned: bool,
    /// Least tokens it may be cut to, without the allowance.
    pub(super) given_up: u32,
    /// First column it must hold, by group.
    pub(super) first: Vec<u32>,
}

impl Model {
    pub(super) fn push(&mut self, token: u32) {
        let before = self.stamps.last().copied().unwrap_or(0);
        self.tokens.push(token);
        self.stamps.push(mixed(
            before.wrapping_mul(31).wrapping_add(u64::from(token) + 1),
        ));
    }
}
