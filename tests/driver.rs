//! The driver room over the emulator: handles, virtual memory, streams, capture, graphs, modules, errors.

#[path = "driver/capture.rs"]
mod capture;
#[path = "driver/errors.rs"]
mod errors;
#[path = "driver/faults.rs"]
mod faults;
#[path = "driver/images.rs"]
mod images;
#[path = "driver/kernels.rs"]
mod kernels;
#[path = "driver/loader.rs"]
mod loader;
#[path = "driver/memory.rs"]
mod memory;
#[path = "driver/streams.rs"]
mod streams;
#[macro_use]
#[path = "driver/surface.rs"]
mod surface;
#[path = "driver/threads.rs"]
mod threads;
#[path = "driver/toolchain.rs"]
mod toolchain;
#[path = "driver/two_processes.rs"]
mod two_processes;

use std::sync::Arc;

use neap::driver::{
    AddressReservation, Context, CuResult, Driver, DriverError, PhysicalAllocation,
};
use neap::emulator::{self, CheckKind, CheckOptions, Profile};

const MIB: u64 = 1 << 20;
const GRAIN: u64 = 2 * MIB;

fn tiny() -> Profile {
    Profile::named("tiny").expect("a known profile")
}

/// What `NEAP_CHECK` asks for, if it turns the checked mode on.
fn check_options() -> Option<CheckOptions> {
    CheckOptions::from_environment().expect("a value of NEAP_CHECK")
}

/// As [`tiny`], for a test that does on purpose what the checked mode reports: its reports are only collected.
fn tiny_collecting() -> Profile {
    let mut profile = tiny();
    profile.check = check_options().map(CheckOptions::collecting);
    profile
}

/// Asserts that the checked mode, if it is on, has reported what a test did on purpose, and nothing else.
fn assert_reported(ordinal: u32, kinds: &[CheckKind]) {
    let found: Vec<CheckKind> = emulator::take_check_reports(ordinal)
        .iter()
        .map(|report| report.kind)
        .collect();
    let expected = if check_options().is_some() {
        kinds
    } else {
        &[]
    };
    assert_eq!(found, expected);
}

/// A device of its own and its context: tests run side by side in one process.
fn context_on(profile: Profile) -> (u32, Context) {
    let ordinal = emulator::add_device(profile);
    let device = Driver::emulator()
        .device(ordinal)
        .expect("the device just added");
    let context = Context::retain_primary(&device).expect("an empty device has room");
    (ordinal, context)
}

/// A reservation of `bytes`, mapped as one piece, readable and writable.
fn mapped(context: &Context, bytes: u64) -> AddressReservation {
    let reservation = AddressReservation::new(context, bytes, 0).expect("addresses");
    let physical = Arc::new(PhysicalAllocation::new(context, bytes).expect("memory"));
    reservation.map(0, physical).expect("an empty reservation");
    reservation.set_access(0, bytes).expect("a mapped range");
    reservation
}

/// Asserts that nothing of the device is alive or was left behind.
fn assert_nothing_left(ordinal: u32) {
    let report = emulator::report(ordinal);
    assert_eq!(report.live_objects(), 0, "{report}");
    assert_eq!(report.used_bytes(), 0, "{report}");
}

/// The result code of a call that must have failed in the driver.
fn code_of<T: std::fmt::Debug>(result: Result<T, DriverError>) -> CuResult {
    let error = result.expect_err("the call must fail");
    error
        .code()
        .unwrap_or_else(|| panic!("{error} carries no code"))
}
