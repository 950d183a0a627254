//! Generating from C, token by token.

use std::ffi::c_void;

use bytemuck::{Pod, Zeroable};

use super::engine::{NeapEngine, failed};
use super::sized::{self, slice};
use super::status::{Failure, NeapStatus, entry};
use crate::engine::{FinishReason, Request};

/// Called with each token as it is generated; anything but 0 stops the generation. It must not call back into
/// the engine.
pub type NeapTokenFn = Option<unsafe extern "C" fn(user: *mut c_void, token: u32) -> i32>;

/// What to generate. Fill it with `neap_generate_options_init`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct NeapGenerateOptions {
    /// sizeof(NeapGenerateOptions).
    pub struct_size: usize,
    /// The most tokens to generate.
    pub max_new_tokens: u32,
    /// 1 to go on past the model's end-of-text tokens.
    pub ignore_stop_tokens: u32,
}

// SAFETY: the first field is the size.
unsafe impl sized::Sized for NeapGenerateOptions {
    const NAME: &'static str = "NeapGenerateOptions";
    const FIRST_BYTES: usize = size_of::<NeapGenerateOptions>();
}

impl NeapGenerateOptions {
    fn defaults() -> NeapGenerateOptions {
        NeapGenerateOptions {
            struct_size: size_of::<NeapGenerateOptions>(),
            max_new_tokens: 64,
            ignore_stop_tokens: 0,
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NeapFinish {
    /// max_new_tokens were generated.
    Length = 0,
    /// The model ended the text; the end-of-text token was the last one reported.
    Stop = 1,
    /// The longest sequence that the model or the KV pools allow was reached.
    Capacity = 2,
    /// The token callback asked for it.
    Callback = 3,
}

/// Fills `options` with the defaults. Set `options->struct_size` before the call.
///
/// # Safety
/// `options` points to as many writable bytes as its `struct_size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_generate_options_init(
    options: *mut NeapGenerateOptions,
) -> NeapStatus {
    // SAFETY: the caller's struct has the bytes its struct_size says.
    entry(|| unsafe { sized::write(options, &NeapGenerateOptions::defaults()) })
}

/// Continues `prompt` greedily and calls `on_token` with each new token. `options` and `finish` may be null.
///
/// # Safety
/// `engine` is a live engine that no other thread uses; `prompt` points to `prompt_tokens` ids; `options` is null
/// or has the bytes its `struct_size` says; `on_token` may be called with `user` during this call; `finish` is
/// null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_generate(
    engine: *mut NeapEngine,
    prompt: *const u32,
    prompt_tokens: usize,
    options: *const NeapGenerateOptions,
    on_token: NeapTokenFn,
    user: *mut c_void,
    finish: *mut NeapFinish,
) -> NeapStatus {
    entry(|| {
        // SAFETY: the caller passes a live engine that nothing else uses, or null.
        let engine = &mut unsafe { engine.as_mut() }
            .ok_or_else(|| Failure::argument("engine is null"))?
            .engine;
        // SAFETY: the caller passes `prompt_tokens` ids.
        let prompt = unsafe { slice("prompt", prompt, prompt_tokens) }?;
        let options = if options.is_null() {
            NeapGenerateOptions::defaults()
        } else {
            // SAFETY: the caller's struct has the bytes its struct_size says.
            unsafe { sized::read(options, NeapGenerateOptions::defaults()) }?
        };
        let stop_tokens = match options.ignore_stop_tokens {
            0 => engine.stop_tokens().to_vec(),
            _ => Vec::new(),
        };
        let request = Request {
            prompt: prompt.to_vec(),
            max_new_tokens: options.max_new_tokens,
            stop_tokens,
        };
        let id = engine.submit(request).map_err(failed)?;
        let mut end = NeapFinish::Length;
        'steps: while engine.has_work() {
            let events = match engine.step() {
                Ok(events) => events,
                Err(error) => {
                    // A request that cannot run now is not left for the next call.
                    let _ = engine.cancel(id);
                    return Err(failed(error));
                }
            };
            for event in events {
                if event.request != id {
                    continue;
                }
                if let Some(callback) = on_token {
                    // SAFETY: the caller passed the callback for exactly this call, with this `user`.
                    if unsafe { callback(user, event.token) } != 0 {
                        engine.cancel(id).map_err(failed)?;
                        end = NeapFinish::Callback;
                        break 'steps;
                    }
                }
                end = match event.finished {
                    Some(FinishReason::Stop) => NeapFinish::Stop,
                    Some(FinishReason::Capacity) => NeapFinish::Capacity,
                    Some(FinishReason::Length) | None => NeapFinish::Length,
                };
            }
        }
        if !finish.is_null() {
            // SAFETY: not null, and the caller passes a writable place.
            unsafe { finish.write(end) };
        }
        Ok(())
    })
}
