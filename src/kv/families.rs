//! Defaults of Hugging Face's configuration classes (transformers 5.24) for fields that a `config.json`
//! may leave out. A field that is present always wins over this table.

/// Which layers slide when the configuration names no layer by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerRule {
    /// No layer slides, and the class reads no window.
    NoWindow,
    /// Every layer slides as soon as there is a window.
    AllSliding,
    /// Layer `i` is full iff `(i + 1) % pattern == 0`.
    Pattern(u32),
    /// Layers from `max_window_layers` on slide.
    FromMaxWindowLayers,
    /// Even layers below `max_window_layers` slide.
    EvenBelowMaxWindowLayers,
    /// Layer `i` is full iff `i == 0` or `(i + 1) % pattern == 0`.
    FirstAndPattern(u32),
}

/// Default of `num_key_value_heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KvHeads {
    /// As many as `num_attention_heads`.
    SameAsQuery,
    /// A number of its own.
    Count(u32),
}

/// What a configuration class fills in.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassDefaults {
    /// `model_type`, without a `_text` suffix.
    pub model_type: &'static str,
    pub num_hidden_layers: u32,
    pub num_attention_heads: u32,
    pub num_key_value_heads: KvHeads,
    /// `None`: `hidden_size / num_attention_heads`.
    pub head_dim: Option<u32>,
    /// `None`: the same as `head_dim`.
    pub v_head_dim: Option<u32>,
    pub hidden_size: u32,
    pub max_position_embeddings: u32,
    pub sliding_window: Option<u32>,
    /// Whether the window counts only when `use_sliding_window` is true (default false).
    pub window_needs_switch: bool,
    pub rule: LayerRule,
}

/// A class whose V rows are as long as its K rows and whose window needs no switch.
const fn class(
    model_type: &'static str,
    (num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim): (
        u32,
        u32,
        KvHeads,
        Option<u32>,
    ),
    (hidden_size, max_position_embeddings): (u32, u32),
    sliding_window: Option<u32>,
    rule: LayerRule,
) -> ClassDefaults {
    ClassDefaults {
        model_type,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        v_head_dim: None,
        hidden_size,
        max_position_embeddings,
        sliding_window,
        window_needs_switch: false,
        rule,
    }
}

const fn switched(class: ClassDefaults) -> ClassDefaults {
    ClassDefaults {
        window_needs_switch: true,
        ..class
    }
}

use KvHeads::{Count, SameAsQuery};
use LayerRule::{
    AllSliding, EvenBelowMaxWindowLayers, FirstAndPattern, FromMaxWindowLayers, NoWindow, Pattern,
};

/// Default of `max_window_layers` in every class that has it.
pub(super) const MAX_WINDOW_LAYERS: u32 = 28;

#[rustfmt::skip]
const CLASSES: [ClassDefaults; 19] = [
    class("cohere2",    (40, 64, SameAsQuery, None),      (8_192,   8_192), Some(4_096), Pattern(4)),
    class("exaone4",    (32, 32, Count(32),   None),      (4_096,   2_048), Some(4_096), Pattern(4)),
    class("gemma2",     (26,  8, Count(4),    Some(256)), (2_304,   8_192), Some(4_096), Pattern(2)),
    class("gemma3",     (26,  8, Count(4),    Some(256)), (2_304, 131_072), Some(4_096), Pattern(6)),
    class("gpt_oss",    (36, 64, Count(8),    Some(64)),  (2_880, 131_072), Some(128),   Pattern(2)),
    class("llama",      (32, 32, SameAsQuery, None),      (4_096,   2_048), None,        NoWindow),
    ClassDefaults {
        v_head_dim: Some(128),
        ..class("mimo_v2_flash", (48, 64, Count(4), Some(192)), (4_096, 131_072), Some(129), FirstAndPattern(6))
    },
    class("ministral",  (32, 32, Count(8),    None),      (4_096, 131_072), Some(4_096), AllSliding),
    class("mistral",    (32, 32, Count(8),    None),      (4_096, 131_072), Some(4_096), AllSliding),
    class("mixtral",    (32, 32, Count(8),    None),      (4_096, 131_072), None,        AllSliding),
    class("olmo2",      (32, 32, SameAsQuery, None),      (4_096,   2_048), None,        NoWindow),
    class("olmo3",      (32, 32, SameAsQuery, None),      (4_096,   2_048), Some(4_096), Pattern(4)),
    class("phi3",       (32, 32, SameAsQuery, None),      (3_072,   4_096), None,        AllSliding),
    switched(class("qwen2",     (32, 32, Count(32), None),      (4_096, 32_768), Some(4_096), FromMaxWindowLayers)),
    switched(class("qwen2_moe", (24, 16, Count(16), None),      (2_048, 32_768), Some(4_096), EvenBelowMaxWindowLayers)),
    switched(class("qwen3",     (32, 32, Count(32), Some(128)), (4_096, 32_768), Some(4_096), FromMaxWindowLayers)),
    switched(class("qwen3_moe", (24, 32, Count(4),  None),      (2_048, 32_768), Some(4_096), AllSliding)),
    class("starcoder2", (30, 24, Count(2),    None),      (3_072,   4_096), None,        AllSliding),
    class("granite",    (32, 32, SameAsQuery, None),      (4_096,   2_048), None,        NoWindow),
];

/// The class of a `model_type`; nested text configurations (`gemma3_text`) share the class of their parent.
pub(super) fn class_defaults(model_type: &str) -> Option<&'static ClassDefaults> {
    let name = model_type.strip_suffix("_text").unwrap_or(model_type);
    CLASSES.iter().find(|class| class.model_type == name)
}
