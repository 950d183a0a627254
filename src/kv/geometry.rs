//! Layer groups and the bytes of their pages.
//!
//! A page holds `page_size` tokens of one layer group: K and V of every layer of that group. Inside a slab
//! the layout is layer-major, `[layer][page][K|V][kv_head][token][dim]` (HND), so one layer's share of a
//! page is contiguous and starts at a multiple of [`ENTRY_UNIT_BYTES`].

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use super::window;

/// Unit of a [`PageEntry`], and the alignment of a page: 256 bytes.
pub const ENTRY_UNIT_BYTES: u64 = 256;

/// Bytes that a [`PageEntry`] can reach from the base of the KV arena: 1 TiB.
pub const ENTRY_REACH_BYTES: u64 = ENTRY_UNIT_BYTES << 32;

/// Most layers a model may have.
pub const MAX_LAYERS: u32 = 1 << 16;

/// Tokens per page: a power of two, 1 to 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PageSize(u32);

impl PageSize {
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

/// Element type of K and V in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KvDtype {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
    /// 8-bit float, 4 exponent and 3 mantissa bits.
    Fp8E4m3,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    Fp8E5m2,
}

impl KvDtype {
    const NAMES: [(&'static str, Self); 5] = [
        ("bf16", Self::Bf16),
        ("fp16", Self::Fp16),
        ("fp8", Self::Fp8E4m3),
        ("fp8_e4m3", Self::Fp8E4m3),
        ("fp8_e5m2", Self::Fp8E5m2),
    ];

    /// Bytes that `elements` contiguous elements occupy; `None` when that overflows 64 bits.
    #[must_use]
    pub fn bytes_for(self, elements: u64) -> Option<u64> {
        match self {
            Self::Bf16 | Self::Fp16 => elements.checked_mul(2),
            Self::Fp8E4m3 | Self::Fp8E5m2 => Some(elements),
        }
    }
}

impl std::str::FromStr for KvDtype {
    type Err = GeometryError;

    fn from_str(name: &str) -> Result<Self, GeometryError> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, dtype)| *dtype)
            .ok_or_else(|| GeometryError::Dtype {
                name: name.to_owned(),
            })
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8E5m2 => "fp8_e5m2",
        })
    }
}

/// Which keys a layer reads, hence how long its pages live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AttentionKind {
    /// Every earlier token.
    Full,
    /// The last `window` tokens, the query included.
    Sliding {
        /// Window in tokens; counts the query itself; at least 1.
        window: u32,
    },
}

impl AttentionKind {
    /// The window in tokens, `None` for full attention.
    #[must_use]
    pub const fn window(self) -> Option<u32> {
        match self {
            Self::Full => None,
            Self::Sliding { window } => Some(window),
        }
    }

    const fn short_name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sliding { .. } => "swa",
        }
    }
}

/// KV geometry and retention rule of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerSpec {
    /// Which keys the layer reads.
    pub kind: AttentionKind,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Elements of one K row.
    pub k_head_dim: u32,
    /// Elements of one V row.
    pub v_head_dim: u32,
}

/// Index of a layer group in its [`Geometry`]; also the index of its pool and of its block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The same number, to index with.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
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

/// The layers that share one KV geometry and one retention rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LayerGroup {
    /// `full`, `swa`; a number is appended from the second group of a kind on.
    pub name: String,
    /// Which keys the layers read.
    pub kind: AttentionKind,
    /// The model's layers in this group, ascending; the position in the list is `layer_in_group`.
    pub layers: Vec<u32>,
    /// KV heads of each layer.
    pub num_kv_heads: u32,
    /// Elements of one K row.
    pub k_head_dim: u32,
    /// Elements of one V row.
    pub v_head_dim: u32,
    /// Element type of K and V.
    pub dtype: KvDtype,
    page_size: PageSize,
    strides: PageStrides,
    page_bytes: u64,
}

/// Byte strides inside one layer's share of a page, `[K|V][kv_head][token][dim]`.
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
    /// The whole share, rounded up to 256 bytes.
    pub layer_page_bytes: u32,
    /// Bytes of `layer_page_bytes` that hold no element.
    pub padding_bytes: u32,
}

impl PageStrides {
    fn new(spec: &LayerSpec, page_size: PageSize, dtype: KvDtype) -> Result<Self, GeometryError> {
        let too_large = || GeometryError::PageTooLarge {
            num_kv_heads: spec.num_kv_heads,
            k_head_dim: spec.k_head_dim,
            v_head_dim: spec.v_head_dim,
            page_tokens: page_size.tokens(),
        };
        let rows = |dim: u32| -> Option<(u64, u64, u64)> {
            let token = dtype.bytes_for(u64::from(dim))?;
            let head = token.checked_mul(u64::from(page_size.tokens()))?;
            Some((token, head, head.checked_mul(u64::from(spec.num_kv_heads))?))
        };
        let (k_token, k_head, k_all) = rows(spec.k_head_dim).ok_or_else(too_large)?;
        let (v_token, v_head, v_all) = rows(spec.v_head_dim).ok_or_else(too_large)?;
        let exact = k_all.checked_add(v_all).ok_or_else(too_large)?;
        let rounded = exact
            .checked_next_multiple_of(ENTRY_UNIT_BYTES)
            .ok_or_else(too_large)?;
        let narrow = |bytes: u64| u32::try_from(bytes).map_err(|_| too_large());
        Ok(Self {
            k_token_bytes: narrow(k_token)?,
            k_head_bytes: narrow(k_head)?,
            v_offset_bytes: narrow(k_all)?,
            v_token_bytes: narrow(v_token)?,
            v_head_bytes: narrow(v_head)?,
            layer_page_bytes: narrow(rounded)?,
            padding_bytes: narrow(rounded - exact)?,
        })
    }
}

impl LayerGroup {
    fn new(
        name: String,
        spec: &LayerSpec,
        layers: Vec<u32>,
        page_size: PageSize,
        dtype: KvDtype,
    ) -> Result<Self, GeometryError> {
        let strides = PageStrides::new(spec, page_size, dtype)?;
        // At most 2^16 layers of less than 2^32 bytes each.
        let page_bytes = layers.len() as u64 * u64::from(strides.layer_page_bytes);
        Ok(Self {
            name,
            kind: spec.kind,
            layers,
            num_kv_heads: spec.num_kv_heads,
            k_head_dim: spec.k_head_dim,
            v_head_dim: spec.v_head_dim,
            dtype,
            page_size,
            strides,
            page_bytes,
        })
    }

    /// Bytes of one page: K and V of every layer of the group.
    #[must_use]
    pub const fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// One layer's bytes of a page, a multiple of 256.
    #[must_use]
    pub const fn layer_page_bytes(&self) -> u64 {
        self.strides.layer_page_bytes as u64
    }

    /// Byte strides inside one layer's share of a page.
    #[must_use]
    pub const fn strides(&self) -> PageStrides {
        self.strides
    }

    /// Tokens per page.
    #[must_use]
    pub const fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Pages that one sequence of `tokens` tokens holds in steady decode, at the worst alignment of its
    /// window (I10). The null page is not counted.
    #[must_use]
    pub fn pages_for(&self, tokens: u32) -> u32 {
        let all = self.page_size.pages_for(tokens);
        match self.kind {
            AttentionKind::Full => all,
            AttentionKind::Sliding { window } => {
                all.min(window::max_live_pages(window, self.page_size.tokens()))
            }
        }
    }

    fn spec(&self) -> LayerSpec {
        LayerSpec {
            kind: self.kind,
            num_kv_heads: self.num_kv_heads,
            k_head_dim: self.k_head_dim,
            v_head_dim: self.v_head_dim,
        }
    }
}

/// The layer groups of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Geometry {
    /// Groups in the order of their [`GroupId`]: full first, then by window.
    pub groups: Vec<LayerGroup>,
    /// Tokens per page, the same for every group.
    pub page_size: PageSize,
    /// Layers of the model.
    pub num_layers: u32,
    /// Longest sequence the model was made for, if the configuration says.
    pub max_position_tokens: Option<u32>,
}

impl Geometry {
    /// Groups `layers` (one entry a layer of the model) by geometry and retention rule.
    ///
    /// A window that covers `max_position_tokens` cannot hide a key, so such a layer is full.
    ///
    /// # Errors
    /// [`GeometryError::Layers`] for no layer or more than [`MAX_LAYERS`]; [`GeometryError::ZeroDim`] for a
    /// layer without heads, dims or window; [`GeometryError::PageTooLarge`] when one layer's page exceeds 4 GiB.
    pub fn new(
        layers: &[LayerSpec],
        page_size: PageSize,
        dtype: KvDtype,
        max_position_tokens: Option<u32>,
    ) -> Result<Self, GeometryError> {
        let num_layers = match u32::try_from(layers.len()) {
            Ok(n) if (1..=MAX_LAYERS).contains(&n) => n,
            _ => {
                return Err(GeometryError::Layers {
                    layers: layers.len() as u64,
                });
            }
        };
        let mut by_spec = std::collections::BTreeMap::<LayerSpec, Vec<u32>>::new();
        for (layer, spec) in (0..num_layers).zip(layers) {
            let mut spec = *spec;
            if spec.num_kv_heads == 0
                || spec.k_head_dim == 0
                || spec.v_head_dim == 0
                || spec.kind.window() == Some(0)
            {
                return Err(GeometryError::ZeroDim { layer });
            }
            if let (Some(window), Some(longest)) = (spec.kind.window(), max_position_tokens)
                && window >= longest
            {
                spec.kind = AttentionKind::Full;
            }
            by_spec.entry(spec).or_default().push(layer);
        }
        // `LayerSpec` orders by kind first: full, then windows ascending.
        let mut groups = Vec::with_capacity(by_spec.len());
        let mut of_kind = std::collections::BTreeMap::<&str, u32>::new();
        for (spec, layers) in by_spec {
            let base = spec.kind.short_name();
            let number = of_kind.entry(base).or_insert(0);
            *number += 1;
            let name = if *number == 1 {
                base.to_owned()
            } else {
                format!("{base}{number}")
            };
            groups.push(LayerGroup::new(name, &spec, layers, page_size, dtype)?);
        }
        Ok(Self {
            groups,
            page_size,
            num_layers,
            max_position_tokens,
        })
    }

    /// The same geometry with another element type for the group called `name`.
    ///
    /// # Errors
    /// [`GeometryError::NoGroup`] when there is none of that name.
    pub fn with_group_dtype(mut self, name: &str, dtype: KvDtype) -> Result<Self, GeometryError> {
        let Some(group) = self.groups.iter_mut().find(|group| group.name == name) else {
            let known = self
                .groups
                .iter()
                .map(|group| group.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            return Err(GeometryError::NoGroup {
                name: name.to_owned(),
                known,
            });
        };
        *group = LayerGroup::new(
            group.name.clone(),
            &group.spec(),
            group.layers.clone(),
            group.page_size,
            dtype,
        )?;
        Ok(self)
    }

    /// Group ids, in order.
    pub fn group_ids(&self) -> impl ExactSizeIterator<Item = GroupId> + use<> {
        (0..self.groups.len() as u32).map(GroupId)
    }

    /// The group `id`.
    ///
    /// # Panics
    /// When `id` is not one of this geometry's.
    #[must_use]
    pub fn group(&self, id: GroupId) -> &LayerGroup {
        &self.groups[id.index()]
    }

    /// The group of a layer and the layer's place in it (`layer_in_group`).
    #[must_use]
    pub fn locate(&self, layer: u32) -> Option<(GroupId, u32)> {
        self.group_ids().zip(&self.groups).find_map(|(id, group)| {
            let place = group.layers.binary_search(&layer).ok()?;
            Some((id, place as u32))
        })
    }

    /// Pages of each group that one sequence of `tokens` tokens holds in steady decode.
    #[must_use]
    pub fn pages_for(&self, tokens: u32) -> Vec<u64> {
        self.groups
            .iter()
            .map(|group| u64::from(group.pages_for(tokens)))
            .collect()
    }

    /// Bytes of the pages that one sequence of `tokens` tokens holds in steady decode.
    #[must_use]
    pub fn request_bytes(&self, tokens: u32) -> u128 {
        self.groups
            .iter()
            .map(|group| u128::from(group.pages_for(tokens)) * u128::from(group.page_bytes))
            .sum()
    }
}

/// Why a geometry cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// Page size out of range.
    #[error("a page of {tokens} tokens is not possible; choose a power of two from 1 to 256")]
    PageSize {
        /// What was asked for.
        tokens: u64,
    },
    /// Unknown KV element type.
    #[error("KV dtype `{name}` is not known; choose bf16, fp16, fp8_e4m3 (fp8) or fp8_e5m2")]
    Dtype {
        /// What was asked for.
        name: String,
    },
    /// Layer count out of range.
    #[error("a model of {layers} layers cannot be laid out; it must have from 1 to {MAX_LAYERS}")]
    Layers {
        /// What was asked for.
        layers: u64,
    },
    /// A layer without heads, dims or window.
    #[error(
        "layer {layer} has no KV heads, an empty head or an empty window; each must be at least 1"
    )]
    ZeroDim {
        /// Which layer.
        layer: u32,
    },
    /// One layer's share of a page does not fit in 32 bits.
    #[error(
        "a page of {page_tokens} tokens with {num_kv_heads} KV heads of {k_head_dim} and {v_head_dim} elements \
         exceeds 4 GiB a layer; check head_dim and num_key_value_heads in the configuration"
    )]
    PageTooLarge {
        /// KV heads.
        num_kv_heads: u32,
        /// Elements of a K row.
        k_head_dim: u32,
        /// Elements of a V row.
        v_head_dim: u32,
        /// Tokens per page.
        page_tokens: u32,
    },
    /// No layer group of that name.
    #[error("there is no layer group `{name}`; this model has {known}")]
    NoGroup {
        /// What was asked for.
        name: String,
        /// The groups there are.
        known: String,
    },
}

#[cfg(test)]
mod tests;
