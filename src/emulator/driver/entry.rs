//! What every entry point does around its body.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::failure::Failure;
use super::faults;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::State;
use crate::driver::CuResult;

/// Pause between two looks at what a call waits for.
const WAIT_STEP: Duration = Duration::from_micros(50);

/// Runs the body of an entry point. Nothing may unwind into the caller, which need not be Rust.
pub(super) fn entry(call: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> CuResult {
    finish(
        call,
        catch_unwind(AssertUnwindSafe(|| {
            if !registry::is_initialised() {
                return Err(CuResult::NOT_INITIALIZED.into());
            }
            if registry::is_in_host_function() {
                return Err(Failure::new(
                    CuResult::NOT_PERMITTED,
                    "a stream's host function must not call the driver",
                ));
            }
            faults::before(call)?;
            body()
        })),
    )
}

/// Runs the body of an entry point that needs no `cuInit`.
pub(super) fn entry_any_time(
    call: &'static str,
    body: impl FnOnce() -> Result<(), Failure>,
) -> CuResult {
    finish(
        call,
        catch_unwind(AssertUnwindSafe(|| {
            faults::before(call)?;
            body()
        })),
    )
}

fn finish(call: &'static str, outcome: std::thread::Result<Result<(), Failure>>) -> CuResult {
    let (code, detail) = match outcome {
        Ok(Ok(())) => return CuResult::SUCCESS,
        Ok(Err(failure)) => (failure.code, failure.detail),
        Err(_) => (CuResult::UNKNOWN, Some("the emulator panicked".to_owned())),
    };
    if registry::logs_failures() {
        eprintln!(
            "neap emulator: {call}: {code}: {}",
            detail.as_deref().unwrap_or("no more is known")
        );
    }
    registry::set_detail(detail);
    code
}

/// The name of a call without its version, `cuMemAlloc` of `cuMemAlloc_v2`: what faults and counts go by.
pub(super) const fn base_name(symbol: &str) -> &str {
    let bytes = symbol.as_bytes();
    let len = bytes.len();
    if len > 3
        && bytes[len - 3] == b'_'
        && bytes[len - 2] == b'v'
        && bytes[len - 1].is_ascii_digit()
    {
        symbol.split_at(len - 3).0
    } else {
        symbol
    }
}

/// Runs `body` on a device whose context is alive and without sticky error.
pub(super) fn on_device<T>(
    call: &'static str,
    device: &EmulatedDevice,
    body: impl FnOnce(&mut State) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut state = device.lock();
    state.begin(call)?;
    state.alive()?;
    body(&mut state)
}

/// Runs `body`, which gives an object back. A sticky error does not keep the object alive, it is
/// only returned afterwards.
pub(super) fn give_back<T>(
    call: &'static str,
    device: &EmulatedDevice,
    body: impl FnOnce(&mut State) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut state = device.lock();
    state.begin(call)?;
    let outcome = body(&mut state)?;
    state.alive()?;
    Ok(outcome)
}

/// The device's state, once all that can run has and no host function is at it: it may use what a call gives back.
pub(super) fn settled(device: &EmulatedDevice) -> MutexGuard<'_, State> {
    let mut state = device.lock();
    loop {
        state.drain_all();
        if !state.host_functions.are_running() {
            return state;
        }
        drop(state);
        std::thread::sleep(WAIT_STEP);
        state = device.lock();
    }
}

/// As [`give_back`], of what queued work may use: that work runs first.
pub(super) fn give_back_idle<T>(
    call: &'static str,
    device: &EmulatedDevice,
    body: impl FnOnce(&mut State) -> Result<T, Failure>,
) -> Result<T, Failure> {
    device.lock().begin(call)?;
    let mut state = settled(device);
    let outcome = body(&mut state)?;
    state.alive()?;
    Ok(outcome)
}

/// Waits until `done`, which runs what can run, says true. The device is free for other threads while
/// nothing can: what is waited for may come from them, or from the host.
pub(super) fn wait(
    call: &'static str,
    device: &EmulatedDevice,
    mut prepare: impl FnMut(&mut State) -> Result<(), Failure>,
    mut done: impl FnMut(&mut State) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut state = device.lock();
    state.begin(call)?;
    state.alive()?;
    prepare(&mut state)?;
    loop {
        let mut is_done = done(&mut state)?;
        if !is_done {
            // Another stream of this device may be what it waits for.
            state.drain_all();
            is_done = done(&mut state)?;
        }
        state.alive()?;
        if is_done {
            return Ok(());
        }
        drop(state);
        std::thread::sleep(WAIT_STEP);
        state = device.lock();
    }
}

/// Runs `body` on the device of the current context.
pub(super) fn on_current<T>(
    call: &'static str,
    body: impl FnOnce(&mut State) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let device = registry::current_device()?;
    on_device(call, &device, body)
}

/// Device and serial that a handle names.
pub(super) fn named(
    raw: u64,
    kind: Kind,
    what: &str,
) -> Result<(Arc<EmulatedDevice>, u64), Failure> {
    registry::decode(raw, kind).ok_or_else(|| Failure::handle(what))
}

/// Writes a result through a pointer argument.
///
/// # Safety
/// `pointer` must be null or valid for writing a `T`.
pub(super) unsafe fn write<T>(pointer: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller answers for a non-null pointer.
    unsafe { pointer.write(value) };
    Ok(())
}
