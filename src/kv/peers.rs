//! What other servers make of the same bytes: models of their sizing rules.
//!
//! These are **models**, re-derived from reading SGLang 0.5.23, vLLM 0.33.0 and TensorRT-LLM (both cache managers); nothing
//! of theirs runs here. They cover steady decode of full and sliding-window layers on one rank, without a prefix cache.
//! The tests hold them to figures that the references print.

use serde::Serialize;

use super::geometry::{AttentionKind, Geometry, LayerGroup};

pub mod sglang;
pub mod tensorrt_llm;
pub mod vllm;

/// One attention type of a model, as the servers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Layers.
    pub layers: u64,
    /// Bytes of the K rows of a token and layer.
    pub k_bytes: u64,
    /// Bytes of the V rows of a token and layer.
    pub v_bytes: u64,
    /// Window in tokens, the query included; `None` for full attention.
    pub window: Option<u32>,
}

impl Kind {
    /// Bytes of a token and layer.
    #[must_use]
    pub const fn token_bytes(&self) -> u64 {
        self.k_bytes + self.v_bytes
    }

    /// Pages that a sequence of `tokens` tokens holds in steady decode.
    const fn pages(&self, tokens: u64, page_tokens: u64) -> u64 {
        let all = tokens.div_ceil(page_tokens);
        match self.window {
            None => all,
            Some(window) => {
                let live = (window as u64).saturating_sub(1).div_ceil(page_tokens) + 1;
                if live < all { live } else { all }
            }
        }
    }
}

/// The attention types of a geometry; `None` when it has layers that the models do not cover.
#[must_use]
pub fn kinds(geometry: &Geometry) -> Option<Vec<Kind>> {
    let kind = |group: &LayerGroup| {
        let window = match group.kind {
            AttentionKind::Full => None,
            AttentionKind::Sliding { window } => Some(window),
            _ => return None,
        };
        let rows = |dim| {
            let row = group.dtype.row_bytes(dim) + group.dtype.scale_bytes(dim);
            u64::from(group.num_kv_heads) * row
        };
        Some(Kind {
            layers: group.layers.len() as u64,
            k_bytes: rows(group.k_head_dim),
            v_bytes: rows(group.v_head_dim),
            window,
        })
    };
    geometry.groups.iter().map(kind).collect()
}

/// Sequences of one length, by server, under the models of their rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerCapacity {
    /// Tokens of each sequence.
    pub length: u32,
    /// SGLang: static ratio 0.8, two chunks in flight.
    pub sglang: u64,
    /// vLLM: what it logs as maximum concurrency.
    pub vllm_logged: u64,
    /// vLLM: what its scheduler can keep running.
    pub vllm: u64,
    /// TensorRT-LLM, first cache manager: equal bytes for every window size.
    pub tensorrt_llm_v1: u64,
    /// TensorRT-LLM, second cache manager: ratio of one typical request.
    pub tensorrt_llm_v2: u64,
}

/// The models' answers for `kv_bytes` of KV; `None` when the geometry has layers that they do not cover. `model_type` is the
/// configuration's: SGLang decides by it whether windows are stored as such.
#[must_use]
pub fn compare(
    geometry: &Geometry,
    model_type: &str,
    kv_bytes: u64,
    lengths: &[u32],
) -> Option<Vec<PeerCapacity>> {
    let kinds = kinds(geometry)?;
    let max_len = u64::from(geometry.max_position_tokens.unwrap_or(131_072));
    let sglang = sglang::Rule {
        stores_windows: sglang::stores_windows(model_type),
        ..sglang::Rule::default()
    };
    let split = sglang.split(&kinds, kv_bytes);
    let vllm = vllm::Plan::new(&kinds, kv_bytes, vllm::Config::default());
    let v1 = tensorrt_llm::V1::new(&kinds, kv_bytes, max_len);
    let v2 = tensorrt_llm::V2::new(&kinds, kv_bytes, None);
    let row = |&length: &u32| {
        let tokens = u64::from(length);
        PeerCapacity {
            length,
            sglang: split.map_or(0, |split| sglang.requests(&kinds, split, tokens)),
            vllm_logged: vllm.logged_requests(tokens),
            vllm: vllm.running_requests(tokens),
            tensorrt_llm_v1: v1.requests(tokens),
            tensorrt_llm_v2: v2.requests(tokens),
        }
    };
    Some(
        lengths
            .iter()
            .filter(|&&length| length > 0)
            .map(row)
            .collect(),
    )
}
