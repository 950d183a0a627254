//! Layer groups and the bytes of their pages.
//!
//! A page holds `page_size` rows of one layer group: K and V of every layer of that group. Inside a slab
//! the layout is layer-major, `[layer][page][K|V][kv_head][token][dim]` (HND), so one layer's share of a
//! page is contiguous and starts at a multiple of [`ENTRY_UNIT_BYTES`]. A row is one token, but for compressed layers
//! (one row for `ratio` tokens) and recurrent state (one page for a whole sequence).
//!
//! A layer may keep several things (DeepSeek-V4: a window, compressed rows, the compressor's state): it then belongs to
//! several groups. Or none, where it reads the KV of an earlier layer (Gemma 3n).

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;
use thiserror::Error;

pub use super::dtype::KvDtype;
pub use super::layer::{AttentionKind, LayerKv, LayerSpec};
pub use super::page::{ENTRY_REACH_BYTES, ENTRY_UNIT_BYTES, PageEntry, PageSize, PageStrides};

/// Most layers a model may have.
pub const MAX_LAYERS: u32 = 1 << 16;

/// Index of a layer group in its [`Geometry`]; also the index of its pool and of its block table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The same number, to index with.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
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

    /// Tokens that a page stands for: those of its rows.
    #[must_use]
    pub const fn tokens_per_page(&self) -> u32 {
        (self.page_size.tokens()).saturating_mul(self.kind.tokens_per_row())
    }

    /// Tokens that `pages` pages stand for; 0 for recurrent state, of which a page is a sequence's whatever its length.
    #[must_use]
    pub const fn tokens_of(&self, pages: u64) -> u64 {
        match self.kind {
            AttentionKind::Recurrent { .. } => 0,
            _ => pages.saturating_mul(self.tokens_per_page() as u64),
        }
    }

    /// Pages that one sequence of `tokens` tokens holds in steady decode, at the worst alignment of its
    /// window (I10). The null page is not counted.
    #[must_use]
    pub fn pages_for(&self, tokens: u32) -> u32 {
        let page_tokens = self.tokens_per_page();
        let all = tokens.div_ceil(page_tokens);
        let live = self.kind.max_live_pages(page_tokens);
        live.map_or(all, |live| all.min(live))
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

/// The part of a model whose KV one device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Ranks among which the KV heads are shared out; heads fewer than ranks are repeated.
    pub tensor_parallel: u32,
    /// The layers of this pipeline stage; `None` for all.
    pub layers: Option<Range<u32>>,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Self = Self {
        tensor_parallel: 1,
        layers: None,
    };
}

/// The layer groups of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Geometry {
    /// Groups in the order of their [`GroupId`]: full first, then by window; those of a draft model last.
    pub groups: Vec<LayerGroup>,
    /// Rows per page, the same for every group unless [`Geometry::with_group_page_size`] says otherwise.
    pub page_size: PageSize,
    /// Layers of the model, those of other pipeline stages included; those of a draft model follow.
    pub num_layers: u32,
    /// Longest sequence the model was made for, if the configuration says.
    pub max_position_tokens: Option<u32>,
    /// `(layer, source)`: layers that keep no KV and read that of an earlier one.
    pub shared_layers: Vec<(u32, u32)>,
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
        let layers = layers.iter().map(|&spec| spec.into()).collect::<Vec<_>>();
        Self::from_layers(
            &layers,
            page_size,
            dtype,
            max_position_tokens,
            &Shard::WHOLE,
        )
    }

    /// Groups the parts of `layers` (one entry a layer of the model) that `shard` holds, as [`Geometry::new`] does.
    ///
    /// # Errors
    /// As [`Geometry::new`]; besides [`GeometryError::TensorParallel`] for heads that cannot be shared out,
    /// [`GeometryError::Stage`] for a stage that is no range of the layers, [`GeometryError::SharedLayer`] for a layer that
    /// reads the KV of one that keeps none or is in another stage.
    pub fn from_layers(
        layers: &[LayerKv],
        page_size: PageSize,
        dtype: KvDtype,
        max_position_tokens: Option<u32>,
        shard: &Shard,
    ) -> Result<Self, GeometryError> {
        let num_layers = match u32::try_from(layers.len()) {
            Ok(n) if (1..=MAX_LAYERS).contains(&n) => n,
            _ => {
                return Err(GeometryError::Layers {
                    layers: layers.len() as u64,
                });
            }
        };
        let stage = shard.layers.clone().unwrap_or(0..num_layers);
        if stage.is_empty() || stage.end > num_layers {
            return Err(GeometryError::Stage {
                first: stage.start,
                end: stage.end,
                num_layers,
            });
        }
        let mut by_spec = BTreeMap::<LayerSpec, Vec<u32>>::new();
        let mut shared_layers = Vec::new();
        for layer in stage.clone() {
            let parts = match &layers[layer as usize] {
                LayerKv::Own(parts) => parts,
                &LayerKv::SharedWith(source) => {
                    let keeps = matches!(layers.get(source as usize), Some(LayerKv::Own(_)));
                    if !keeps || source >= layer || source < stage.start {
                        return Err(GeometryError::SharedLayer {
                            layer,
                            keeper: source,
                        });
                    }
                    shared_layers.push((layer, source));
                    continue;
                }
            };
            for part in parts {
                if !part.is_possible() {
                    return Err(GeometryError::ZeroDim { layer });
                }
                let mut spec =
                    part.sharded(shard.tensor_parallel)
                        .ok_or(GeometryError::TensorParallel {
                            layer,
                            num_kv_heads: part.num_kv_heads,
                            ranks: shard.tensor_parallel,
                        })?;
                if let Some(longest) = max_position_tokens {
                    spec.kind = spec.kind.within(longest);
                }
                let members = by_spec.entry(spec).or_default();
                if members.last() == Some(&layer) {
                    return Err(GeometryError::TwiceTheSame { layer });
                }
                members.push(layer);
            }
        }
        // `LayerSpec` orders by kind first: full, then windows ascending.
        let mut groups = Vec::with_capacity(by_spec.len());
        let mut of_kind = BTreeMap::<&str, u32>::new();
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
        if groups.is_empty() {
            return Err(GeometryError::NothingCached);
        }
        Ok(Self {
            groups,
            page_size,
            num_layers,
            max_position_tokens,
            shared_layers,
        })
    }

    /// The same geometry with the layers of a draft model as further groups, named `draft-...`, in the same arena. Draft
    /// layer `i` has the number `num_layers + i`; sequences are as long as the target model allows.
    ///
    /// # Errors
    /// [`GeometryError::Layers`] when there are more than [`MAX_LAYERS`] together.
    pub fn with_draft(mut self, draft: &Self) -> Result<Self, GeometryError> {
        let first = self.num_layers;
        let together = u64::from(first) + u64::from(draft.num_layers);
        self.num_layers = match u32::try_from(together) {
            Ok(n) if n <= MAX_LAYERS => n,
            _ => return Err(GeometryError::Layers { layers: together }),
        };
        for group in &draft.groups {
            let mut group = group.clone();
            group.name = format!("draft-{}", group.name);
            group.layers.iter_mut().for_each(|layer| *layer += first);
            self.groups.push(group);
        }
        let shared = draft.shared_layers.iter();
        self.shared_layers
            .extend(shared.map(|(layer, source)| (layer + first, source + first)));
        Ok(self)
    }

    /// The same geometry with another element type for the group called `name`.
    ///
    /// # Errors
    /// [`GeometryError::NoGroup`] when there is none of that name.
    pub fn with_group_dtype(self, name: &str, dtype: KvDtype) -> Result<Self, GeometryError> {
        self.with_group(name, |group| (group.page_size, dtype))
    }

    /// The same geometry with another page size for the group called `name`.
    ///
    /// # Errors
    /// [`GeometryError::NoGroup`] when there is none of that name.
    pub fn with_group_page_size(
        self,
        name: &str,
        page_size: PageSize,
    ) -> Result<Self, GeometryError> {
        self.with_group(name, |group| (page_size, group.dtype))
    }

    fn with_group(
        mut self,
        name: &str,
        change: impl Fn(&LayerGroup) -> (PageSize, KvDtype),
    ) -> Result<Self, GeometryError> {
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
        let (page_size, dtype) = change(group);
        *group = LayerGroup::new(
            group.name.clone(),
            &group.spec(),
            group.layers.clone(),
            page_size,
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

    /// The group of a layer and the layer's place in it (`layer_in_group`): the first one of a layer in several groups, the
    /// source's of a layer that shares.
    #[must_use]
    pub fn locate(&self, layer: u32) -> Option<(GroupId, u32)> {
        self.places(layer).next()
    }

    /// Every group of a layer and the layer's place in it; the source's of a layer that shares.
    pub fn places(&self, layer: u32) -> impl Iterator<Item = (GroupId, u32)> + use<'_> {
        let shared = self.shared_layers.iter().find(|pair| pair.0 == layer);
        let keeper = shared.map_or(layer, |pair| pair.1);
        let groups = self.group_ids().zip(&self.groups);
        groups.filter_map(move |(id, group)| {
            let place = group.layers.binary_search(&keeper).ok()?;
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
    #[error(
        "KV dtype `{name}` is not known; choose bf16, fp16, fp8_e4m3 (fp8), fp8_e5m2, int8, fp4_e2m1 (fp4) or mxfp8"
    )]
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
    /// No layer of the stage keeps anything.
    #[error("no layer of this stage keeps KV of its own; give it at least one that does")]
    NothingCached,
    /// A layer with two parts of one kind and shape.
    #[error(
        "layer {layer} keeps two parts of the same kind and shape; make them one with more heads"
    )]
    TwiceTheSame {
        /// Which layer.
        layer: u32,
    },
    /// Heads and ranks do not divide.
    #[error(
        "{num_kv_heads} KV heads of layer {layer} cannot be shared out among {ranks} tensor-parallel ranks; choose a number \
         that divides them or that they divide"
    )]
    TensorParallel {
        /// Which layer.
        layer: u32,
        /// KV heads of the whole layer.
        num_kv_heads: u32,
        /// Ranks.
        ranks: u32,
    },
    /// A pipeline stage that is no range of the layers.
    #[error(
        "layers {first} to {end} (excluded) are no pipeline stage of a model of {num_layers}; give a range inside"
    )]
    Stage {
        /// First layer.
        first: u32,
        /// One past the last layer.
        end: u32,
        /// Layers of the model.
        num_layers: u32,
    },
    /// A layer that reads KV which is not there.
    #[error(
        "layer {layer} reads the KV of layer {keeper}, which keeps none in this stage; start the stage at that layer or before"
    )]
    SharedLayer {
        /// Which layer.
        layer: u32,
        /// The layer it names.
        keeper: u32,
    },
    /// One head's recurrent state does not fit in 32 bits.
    #[error(
        "a recurrent state of {bytes} bytes a head exceeds 4 GiB; check the linear_* fields of the configuration"
    )]
    StateTooLarge {
        /// Bytes of one head's state.
        bytes: u64,
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
