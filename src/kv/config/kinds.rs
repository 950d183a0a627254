//! Which kind of attention each layer has.

use serde_json::Value;

use super::fields::{TextConfig, invalid};
use super::{ConfigError, quote};
use crate::kv::families::{LayerRule, MAX_WINDOW_LAYERS, NO_ROPE_LAYER_INTERVAL};

/// What a configuration calls a layer, before its window and dims are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerType {
    Full,
    Sliding,
    Chunked,
    /// Latent rows with index keys.
    Indexed,
    BlockSparse,
    /// A window, rows for a few tokens each, index keys.
    CompressedSparse,
    /// A window, rows for many tokens each.
    HeavilyCompressed,
    /// A recurrent state.
    Linear,
}

const NAMES: [(&str, LayerType); 10] = [
    ("full_attention", LayerType::Full),
    ("sliding_attention", LayerType::Sliding),
    ("chunked_attention", LayerType::Chunked),
    ("indexed_attention", LayerType::Indexed),
    ("deepseek_sparse_attention", LayerType::Indexed),
    ("minimax_m3_sparse", LayerType::BlockSparse),
    ("compressed_sparse_attention", LayerType::CompressedSparse),
    ("heavily_compressed_attention", LayerType::HeavilyCompressed),
    ("linear_attention", LayerType::Linear),
    ("attention", LayerType::Full),
];

const EXPECTED: &str = "\"full_attention\", \"sliding_attention\", \"chunked_attention\", \"indexed_attention\", \
     \"minimax_m3_sparse\", \"compressed_sparse_attention\", \"heavily_compressed_attention\" or \"linear_attention\"";

/// The layers' types, the window (query included) if any layer may slide, and the field that named the layers.
pub(super) struct Layers {
    pub types: Vec<LayerType>,
    pub window: Option<u32>,
    pub field: &'static str,
}

impl TextConfig<'_> {
    /// Each layer's type. A list with one entry a layer wins, then a pattern, then the class's rule.
    pub fn layers(&self, num_layers: u32) -> Result<Layers, ConfigError> {
        let window = self.window()?;
        let (mut types, field) = match self.listed(num_layers)? {
            Some(listed) => listed,
            None => (self.ruled(num_layers, window)?, "sliding_window"),
        };
        if self.class.is_some_and(|class| class.extra.last_layer_full)
            && let Some(last) = types.last_mut()
        {
            *last = LayerType::Full;
        }
        Ok(Layers {
            types,
            window,
            field,
        })
    }

    /// The types that a list in the configuration gives.
    fn listed(
        &self,
        num_layers: u32,
    ) -> Result<Option<(Vec<LayerType>, &'static str)>, ConfigError> {
        let zero_or_one = |one: LayerType, zero: LayerType, expected: &'static str| {
            move |value: &Value| match value.as_u64() {
                Some(1) => Ok(one),
                Some(0) => Ok(zero),
                _ => Err(expected),
            }
        };
        use LayerType::{BlockSparse, Chunked, Full, Linear, Sliding};
        let field = "layer_types";
        if let Some(list) = self.get(field) {
            let types = self.layer_list(field, list, num_layers, |value| {
                let name = value.as_str().unwrap_or_default();
                let known = NAMES.iter().find(|(known, _)| *known == name);
                known.map(|(_, kind)| *kind).ok_or(EXPECTED)
            })?;
            return Ok(Some((types, field)));
        }
        let field = "compress_ratios";
        if let Some(list) = self.get(field) {
            let [sparse, heavy] = self.compress_rates()?;
            // The checkpoint's list may go on with the layers of its draft head.
            let own = list
                .as_array()
                .map(|list| Value::Array(list.iter().take(num_layers as usize).cloned().collect()));
            let types = self.layer_list(
                field,
                own.as_ref().unwrap_or(list),
                num_layers,
                |value| match value.as_u64() {
                    Some(0) => Ok(Sliding),
                    Some(rate) if rate == u64::from(sparse) => Ok(LayerType::CompressedSparse),
                    Some(rate) if rate == u64::from(heavy) => Ok(LayerType::HeavilyCompressed),
                    _ => Err("0 (sliding), or one of the two compression rates (4 and 128)"),
                },
            )?;
            return Ok(Some((types, field)));
        }
        let field = "hybrid_layer_pattern";
        if let Some(list) = self.get(field) {
            let read = zero_or_one(Sliding, Full, "0 (full) or 1 (sliding)");
            return Ok(Some((
                self.layer_list(field, list, num_layers, read)?,
                field,
            )));
        }
        let field = "attn_type_list";
        if let Some(list) = self.get(field) {
            let read = zero_or_one(Full, Linear, "0 (linear) or 1 (full)");
            return Ok(Some((
                self.layer_list(field, list, num_layers, read)?,
                field,
            )));
        }
        let field = "sparse_attention_freq";
        if let Some(sparse) = self.nested("sparse_attention_config")?
            && let Some(list) = sparse.get(field)
        {
            let read = zero_or_one(BlockSparse, Full, "0 (full) or 1 (sparse)");
            return Ok(Some((
                self.layer_list(field, list, num_layers, read)?,
                field,
            )));
        }
        let field = "no_rope_layers";
        let is_chunked = self
            .class
            .is_some_and(|class| class.rule == LayerRule::ChunkedPattern);
        if is_chunked
            && self.attention_chunk_size()?.is_some()
            && let Some(list) = self
                .get(field)
                .filter(|list| **list != Value::Array(vec![]))
        {
            let read = zero_or_one(Chunked, Full, "0 (full) or 1 (chunked, with RoPE)");
            return Ok(Some((
                self.layer_list(field, list, num_layers, read)?,
                field,
            )));
        }
        Ok(None)
    }

    /// The types that a pattern or the class's rule gives.
    fn ruled(&self, num_layers: u32, window: Option<u32>) -> Result<Vec<LayerType>, ConfigError> {
        let layers = 0..num_layers;
        let either = |other: LayerType, is_other: &dyn Fn(u32) -> bool| -> Vec<LayerType> {
            let pick = |layer| {
                if is_other(layer) {
                    other
                } else {
                    LayerType::Full
                }
            };
            layers.clone().map(pick).collect()
        };
        if let Some(interval) = self.number("full_attention_interval", 1, u32::MAX)? {
            return Ok(either(LayerType::Linear, &|i| {
                !(u64::from(i) + 1).is_multiple_of(u64::from(interval))
            }));
        }
        let rule = self.class.map(|class| class.rule);
        match rule {
            Some(LayerRule::LinearPattern(pattern)) => {
                return Ok(either(LayerType::Linear, &|i| {
                    !(i + 1).is_multiple_of(pattern)
                }));
            }
            Some(LayerRule::OddLinear) => return Ok(either(LayerType::Linear, &|i| i % 2 == 1)),
            Some(LayerRule::AllIndexed) => return Ok(either(LayerType::Indexed, &|_| true)),
            Some(LayerRule::Compressed) => {
                return Ok(layers
                    .map(|i| match i {
                        0 | 1 => LayerType::HeavilyCompressed,
                        _ if i % 2 == 0 => LayerType::HeavilyCompressed,
                        _ => LayerType::CompressedSparse,
                    })
                    .collect());
            }
            Some(LayerRule::ChunkedPattern) => {
                let interval = self
                    .number("no_rope_layer_interval", 1, u32::MAX)?
                    .unwrap_or(NO_ROPE_LAYER_INTERVAL);
                let chunked = self.attention_chunk_size()?.is_some();
                return Ok(either(LayerType::Chunked, &|i| {
                    chunked && !(i + 1).is_multiple_of(interval)
                }));
            }
            _ => {}
        }
        let Some(tokens) = window else {
            return Ok(vec![LayerType::Full; num_layers as usize]);
        };
        for field in ["sliding_window_pattern", "_sliding_window_pattern"] {
            if let Some(letters) = self.get(field).and_then(Value::as_str) {
                return letter_pattern(field, letters, num_layers);
            }
            if let Some(pattern) = self.number(field, 0, u32::MAX)? {
                return Ok(either(LayerType::Sliding, &|i| {
                    pattern > 0 && (i + 1) % pattern != 0
                }));
            }
            if self.is_null(field) {
                return Ok(vec![LayerType::Full; num_layers as usize]);
            }
        }
        let below = self
            .number("max_window_layers", 0, u32::MAX)?
            .unwrap_or(MAX_WINDOW_LAYERS);
        let Some(rule) = rule else {
            return Err(ConfigError::WhichLayers {
                window: tokens,
                model_type: quote(self.model_type),
            });
        };
        Ok(either(LayerType::Sliding, &|i| match rule {
            LayerRule::AllSliding => true,
            LayerRule::Pattern(pattern) => (i + 1) % pattern != 0,
            LayerRule::FromMaxWindowLayers => i >= below,
            LayerRule::EvenBelowMaxWindowLayers => i % 2 == 0 && i < below,
            LayerRule::FirstAndPattern(pattern) => i != 0 && (i + 1) % pattern != 0,
            _ => false,
        }))
    }

    /// The window in tokens, the query included.
    fn window(&self) -> Result<Option<u32>, ConfigError> {
        // Zero is how some classes write "none".
        let given = self.number("sliding_window", 0, u32::MAX)?;
        let size = self.number("sliding_window_size", 0, u32::MAX)?;
        let window = match (size, given) {
            // MiMo's `sliding_window_size` counts the earlier tokens only; its class adds the query.
            (Some(size), _)
                if self
                    .class
                    .is_some_and(|class| matches!(class.rule, LayerRule::FirstAndPattern(_))) =>
            {
                Some(size.saturating_add(1))
            }
            (_, Some(window)) => Some(window),
            (Some(size), None) => Some(size),
            (None, None) if self.is_null("sliding_window") => None,
            (None, None) => self.class.and_then(|class| class.sliding_window),
        };
        let needs_switch = self.class.is_some_and(|class| class.window_needs_switch);
        let switched_on = self.flag("use_sliding_window")?.unwrap_or(!needs_switch);
        Ok(window.filter(|&window| window > 0 && switched_on))
    }

    /// The chunk in tokens of chunked attention.
    pub fn attention_chunk_size(&self) -> Result<Option<u32>, ConfigError> {
        let given = self.number("attention_chunk_size", 0, u32::MAX)?;
        let class = self
            .class
            .map_or(0, |class| class.extra.attention_chunk_size);
        let fallback = if self.is_null("attention_chunk_size") {
            0
        } else {
            class
        };
        Ok(Some(given.unwrap_or(fallback)).filter(|&chunk| chunk > 0))
    }
}

/// Letters repeated over the layers, L sliding and G full; the last layer is full whatever its letter (Exaone 4).
fn letter_pattern(
    field: &str,
    letters: &str,
    num_layers: u32,
) -> Result<Vec<LayerType>, ConfigError> {
    let read = |letter| match letter {
        'L' => Some(LayerType::Sliding),
        'G' => Some(LayerType::Full),
        _ => None,
    };
    let cycle = letters.chars().map(read).collect::<Option<Vec<_>>>();
    let Some(cycle) = cycle.filter(|cycle| !cycle.is_empty()) else {
        let expected = "a whole number, or letters L (sliding) and G (full)";
        return Err(invalid(field, &Value::from(letters), expected));
    };
    let mut types = (cycle.into_iter().cycle().take(num_layers as usize)).collect::<Vec<_>>();
    if let Some(last) = types.last_mut() {
        *last = LayerType::Full;
    }
    Ok(types)
}
