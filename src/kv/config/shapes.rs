//! From a layer's type to the rows it caches.

use serde_json::Value;

use super::fields::{TextConfig, invalid};
use super::kinds::{LayerType, Layers};
use super::{ConfigError, MAX_DIM};
use crate::kv::families::{COMPRESS_RATES, KvHeads};
use crate::kv::geometry::{AttentionKind, GeometryError, LayerKv, LayerSpec};

/// Bytes of an f32, the type of recurrent and compressor state.
const F32_BYTES: u64 = 4;

/// Bytes of a bf16, the type of a convolution's last inputs.
const BF16_BYTES: u64 = 2;

/// KV heads, K and V head dimensions.
#[derive(Clone, Copy)]
struct Heads {
    num_kv_heads: u32,
    k_head_dim: u32,
    v_head_dim: u32,
}

impl Heads {
    const fn spec(self, kind: AttentionKind) -> LayerSpec {
        LayerSpec {
            kind,
            num_kv_heads: self.num_kv_heads,
            k_head_dim: self.k_head_dim,
            v_head_dim: self.v_head_dim,
        }
    }
}

/// A layer with one head of one row that is K and V.
const fn one_row(kind: AttentionKind, dim: u32) -> LayerSpec {
    LayerSpec {
        kind,
        num_kv_heads: 1,
        k_head_dim: dim,
        v_head_dim: 0,
    }
}

impl TextConfig<'_> {
    /// What each layer keeps.
    pub fn layer_kv(&self) -> Result<Vec<LayerKv>, ConfigError> {
        let num_layers = self.num_layers()?;
        let layers = self.layers(num_layers)?;
        let mut kept = Vec::with_capacity(layers.types.len());
        let mut known = Vec::<(LayerType, Vec<LayerSpec>)>::new();
        for &layer_type in &layers.types {
            let parts = match known.iter().find(|(seen, _)| *seen == layer_type) {
                Some((_, parts)) => parts.clone(),
                None => {
                    let parts = self.parts(layer_type, &layers)?;
                    known.push((layer_type, parts.clone()));
                    parts
                }
            };
            kept.push(LayerKv::Own(parts));
        }
        self.override_layers(&mut kept)?;
        self.share(&layers.types, &mut kept)?;
        Ok(kept)
    }

    /// What a layer of one type keeps.
    fn parts(&self, layer_type: LayerType, layers: &Layers) -> Result<Vec<LayerSpec>, ConfigError> {
        let window = || {
            layers.window.ok_or(ConfigError::NoWindow {
                field: layers.field,
            })
        };
        let latent = self.dim_or("kv_lora_rank", |class| class.extra.kv_lora_rank)?;
        let index_dim = || match self.index_dim()? {
            0 => Err(self.missing("index_head_dim")),
            dim => Ok(dim),
        };
        Ok(match layer_type {
            LayerType::Full if latent > 0 => {
                // Without layer types, a model with index keys has them on every layer.
                let indexed = layers.field != "layer_types" && self.get("index_topk").is_some();
                let index_dim = if indexed { index_dim()? } else { 0 };
                vec![self.latent_row(latent, index_dim)?]
            }
            LayerType::Full => vec![self.full_heads()?.spec(AttentionKind::Full)],
            LayerType::Indexed if latent > 0 => vec![self.latent_row(latent, index_dim()?)?],
            LayerType::Indexed => return Err(self.missing("kv_lora_rank")),
            LayerType::BlockSparse => vec![self.full_heads()?.spec(AttentionKind::BlockSparse {
                index_dim: index_dim()?,
            })],
            LayerType::Sliding => {
                let kind = AttentionKind::Sliding { window: window()? };
                if self.is_compressed()? {
                    vec![one_row(kind, self.full_heads()?.k_head_dim)]
                } else if latent > 0 {
                    let rank = self.dim("swa_kv_lora_rank")?.unwrap_or(latent);
                    let row = self.latent_row(rank, 0)?;
                    let rope = self.dim("swa_qk_rope_head_dim")?;
                    vec![one_row(
                        kind,
                        rope.map_or(row.k_head_dim, |rope| rank + rope),
                    )]
                } else {
                    vec![self.sliding_heads()?.spec(kind)]
                }
            }
            LayerType::Chunked => {
                let chunk = self
                    .attention_chunk_size()?
                    .ok_or_else(|| self.missing("attention_chunk_size"))?;
                vec![self.full_heads()?.spec(AttentionKind::Chunked { chunk })]
            }
            LayerType::CompressedSparse | LayerType::HeavilyCompressed => {
                self.compressed(layer_type, window()?)?
            }
            LayerType::Linear => vec![self.recurrent()?],
        })
    }

    fn latent_row(&self, rank: u32, index_dim: u32) -> Result<LayerSpec, ConfigError> {
        let rope = self.required("qk_rope_head_dim", MAX_DIM, |class| {
            class.extra.qk_rope_head_dim
        })?;
        Ok(one_row(AttentionKind::Latent { index_dim }, rank + rope))
    }

    /// Elements of an index key; 0 for none.
    fn index_dim(&self) -> Result<u32, ConfigError> {
        if let Some(sparse) = self.nested("sparse_attention_config")?
            && let Some(dim) = sparse.dim("sparse_index_dim")?
        {
            return Ok(dim);
        }
        self.dim_or("index_head_dim", |class| class.extra.index_head_dim)
    }

    /// DeepSeek-V4: the window's rows, compressed rows, and what the compressors keep of tokens not yet compressed.
    fn compressed(
        &self,
        layer_type: LayerType,
        window: u32,
    ) -> Result<Vec<LayerSpec>, ConfigError> {
        let dim = self.full_heads()?.k_head_dim;
        let [sparse, heavy] = self.compress_rates()?;
        let (ratio, index_dim) = if layer_type == LayerType::CompressedSparse {
            match self.index_dim()? {
                0 => return Err(self.missing("index_head_dim")),
                index_dim => (sparse, index_dim),
            }
        } else {
            (heavy, 0)
        };
        // K and gate of the tokens since the last row. Rows of the sparse kind overlap: each token feeds two rows, so
        // the elements are twice as many, and half of those of the last row are kept as well.
        let per_token = 2 * (u64::from(dim) + u64::from(index_dim));
        let elements = if layer_type == LayerType::CompressedSparse {
            u64::from(ratio) * per_token * 3
        } else {
            u64::from(ratio) * per_token
        };
        Ok(vec![
            one_row(AttentionKind::Sliding { window }, dim),
            one_row(AttentionKind::Compressed { ratio, index_dim }, dim),
            self.state(1, elements * F32_BYTES)?,
        ])
    }

    /// Tokens for a row of sparse and of heavily compressed layers.
    pub fn compress_rates(&self) -> Result<[u32; 2], ConfigError> {
        let rate = |map: &TextConfig<'_>, field: &str| map.number(field, 1, 1 << 16);
        let [mut sparse, mut heavy] = COMPRESS_RATES;
        if let Some(rates) = self.nested("compress_rates")? {
            sparse = rate(&rates, "compressed_sparse_attention")?.unwrap_or(sparse);
            heavy = rate(&rates, "heavily_compressed_attention")?.unwrap_or(heavy);
        }
        sparse = rate(self, "compress_rate_csa")?.unwrap_or(sparse);
        heavy = rate(self, "compress_rate_hca")?.unwrap_or(heavy);
        Ok([sparse, heavy])
    }

    /// Whether the model's windows hold rows that are K and V at once, as those with compressed layers do.
    fn is_compressed(&self) -> Result<bool, ConfigError> {
        let named = ["compress_rates", "compress_ratios"].map(|field| self.get(field).is_some());
        Ok(named.contains(&true) || self.model_type == "deepseek_v4")
    }

    /// The state of a linear-attention layer.
    fn recurrent(&self) -> Result<LayerSpec, ConfigError> {
        let class = |place: usize| self.class.map_or(0, |class| class.extra.linear[place]);
        let read = |field: &'static str, place: usize| {
            let given = self.dim(field)?;
            given
                .or(Some(class(place)).filter(|&n| n > 0))
                .ok_or_else(|| self.missing(field))
        };
        if self.get("linear_num_key_heads").is_none() && class(0) == 0 {
            // Lightning attention (MiniMax): one K-by-V matrix for each query head.
            let lightning = self.get("attn_type_list").is_some() || self.model_type == "minimax";
            if !lightning {
                return Err(self.missing("linear_num_key_heads"));
            }
            let heads = self.required("num_attention_heads", MAX_DIM, |class| {
                class.num_attention_heads
            })?;
            let dim = u64::from(self.full_heads()?.k_head_dim);
            return self.state(heads, dim * dim * F32_BYTES);
        }
        let k_heads = read("linear_num_key_heads", 0)?;
        let v_heads = read("linear_num_value_heads", 1)?;
        let (k_dim, v_dim) = (
            u64::from(read("linear_key_head_dim", 2)?),
            u64::from(read("linear_value_head_dim", 3)?),
        );
        let inputs = u64::from(read("linear_conv_kernel_dim", 4)? - 1);
        if !v_heads.is_multiple_of(k_heads) {
            let expected = format!("a multiple of linear_num_key_heads {k_heads}");
            let found = Value::from(v_heads);
            return Err(invalid("linear_num_value_heads", &found, &expected));
        }
        // For each K head: its V heads' matrices, and the last inputs of the convolution over q, k and v.
        let values = u64::from(v_heads / k_heads) * v_dim;
        let bytes = (|| {
            let matrix = values.checked_mul(k_dim)?.checked_mul(F32_BYTES)?;
            let convolution = (2 * k_dim + values).checked_mul(inputs)?;
            matrix.checked_add(convolution.checked_mul(BF16_BYTES)?)
        })();
        self.state(k_heads, bytes.unwrap_or(u64::MAX))
    }

    fn state(&self, heads: u32, head_bytes: u64) -> Result<LayerSpec, ConfigError> {
        let too_large = GeometryError::StateTooLarge { bytes: head_bytes };
        let head_bytes = u32::try_from(head_bytes).map_err(|_| too_large)?;
        Ok(LayerSpec {
            kind: AttentionKind::Recurrent { head_bytes },
            num_kv_heads: heads,
            k_head_dim: 0,
            v_head_dim: 0,
        })
    }

    /// Heads of layers that do not slide.
    fn full_heads(&self) -> Result<Heads, ConfigError> {
        let mut heads = self.heads()?;
        let global = self.dim_or("global_head_dim", |class| class.extra.global_head_dim)?;
        // With overrides of single layers, the class adds none of its own.
        if global > 0 && self.get("per_layer_config").is_none() {
            (heads.k_head_dim, heads.v_head_dim) = (global, global);
        }
        if self.flag("attention_k_eq_v")? == Some(true)
            && let Some(count) = self.dim("num_global_key_value_heads")?
        {
            heads.num_kv_heads = count;
        }
        Ok(heads)
    }

    /// Heads of sliding layers.
    fn sliding_heads(&self) -> Result<Heads, ConfigError> {
        let base = self.heads()?;
        let other = self.nested("attention_other_setting")?;
        let of_other = |field: &str| other.as_ref().map_or(Ok(None), |other| other.dim(field));
        let dim = self.dim("swa_head_dim")?.or(of_other("head_dim")?);
        Ok(Heads {
            num_kv_heads: self
                .dim("swa_num_key_value_heads")?
                .or(of_other("num_attention_groups")?)
                .unwrap_or(base.num_kv_heads),
            k_head_dim: dim.unwrap_or(base.k_head_dim),
            v_head_dim: self
                .dim("swa_v_head_dim")?
                .or(dim)
                .unwrap_or(base.v_head_dim),
        })
    }

    /// Heads of all layers that have none of their own.
    fn heads(&self) -> Result<Heads, ConfigError> {
        // Where KV heads and head_dim are given, the query heads are of no concern here.
        let query_heads = || {
            self.required("num_attention_heads", MAX_DIM, |class| {
                class.num_attention_heads
            })
        };
        let given = self.dim("num_key_value_heads")?;
        let num_kv_heads = match given.or(self.dim("num_attention_groups")?) {
            Some(heads) => heads,
            None => match self.class.map(|class| class.num_key_value_heads) {
                Some(KvHeads::Count(heads)) if !self.fields.contains_key("num_key_value_heads") => {
                    heads
                }
                _ => query_heads()?,
            },
        };
        let k_head_dim = match self
            .dim("head_dim")?
            .or_else(|| self.class.and_then(|class| class.head_dim))
        {
            Some(dim) => dim,
            None => {
                let hidden_size =
                    self.required("hidden_size", u32::MAX, |class| class.hidden_size)?;
                let num_attention_heads = query_heads()?;
                if hidden_size % num_attention_heads != 0 {
                    return Err(ConfigError::HeadDim {
                        hidden_size,
                        num_attention_heads,
                    });
                }
                hidden_size / num_attention_heads
            }
        };
        let v_head_dim = self
            .dim("v_head_dim")?
            .or_else(|| self.class.and_then(|class| class.v_head_dim));
        Ok(Heads {
            num_kv_heads,
            k_head_dim,
            v_head_dim: v_head_dim.unwrap_or(k_head_dim),
        })
    }

    /// Applies `per_layer_config`: heads and dims of single layers, by layer number.
    fn override_layers(&self, kept: &mut [LayerKv]) -> Result<(), ConfigError> {
        let Some(overrides) = self.nested("per_layer_config")? else {
            return Ok(());
        };
        for (key, value) in overrides.fields {
            let field = format!("per_layer_config.{key}");
            let place = key.parse::<usize>().ok();
            let Some(LayerKv::Own(parts)) = place.and_then(|place| kept.get_mut(place)) else {
                let expected = format!("the number of one of {} layers as its key", kept.len());
                return Err(invalid(&field, value, &expected));
            };
            let Some(layer) = overrides.nested(key)? else {
                continue;
            };
            let dim = layer.dim("head_dim")?;
            for part in parts {
                part.num_kv_heads = layer
                    .dim("num_key_value_heads")?
                    .unwrap_or(part.num_kv_heads);
                part.k_head_dim = dim.unwrap_or(part.k_head_dim);
                part.v_head_dim = layer.dim("v_head_dim")?.or(dim).unwrap_or(part.v_head_dim);
            }
        }
        Ok(())
    }

    /// The last `num_kv_shared_layers` layers read the KV of the newest earlier layer of their type.
    fn share(&self, types: &[LayerType], kept: &mut [LayerKv]) -> Result<(), ConfigError> {
        let field = "num_kv_shared_layers";
        let class = self
            .class
            .map_or(0, |class| class.extra.num_kv_shared_layers);
        let shared = self.number(field, 0, u32::MAX)?.unwrap_or(class) as usize;
        let Some(first) = types.len().checked_sub(shared).filter(|&first| first > 0) else {
            let expected = format!("less than the {} layers there are", types.len());
            return Err(invalid(field, &Value::from(shared), &expected));
        };
        for layer in first..types.len() {
            let keeper = types[..first]
                .iter()
                .rposition(|&earlier| earlier == types[layer]);
            let Some(keeper) = keeper else {
                let expected = format!("layers of every type before layer {first}");
                return Err(invalid(field, &Value::from(shared), &expected));
            };
            kept[layer] = LayerKv::SharedWith(keeper as u32);
        }
        Ok(())
    }
}
