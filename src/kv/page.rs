//! Pages: how many tokens they hold, where they stand, and where the rows of one layer lie inside.

use serde::Serialize;

use super::dtype::KvDtype;
use super::geometry::GeometryError;
use super::layer::{AttentionKind, LayerSpec};

/// Unit of a [`PageEntry`], and the alignment of a page: 256 bytes.
pub const ENTRY_UNIT_BYTES: u64 = 256;

/// Bytes that a [`PageEntry`] can reach from the base of the KV arena: 1 TiB.
pub const ENTRY_REACH_BYTES: u64 = ENTRY_UNIT_BYTES << 32;

/// Tokens per page (rows, where a row stands for several tokens): a power of two, 1 to 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PageSize(u32);

impl PageSize {
    /// 16 tokens.
    pub const DEFAULT: Self = Self(16);

    /// Checks a page size given in tokens.
    ///
    /// # Errors
    /// [`GeometryError::PageSize`] unless `tokens` is a power of two from 1 to 256.
    pub fn new(tokens: u64) -> Result<Self, GeometryError> {
        match u32::try_from(tokens) {
            Ok(t) if t.is_power_of_two() && t <= 256 => Ok(Self(t)),
            _ => Err(GeometryError::PageSize { tokens }),
        }
    }

    /// Tokens per page.
    #[must_use]
    pub const fn tokens(self) -> u32 {
        self.0
    }

    /// Pages that `tokens` tokens occupy from the start of a page on.
    #[must_use]
    pub const fn pages_for(self, tokens: u32) -> u32 {
        tokens.div_ceil(self.0)
    }
}

/// Where a page stands: its byte offset from the base of the KV arena, in units of 256 bytes.
/// This is the very u32 that block tables hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PageEntry(pub u32);

impl PageEntry {
    /// Byte offset of the page's first layer chunk from the base of the KV arena.
    #[must_use]
    pub const fn offset_bytes(self) -> u64 {
        self.0 as u64 * ENTRY_UNIT_BYTES
    }
}

/// Byte strides inside one layer's share of a page: the K rows `[kv_head][token][dim]`, the V rows, the scales of
/// the K rows `[kv_head][token][block]`, those of the V rows, then the index rows `[token][dim]` and their scales. What a
/// layer does not have takes no bytes. A recurrent state is one run of `layer_page_bytes` without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PageStrides {
    /// From one K row to the next token's.
    pub k_token_bytes: u32,
    /// From one KV head's K rows to the next head's.
    pub k_head_bytes: u32,
    /// From the start of the share to its first V row.
    pub v_offset_bytes: u32,
    /// From one V row to the next token's.
    pub v_token_bytes: u32,
    /// From one KV head's V rows to the next head's.
    pub v_head_bytes: u32,
    /// From the start of the share to the scales of the K rows.
    pub k_scale_offset_bytes: u32,
    /// Scales of one K row.
    pub k_scale_bytes: u32,
    /// From the start of the share to the scales of the V rows.
    pub v_scale_offset_bytes: u32,
    /// Scales of one V row.
    pub v_scale_bytes: u32,
    /// From the start of the share to the first index row.
    pub index_offset_bytes: u32,
    /// From one index row to the next.
    pub index_token_bytes: u32,
    /// From the start of the share to the scales of the index rows.
    pub index_scale_offset_bytes: u32,
    /// Scales of one index row.
    pub index_scale_bytes: u32,
    /// The whole share, rounded up to 256 bytes.
    pub layer_page_bytes: u32,
    /// Bytes of `layer_page_bytes` that hold no element.
    pub padding_bytes: u32,
}

impl PageStrides {
    pub(super) fn new(
        spec: &LayerSpec,
        page_size: PageSize,
        dtype: KvDtype,
    ) -> Result<Self, GeometryError> {
        Self::fitting(spec, page_size, dtype).ok_or(GeometryError::PageTooLarge {
            num_kv_heads: spec.num_kv_heads,
            k_head_dim: spec.k_head_dim,
            v_head_dim: spec.v_head_dim,
            page_tokens: page_size.tokens(),
        })
    }

    /// `None` when a share exceeds 32 bits.
    fn fitting(spec: &LayerSpec, page_size: PageSize, dtype: KvDtype) -> Option<Self> {
        let narrow = |bytes: u64| u32::try_from(bytes).ok();
        let (heads, tokens) = (u64::from(spec.num_kv_heads), u64::from(page_size.tokens()));
        let index_dim = spec.kind.index_dim();
        // A row has less than 2^33 bytes and a page at most 256 tokens.
        let head = |row_bytes: u64| row_bytes * tokens;
        let (k, v) = (
            dtype.row_bytes(spec.k_head_dim),
            dtype.row_bytes(spec.v_head_dim),
        );
        let (k_scale, v_scale) = (
            dtype.scale_bytes(spec.k_head_dim),
            dtype.scale_bytes(spec.v_head_dim),
        );
        let (index, index_scale) = (dtype.row_bytes(index_dim), dtype.scale_bytes(index_dim));
        let mut end = 0_u64;
        let mut section = |heads: u64, row_bytes: u64| {
            let offset = narrow(end)?;
            end = end.checked_add(heads.checked_mul(head(row_bytes))?)?;
            Some(offset)
        };
        section(heads, k)?;
        let v_offset_bytes = section(heads, v)?;
        let k_scale_offset_bytes = section(heads, k_scale)?;
        let v_scale_offset_bytes = section(heads, v_scale)?;
        let index_offset_bytes = section(1, index)?;
        let index_scale_offset_bytes = section(1, index_scale)?;
        let exact = match spec.kind {
            AttentionKind::Recurrent { head_bytes } => heads * u64::from(head_bytes),
            _ => end,
        };
        let rounded = exact.checked_next_multiple_of(ENTRY_UNIT_BYTES)?;
        Some(Self {
            k_token_bytes: narrow(k)?,
            k_head_bytes: narrow(head(k))?,
            v_offset_bytes,
            v_token_bytes: narrow(v)?,
            v_head_bytes: narrow(head(v))?,
            k_scale_offset_bytes,
            k_scale_bytes: narrow(k_scale)?,
            v_scale_offset_bytes,
            v_scale_bytes: narrow(v_scale)?,
            index_offset_bytes,
            index_token_bytes: narrow(index)?,
            index_scale_offset_bytes,
            index_scale_bytes: narrow(index_scale)?,
            layer_page_bytes: narrow(rounded)?,
            padding_bytes: narrow(rounded - exact)?,
        })
    }
}
