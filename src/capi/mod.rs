//! The C ABI: `include/neap.h` is generated from this room by cbindgen.
//!
//! Handles are opaque; every function returns a [`NeapStatus`] or cannot fail; the sentence that belongs to a
//! failure is kept per thread ([`neap_last_error`]); every struct begins with its size as the caller compiled it,
//! so that structs can grow; no panic crosses the boundary. A handle is used by one thread at a time, different
//! handles by different threads at once.

mod device;
mod engine;
mod generate;
mod memory;
mod sized;
mod status;
mod text;

pub use device::{
    NeapDevice, NeapDeviceInfo, neap_device_close, neap_device_info, neap_device_open,
};
pub use engine::{
    NeapCarve, NeapEngine, NeapEngineOptions, NeapLedger, NeapPool, NeapProgressFn,
    neap_engine_carve, neap_engine_close, neap_engine_ledger, neap_engine_load,
    neap_engine_options_init, neap_engine_pool,
};
pub use generate::{
    NeapFinish, NeapGenerateOptions, NeapTokenFn, neap_generate, neap_generate_options_init,
};
pub use memory::{
    NeapPrefixCounters, neap_engine_grow, neap_engine_prefix_counters, neap_engine_shrink,
    neap_engine_sleep, neap_engine_wake,
};
pub use status::{NeapStatus, neap_last_error, neap_version};
pub use text::{neap_detokenize, neap_tokenize};
