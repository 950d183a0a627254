//! What one layer caches: its attention kind and the shape of its rows.

use serde::Serialize;

use super::window;

/// What a layer caches and for how long. Kinds are ordered by how long their pages live: those that grow with the
/// sequence come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AttentionKind {
    /// Every earlier token.
    Full,
    /// Every earlier token, as one row that is both K and V (MLA: the compressed latent and the RoPE part).
    Latent {
        /// Elements of the index key that is cached beside each row for sparse selection; 0 without one.
        index_dim: u32,
    },
    /// Every earlier token, of which a query reads some blocks, chosen by index keys.
    BlockSparse {
        /// Elements of the index key of each token.
        index_dim: u32,
    },
    /// One row for every `ratio` tokens, of all earlier tokens (the long-range part of DeepSeek-V4's attention).
    Compressed {
        /// Tokens that one row stands for; at least 1.
        ratio: u32,
        /// Elements of the index key of each row; 0 without one.
        index_dim: u32,
    },
    /// The last `window` tokens, the query included.
    Sliding {
        /// Window in tokens; counts the query itself; at least 1.
        window: u32,
    },
    /// The tokens of the query's own chunk: those from the last multiple of `chunk` on.
    Chunked {
        /// Chunk in tokens; at least 1.
        chunk: u32,
    },
    /// No tokens: a state of fixed size for each sequence, that of `num_kv_heads` heads.
    Recurrent {
        /// Bytes of one head's state, whatever the KV dtype; at least 1.
        head_bytes: u32,
    },
}

impl AttentionKind {
    /// The window in tokens of sliding attention, `None` for other kinds.
    #[must_use]
    pub const fn window(self) -> Option<u32> {
        match self {
            Self::Sliding { window } => Some(window),
            _ => None,
        }
    }

    /// First key position that the query at `position` may read; pages wholly below it are dead.
    #[must_use]
    pub fn first_visible(self, position: u32) -> u32 {
        match self {
            Self::Sliding { window } => window::first_visible(position, window),
            Self::Chunked { chunk } => position - position % chunk.max(1),
            _ => 0,
        }
    }

    /// Tokens that one row stands for: `ratio` of a compressed layer, and all of them for a recurrent state.
    #[must_use]
    pub const fn tokens_per_row(self) -> u32 {
        match self {
            Self::Compressed { ratio, .. } => ratio,
            Self::Recurrent { .. } => u32::MAX,
            _ => 1,
        }
    }

    /// Elements of the index key cached with each row; 0 for none.
    #[must_use]
    pub const fn index_dim(self) -> u32 {
        match self {
            Self::Latent { index_dim }
            | Self::BlockSparse { index_dim }
            | Self::Compressed { index_dim, .. } => index_dim,
            _ => 0,
        }
    }

    /// The most pages of `page_tokens` tokens that one query reads, whatever its alignment; `None` when that grows with
    /// the sequence.
    #[must_use]
    pub fn max_live_pages(self, page_tokens: u32) -> Option<u32> {
        match self {
            Self::Sliding { window } => Some(window::max_live_pages(window, page_tokens)),
            // Chunks that are whole pages begin at the start of a page.
            Self::Chunked { chunk } if chunk.is_multiple_of(page_tokens.max(1)) => {
                Some(chunk / page_tokens.max(1))
            }
            Self::Chunked { chunk } => Some(window::max_live_pages(chunk, page_tokens)),
            Self::Recurrent { .. } => Some(1),
            _ => None,
        }
    }

    /// The same kind with full attention where nothing of a sequence of `longest` tokens can be hidden.
    #[must_use]
    pub(super) fn within(self, longest: u32) -> Self {
        match self {
            Self::Sliding { window } if window >= longest => Self::Full,
            Self::Chunked { chunk } if chunk >= longest => Self::Full,
            other => other,
        }
    }

    pub(super) const fn short_name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Latent { .. } => "latent",
            Self::BlockSparse { .. } => "sparse",
            Self::Compressed { .. } => "compressed",
            Self::Sliding { .. } => "swa",
            Self::Chunked { .. } => "chunked",
            Self::Recurrent { .. } => "state",
        }
    }
}

/// Cache rows and retention rule of one layer, or of one part of it where a layer caches several things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerSpec {
    /// What is cached and for how long.
    pub kind: AttentionKind,
    /// KV heads: 1 for a latent row; the heads of a recurrent state.
    pub num_kv_heads: u32,
    /// Elements of one K row; 0 for a recurrent state.
    pub k_head_dim: u32,
    /// Elements of one V row; 0 where the K row is the V row too.
    pub v_head_dim: u32,
}

impl LayerSpec {
    /// Whether the kind and its dims go together.
    pub(super) const fn is_possible(&self) -> bool {
        let kind = match self.kind {
            AttentionKind::Sliding { window } => window > 0,
            AttentionKind::Chunked { chunk } => chunk > 0,
            AttentionKind::Compressed { ratio, .. } => ratio > 0,
            AttentionKind::BlockSparse { index_dim } => index_dim > 0,
            AttentionKind::Recurrent { head_bytes } => head_bytes > 0,
            AttentionKind::Full | AttentionKind::Latent { .. } => true,
        };
        let rows = matches!(self.kind, AttentionKind::Recurrent { .. }) || self.k_head_dim > 0;
        kind && rows && self.num_kv_heads > 0
    }

    /// One rank's share of `ranks`: `max(1, heads / ranks)` heads; `None` when neither number divides the other.
    pub(super) const fn sharded(mut self, ranks: u32) -> Option<Self> {
        let heads = self.num_kv_heads;
        if ranks == 0 || (!heads.is_multiple_of(ranks) && !ranks.is_multiple_of(heads)) {
            return None;
        }
        self.num_kv_heads = if heads > ranks { heads / ranks } else { 1 };
        Some(self)
    }
}

/// What a layer keeps in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerKv {
    /// Rows of its own: one part, or several with rules of their own (a window and compressed rows).
    Own(Vec<LayerSpec>),
    /// Nothing: it reads what an earlier layer keeps.
    SharedWith(u32),
}

impl From<LayerSpec> for LayerKv {
    fn from(spec: LayerSpec) -> Self {
        Self::Own(vec![spec])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_begins_anew_where_a_window_slides() {
        let chunked = AttentionKind::Chunked { chunk: 8 };
        let first = [0, 7, 8, 15, 16, 17].map(|q| chunked.first_visible(q));
        assert_eq!(first, [0, 0, 8, 8, 16, 16]);
        let sliding = AttentionKind::Sliding { window: 8 };
        assert_eq!([7, 8, 15].map(|q| sliding.first_visible(q)), [0, 1, 8]);
        assert_eq!(AttentionKind::Full.first_visible(u32::MAX), 0);
    }

    #[test]
    fn live_pages_of_a_chunk_agree_with_counting() {
        for page in [1, 2, 4, 16] {
            for chunk in 1..70 {
                let kind = AttentionKind::Chunked { chunk };
                let most = (0..500)
                    .map(|q| q / page - kind.first_visible(q) / page + 1)
                    .max()
                    .unwrap();
                let bound = kind.max_live_pages(page).unwrap();
                assert!(most <= bound && bound <= most + 1, "{chunk} {page}");
                if chunk % page == 0 {
                    assert_eq!(most, bound, "{chunk} {page}");
                }
            }
        }
    }

    #[test]
    fn heads_are_shared_out_or_repeated() {
        let spec = LayerSpec {
            kind: AttentionKind::Full,
            num_kv_heads: 4,
            k_head_dim: 192,
            v_head_dim: 128,
        };
        let heads = |ranks| spec.sharded(ranks).map(|spec| spec.num_kv_heads);
        assert_eq!(
            [1, 2, 4, 8, 3, 6, 0].map(heads),
            [Some(4), Some(2), Some(1), Some(1), None, None, None]
        );
    }
}
