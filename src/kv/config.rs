//! From a `config.json` (Hugging Face field names) to one [`LayerSpec`] a layer.
//!
//! Fields decide. `model_type` only selects the defaults of fields that are absent, as Hugging Face's own
//! configuration classes do. A field that would change the geometry in a way not understood here is an error:
//! a wrong page size must never be the outcome of a guess.

use serde_json::Value;
use thiserror::Error;

use super::families::{ClassDefaults, KvHeads, LayerRule, MAX_WINDOW_LAYERS, class_defaults};
use super::geometry::{
    AttentionKind, Geometry, GeometryError, KvDtype, LayerSpec, MAX_LAYERS, PageSize,
};

/// Largest value of a head count or a head dimension.
const MAX_DIM: u32 = 1 << 20;

/// Fields that change what a layer caches and that this version does not read. Absent, null, false and zero
/// are harmless.
const NOT_UNDERSTOOD: [(&str, &str); 13] = [
    ("attention_chunk_size", "chunked attention"),
    ("attention_k_eq_v", "layers whose K is also their V"),
    (
        "attention_other_setting",
        "attention settings of its own for some layers",
    ),
    ("cla_share_factor", "KV shared across layers"),
    ("compress_ratios", "compressed KV entries"),
    ("full_attention_interval", "linear attention layers"),
    (
        "global_head_dim",
        "a head dimension of its own for full layers",
    ),
    ("index_topk", "sparse index keys"),
    ("kv_lora_rank", "latent attention (MLA)"),
    ("layers_block_type", "recurrent layers"),
    (
        "num_global_key_value_heads",
        "KV heads of their own for full layers",
    ),
    (
        "num_kv_shared_layers",
        "layers that share the KV of an earlier one",
    ),
    ("use_bidirectional_attention", "bidirectional attention"),
];

/// Model types whose class has such a field by default, so that its absence means nothing.
const NOT_UNDERSTOOD_BY_DEFAULT: [(&str, &str); 4] = [
    ("gemma3n", "layers that share the KV of an earlier one"),
    ("llama4", "chunked attention"),
    ("deepseek_v2", "latent attention (MLA)"),
    ("deepseek_v3", "latent attention (MLA)"),
];

impl Geometry {
    /// Reads the layer groups from a parsed `config.json`; a nested `text_config` is followed.
    ///
    /// # Errors
    /// [`ConfigError`], naming the field, its value and what is understood.
    pub fn from_config(
        config: &Value,
        page_size: PageSize,
        dtype: KvDtype,
    ) -> Result<Self, ConfigError> {
        let text = TextConfig::new(config)?;
        let layers = text.layer_specs()?;
        Ok(Self::new(
            &layers,
            page_size,
            dtype,
            text.max_position_tokens()?,
        )?)
    }
}

/// One [`LayerSpec`] a layer, as the configuration states them (no window folded into full attention).
///
/// # Errors
/// As [`Geometry::from_config`].
pub fn layer_specs(config: &Value) -> Result<Vec<LayerSpec>, ConfigError> {
    TextConfig::new(config)?.layer_specs()
}

/// Why a configuration gives no geometry.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The document or its `text_config` is not a JSON object.
    #[error("{what} is not a JSON object; a model's config.json must be one")]
    NotAnObject {
        /// Which part.
        what: &'static str,
    },
    /// A field is needed and neither given nor known as a default.
    #[error(
        "the configuration has no `{field}`, and model_type `{model_type}` has no known default for it; add the field"
    )]
    Missing {
        /// Which field.
        field: &'static str,
        /// The configuration's `model_type`, empty when absent.
        model_type: String,
    },
    /// A field holds something else than expected.
    #[error("the configuration's `{field}` is {value}; expected {expected}")]
    Invalid {
        /// Which field.
        field: String,
        /// What it holds.
        value: String,
        /// What is understood.
        expected: String,
    },
    /// The heads do not divide the hidden size, so there is no head dimension.
    #[error(
        "hidden_size {hidden_size} is not a multiple of num_attention_heads {num_attention_heads}; give `head_dim`"
    )]
    HeadDim {
        /// `hidden_size`.
        hidden_size: u32,
        /// `num_attention_heads`.
        num_attention_heads: u32,
    },
    /// A list names more or fewer layers than there are.
    #[error(
        "the configuration's `{field}` has {entries} entries for {num_layers} layers; it must have one a layer"
    )]
    LayerCount {
        /// Which field.
        field: &'static str,
        /// Its length.
        entries: usize,
        /// `num_hidden_layers`.
        num_layers: u32,
    },
    /// Layers slide, but no window is given.
    #[error(
        "the configuration's `{field}` has sliding layers but there is no `sliding_window`; add it"
    )]
    NoWindow {
        /// Which field.
        field: &'static str,
    },
    /// A window is given, but nothing says for which layers.
    #[error(
        "the configuration has a sliding window of {window} tokens, but model_type `{model_type}` does not say which \
         layers use it; add `layer_types`"
    )]
    WhichLayers {
        /// The window.
        window: u32,
        /// The configuration's `model_type`, empty when absent.
        model_type: String,
    },
    /// The model caches something else than K and V of full and sliding layers.
    #[error(
        "`{field}` = {value} means {means}, which this version cannot size; it understands full and sliding-window \
         attention with KV heads of their own"
    )]
    NotUnderstood {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What that means.
        means: &'static str,
    },
    /// The layers are readable but impossible.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

struct TextConfig<'a> {
    fields: &'a serde_json::Map<String, Value>,
    model_type: &'a str,
    class: Option<&'static ClassDefaults>,
}

impl<'a> TextConfig<'a> {
    fn new(config: &'a Value) -> Result<Self, ConfigError> {
        let outer = config.as_object().ok_or(ConfigError::NotAnObject {
            what: "the configuration",
        })?;
        let fields = match outer.get("text_config") {
            None | Some(Value::Null) => outer,
            Some(text) => text.as_object().ok_or(ConfigError::NotAnObject {
                what: "`text_config`",
            })?,
        };
        let model_type = [fields, outer]
            .into_iter()
            .find_map(|map| map.get("model_type")?.as_str())
            .unwrap_or_default();
        let text = Self {
            fields,
            model_type,
            class: class_defaults(model_type),
        };
        for (field, means) in NOT_UNDERSTOOD {
            if let Some(value) = text.get(field)
                && value != &Value::Bool(false)
                && value.as_f64() != Some(0.0)
            {
                return Err(ConfigError::NotUnderstood {
                    field,
                    value: show(value),
                    means,
                });
            }
        }
        let bare = model_type.strip_suffix("_text").unwrap_or(model_type);
        if let Some((_, means)) = NOT_UNDERSTOOD_BY_DEFAULT
            .iter()
            .find(|(name, _)| *name == bare)
        {
            return Err(ConfigError::NotUnderstood {
                field: "model_type",
                value: model_type.to_owned(),
                means,
            });
        }
        Ok(text)
    }

    /// The field, unless it is absent or null.
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// A whole number from `least` to `most`.
    fn number(&self, field: &str, least: u32, most: u32) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let number = value
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (least..=most).contains(n));
        let invalid = || ConfigError::Invalid {
            field: field.to_owned(),
            value: show(value),
            expected: format!("a whole number from {least} to {most}"),
        };
        number.map(Some).ok_or_else(invalid)
    }

    fn dim(&self, field: &str) -> Result<Option<u32>, ConfigError> {
        self.number(field, 1, MAX_DIM)
    }

    fn required(
        &self,
        field: &'static str,
        most: u32,
        default: impl Fn(&ClassDefaults) -> u32,
    ) -> Result<u32, ConfigError> {
        let given = self.number(field, 1, most)?;
        given
            .or_else(|| self.class.map(default))
            .ok_or_else(|| ConfigError::Missing {
                field,
                model_type: self.model_type.to_owned(),
            })
    }

    fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let invalid = || ConfigError::Invalid {
            field: field.to_owned(),
            value: show(value),
            expected: "true or false".to_owned(),
        };
        value.as_bool().map(Some).ok_or_else(invalid)
    }

    fn max_position_tokens(&self) -> Result<Option<u32>, ConfigError> {
        let given = self.number("max_position_embeddings", 1, u32::MAX)?;
        Ok(given.or_else(|| self.class.map(|class| class.max_position_embeddings)))
    }

    fn num_layers(&self) -> Result<u32, ConfigError> {
        self.required("num_hidden_layers", MAX_LAYERS, |class| {
            class.num_hidden_layers
        })
    }

    /// The window in tokens, the query included.
    fn window(&self) -> Result<Option<u32>, ConfigError> {
        // Zero is how some classes write "none".
        let given = self.number("sliding_window", 0, u32::MAX)?;
        let size = self.number("sliding_window_size", 0, u32::MAX)?;
        let named_null = self
            .fields
            .get("sliding_window")
            .is_some_and(Value::is_null);
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
            (None, None) if named_null => None,
            (None, None) => self.class.and_then(|class| class.sliding_window),
        };
        let needs_switch = self.class.is_some_and(|class| class.window_needs_switch);
        let switched_on = self.flag("use_sliding_window")?.unwrap_or(!needs_switch);
        Ok(window.filter(|&window| window > 0 && switched_on))
    }

    /// For each layer, whether it slides, and the window.
    fn sliding_layers(&self, num_layers: u32) -> Result<(Vec<bool>, Option<u32>), ConfigError> {
        let window = self.window()?;
        if let Some(types) = self.get("layer_types") {
            let slides = self.layer_list("layer_types", types, num_layers, |value| match value
                .as_str()
            {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err("\"full_attention\" or \"sliding_attention\""),
            })?;
            return Ok((slides, window));
        }
        if let Some(pattern) = self.get("hybrid_layer_pattern") {
            let slides =
                self.layer_list(
                    "hybrid_layer_pattern",
                    pattern,
                    num_layers,
                    |value| match value.as_u64() {
                        Some(1) => Ok(true),
                        Some(0) => Ok(false),
                        _ => Err("0 (full) or 1 (sliding)"),
                    },
                )?;
            return Ok((slides, window));
        }
        let Some(tokens) = window else {
            return Ok((vec![false; num_layers as usize], None));
        };
        let layers = 0..num_layers;
        for field in ["sliding_window_pattern", "_sliding_window_pattern"] {
            if let Some(letters) = self.get(field).and_then(Value::as_str) {
                return Ok((letter_pattern(field, letters, num_layers)?, window));
            }
            if let Some(pattern) = self.number(field, 0, u32::MAX)? {
                return Ok((
                    layers
                        .map(|i| pattern > 0 && (i + 1) % pattern != 0)
                        .collect(),
                    window,
                ));
            }
            if self.fields.get(field).is_some_and(Value::is_null) {
                return Ok((vec![false; num_layers as usize], window));
            }
        }
        let below = self
            .number("max_window_layers", 0, u32::MAX)?
            .unwrap_or(MAX_WINDOW_LAYERS);
        let Some(class) = self.class else {
            return Err(ConfigError::WhichLayers {
                window: tokens,
                model_type: self.model_type.to_owned(),
            });
        };
        let slides = layers.map(|i| match class.rule {
            LayerRule::NoWindow => false,
            LayerRule::AllSliding => true,
            LayerRule::Pattern(pattern) => (i + 1) % pattern != 0,
            LayerRule::FromMaxWindowLayers => i >= below,
            LayerRule::EvenBelowMaxWindowLayers => i % 2 == 0 && i < below,
            LayerRule::FirstAndPattern(pattern) => i != 0 && (i + 1) % pattern != 0,
        });
        Ok((slides.collect(), window))
    }

    /// Reads a list with one entry a layer.
    fn layer_list(
        &self,
        field: &'static str,
        list: &Value,
        num_layers: u32,
        read: impl Fn(&Value) -> Result<bool, &'static str>,
    ) -> Result<Vec<bool>, ConfigError> {
        let entries = list.as_array().ok_or_else(|| ConfigError::Invalid {
            field: field.to_owned(),
            value: show(list),
            expected: "a list with one entry a layer".to_owned(),
        })?;
        if entries.len() != num_layers as usize {
            return Err(ConfigError::LayerCount {
                field,
                entries: entries.len(),
                num_layers,
            });
        }
        let mut slides = Vec::with_capacity(entries.len());
        for (layer, entry) in entries.iter().enumerate() {
            slides.push(read(entry).map_err(|expected| ConfigError::Invalid {
                field: format!("{field}[{layer}]"),
                value: show(entry),
                expected: expected.to_owned(),
            })?);
        }
        Ok(slides)
    }

    /// KV heads, K and V head dimensions of full layers.
    fn full_heads(&self) -> Result<(u32, u32, u32), ConfigError> {
        // Where KV heads and head_dim are given, the query heads are of no concern here.
        let query_heads = || {
            self.required("num_attention_heads", MAX_DIM, |class| {
                class.num_attention_heads
            })
        };
        let kv_heads = match self.dim("num_key_value_heads")? {
            Some(heads) => heads,
            None => match self.class.map(|class| class.num_key_value_heads) {
                Some(KvHeads::Count(heads)) if !self.fields.contains_key("num_key_value_heads") => {
                    heads
                }
                _ => query_heads()?,
            },
        };
        let head_dim = match self
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
        Ok((kv_heads, head_dim, v_head_dim.unwrap_or(head_dim)))
    }

    fn layer_specs(&self) -> Result<Vec<LayerSpec>, ConfigError> {
        let num_layers = self.num_layers()?;
        let (slides, window) = self.sliding_layers(num_layers)?;
        let (num_kv_heads, k_head_dim, v_head_dim) = self.full_heads()?;
        let full = LayerSpec {
            kind: AttentionKind::Full,
            num_kv_heads,
            k_head_dim,
            v_head_dim,
        };
        if !slides.contains(&true) {
            return Ok(vec![full; num_layers as usize]);
        }
        let field = if self.get("layer_types").is_some() {
            "layer_types"
        } else {
            "hybrid_layer_pattern"
        };
        let window = window.ok_or(ConfigError::NoWindow { field })?;
        let swa_head_dim = self.dim("swa_head_dim")?;
        let swa = LayerSpec {
            kind: AttentionKind::Sliding { window },
            num_kv_heads: self.dim("swa_num_key_value_heads")?.unwrap_or(num_kv_heads),
            k_head_dim: swa_head_dim.unwrap_or(k_head_dim),
            v_head_dim: self
                .dim("swa_v_head_dim")?
                .or(swa_head_dim)
                .unwrap_or(v_head_dim),
        };
        Ok(slides
            .into_iter()
            .map(|sliding| if sliding { swa } else { full })
            .collect())
    }
}

/// Letters repeated over the layers, L sliding and G full; the last layer is full whatever its letter (Exaone 4).
fn letter_pattern(field: &str, letters: &str, num_layers: u32) -> Result<Vec<bool>, ConfigError> {
    let invalid = || ConfigError::Invalid {
        field: field.to_owned(),
        value: format!("\"{letters}\""),
        expected: "a whole number, or letters L (sliding) and G (full)".to_owned(),
    };
    let mut cycle = Vec::with_capacity(letters.len());
    for letter in letters.chars() {
        match letter {
            'L' => cycle.push(true),
            'G' => cycle.push(false),
            _ => return Err(invalid()),
        }
    }
    if cycle.is_empty() {
        return Err(invalid());
    }
    let mut slides = cycle
        .into_iter()
        .cycle()
        .take(num_layers as usize)
        .collect::<Vec<_>>();
    if let Some(last) = slides.last_mut() {
        *last = false;
    }
    Ok(slides)
}

/// A value as JSON, short enough for a sentence.
fn show(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= LONGEST {
        return text;
    }
    let head = text.chars().take(LONGEST).collect::<String>();
    format!("{head}...")
}

#[cfg(test)]
mod tests;
