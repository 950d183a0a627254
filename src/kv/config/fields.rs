//! Typed reading of single fields.

use serde_json::{Map, Value};

use super::{ConfigError, MAX_DIM, quote, show};
use crate::kv::families::{ClassDefaults, class_defaults};
use crate::kv::geometry::MAX_LAYERS;

/// Fields that change what a layer caches and that this version does not read. Absent, null, false and zero
/// are harmless.
const NOT_UNDERSTOOD: [(&str, &str); 7] = [
    ("attn_layer_period", "recurrent layers of the Mamba kind"),
    ("cla_share_factor", "KV shared across layers"),
    (
        "hybrid_override_pattern",
        "recurrent layers of the Mamba kind",
    ),
    ("layers_block_type", "recurrent layers"),
    ("mamba_d_state", "recurrent layers of the Mamba kind"),
    ("ssm_state_size", "recurrent layers of the Mamba kind"),
    ("use_bidirectional_attention", "bidirectional attention"),
];

/// The part of a configuration that describes the language model.
pub(super) struct TextConfig<'a> {
    pub fields: &'a Map<String, Value>,
    pub model_type: &'a str,
    pub class: Option<&'static ClassDefaults>,
}

impl<'a> TextConfig<'a> {
    pub fn new(config: &'a Value) -> Result<Self, ConfigError> {
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
            // Image tokens that see each other leave the cache of a causal model as it is.
            if let Some(value) = text.get(field)
                && value != &Value::Bool(false)
                && value.as_f64() != Some(0.0)
                && value != "vision"
            {
                return Err(ConfigError::NotUnderstood {
                    field,
                    value: show(value),
                    means,
                });
            }
        }
        Ok(text)
    }

    /// The fields of an object inside this one, with the same class.
    pub fn nested(&self, field: &str) -> Result<Option<Self>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let fields = value
            .as_object()
            .ok_or_else(|| invalid(field, value, "an object"))?;
        Ok(Some(Self { fields, ..*self }))
    }

    /// The field, unless it is absent or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// Whether the field is there and null.
    pub fn is_null(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(Value::is_null)
    }

    /// A whole number from `least` to `most`.
    pub fn number(&self, field: &str, least: u32, most: u32) -> Result<Option<u32>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let number = value
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (least..=most).contains(n));
        number.map(Some).ok_or_else(|| {
            invalid(
                field,
                value,
                &format!("a whole number from {least} to {most}"),
            )
        })
    }

    /// A head count or a head dimension.
    pub fn dim(&self, field: &str) -> Result<Option<u32>, ConfigError> {
        self.number(field, 1, MAX_DIM)
    }

    /// A dimension that the class may have a default for; 0 is none.
    pub fn dim_or(
        &self,
        field: &str,
        default: impl Fn(&ClassDefaults) -> u32,
    ) -> Result<u32, ConfigError> {
        let given = self.number(field, 0, MAX_DIM)?;
        // A null field says "none" as 0 does.
        let fallback = if self.is_null(field) {
            0
        } else {
            self.class.map_or(0, default)
        };
        Ok(given.unwrap_or(fallback))
    }

    pub fn required(
        &self,
        field: &'static str,
        most: u32,
        default: impl Fn(&ClassDefaults) -> u32,
    ) -> Result<u32, ConfigError> {
        let given = self.number(field, 1, most)?;
        given
            .or_else(|| self.class.map(default).filter(|&n| n > 0))
            .ok_or_else(|| self.missing(field))
    }

    pub fn missing(&self, field: &'static str) -> ConfigError {
        ConfigError::Missing {
            field,
            model_type: quote(self.model_type),
        }
    }

    pub fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| invalid(field, value, "true or false"))
    }

    pub fn max_position_tokens(&self) -> Result<Option<u32>, ConfigError> {
        let given = self.number("max_position_embeddings", 1, u32::MAX)?;
        Ok(given.or_else(|| self.class.map(|class| class.max_position_embeddings)))
    }

    pub fn num_layers(&self) -> Result<u32, ConfigError> {
        self.required("num_hidden_layers", MAX_LAYERS, |class| {
            class.num_hidden_layers
        })
    }

    /// Reads a list with one entry a layer.
    pub fn layer_list<T>(
        &self,
        field: &'static str,
        list: &Value,
        num_layers: u32,
        read: impl Fn(&Value) -> Result<T, &'static str>,
    ) -> Result<Vec<T>, ConfigError> {
        let entries = list
            .as_array()
            .ok_or_else(|| invalid(field, list, "a list with one entry a layer"))?;
        // Some checkpoints list the layers of their draft head after the model's own.
        let draft = self.number("num_nextn_predict_layers", 0, u32::MAX)?;
        let own = num_layers as usize;
        if entries.len() != own && entries.len() != own + draft.unwrap_or(0) as usize {
            return Err(ConfigError::LayerCount {
                field,
                entries: entries.len(),
                num_layers,
            });
        }
        entries[..own]
            .iter()
            .enumerate()
            .map(|(layer, entry)| {
                read(entry)
                    .map_err(|expected| invalid(&format!("{field}[{layer}]"), entry, expected))
            })
            .collect()
    }
}

pub(super) fn invalid(field: &str, value: &Value, expected: &str) -> ConfigError {
    ConfigError::Invalid {
        field: quote(field),
        value: show(value),
        expected: expected.to_owned(),
    }
}
