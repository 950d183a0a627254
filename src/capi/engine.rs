//! Loading a model, reading its ledger and carve, and generating from C.

use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

use bytemuck::{Pod, Zeroable};

use super::device::{NeapDevice, copy_name};
use super::sized::{self, out, text};
use super::status::{Failure, NeapStatus, entry};
use crate::engine::{Engine, EngineError, EngineOptions, Progress};
#[cfg(feature = "text")]
use crate::model::Tokenizer;

/// A loaded model: graphs captured, KV pools carved, ready to generate.
pub struct NeapEngine {
    pub(super) engine: Engine,
    page_size: u32,
    #[cfg(feature = "text")]
    tokenizer: Result<Tokenizer, String>,
}

impl NeapEngine {
    /// # Safety
    /// `engine` is null or a live engine.
    pub(super) unsafe fn borrow<'a>(engine: *const NeapEngine) -> Result<&'a NeapEngine, Failure> {
        // SAFETY: the caller vouches for it.
        unsafe { engine.as_ref() }.ok_or_else(|| Failure::argument("engine is null"))
    }

    #[cfg(feature = "text")]
    pub(super) fn tokenizer(&self) -> Result<&Tokenizer, Failure> {
        self.tokenizer
            .as_ref()
            .map_err(|sentence| Failure::new(NeapStatus::Model, sentence))
    }
}

pub(super) fn failed(error: EngineError) -> Failure {
    let status = match error {
        EngineError::Model(_) => NeapStatus::Model,
        EngineError::Driver(_) | EngineError::Arena(_) => NeapStatus::Device,
        _ => NeapStatus::Engine,
    };
    Failure::new(status, error)
}

/// How an engine is started. Fill it with `neap_engine_options_init`, then change what you need.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NeapEngineOptions {
    /// sizeof(NeapEngineOptions).
    pub struct_size: usize,
    /// Device memory left to others, in bytes.
    pub headroom_bytes: u64,
    /// The most KV memory to take, in bytes; 0 for all that is left.
    pub kv_limit_bytes: u64,
    /// Tokens a KV page: a power of two, at most 256.
    pub page_size: u32,
    /// The most sequences that run at once.
    pub max_seqs: u32,
    /// The longest sequence in tokens; 0 for what the model's config says.
    pub max_model_len: u32,
    /// The most prompt tokens of one prefill chunk.
    pub max_chunk_tokens: u32,
    /// 1 to launch kernel by kernel instead of replaying graphs; the tokens are the same.
    pub eager: u32,
    /// 1 to compute every prompt in full; the tokens are the same.
    pub no_prefix_cache: u32,
    /// No more KV memory than so many resident tokens can fill; 0 for no such bound.
    pub max_kv_tokens: u64,
}

// SAFETY: the first field is the size.
unsafe impl sized::Sized for NeapEngineOptions {
    const NAME: &'static str = "NeapEngineOptions";
    const FIRST_BYTES: usize = std::mem::offset_of!(NeapEngineOptions, max_kv_tokens);
}

impl NeapEngineOptions {
    fn defaults() -> NeapEngineOptions {
        let options = EngineOptions::default();
        NeapEngineOptions {
            struct_size: size_of::<NeapEngineOptions>(),
            headroom_bytes: options.headroom_bytes,
            kv_limit_bytes: options.kv_limit_bytes.unwrap_or(0),
            page_size: options.page_size,
            max_seqs: options.max_seqs,
            max_model_len: options.max_model_len.unwrap_or(0),
            max_chunk_tokens: options.max_chunk_tokens,
            eager: u32::from(options.eager),
            no_prefix_cache: u32::from(!options.prefix_cache),
            max_kv_tokens: options.max_kv_tokens.unwrap_or(0),
        }
    }

    fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            headroom_bytes: self.headroom_bytes,
            kv_limit_bytes: (self.kv_limit_bytes != 0).then_some(self.kv_limit_bytes),
            page_size: self.page_size,
            max_seqs: self.max_seqs,
            max_model_len: (self.max_model_len != 0).then_some(self.max_model_len),
            max_chunk_tokens: self.max_chunk_tokens,
            eager: self.eager != 0,
            prefix_cache: self.no_prefix_cache == 0,
            max_kv_tokens: (self.max_kv_tokens != 0).then_some(self.max_kv_tokens),
            ..EngineOptions::default()
        }
    }
}

/// Called while a model loads. `phase` is a short text, `done` of `total` are bytes or graphs, 0 of 0 where
/// the phase has no parts.
pub type NeapProgressFn =
    Option<unsafe extern "C" fn(user: *mut c_void, phase: *const c_char, done: u64, total: u64)>;

/// Fills `options` with the defaults. Set `options->struct_size` before the call.
///
/// # Safety
/// `options` points to as many writable bytes as its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_options_init(options: *mut NeapEngineOptions) -> NeapStatus {
    // SAFETY: the caller's struct has the bytes its struct_size says.
    entry(|| unsafe { sized::write(options, &NeapEngineOptions::defaults()) })
}

/// Loads a model folder onto a device, captures its graphs, measures what memory is left and carves the KV pools
/// from it. `options`, `progress` and `user` may be null. Close it with `neap_engine_close`.
///
/// # Safety
/// `device` is a live device; `model_dir` is NUL-terminated; `options` is null or has the bytes its `struct_size`
/// says; `progress` may be called with `user` during this call; `engine` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_load(
    device: *const NeapDevice,
    model_dir: *const c_char,
    options: *const NeapEngineOptions,
    progress: NeapProgressFn,
    user: *mut c_void,
    engine: *mut *mut NeapEngine,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes the address of a pointer or null.
        let slot = unsafe { out("engine", engine) }?;
        *slot = std::ptr::null_mut();
        // SAFETY: the caller passes a live device or null.
        let device =
            unsafe { device.as_ref() }.ok_or_else(|| Failure::argument("device is null"))?;
        // SAFETY: the caller passes a NUL-terminated text or null.
        let model_dir = Path::new(unsafe { text("model_dir", model_dir) }?);
        let options = if options.is_null() {
            NeapEngineOptions::defaults()
        } else {
            // SAFETY: the caller's struct has the bytes its struct_size says.
            unsafe { sized::read(options, NeapEngineOptions::defaults()) }?
        };
        let mut tell = |now: Progress| {
            if let Some(callback) = progress {
                let (phase, done, total) = phase(&now);
                // SAFETY: the caller passed the callback for exactly this call, with this `user`.
                unsafe { callback(user, phase.as_ptr(), done, total) };
            }
        };
        let engine = Engine::load(
            &device.device,
            model_dir,
            &options.engine_options(),
            &mut tell,
        )
        .map_err(failed)?;
        let page_size = options.page_size;
        #[cfg(feature = "text")]
        let tokenizer = Tokenizer::from_dir(model_dir).map_err(|error| error.to_string());
        *slot = Box::into_raw(Box::new(NeapEngine {
            engine,
            page_size,
            #[cfg(feature = "text")]
            tokenizer,
        }));
        Ok(())
    })
}

fn phase(progress: &Progress) -> (&'static CStr, u64, u64) {
    match *progress {
        Progress::Weights {
            done_bytes,
            total_bytes,
        } => (c"weights", done_bytes, total_bytes),
        Progress::Capture { done, total } => (c"capture", u64::from(done), u64::from(total)),
        Progress::Measure => (c"measure", 0, 0),
        Progress::Carve => (c"carve", 0, 0),
    }
}

/// Who holds the device's memory, in bytes, as measured at start-up. The parts and `unaccounted_bytes` add up to
/// `total_bytes`. Set `struct_size` before the call.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NeapLedger {
    /// sizeof(NeapLedger).
    pub struct_size: usize,
    /// All device memory.
    pub total_bytes: u64,
    /// Held by others before neap came.
    pub foreign_bytes: u64,
    /// The driver's context.
    pub context_bytes: u64,
    /// Kernel images.
    pub modules_bytes: u64,
    /// Model weights.
    pub weights_bytes: u64,
    /// Activations, logits, block tables and work lists.
    pub workspace_bytes: u64,
    /// Captured graphs.
    pub graphs_bytes: u64,
    /// Left to others on purpose.
    pub headroom_bytes: u64,
    /// The KV pools.
    pub kv_bytes: u64,
    /// Mapped for KV, but less than a slab.
    pub tail_bytes: u64,
    /// What is missing from the sum: negative when the parts exceed the total.
    pub unaccounted_bytes: i64,
}

// SAFETY: the first field is the size.
unsafe impl sized::Sized for NeapLedger {
    const NAME: &'static str = "NeapLedger";
    const FIRST_BYTES: usize = size_of::<NeapLedger>();
}

/// Reads the ledger.
///
/// # Safety
/// `engine` is a live engine; `ledger` has the bytes its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_ledger(
    engine: *const NeapEngine,
    ledger: *mut NeapLedger,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine or null.
        let engine = unsafe { NeapEngine::borrow(engine) }?;
        let held = engine.engine.ledger();
        let value = NeapLedger {
            struct_size: size_of::<NeapLedger>(),
            total_bytes: held.total_bytes,
            foreign_bytes: held.foreign_bytes,
            context_bytes: held.context_bytes,
            modules_bytes: held.modules_bytes,
            weights_bytes: held.weights_bytes,
            workspace_bytes: held.workspace_bytes,
            graphs_bytes: held.graphs_bytes,
            headroom_bytes: held.headroom_bytes,
            kv_bytes: held.kv.iter().map(|share| share.bytes).sum(),
            tail_bytes: held.tail_bytes,
            unaccounted_bytes: held.unaccounted_bytes,
        };
        // SAFETY: the caller's struct has the bytes its struct_size says.
        unsafe { sized::write(ledger, &value) }
    })
}

/// How the KV memory was carved. Set `struct_size` before the call.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NeapCarve {
    /// sizeof(NeapCarve).
    pub struct_size: usize,
    /// Bytes of a slab, the unit in which pools take memory.
    pub slab_bytes: u64,
    /// Bytes that are mapped but no whole slab.
    pub tail_bytes: u64,
    /// Pools: one for each layer group.
    pub num_pools: u32,
    /// Tokens a page.
    pub page_size: u32,
}

// SAFETY: the first field is the size.
unsafe impl sized::Sized for NeapCarve {
    const NAME: &'static str = "NeapCarve";
    const FIRST_BYTES: usize = size_of::<NeapCarve>();
}

/// Reads the carve.
///
/// # Safety
/// `engine` is a live engine; `carve` has the bytes its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_carve(
    engine: *const NeapEngine,
    carve: *mut NeapCarve,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine or null.
        let engine = unsafe { NeapEngine::borrow(engine) }?;
        let report = engine.engine.carve();
        let value = NeapCarve {
            struct_size: size_of::<NeapCarve>(),
            slab_bytes: report.slab_bytes,
            tail_bytes: report.tail_bytes,
            num_pools: report.pools.len() as u32,
            page_size: engine.page_size,
        };
        // SAFETY: the caller's struct has the bytes its struct_size says.
        unsafe { sized::write(carve, &value) }
    })
}

/// One pool of the carve. Set `struct_size` before the call.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NeapPool {
    /// sizeof(NeapPool).
    pub struct_size: usize,
    /// Bytes of a page: K and V of every layer of the group.
    pub page_bytes: u64,
    /// Pages of the pool.
    pub pages: u64,
    /// Tokens these pages hold.
    pub tokens: u64,
    /// Layers of the group.
    pub num_layers: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// The group's name, such as "full" or "swa", NUL-terminated.
    pub group: [c_char; 32],
}

// SAFETY: the first field is the size.
unsafe impl sized::Sized for NeapPool {
    const NAME: &'static str = "NeapPool";
    const FIRST_BYTES: usize = size_of::<NeapPool>();
}

/// Reads pool `index` of the carve, below `NeapCarve.num_pools`.
///
/// # Safety
/// `engine` is a live engine; `pool` has the bytes its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_pool(
    engine: *const NeapEngine,
    index: u32,
    pool: *mut NeapPool,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine or null.
        let report = unsafe { NeapEngine::borrow(engine) }?.engine.carve();
        let found = report.pools.get(index as usize).ok_or_else(|| {
            Failure::argument(format!(
                "pool index {index} is not below the number of pools, {}",
                report.pools.len()
            ))
        })?;
        let mut value = NeapPool {
            struct_size: size_of::<NeapPool>(),
            page_bytes: found.page_bytes,
            pages: found.pages,
            tokens: found.tokens,
            num_layers: found.layers as u32,
            reserved: 0,
            group: [0; 32],
        };
        copy_name(&found.group, &mut value.group);
        // SAFETY: the caller's struct has the bytes its struct_size says.
        unsafe { sized::write(pool, &value) }
    })
}

/// Closes an engine and gives back all its device memory; null is accepted. The handle is gone whatever is
/// returned.
///
/// # Safety
/// `engine` is null or a live engine that nothing uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_engine_close(engine: *mut NeapEngine) -> NeapStatus {
    entry(|| {
        if engine.is_null() {
            return Ok(());
        }
        // SAFETY: the pointer came from Box::into_raw in neap_engine_load, and the caller gives it up.
        let handle = unsafe { Box::from_raw(engine) };
        handle.engine.close().map_err(failed)
    })
}
