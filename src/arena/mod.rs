//! Device memory that the process owns: arenas and the ledger.
//!
//! An [`Arena`] is one address reservation with its physical backing; its base never changes, so captured graphs may
//! point into it (I2). Sub-allocation is a bump pointer. An [`AllocationGate`] shared by all arenas refuses device
//! allocations while a graph is captured and after start-up (I1). The [`Ledger`] accounts for every byte of the
//! device from `cuMemGetInfo` readings (I3).

mod bytes;
mod gate;
mod ledger;
mod reserved;

pub use bytes::{Grouped, HumanBytes};
pub use gate::AllocationGate;
pub use ledger::{Claims, KvShare, Ledger, LedgerMeter, Stage};
pub use reserved::{Arena, ArenaError};
