//! What every entry point does around its body.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::failure::Failure;
use super::registry::{self, EmulatedDevice, Kind};
use super::state::State;
use crate::driver::CuResult;

/// Runs the body of an entry point. Nothing may unwind into the caller, which need not be Rust.
pub(super) fn entry(body: impl FnOnce() -> Result<(), Failure>) -> CuResult {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if !registry::is_initialised() {
            return Err(CuResult::NOT_INITIALIZED.into());
        }
        body()
    }));
    match outcome {
        Ok(Ok(())) => CuResult::SUCCESS,
        Ok(Err(failure)) => {
            registry::set_detail(failure.detail);
            failure.code
        }
        Err(_) => {
            registry::set_detail(Some("the emulator panicked".to_owned()));
            CuResult::UNKNOWN
        }
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
