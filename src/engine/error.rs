//! What can go wrong in an engine, each case as one sentence.

use crate::driver::DriverError;
use crate::model::ModelError;

/// Why an engine could not start, or could not do what it was asked.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model folder cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A kernel cannot be launched with what it was given.
    #[error(transparent)]
    Kernel(#[from] crate::kernels::KernelError),
    /// An arena cannot be reserved, mapped or sub-allocated.
    #[error(transparent)]
    Arena(#[from] crate::arena::ArenaError),
    /// The KV arena cannot be reserved or carved.
    #[error(transparent)]
    KvArena(#[from] crate::kv::KvArenaError),
    /// The pools cannot be split so, or the ranks do not agree.
    #[error(transparent)]
    Policy(#[from] crate::kv::PolicyError),
    /// Pools of a fixed size.
    #[error(
        "the policy {policy} fixes the pools, so KV cannot shrink or grow while requests run; use the dynamic policy, or sleep and wake"
    )]
    FixedPools {
        /// The policy.
        policy: crate::kv::Policy,
    },
    /// A sequence cannot be handled so.
    #[error(transparent)]
    Kv(#[from] crate::kv::KvError),
    /// An option is out of range.
    #[error("option `{option}` is {found}; choose {expected}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// Its value.
        found: u64,
        /// What is accepted.
        expected: String,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens; give at least the model's start token")]
    EmptyPrompt,
    /// A request for no tokens.
    #[error("max_new_tokens is 0; ask for at least one token")]
    NoNewTokens,
    /// A token id the model does not have.
    #[error(
        "token id {token} at position {position} is not in the vocabulary of {vocab_size}; check the tokenizer"
    )]
    UnknownToken {
        /// The id.
        token: u32,
        /// Its index in the prompt.
        position: usize,
        /// The model's vocabulary.
        vocab_size: u32,
    },
    /// A prompt that can never be resident.
    #[error(
        "the prompt has {prompt_tokens} tokens, but {limit} leaves room for {limit_tokens} with at least one to generate; \
         shorten the prompt or {remedy}"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: u64,
        /// What limits it.
        limit: &'static str,
        /// Tokens the limit allows.
        limit_tokens: u64,
        /// What would lift the limit.
        remedy: &'static str,
    },
    /// More sequences at once than there is room for.
    #[error(
        "{found} sequences at once exceed what is free now ({limit}); use fewer, or wait for running requests to finish"
    )]
    Busy {
        /// Sequences asked for.
        found: usize,
        /// Sequences that can start now.
        limit: usize,
    },
    /// A chunk larger than the largest prefill bucket where one pass is needed.
    #[error("{found} tokens do not fit in one pass of {limit}; raise max_chunk_tokens")]
    PassTooLong {
        /// Tokens asked for.
        found: usize,
        /// The largest prefill bucket.
        limit: u32,
    },
    /// Intermediate tensors were asked of an engine that runs graphs.
    #[error("hidden states can be read in eager mode only; load the engine with `eager` set")]
    NeedsEager,
    /// Nothing was generated that a fork could differ in.
    #[error(
        "request {} cannot be forked: it has generated nothing yet, or has ended; fork it after its first token", request.0
    )]
    NothingToFork {
        /// The request.
        request: super::RequestId,
    },
    /// The memory that sequences need is given back.
    #[error("the engine sleeps and holds no KV memory; wake it first")]
    Asleep,
    /// KV smaller than a request was accepted for.
    #[error(
        "KV of {kv_bytes} bytes holds a sequence of {limit_tokens} tokens at most, but request {} was accepted for {tokens}; \
         cancel it first, or keep more KV", request.0
    )]
    ShrinkBelowRequest {
        /// Bytes asked for.
        kv_bytes: u64,
        /// The longest sequence they would hold.
        limit_tokens: u32,
        /// The request.
        request: super::RequestId,
        /// Tokens that it may grow to.
        tokens: u32,
    },
    /// An earlier step failed half-way.
    #[error("an earlier step failed ({cause}); the engine's sequences are lost, load it again")]
    Failed {
        /// What failed.
        cause: String,
    },
    /// The device's leftover is less than what shall stay free.
    #[error(
        "{free_bytes} bytes are free after weights, workspace and graphs, less than the headroom of {headroom_bytes}; lower \
         --headroom, max_seqs or max_chunk_tokens, or free device memory"
    )]
    TooLittleMemory {
        /// What capture left over.
        free_bytes: u64,
        /// What shall stay free.
        headroom_bytes: u64,
    },
}
