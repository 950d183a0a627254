//! The engine: graphs captured first, pools carved from what is left, then requests served.
//!
//! | module | what |
//! |---|---|
//! | `startup` | the start-up order, and the ledger it fills |
//! | `warm_up` | capture and warm-up of every bucket |
//! | `scheduler`, `serve` | which tokens run next; requests in, tokens out |
//! | `runner` | one step on the device |
//! | `step` | the step buffer: everything a step tells the device, in one copy |
//! | `forward`, `launches` | the layer program issued on a stream, eagerly or under capture |
//! | `workspace`, `upload` | buffers and weights |
//! | `inspect` | teacher-forced logits, scores, hidden states |

mod completions;
mod elastic;
mod error;
mod forward;
mod inspect;
mod launches;
mod moves;
mod options;
#[cfg(test)]
mod padding_tests;
mod prefix;
mod progress;
mod request;
mod room;
mod runner;
mod scheduler;
mod serve;
mod sizing;
mod staging;
mod startup;
mod step;
mod upload;
mod warm_up;
mod workspace;

pub use error::EngineError;
pub use inspect::{Forced, HiddenStates, LayerStates};
pub use options::EngineOptions;
pub use progress::{Progress, StartupTimings};
pub use request::{Event, FinishReason, Request, RequestId};
pub use serve::{ArenaRange, Engine};
