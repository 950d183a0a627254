//! The table of model families: what an architecture name implies that no field of `config.json` says.

use serde_json::{Value, json};

/// The nonlinearity on the gate half of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// What an architecture name implies.
///
/// Everything a configuration field states (layer kinds, windows, sizes, bases) is read from there instead.
#[derive(Debug)]
pub struct Family {
    /// The family's name in messages.
    pub name: &'static str,
    /// Values of `architectures[0]` that belong to the family.
    pub architectures: &'static [&'static str],
    /// Added to every norm weight before it multiplies: 1.0 where weights are stored as deviations from one.
    pub norm_weight_offset: f32,
    /// Whether embeddings are multiplied by `sqrt(hidden_size)` on input.
    pub scale_embeddings: bool,
    /// Whether q and k pass an RMSNorm over `head_dim` before RoPE.
    pub qk_norm: bool,
    /// Whether the attention and MLP outputs are normed before they join the residual stream.
    pub post_norms: bool,
    /// Whether `attn_logit_softcapping` has an effect.
    pub attn_softcap: bool,
    /// Whether the output head is the embedding matrix where the configuration does not say.
    pub tied_by_default: bool,
    /// Published configurations leave out what equals the class default: those defaults, as a JSON object.
    defaults: &'static str,
}

/// Gemma 3 text models; the vision tower of `Gemma3ForConditionalGeneration` is not loaded.
static GEMMA3: Family = Family {
    name: "Gemma 3",
    architectures: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    norm_weight_offset: 1.0,
    scale_embeddings: true,
    qk_norm: true,
    post_norms: true,
    attn_softcap: false,
    tied_by_default: true,
    defaults: r#"{
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
        "sliding_window": 4096, "sliding_window_pattern": 6, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0
    }"#,
};

/// Every family this version runs.
pub static FAMILIES: &[&Family] = &[&GEMMA3];

impl Family {
    /// The family of an architecture name, if there is one.
    pub fn of(architecture: &str) -> Option<&'static Family> {
        FAMILIES
            .iter()
            .copied()
            .find(|family| family.architectures.contains(&architecture))
    }

    /// The architecture names of all families, comma-separated.
    pub fn supported() -> String {
        let names: Vec<&str> = FAMILIES
            .iter()
            .flat_map(|family| family.architectures)
            .copied()
            .collect();
        names.join(", ")
    }

    /// The class defaults that published configurations leave out.
    pub fn defaults(&self) -> Value {
        serde_json::from_str(self.defaults).unwrap_or_else(|_| json!({}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_entry_parses_and_is_found_by_name() {
        for family in FAMILIES {
            assert!(
                family
                    .defaults()
                    .as_object()
                    .is_some_and(|fields| !fields.is_empty()),
                "{}",
                family.name
            );
            for name in family.architectures {
                assert_eq!(Family::of(name).map(|found| found.name), Some(family.name));
                assert!(Family::supported().contains(name));
            }
        }
        assert!(Family::of("NoSuchForCausalLM").is_none());
    }
}
