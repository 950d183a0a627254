//! KV memory at run time from C: given back, taken again, and what the prefix cache makes of it.

use bytemuck::{Pod, Zeroable};

use super::engine::{NeapEngine, failed};
use super::sized::{self, out};
use super::status::{Failure, NeapStatus, entry};
use crate::engine::{Engine, EngineError};

/// Runs `change` on an engine and hands its number to the caller.
///
/// # Safety
/// `engine` is null or a live engine that nothing else uses; `bytes` is null or writable.
unsafe fn resize(
    engine: *mut NeapEngine,
    name: &str,
    bytes: *mut u64,
    change: impl FnOnce(&mut Engine) -> Result<u64, EngineError>,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine that nothing else uses, or null.
        let engine = &mut unsafe { engine.as_mut() }
            .ok_or_else(|| Failure::argument("engine is null"))?
            .engine;
        // SAFETY: the caller passes the address of a number or null.
        let slot = unsafe { out(name, bytes) }?;
        *slot = 0;
        *slot = change(engine).map_err(failed)?;
        Ok(())
    })
}

/// Gives back all KV memory but about `kv_bytes` bytes, and says how many bytes the device has more of. Addresses and
/// graphs stay, and tokens do not change; what a request was accepted for is kept.
///
/// # Safety
/// `engine` is a live engine that no other thread uses; `given_back_bytes` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_shrink(
    engine: *mut NeapEngine,
    kv_bytes: u64,
    given_back_bytes: *mut u64,
) -> NeapStatus {
    let shrink = |engine: &mut Engine| engine.shrink(kv_bytes);
    // SAFETY: as the caller vouches.
    unsafe { resize(engine, "given_back_bytes", given_back_bytes, shrink) }
}

/// Takes KV memory until there are about `kv_bytes` bytes of it, or as much as the device has; says how many there are.
///
/// # Safety
/// `engine` is a live engine that no other thread uses; `now_bytes` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_grow(
    engine: *mut NeapEngine,
    kv_bytes: u64,
    now_bytes: *mut u64,
) -> NeapStatus {
    let grow = |engine: &mut Engine| engine.grow(kv_bytes);
    // SAFETY: as the caller vouches.
    unsafe { resize(engine, "now_bytes", now_bytes, grow) }
}

/// Gives back all KV memory and keeps weights, addresses and graphs; says how many bytes the device has more of. Until
/// `neap_engine_wake` nothing can be generated.
///
/// # Safety
/// `engine` is a live engine that no other thread uses; `given_back_bytes` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_sleep(
    engine: *mut NeapEngine,
    given_back_bytes: *mut u64,
) -> NeapStatus {
    // SAFETY: as the caller vouches.
    unsafe { resize(engine, "given_back_bytes", given_back_bytes, Engine::sleep) }
}

/// Takes back what `neap_engine_sleep` gave away, or as much as the device still has; says how many bytes of KV there are.
///
/// # Safety
/// `engine` is a live engine that no other thread uses; `now_bytes` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_wake(
    engine: *mut NeapEngine,
    now_bytes: *mut u64,
) -> NeapStatus {
    // SAFETY: as the caller vouches.
    unsafe { resize(engine, "now_bytes", now_bytes, Engine::wake) }
}

/// What the prefix cache has done since the engine was loaded; all 0 when it is switched off. Set `struct_size` before the
/// call.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NeapPrefixCounters {
    /// sizeof(NeapPrefixCounters).
    pub struct_size: usize,
    /// Prompts looked up.
    pub lookups: u64,
    /// Those that began like a cached one.
    pub hits: u64,
    /// Prompt tokens that were not computed again.
    pub saved_tokens: u64,
    /// Prompts shorter than one block and one token.
    pub misses_too_short: u64,
    /// Prompts whose first block was not cached.
    pub misses_unknown: u64,
    /// Prompts whose tokens were cached but no window to continue from.
    pub misses_no_window: u64,
    /// Pages in the cache now, all pools together.
    pub cached_pages: u64,
    /// Pages given up so far, all pools together.
    pub evicted_pages: u64,
}

// SAFETY: the first field is the size.
unsafe impl sized::Sized for NeapPrefixCounters {
    const NAME: &'static str = "NeapPrefixCounters";
    const FIRST_BYTES: usize = size_of::<NeapPrefixCounters>();
}

/// Reads the counters of the prefix cache.
///
/// # Safety
/// `engine` is a live engine; `counters` has the bytes its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_prefix_counters(
    engine: *const NeapEngine,
    counters: *mut NeapPrefixCounters,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine or null.
        let engine = unsafe { NeapEngine::borrow(engine) }?;
        let seen = engine.engine.prefix_counters().cloned();
        let seen = seen.unwrap_or_default();
        let value = NeapPrefixCounters {
            struct_size: size_of::<NeapPrefixCounters>(),
            lookups: seen.lookups,
            hits: seen.hits,
            saved_tokens: seen.saved_tokens,
            misses_too_short: seen.misses_too_short,
            misses_unknown: seen.misses_unknown,
            misses_no_window: seen.misses_no_window,
            cached_pages: seen.cached_pages.iter().sum(),
            evicted_pages: seen.evicted_pages.iter().sum(),
        };
        // SAFETY: the caller's struct has the bytes its struct_size says.
        unsafe { sized::write(counters, &value) }
    })
}
