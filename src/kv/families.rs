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
    /// Layer `i` is chunked iff `(i + 1) % no_rope_layer_interval != 0`.
    ChunkedPattern,
    /// Layer `i` is full iff `(i + 1) % pattern == 0`, else it keeps a recurrent state.
    LinearPattern(u32),
    /// Odd layers keep a recurrent state, even ones are full.
    OddLinear,
    /// Every layer has index keys beside its latent rows.
    AllIndexed,
    /// Two heavily compressed layers, then heavily and lightly compressed ones in turn.
    Compressed,
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
    /// What only some classes have; 0 where a class has none.
    pub extra: Extra,
}

/// Defaults of fields that few classes have; 0 for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extra {
    pub kv_lora_rank: u32,
    pub qk_rope_head_dim: u32,
    pub index_head_dim: u32,
    pub attention_chunk_size: u32,
    pub num_kv_shared_layers: u32,
    /// `head_dim` of full layers, where it differs.
    pub global_head_dim: u32,
    /// Whether the last layer is full whatever the configuration says.
    pub last_layer_full: bool,
    /// `linear_num_key_heads`, `linear_num_value_heads`, `linear_key_head_dim`, `linear_value_head_dim`,
    /// `linear_conv_kernel_dim`.
    pub linear: [u32; 5],
}

const NO_EXTRA: Extra = Extra {
    kv_lora_rank: 0,
    qk_rope_head_dim: 0,
    index_head_dim: 0,
    attention_chunk_size: 0,
    num_kv_shared_layers: 0,
    global_head_dim: 0,
    last_layer_full: false,
    linear: [0; 5],
};

/// Default of `no_rope_layer_interval` in every class that has it.
pub(super) const NO_ROPE_LAYER_INTERVAL: u32 = 4;

/// Defaults of DeepSeek-V4's compression rates: of sparse and of heavily compressed layers.
pub(super) const COMPRESS_RATES: [u32; 2] = [4, 128];

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
        extra: NO_EXTRA,
    }
}

/// A class with latent attention: the rank and the RoPE part of a row.
const fn latent(class: ClassDefaults, kv_lora_rank: u32, index_head_dim: u32) -> ClassDefaults {
    ClassDefaults {
        extra: Extra {
            kv_lora_rank,
            qk_rope_head_dim: 64,
            index_head_dim,
            ..NO_EXTRA
        },
        ..class
    }
}

/// A class with Qwen's gated delta-rule layers.
const fn gated_delta(class: ClassDefaults) -> ClassDefaults {
    ClassDefaults {
        extra: Extra {
            linear: [16, 32, 128, 128, 4],
            ..NO_EXTRA
        },
        ..class
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
    AllIndexed, AllSliding, ChunkedPattern, Compressed, EvenBelowMaxWindowLayers, FirstAndPattern,
    FromMaxWindowLayers, LinearPattern, NoWindow, OddLinear, Pattern,
};

/// Default of `max_window_layers` in every class that has it.
pub(super) const MAX_WINDOW_LAYERS: u32 = 28;

#[rustfmt::skip]
const CLASSES: [ClassDefaults; 37] = [
    class("cohere2",     (40, 64, SameAsQuery, None),      (8_192,   8_192), Some(4_096), Pattern(4)),
    class("cohere2_moe", (40, 64, SameAsQuery, Some(128)), (8_192,   8_192), Some(4_096), Pattern(4)),
    latent(class("deepseek_v2",  (32, 32,  SameAsQuery, None), (4_096,   2_048), None, NoWindow), 512, 0),
    latent(class("deepseek_v3",  (61, 128, Count(128),  None), (7_168,   4_096), None, NoWindow), 512, 0),
    latent(class("deepseek_v32", (61, 128, Count(128),  None), (7_168, 163_840), None, AllIndexed), 512, 128),
    ClassDefaults {
        extra: Extra { index_head_dim: 128, ..NO_EXTRA },
        ..class("deepseek_v4", (43, 64, Count(1), Some(512)), (4_096, 1_048_576), Some(128), Compressed)
    },
    class("exaone4",     (32, 32, Count(32),   None),      (4_096,   2_048), Some(4_096), Pattern(4)),
    class("exaone_moe",  (32, 32, Count(32),   None),      (4_096,   2_048), Some(4_096), Pattern(4)),
    class("gemma",       (28, 16, Count(16),   Some(256)), (3_072,   8_192), None,        NoWindow),
    class("gemma2",      (26,  8, Count(4),    Some(256)), (2_304,   8_192), Some(4_096), Pattern(2)),
    class("gemma3",      (26,  8, Count(4),    Some(256)), (2_304, 131_072), Some(4_096), Pattern(6)),
    ClassDefaults {
        extra: Extra { num_kv_shared_layers: 15, ..NO_EXTRA },
        ..class("gemma3n", (35, 8, Count(2), Some(256)), (2_048, 32_768), Some(512), Pattern(5))
    },
    ClassDefaults {
        extra: Extra { global_head_dim: 512, last_layer_full: true, ..NO_EXTRA },
        ..class("gemma4", (30, 8, Count(4), Some(256)), (2_304, 131_072), Some(512), Pattern(6))
    },
    class("gpt_oss",     (36, 64, Count(8),    Some(64)),  (2_880, 131_072), Some(128),   Pattern(2)),
    class("granite",     (32, 32, SameAsQuery, None),      (4_096,   2_048), None,        NoWindow),
    class("llama",       (32, 32, SameAsQuery, None),      (4_096,   2_048), None,        NoWindow),
    ClassDefaults {
        extra: Extra { attention_chunk_size: 8_192, ..NO_EXTRA },
        ..class("llama4", (48, 40, Count(8), Some(128)), (5_120, 131_072), None, ChunkedPattern)
    },
    ClassDefaults {
        v_head_dim: Some(128),
        ..class("mimo_v2_flash", (48, 64, Count(4), Some(192)), (4_096, 131_072), Some(129), FirstAndPattern(6))
    },
    class("minimax",     (32, 32, Count(8),    None),      (4_096, 131_072), None,        OddLinear),
    class("minimax_m2",  (62, 48, Count(8),    Some(128)), (3_072, 196_608), None,        NoWindow),
    ClassDefaults {
        extra: Extra { index_head_dim: 128, ..NO_EXTRA },
        ..class("minimax_m3_vl", (60, 64, Count(4), Some(128)), (6_144, 524_288), None, NoWindow)
    },
    class("ministral",   (32, 32, Count(8),    None),      (4_096, 131_072), Some(4_096), AllSliding),
    class("ministral3",  (34, 32, Count(8),    Some(128)), (4_096, 262_144), None,        AllSliding),
    class("mistral",     (32, 32, Count(8),    None),      (4_096, 131_072), Some(4_096), AllSliding),
    latent(class("mistral4", (36, 32, Count(32), None),    (4_096, 1_048_576), None,      NoWindow), 256, 0),
    class("mixtral",     (32, 32, Count(8),    None),      (4_096, 131_072), None,        AllSliding),
    class("olmo2",       (32, 32, SameAsQuery, None),      (4_096,   2_048), None,        NoWindow),
    class("olmo3",       (32, 32, SameAsQuery, None),      (4_096,   2_048), Some(4_096), Pattern(4)),
    class("phi3",        (32, 32, SameAsQuery, None),      (3_072,   4_096), None,        AllSliding),
    switched(class("qwen2",     (32, 32, Count(32), None),      (4_096, 32_768), Some(4_096), FromMaxWindowLayers)),
    switched(class("qwen2_moe", (24, 16, Count(16), None),      (2_048, 32_768), Some(4_096), EvenBelowMaxWindowLayers)),
    switched(class("qwen3",     (32, 32, Count(32), Some(128)), (4_096, 32_768), Some(4_096), FromMaxWindowLayers)),
    switched(class("qwen3_moe", (24, 32, Count(4),  None),      (2_048, 32_768), Some(4_096), AllSliding)),
    gated_delta(class("qwen3_5",    (32, 16, Count(4), Some(256)), (4_096, 32_768), None, LinearPattern(4))),
    gated_delta(class("qwen3_next", (48, 16, Count(2), Some(256)), (2_048, 32_768), None, LinearPattern(4))),
    class("starcoder2",  (30, 24, Count(2),    None),      (3_072,   4_096), None,        AllSliding),
    class("step3p5",     (45, 64, Count(8),    Some(128)), (4_096, 128_000), None,        NoWindow),
];

/// The class of a `model_type`; nested text configurations (`gemma3_text`) share the class of their parent.
pub(super) fn class_defaults(model_type: &str) -> Option<&'static ClassDefaults> {
    let name = model_type.strip_suffix("_text").unwrap_or(model_type);
    CLASSES.iter().find(|class| class.model_type == name)
}
