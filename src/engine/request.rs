//! What goes into an engine and what comes out.

use std::fmt;

use serde::Serialize;

/// One prompt to continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Token ids, the model's start token included.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most.
    pub max_new_tokens: u32,
    /// Tokens that end the request; the one that does is reported as well.
    pub stop_tokens: Vec<u32>,
}

/// Names a submitted request; never reused within one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// A stop token was generated.
    Stop,
    /// `max_new_tokens` were generated.
    Length,
    /// The longest sequence that the model or the KV pools allow was reached.
    Capacity,
}

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FinishReason::Stop => "stop token",
            FinishReason::Length => "token limit of the request",
            FinishReason::Capacity => "longest sequence the model or the KV pools allow",
        })
    }
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whose token.
    pub request: RequestId,
    /// The token id.
    pub token: u32,
    /// Set on the request's last token.
    pub finished: Option<FinishReason>,
}
