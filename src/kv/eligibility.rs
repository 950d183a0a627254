//! May KV be sized from what graph capture leaves?
//!
//! Sizing after capture measures; it needs that everything which takes device memory has been taken by then. Each
//! condition under which that does not hold is a [`Reason`] with its remedy, all are checked by [`eligibility`], and a
//! start-up with a reason falls back to the [static reserve](super::reserve).
//!
//! The conditions are those of SGLang 0.5.23 (`arg_groups/overrides.py`), less the ones that hold no longer when the
//! arena takes every kind of layer: [`Lifted`] names them, and why.
//!
//! | SGLang's condition | here |
//! |---|---|
//! | the feature is off by default | on by default; [`Reason::SwitchedOff`] |
//! | KV shared with another engine | [`Reason::KvOfAnotherEngine`] |
//! | device is not CUDA | [`Reason::NoVirtualMemory`] |
//! | decode context parallelism | [`Reason::DecodeContextParallel`] |
//! | MLA | lifted: [`Lifted::Latent`] |
//! | prefill only, without a KV cache | [`Reason::NoKvCache`] |
//! | memory saver | lifted: [`Lifted::MemoryGivenBack`] |
//! | a memory pool of the transfer library | [`Reason::PoolOfTransferLibrary`] |
//! | a transport that cannot register virtual memory (EFA) | [`Reason::UnregisterableMemory`] |
//! | one pool for all layers, unless plain hybrid SWA without drafts | lifted: [`Lifted::Recurrent`], [`Lifted::Draft`] |
//! | decode graphs off, unless prefill only | [`Reason::NoDecodeGraphs`] |
//! | prefill graphs off, unless decode only | [`Reason::NoPrefillGraphs`] |
//! | prefill not chunked, unless decode only | [`Reason::UnchunkedPrefill`] |
//! | a prefill step beyond the largest captured size | [`Reason::PrefillBeyondGraphs`] |
//! | DeepSeek-V4, MiniMax sparse | lifted: [`Lifted::Compressed`], [`Lifted::BlockSparse`] |
//! | (by the above) pipeline stages | lifted: [`Lifted::PipelineStage`] |
//! | (not checked there) FP4 and mxfp8 KV | lifted: [`Lifted::BlockScales`] |
//!
//! Nor is it a reason here that some batch sizes run without a graph: an eager step uses the workspace that exists.

use serde::Serialize;
use thiserror::Error;

use super::geometry::{AttentionKind, Geometry, KvDtype, Shard};

/// What an engine does with requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill only; another engine decodes. Captures prefill graphs alone.
    Prefill,
    /// Decode only; another engine prefills. Captures decode graphs alone.
    Decode,
}

/// How finished KV reaches another engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Transfer {
    /// Not at all, or over a transport that registers virtual memory.
    #[default]
    Registers,
    /// The transfer library allocates the pool itself.
    OwnPool,
    /// The transport refuses to register virtual memory (EFA answers EINVAL).
    CannotRegister,
}

/// What a start-up is going to do, as far as sizing is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartUp {
    /// What the engine does.
    pub role: Role,
    /// Whether sizing after capture is wanted; `false` asks for the static reserve.
    pub wanted: bool,
    /// Whether the device maps physical memory under reserved addresses.
    pub virtual_memory: bool,
    /// Whether there is a KV cache at all.
    pub kv_cache: bool,
    /// Whether the KV memory belongs to another engine.
    pub kv_of_another_engine: bool,
    /// Ranks among which the tokens of one sequence are spread at decode; 1 for none.
    pub decode_context_parallel: u32,
    /// How KV leaves the engine.
    pub transfer: Transfer,
    /// Captured decode batch sizes; empty when decode runs eagerly.
    pub decode_buckets: Vec<u32>,
    /// Captured prefill token counts; empty when prefill runs eagerly.
    pub prefill_buckets: Vec<u32>,
    /// Whether long prompts are cut into chunks.
    pub chunked_prefill: bool,
    /// Tokens of the largest prefill step that can be scheduled.
    pub max_prefill_tokens: u32,
}

impl Default for StartUp {
    /// An engine of both roles with every graph: eligible.
    fn default() -> Self {
        Self {
            role: Role::Both,
            wanted: true,
            virtual_memory: true,
            kv_cache: true,
            kv_of_another_engine: false,
            decode_context_parallel: 1,
            transfer: Transfer::Registers,
            decode_buckets: vec![1],
            prefill_buckets: vec![1_024],
            chunked_prefill: true,
            max_prefill_tokens: 1_024,
        }
    }
}

/// Why KV cannot be sized after capture. The text names the reason and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize)]
#[serde(rename_all = "snake_case", tag = "reason")]
#[non_exhaustive]
pub enum Reason {
    /// The caller wants the static reserve.
    #[error(
        "the static reserve was asked for; drop that option to size KV from the measured leftover"
    )]
    SwitchedOff,
    /// Another engine's pool.
    #[error(
        "the KV memory belongs to another engine, which has sized it; give this engine KV of its own"
    )]
    KvOfAnotherEngine,
    /// No mapping under reserved addresses.
    #[error(
        "the device cannot map memory under reserved addresses; use a CUDA device with virtual memory management"
    )]
    NoVirtualMemory,
    /// One sequence's tokens on several ranks.
    #[error(
        "{ranks} ranks share the tokens of each sequence at decode; set decode context parallelism to 1"
    )]
    DecodeContextParallel {
        /// Ranks.
        ranks: u32,
    },
    /// Nothing to size.
    #[error("the engine keeps no KV cache, so there is nothing to size; switch the cache on")]
    NoKvCache,
    /// The pool is not ours.
    #[error(
        "the transfer library allocates the KV pool itself; let it register neap's arena instead"
    )]
    PoolOfTransferLibrary,
    /// Memory that the transport does not take.
    #[error(
        "the transport cannot register virtual memory (EFA answers EINVAL); use another transport"
    )]
    UnregisterableMemory,
    /// Eager decode.
    #[error(
        "decode runs without graphs, so capture does not show what it takes; drop --eager or capture a decode bucket"
    )]
    NoDecodeGraphs,
    /// Eager prefill.
    #[error(
        "prefill runs without graphs, so capture does not show what it takes; drop --eager or capture a prefill bucket"
    )]
    NoPrefillGraphs,
    /// Prompts of any length in one step.
    #[error(
        "prompts are not cut into chunks, so a step may exceed every captured size; switch chunked prefill on"
    )]
    UnchunkedPrefill,
    /// A step larger than any graph.
    #[error(
        "a prefill step may have {max_prefill_tokens} tokens and the largest captured one has {largest}; capture that size or lower \
         the limit"
    )]
    PrefillBeyondGraphs {
        /// Tokens of the largest step.
        max_prefill_tokens: u32,
        /// Tokens of the largest graph.
        largest: u32,
    },
}

/// Conditions that keep SGLang from sizing after capture and do not keep neap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Lifted {
    /// Latent attention: its rows are one more geometry, in the same arena.
    Latent,
    /// Compressed attention (DeepSeek-V4): its rows and states are further groups.
    Compressed,
    /// Block-sparse attention (MiniMax): index keys are part of the page.
    BlockSparse,
    /// Recurrent state: a page a sequence, in the same arena.
    Recurrent,
    /// KV dtypes with block scales: scales are part of the page, so nothing is allocated beside the arena.
    BlockScales,
    /// A draft model: its layers are further groups, sized after capture and charged once.
    Draft,
    /// Pipeline stages: prefill is captured on every stage; the geometry holds the stage's layers alone.
    PipelineStage,
    /// Memory given back at run time: the arena unmaps what it says and graphs stay valid (I12).
    MemoryGivenBack,
}

/// The outcome of [`eligibility`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Eligibility {
    /// Every reason against sizing after capture; none when it can be done.
    pub reasons: Vec<Reason>,
    /// What would have kept another server from it.
    pub lifted: Vec<Lifted>,
}

impl Eligibility {
    /// Whether KV can be sized after capture.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.reasons.is_empty()
    }

    /// The reasons as one line for the ledger; `None` when there are none.
    #[must_use]
    pub fn ledger_line(&self) -> Option<String> {
        let lines = self
            .reasons
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

/// Checks every condition. `memory_given_back` says whether the engine may shrink its pools at run time.
#[must_use]
pub fn eligibility(
    start_up: &StartUp,
    geometry: &Geometry,
    shard: &Shard,
    memory_given_back: bool,
) -> Eligibility {
    let mut reasons = Vec::new();
    let mut found = |holds: bool, reason: Reason| {
        if holds {
            reasons.push(reason);
        }
    };
    let (prefills, decodes) = (
        start_up.role != Role::Decode,
        start_up.role != Role::Prefill,
    );
    let largest = start_up.prefill_buckets.iter().copied().max();
    found(!start_up.wanted, Reason::SwitchedOff);
    found(start_up.kv_of_another_engine, Reason::KvOfAnotherEngine);
    found(!start_up.virtual_memory, Reason::NoVirtualMemory);
    found(
        start_up.decode_context_parallel != 1,
        Reason::DecodeContextParallel {
            ranks: start_up.decode_context_parallel,
        },
    );
    found(!start_up.kv_cache, Reason::NoKvCache);
    found(
        start_up.transfer == Transfer::OwnPool,
        Reason::PoolOfTransferLibrary,
    );
    found(
        start_up.transfer == Transfer::CannotRegister,
        Reason::UnregisterableMemory,
    );
    found(
        decodes && start_up.decode_buckets.is_empty(),
        Reason::NoDecodeGraphs,
    );
    found(prefills && largest.is_none(), Reason::NoPrefillGraphs);
    found(
        prefills && !start_up.chunked_prefill,
        Reason::UnchunkedPrefill,
    );
    if let Some(largest) = largest {
        let max_prefill_tokens = start_up.max_prefill_tokens;
        found(
            prefills && start_up.chunked_prefill && max_prefill_tokens > largest,
            Reason::PrefillBeyondGraphs {
                max_prefill_tokens,
                largest,
            },
        );
    }
    Eligibility {
        reasons,
        lifted: lifted(geometry, shard, memory_given_back),
    }
}

fn lifted(geometry: &Geometry, shard: &Shard, memory_given_back: bool) -> Vec<Lifted> {
    let kinds = |is: &dyn Fn(AttentionKind) -> bool| geometry.groups.iter().any(|g| is(g.kind));
    let draft = geometry.groups.iter().any(|g| g.name.starts_with("draft-"));
    let scaled = |dtype| matches!(dtype, KvDtype::Fp4E2m1 | KvDtype::Mxfp8 | KvDtype::Int8);
    [
        (
            kinds(&|kind| matches!(kind, AttentionKind::Latent { .. })),
            Lifted::Latent,
        ),
        (
            kinds(&|kind| matches!(kind, AttentionKind::Compressed { .. })),
            Lifted::Compressed,
        ),
        (
            kinds(&|kind| matches!(kind, AttentionKind::BlockSparse { .. })),
            Lifted::BlockSparse,
        ),
        (
            kinds(&|kind| matches!(kind, AttentionKind::Recurrent { .. })),
            Lifted::Recurrent,
        ),
        (
            geometry.groups.iter().any(|g| scaled(g.dtype)),
            Lifted::BlockScales,
        ),
        (draft, Lifted::Draft),
        (
            shard
                .layers
                .as_ref()
                .is_some_and(|layers| layers.len() < geometry.num_layers as usize),
            Lifted::PipelineStage,
        ),
        (memory_given_back, Lifted::MemoryGivenBack),
    ]
    .into_iter()
    .filter_map(|(holds, lifted)| holds.then_some(lifted))
    .collect()
}
