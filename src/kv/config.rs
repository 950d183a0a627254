//! From a `config.json` (Hugging Face field names) to what each layer caches.
//!
//! Fields decide. `model_type` only selects the defaults of fields that are absent, as Hugging Face's own
//! configuration classes do. A field that would change the geometry in a way not understood here is an error:
//! a wrong page size must never be the outcome of a guess.

use serde_json::Value;
use thiserror::Error;

use super::geometry::{Geometry, GeometryError, KvDtype, LayerKv, LayerSpec, PageSize, Shard};
use fields::TextConfig;

mod fields;
mod kinds;
mod shapes;

/// Largest value of a head count or a head dimension.
const MAX_DIM: u32 = 1 << 20;

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
        Self::from_config_sharded(config, page_size, dtype, &Shard::WHOLE)
    }

    /// Reads the layer groups of one tensor-parallel rank and pipeline stage.
    ///
    /// # Errors
    /// As [`Geometry::from_config`].
    pub fn from_config_sharded(
        config: &Value,
        page_size: PageSize,
        dtype: KvDtype,
        shard: &Shard,
    ) -> Result<Self, ConfigError> {
        let text = TextConfig::new(config)?;
        let layers = text.layer_kv()?;
        let longest = text.max_position_tokens()?;
        Ok(Self::from_layers(
            &layers, page_size, dtype, longest, shard,
        )?)
    }
}

/// The configuration's `model_type`, that of a nested `text_config` first; empty when it has none.
#[must_use]
pub fn model_type(config: &Value) -> &str {
    TextConfig::new(config).map_or("", |text| text.model_type)
}

/// What each layer keeps, as the configuration states it (no window folded into full attention).
///
/// # Errors
/// As [`Geometry::from_config`].
pub fn layer_kv(config: &Value) -> Result<Vec<LayerKv>, ConfigError> {
    TextConfig::new(config)?.layer_kv()
}

/// One [`LayerSpec`] a layer, as the configuration states them (no window folded into full attention): the first of a
/// layer that keeps several things, and the source's of one that shares.
///
/// # Errors
/// As [`Geometry::from_config`].
pub fn layer_specs(config: &Value) -> Result<Vec<LayerSpec>, ConfigError> {
    let layers = layer_kv(config)?;
    let first = |kv: &LayerKv| match kv {
        LayerKv::Own(parts) => parts.first().copied(),
        LayerKv::SharedWith(_) => None,
    };
    let of_layer = |kv: &LayerKv| match kv {
        LayerKv::SharedWith(source) => layers.get(*source as usize).and_then(first),
        LayerKv::Own(_) => first(kv),
    };
    Ok(layers.iter().filter_map(of_layer).collect())
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
    /// The model caches something that is not known here.
    #[error(
        "`{field}` = {value} means {means}, which this version cannot size; it understands full, sliding, chunked, latent, \
         compressed, block-sparse and linear attention"
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

/// A value as JSON, short enough for a sentence.
fn show(value: &Value) -> String {
    shorten(&value.to_string())
}

/// A text of the file as part of a sentence: on one line, and short.
fn quote(text: &str) -> String {
    shorten(&text.escape_debug().to_string())
}

fn shorten(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
