//! KV memory: geometry, sizing, page life and block tables, as host arithmetic.
//!
//! Everything here but [`pool`] is pure: no driver call, no `unsafe`, checked arithmetic, and no panic
//! whatever the configuration says.
//!
//! | module | answers |
//! |---|---|
//! | [`config`] | which layers a `config.json` describes |
//! | [`layer`] | what one layer caches, and for how long |
//! | [`dtype`] | what a row weighs, scales included |
//! | [`page`] | where the rows of a page lie |
//! | [`geometry`] | which layer groups the layers form, and what a page of each weighs |
//! | [`window`] | which keys a query sees, and when a page dies |
//! | [`slab`] | the unit in which pools take memory from the arena |
//! | [`carve`] | how many slabs the measured memory makes |
//! | [`fit`] | does it fit? (the one function behind admission, start-up and reports) |
//! | [`eligibility`] | may KV be sized after capture, and if not, why |
//! | [`reserve`] | what to keep free when it may not |
//! | [`allocator`] | which page is whose |
//! | [`sequences`] | which pages a sequence holds, and when they may be used again |
//! | [`prefix_tree`] | which prompts begin with pages that are still there |
//! | [`policy`] | where the line between the pools stands |
//! | [`peers`] | what other servers make of the same bytes |
//! | [`map`] | the device's memory as a drawing |
//! | [`mod@plan`] | all of the above for a configuration, without a device |

#![forbid(unsafe_code)]

pub mod allocator;
pub mod carve;
pub mod config;
pub mod dtype;
pub mod eligibility;
pub mod fit;
pub mod geometry;
pub mod layer;
pub mod map;
pub mod page;
pub mod page_watch;
pub mod peers;
pub mod plan;
pub mod policy;
pub mod pool;
pub mod prefix_tree;
pub mod reserve;
pub mod sequences;
pub mod slab;
pub mod window;

mod families;
mod fast_div;
mod holders;
mod index_set;
mod kv_error;
mod open_slabs;

pub use allocator::{Allocator, AllocatorError};
pub use carve::{CapacityReport, Carve, CarveError, CarveReport, PoolReport};
pub use config::ConfigError;
pub use fit::FreeMemory;
pub use geometry::{
    AttentionKind, Geometry, GeometryError, GroupId, KvDtype, LayerGroup, LayerKv, LayerSpec,
    PageEntry, PageSize, Shard,
};
pub use kv_error::KvError;
pub use page_watch::PageWatch;
pub use plan::{Plan, PlanError, PlanOptions, plan};
pub use policy::{Caps, Policy, PolicyError};
pub use pool::{KvArena, KvArenaError, KvExtension};
pub use prefix_tree::{PrefixCounters, PrefixTree};
pub use sequences::{
    DO_NOT_WRITE, KvSequences, PageMove, Phase, PrefixPages, SequenceId, StepId, TableUpdate,
};
pub use slab::{PoolLayout, SlabError, SlabLayout, solve_slab};
