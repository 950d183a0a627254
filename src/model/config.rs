//! `config.json` and `generation_config.json`: the sizes and constants of a model.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ModelError;
use super::family::{Activation, Family};
use super::rope::Rope;

/// The sizes and constants of a model, checked.
///
/// Which layers are full and which slide is not here: [`crate::kv::Geometry`] reads that from [`ModelConfig::text`].
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The file all of this was read from.
    pub path: PathBuf,
    /// `architectures[0]`.
    pub architecture: String,
    /// What the architecture implies.
    pub family: &'static Family,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Number of decoder layers.
    pub num_layers: u32,
    /// Query heads of a layer.
    pub num_q_heads: u32,
    /// Key and value heads of a layer.
    pub num_kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Width of the gated MLP.
    pub intermediate_size: u32,
    /// Rows of the embedding matrix.
    pub vocab_size: u32,
    /// Tokens the model was made for.
    pub max_position_embeddings: u32,
    /// Epsilon inside every RMSNorm.
    pub rms_norm_eps: f32,
    /// Multiplies `q . k` (`sm_scale`).
    pub attention_scale: f32,
    /// Multiplies embeddings on input.
    pub embed_scale: f32,
    /// `cap * tanh(score / cap)` on attention scores, where the family honours it.
    pub attn_softcap: Option<f32>,
    /// `cap * tanh(logit / cap)` on the logits.
    pub final_softcap: Option<f32>,
    /// The MLP's nonlinearity.
    pub activation: Activation,
    /// RoPE of full-attention layers.
    pub rope_full: Rope,
    /// RoPE of sliding layers.
    pub rope_sliding: Rope,
    /// Whether the output head is the embedding matrix.
    pub tied_lm_head: bool,
    /// The token every prompt starts with, if the model has one.
    pub bos_token: Option<u32>,
    /// Tokens that end generation, from `generation_config.json`, else from `config.json`.
    pub eos_tokens: Vec<u32>,
    /// The text model's configuration object, class defaults filled in: the input of [`crate::kv::Geometry`].
    pub text: Value,
}

impl ModelConfig {
    /// Reads `config.json` and, where there is one, `generation_config.json` of a model folder.
    ///
    /// # Errors
    /// A file that cannot be read or parsed, an architecture no family covers, or a field that is missing or unusable.
    pub fn from_dir(dir: &Path) -> Result<ModelConfig, ModelError> {
        let path = dir.join("config.json");
        let value = read_json(&path)?;
        let generation = dir.join("generation_config.json");
        let generation = if generation.exists() {
            Some(read_json(&generation)?)
        } else {
            None
        };
        ModelConfig::from_json(&path, &value, generation.as_ref())
    }

    /// Interprets a parsed `config.json`; `path` is named in errors.
    ///
    /// # Errors
    /// As [`ModelConfig::from_dir`].
    pub fn from_json(
        path: &Path,
        config: &Value,
        generation: Option<&Value>,
    ) -> Result<ModelConfig, ModelError> {
        let outer = Fields {
            path,
            object: config,
        };
        let architecture = config
            .get("architectures")
            .and_then(|list| list.get(0))
            .and_then(Value::as_str)
            .ok_or_else(|| outer.error("architectures", "a list with the model class's name"))?
            .to_owned();
        let family =
            Family::of(&architecture).ok_or_else(|| ModelError::UnsupportedArchitecture {
                path: path.to_owned(),
                found: architecture.clone(),
                supported: Family::supported(),
            })?;

        let text = merged(config, family);
        let fields = Fields {
            path,
            object: &text,
        };
        for (field, expected) in [
            (
                "quantization_config",
                "no quantization (plain bf16 weights)",
            ),
            ("attention_bias", "false"),
            ("use_bidirectional_attention", "false"),
        ] {
            if text
                .get(field)
                .is_some_and(|value| !value.is_null() && *value != Value::Bool(false))
            {
                return Err(fields.error(field, expected));
            }
        }

        let head_dim = fields.count("head_dim")?;
        let (num_q_heads, num_kv_heads) = (
            fields.count("num_attention_heads")?,
            fields.count("num_key_value_heads")?,
        );
        if !num_q_heads.is_multiple_of(num_kv_heads) {
            let expected = format!("a divisor of num_attention_heads ({num_q_heads})");
            return Err(fields.error("num_key_value_heads", &expected));
        }
        if !matches!(head_dim, 64 | 128 | 256) {
            return Err(fields.error("head_dim", "64, 128 or 256"));
        }
        let hidden_size = fields.count("hidden_size")?;
        let activation = match fields
            .string("hidden_activation")
            .or_else(|| fields.string("hidden_act"))
        {
            Some("gelu_pytorch_tanh") => Activation::GeluTanh,
            Some("silu") => Activation::Silu,
            _ => return Err(fields.error("hidden_activation", "\"gelu_pytorch_tanh\" or \"silu\"")),
        };
        let (rope_full, rope_sliding) = ropes(&fields)?;
        let scalar = fields
            .optional_number("query_pre_attn_scalar")?
            .unwrap_or(f64::from(head_dim));
        let softcap = |field: &str| -> Result<Option<f32>, ModelError> {
            Ok(fields.optional_number(field)?.map(|cap| cap as f32))
        };

        Ok(ModelConfig {
            path: path.to_owned(),
            family,
            hidden_size,
            num_layers: fields.count("num_hidden_layers")?,
            num_q_heads,
            num_kv_heads,
            head_dim,
            intermediate_size: fields.count("intermediate_size")?,
            vocab_size: fields.count("vocab_size")?,
            max_position_embeddings: fields.count("max_position_embeddings")?,
            rms_norm_eps: fields.number("rms_norm_eps")? as f32,
            attention_scale: scalar.powf(-0.5) as f32,
            embed_scale: if family.scale_embeddings {
                f64::from(hidden_size).sqrt() as f32
            } else {
                1.0
            },
            attn_softcap: if family.attn_softcap {
                softcap("attn_logit_softcapping")?
            } else {
                None
            },
            final_softcap: softcap("final_logit_softcapping")?,
            activation,
            rope_full,
            rope_sliding,
            tied_lm_head: match text.get("tie_word_embeddings") {
                None | Some(Value::Null) => family.tied_by_default,
                Some(Value::Bool(tied)) => *tied,
                Some(_) => return Err(fields.error("tie_word_embeddings", "true or false")),
            },
            bos_token: token_ids(&fields, "bos_token_id")?.first().copied(),
            eos_tokens: match generation.and_then(|object| object.get("eos_token_id")) {
                Some(ids) if !ids.is_null() => {
                    let path = path.with_file_name("generation_config.json");
                    let object = generation.unwrap_or(&Value::Null);
                    token_ids(
                        &Fields {
                            path: &path,
                            object,
                        },
                        "eos_token_id",
                    )?
                }
                _ => token_ids(&fields, "eos_token_id")?,
            },
            architecture,
            text,
        })
    }

    /// Width of the fused q, k and v projection: `(num_q_heads + 2 num_kv_heads) * head_dim`.
    pub fn qkv_width(&self) -> u32 {
        (self.num_q_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// Width of the attention output before `o_proj`: `num_q_heads * head_dim`.
    pub fn attention_width(&self) -> u32 {
        self.num_q_heads * self.head_dim
    }
}

/// Reads and parses one JSON file.
///
/// # Errors
/// The file cannot be read, or is not JSON.
pub(super) fn read_json(path: &Path) -> Result<Value, ModelError> {
    let bytes = std::fs::read(path).map_err(|source| ModelError::Io {
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|source| ModelError::Json {
        path: path.to_owned(),
        source,
    })
}

/// The text model's fields: the class defaults, overlaid by the outer object, overlaid by `text_config`.
fn merged(config: &Value, family: &Family) -> Value {
    let mut text = family.defaults();
    for source in [Some(config), config.get("text_config")]
        .into_iter()
        .flatten()
    {
        if let (Some(into), Some(from)) = (text.as_object_mut(), source.as_object()) {
            for (key, value) in from
                .iter()
                .filter(|(key, value)| *key != "text_config" && !value.is_null())
            {
                into.insert(key.clone(), value.clone());
            }
        }
    }
    text
}

/// RoPE of full and of sliding layers: `rope_parameters` of transformers 5, else the fields of 4.x.
///
/// `rope_scaling` of 4.x changes the full layers only.
fn ropes(fields: &Fields) -> Result<(Rope, Rope), ModelError> {
    let object = |value: Option<&'_ Value>| value.filter(|value| value.is_object()).cloned();
    let full_theta = fields.optional_number("rope_theta")?;
    let parse = |field: &str, object: Option<Value>, theta: Option<f64>| {
        Rope::from_json(field, object.as_ref(), theta).map_err(|(field, found, expected)| {
            ModelError::Field {
                path: fields.path.to_owned(),
                field,
                found,
                expected,
            }
        })
    };
    if let Some(parameters) = object(fields.object.get("rope_parameters")) {
        let of = |kind: &str, theta| match object(parameters.get(kind)) {
            Some(own) => parse(&format!("rope_parameters.{kind}"), Some(own), theta),
            None => parse("rope_parameters", Some(parameters.clone()), theta),
        };
        let local = fields.optional_number("rope_local_base_freq")?;
        return Ok((
            of("full_attention", full_theta)?,
            of("sliding_attention", local)?,
        ));
    }
    let full = parse(
        "rope_scaling",
        object(fields.object.get("rope_scaling")),
        full_theta,
    )?;
    let sliding_theta = fields
        .optional_number("rope_local_base_freq")?
        .or(full_theta);
    Ok((full, parse("rope_local_base_freq", None, sliding_theta)?))
}

/// A field that holds one token id, or a list of them, or nothing.
fn token_ids(fields: &Fields, field: &str) -> Result<Vec<u32>, ModelError> {
    let expected = "a token id or a list of them";
    let one = |value: &Value| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| fields.error(field, expected))
    };
    match fields.object.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(one).collect(),
        Some(value) => Ok(vec![one(value)?]),
    }
}

/// Typed access to one JSON object, with errors that name the file and the field.
struct Fields<'a> {
    path: &'a Path,
    object: &'a Value,
}

impl Fields<'_> {
    fn error(&self, field: &str, expected: &str) -> ModelError {
        ModelError::Field {
            path: self.path.to_owned(),
            field: field.to_owned(),
            found: self
                .object
                .get(field)
                .map_or("missing".to_owned(), Value::to_string),
            expected: expected.to_owned(),
        }
    }

    /// A size: at least 1, and small enough that products of two sizes cannot overflow 64 bits.
    fn count(&self, field: &str) -> Result<u32, ModelError> {
        let value = self.object.get(field).and_then(Value::as_u64);
        value
            .and_then(|value| u32::try_from(value).ok())
            .filter(|value| (1..=1 << 30).contains(value))
            .ok_or_else(|| self.error(field, "a whole number of at least 1"))
    }

    fn number(&self, field: &str) -> Result<f64, ModelError> {
        self.optional_number(field)?
            .ok_or_else(|| self.error(field, "a positive number"))
    }

    fn optional_number(&self, field: &str) -> Result<Option<f64>, ModelError> {
        match self.object.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) if number.is_finite() && number > 0.0 => Ok(Some(number)),
                _ => Err(self.error(field, "a positive number")),
            },
        }
    }

    fn string(&self, field: &str) -> Option<&str> {
        self.object.get(field).and_then(Value::as_str)
    }
}
