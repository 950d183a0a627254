//! Why a sequence cannot be handled so.

use thiserror::Error;

use super::allocator::AllocatorError;
use super::geometry::GroupId;

/// Why a sequence cannot be handled so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KvError {
    /// Longer than the whole carve holds.
    #[error(
        "a sequence of {tokens} tokens never fits: the KV pools hold one of at most {longest_tokens}; shorten the \
         prompt, generate less, or give KV more memory"
    )]
    NeverFits {
        /// Tokens asked for.
        tokens: u32,
        /// The longest sequence that fits alone.
        longest_tokens: u32,
    },
    /// What is promised to others leaves too little.
    #[error(
        "a sequence of {tokens} tokens does not fit beside those admitted; wait until one of them ends"
    )]
    NoRoomNow {
        /// Tokens asked for.
        tokens: u32,
    },
    /// Every row of the block tables is taken.
    #[error(
        "all {sequences} sequence slots are taken; wait until a sequence ends, or start with more slots"
    )]
    NoSlot {
        /// Slots there are.
        sequences: usize,
    },
    /// The pages are not there at this moment.
    #[error(
        "{pages} pages for {tokens} more tokens are not free now; complete a step or release a sequence"
    )]
    OutOfPages {
        /// Tokens to append.
        tokens: u32,
        /// Pages they need, all groups together.
        pages: u64,
    },
    /// A sequence grows beyond what it was admitted with.
    #[error(
        "a sequence cannot grow to {tokens} tokens, it was admitted with {max_tokens}; admit it with more"
    )]
    BeyondPromise {
        /// Tokens it would have.
        tokens: u64,
        /// Tokens it was admitted with.
        max_tokens: u32,
    },
    /// Settled tokens only grow, up to those appended.
    #[error(
        "{tokens} tokens cannot be settled: {settled_tokens} are, and {appended_tokens} were appended"
    )]
    Settle {
        /// Tokens said to be settled.
        tokens: u32,
        /// Tokens settled before.
        settled_tokens: u32,
        /// Tokens appended.
        appended_tokens: u32,
    },
    /// The sequence was released.
    #[error("the sequence of slot {slot} has been released; its id cannot be used again")]
    UnknownSequence {
        /// The slot it had.
        slot: u32,
    },
    /// The step was not launched here.
    #[error(
        "step {step} completed but only {launched} were launched; steps belong to one set of sequences"
    )]
    NotLaunched {
        /// The step.
        step: u64,
        /// Steps launched.
        launched: u64,
    },
    /// Rolled back further than pages are kept for.
    #[error(
        "a sequence cannot be cut to {tokens} tokens: it holds what {floor_tokens} to {appended_tokens} need; keep more \
         tokens to rewind"
    )]
    Truncate {
        /// Tokens asked for.
        tokens: u32,
        /// The fewest tokens it can be cut to.
        floor_tokens: u32,
        /// Tokens appended.
        appended_tokens: u32,
    },
    /// Tokens of a step that was planned and not yet launched stand in the way.
    #[error(
        "a step is planned but not launched; launch it before forking, cutting or moving what it names"
    )]
    StepPlanned,
    /// Fewer slabs than are promised or can be vacated.
    #[error(
        "KV cannot shrink to {slabs} slabs: {needed_slabs} are needed by what is promised or in use; release sequences, evict \
         cached prefixes, or compact first"
    )]
    Shrink {
        /// Slabs asked for.
        slabs: u32,
        /// Slabs needed.
        needed_slabs: u64,
    },
    /// Pages are in use that a sleeping arena would lose.
    #[error(
        "{pages} pages are in use and would be lost; release every sequence and clear the prefix tree before sleep"
    )]
    InUse {
        /// Pages in use or waiting for a step.
        pages: u64,
    },
    /// A prefix whose pages do not belong to what it is used on.
    #[error(
        "a prefix of {tokens} tokens cannot start a sequence of at most {max_tokens}; match it again for this sequence"
    )]
    Prefix {
        /// Tokens of the prefix.
        tokens: u32,
        /// Tokens the sequence is admitted with.
        max_tokens: u32,
    },
    /// A page that a sequence was to give to the prefix tree and does not hold.
    #[error("the sequence of slot {slot} holds no page {column} of layer group {}; cache it before its window moves on", group.0)]
    NoPage {
        /// Slot of the sequence.
        slot: u32,
        /// Page number in the sequence.
        column: u32,
        /// Layer group.
        group: GroupId,
    },
    /// The pages underneath disagree.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
}
