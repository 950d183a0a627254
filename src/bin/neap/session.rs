//! A device and an engine opened for one command, and the check that nothing of them is left behind.

use std::path::Path;

use neap::DeviceChoice;
use neap::driver::Device;
use neap::emulator;
use neap::engine::{Engine, EngineOptions};
use serde_json::{Value, json};

use crate::progress::ProgressDisplay;
use crate::report::CommandError;

/// Opens the device named on the command line.
pub fn open(choice: &DeviceChoice) -> Result<Device, CommandError> {
    choice.open().map_err(CommandError::refused)
}

/// Loads a model, with progress on standard error if `show_progress`.
pub fn load(
    device: &Device,
    model: &Path,
    options: &EngineOptions,
    show_progress: bool,
) -> Result<Engine, CommandError> {
    let mut display = ProgressDisplay::new();
    let loaded = Engine::load(device, model, options, &mut |now| {
        if show_progress {
            display.show(&now);
        }
    });
    display.finish();
    loaded.map_err(CommandError::refused)
}

/// Checks that an emulated device holds nothing any more; a CUDA driver does not tell.
///
/// # Errors
/// `CheckFailed` names what is left.
pub fn nothing_left(device: &Device) -> Result<(), CommandError> {
    if !device.driver().is_emulator() {
        return Ok(());
    }
    let left = emulator::report(device.ordinal());
    if left.live_objects() == 0 && left.used_bytes() == 0 {
        return Ok(());
    }
    Err(CommandError::CheckFailed(format!(
        "neap has a bug: it left driver objects behind ({left})"
    )))
}

/// The outcome of a command after the leak check, which matters most after a failure.
pub fn ended(device: &Device, outcome: Result<(), CommandError>) -> Result<(), CommandError> {
    match (outcome, nothing_left(device)) {
        (Err(CommandError::Refused(sentence)), Err(CommandError::CheckFailed(leak))) => Err(
            CommandError::CheckFailed(format!("{sentence}; moreover, {leak}")),
        ),
        (Err(error), _) => Err(error),
        (Ok(()), check) => check,
    }
}

/// What a device is, for JSON.
pub fn device_json(device: &Device) -> Result<Value, CommandError> {
    let (major, minor) = device.compute_capability().map_err(CommandError::refused)?;
    Ok(json!({
        "name": device.name(),
        "ordinal": device.ordinal(),
        "emulator": device.driver().is_emulator(),
        "total_bytes": device.total_bytes(),
        "granularity_bytes": device.granularity_bytes(),
        "compute_capability": format!("{major}.{minor}"),
    }))
}
