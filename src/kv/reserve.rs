//! The static reserve: how much to keep free when KV has to be sized before capture.
//!
//! The formulas and constants are SGLang 0.5.23's (`arg_groups/memory_hook.py`), re-derived, so that the fallback is
//! neither better nor worse than what users know. All sizes are whole or half MiB, as there.

use super::eligibility::Role;

const MIB: u64 = 1 << 20;

/// Cards above this many MiB keep at least [`LARGE_CARD_FLOOR_MIB`].
const LARGE_CARD_MIB: u64 = 60 * 1_024;

const LARGE_CARD_FLOOR_MIB: f64 = 10_240.0;

/// What decides the static reserve.
#[derive(Clone, Debug, PartialEq)]
pub struct StaticReserve {
    /// Memory of the card in MiB, as `nvidia-smi` shows it.
    pub card_mib: u64,
    /// Tensor-parallel ranks.
    pub tensor_parallel: u32,
    /// Pipeline stages.
    pub pipeline_stages: u32,
    /// What the engine does.
    pub role: Role,
    /// Tokens of a prefill chunk.
    pub chunk_tokens: u32,
    /// Largest captured decode batch; `None` without decode graphs.
    pub decode_max_batch: Option<u32>,
    /// How prefill is captured.
    pub prefill_graphs: PrefillGraphs,
    /// Ranks of attention data parallelism; 0 without it.
    pub attention_data_parallel: u32,
    /// Running requests times draft tokens; counts on decode-only engines.
    pub decode_tokens: u32,
    /// Whether experts exchange tokens through DeepEP.
    pub expert_all_to_all: bool,
    /// Layers and hidden size of a vision tower, if the model has one.
    pub vision_tower: Option<(u32, u32)>,
}

/// Prefill graphs, as far as the reserve is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillGraphs {
    /// None.
    Off,
    /// One for each captured token count.
    Sizes(u32),
    /// Of a model with latent attention, whatever their number.
    Latent,
}

/// Chunk and decode batch that a card gets unless others are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardDefaults {
    /// Tokens of a prefill chunk.
    pub chunk_tokens: u32,
    /// Largest captured decode batch.
    pub decode_max_batch: u32,
}

impl CardDefaults {
    /// The defaults for a card of so many MiB.
    #[must_use]
    pub const fn of(card_mib: u64, tensor_parallel: u32) -> Self {
        let wide = tensor_parallel >= 4;
        let (chunk_tokens, narrow_batch, wide_batch) = match card_mib {
            0..20_480 => (2_048, 8, 8),
            20_480..35_840 => (4_096, 48, 160),
            35_840..61_440 => (4_096, 32, 160),
            61_440..163_840 => (8_192, 256, 512),
            _ => (16_384, 512, 512),
        };
        Self {
            chunk_tokens,
            decode_max_batch: if wide { wide_batch } else { narrow_batch },
        }
    }
}

/// Token counts for which prefill is captured, up to a chunk.
#[must_use]
pub fn prefill_capture_sizes(chunk_tokens: u32) -> Vec<u32> {
    const RANGES: [(u32, u32, usize); 6] = [
        (4, 32, 4),
        (48, 256, 16),
        (288, 512, 32),
        (576, 1_024, 64),
        (1_280, 4_096, 256),
        (4_608, u32::MAX, 512),
    ];
    let ranges = RANGES
        .into_iter()
        .flat_map(|(first, last, step)| (first..=last.min(chunk_tokens)).step_by(step));
    ranges.collect()
}

impl StaticReserve {
    /// The reserve of a card with its default chunk, batch and graphs.
    #[must_use]
    pub fn of_card(card_mib: u64, tensor_parallel: u32) -> Self {
        let defaults = CardDefaults::of(card_mib, tensor_parallel);
        let sizes = prefill_capture_sizes(defaults.chunk_tokens).len();
        Self {
            card_mib,
            tensor_parallel,
            pipeline_stages: 1,
            role: Role::Both,
            chunk_tokens: defaults.chunk_tokens,
            decode_max_batch: Some(defaults.decode_max_batch),
            prefill_graphs: PrefillGraphs::Sizes(sizes as u32),
            attention_data_parallel: 0,
            decode_tokens: 0,
            expert_all_to_all: false,
            vision_tower: None,
        }
    }

    /// What activations take: part of the reserve, and what SGLang keeps after capture when some batches run eagerly.
    #[must_use]
    pub fn activation_mib(&self) -> f64 {
        self.floored(self.base_mib())
    }

    fn base_mib(&self) -> f64 {
        let tokens = match self.role {
            Role::Decode => self.decode_tokens,
            _ => self.chunk_tokens,
        };
        512.0 + 1.5 * f64::from(tokens.max(2_048)) + self.ranks_mib()
    }

    fn ranks_mib(&self) -> f64 {
        1_024.0 * f64::from(self.tensor_parallel) * f64::from(self.pipeline_stages) / 8.0
    }

    fn floored(&self, mib: f64) -> f64 {
        if self.card_mib > LARGE_CARD_MIB {
            mib.max(LARGE_CARD_FLOOR_MIB)
        } else {
            mib
        }
    }

    /// The reserve in MiB when KV is sized before capture.
    #[must_use]
    pub fn reserved_mib(&self) -> f64 {
        let batch = f64::from(self.decode_max_batch.unwrap_or(0));
        let mut graphs = 2.0 * batch;
        graphs += match self.prefill_graphs {
            PrefillGraphs::Off => 0.0,
            PrefillGraphs::Sizes(sizes) => 8.0 * f64::from(sizes),
            PrefillGraphs::Latent => 1_536.0,
        };
        let data_parallel = f64::from(self.attention_data_parallel);
        graphs += 3.0 * batch * data_parallel;
        if batch > 300.0 {
            graphs += 1.5 * batch * data_parallel;
        }
        let breakable = self.expert_all_to_all && self.prefill_graphs != PrefillGraphs::Off;
        if breakable {
            graphs += 1_024.0;
        }
        let exchange = if self.expert_all_to_all { 2_048.0 } else { 0.0 };
        self.floored(self.base_mib() + graphs) + exchange
    }

    /// The share of the card that weights and KV may take, rounded to three decimals.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        let card = self.card_mib as f64;
        let fraction = to_3_decimals((card - self.reserved_mib()) / card);
        let Some((layers, hidden)) = self.vision_tower else {
            return fraction;
        };
        let size = f64::from(layers) * f64::from(hidden).powi(2) / (24.0 * 1_024.0 * 1_024.0);
        fraction * 0.95 * (1.0 - 0.1 * (size - 1.0)).clamp(0.8, 1.05)
    }

    /// The reserve in MiB that SGLang keeps when KV is sized after capture.
    #[must_use]
    pub fn after_capture_mib(&self) -> f64 {
        1_536.0 + self.ranks_mib()
    }

    /// The share of the card that goes with [`StaticReserve::after_capture_mib`].
    #[must_use]
    pub fn after_capture_fraction(&self) -> f64 {
        let card = self.card_mib as f64;
        let fraction = to_3_decimals((card - self.after_capture_mib()) / card);
        let vision = if self.vision_tower.is_some() {
            8_192.0
        } else {
            0.0
        };
        fraction - vision / card
    }

    /// Bytes for KV before capture: what is free after the weights, less the reserved share of what was free before them.
    #[must_use]
    pub fn kv_budget_bytes(&self, free_before_weights: u64, free_after_weights: u64) -> u64 {
        let slack = free_before_weights as f64 * (1.0 - self.fraction());
        // Truncation to whole bytes, and 0 for a negative budget, are meant.
        (free_after_weights as f64 - slack).max(0.0) as u64
    }

    /// [`StaticReserve::reserved_mib`] in bytes.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        (self.reserved_mib() * MIB as f64) as u64
    }
}

/// Rounds as Python's `round(x, 3)` does: correctly from the exact binary value.
fn to_3_decimals(value: f64) -> f64 {
    format!("{value:.3}").parse().unwrap_or(value)
}
