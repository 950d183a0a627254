//! Faults of the whole process: what a plan has for calls, whichever device they are for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::failure::Failure;
use super::registry;
use crate::driver::CuResult;
use crate::emulator::faults::{CallFault, FaultPlan, Faults, LaunchFault};

static FAULTS: Mutex<Option<Faults>> = Mutex::new(None);
/// So that calls without a plan pay one load.
static IN_FORCE: AtomicBool = AtomicBool::new(false);

/// Puts a plan in force for the process: its counts run over the calls and launches of all devices.
pub(in crate::emulator) fn add_to_process(plan: FaultPlan) {
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    faults.get_or_insert_default().add(plan);
    IN_FORCE.store(true, Ordering::Release);
}

fn with<T>(body: impl FnOnce(&mut Faults) -> T) -> Option<T> {
    if !IN_FORCE.load(Ordering::Acquire) {
        return None;
    }
    let mut faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    faults.as_mut().map(body)
}

/// What the process's plan has for a call.
pub(super) fn before(call: &'static str) -> Result<(), Failure> {
    let Some(CallFault {
        foreign_bytes,
        code,
    }) = with(|faults| faults.call(call))
    else {
        return Ok(());
    };
    if foreign_bytes != 0 {
        for device in registry::devices() {
            device.lock().take_foreign(foreign_bytes);
        }
    }
    match code {
        None => Ok(()),
        Some(CuResult::SUCCESS) => Ok(()),
        Some(code) => {
            if code.is_sticky()
                && let Ok(device) = registry::current_device()
            {
                device
                    .lock()
                    .poison(code, format!("{code} was injected into {call}"));
            }
            Err(Failure::new(code, format!("injected into {call}")))
        }
    }
}

/// What the process's plan has for a launch.
pub(super) fn of_launch(kernel: &str) -> Option<LaunchFault> {
    with(|faults| faults.launch(kernel)).flatten()
}

/// Most bytes of memory that the process's plan lets a device give.
pub(super) fn memory_limit_bytes() -> Option<u64> {
    with(|faults| faults.memory_limit_bytes()).flatten()
}
