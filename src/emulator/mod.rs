//! A software CUDA device behind the driver's function table.
//!
//! It executes the PTX that nvcc made, on the CPU, and is strict where hardware is. Devices are added
//! at run time; like a real driver's, its state is global to the process:
//!
//! ```
//! use neap::driver::Driver;
//! use neap::emulator::{self, Profile};
//!
//! let mut profile = Profile::named("tiny").expect("a known profile");
//! profile.foreign_bytes = 64 << 20;
//! let ordinal = emulator::add_device(profile);
//! let device = Driver::emulator().device(ordinal)?;
//! assert_eq!(device.total_bytes(), 512 << 20);
//! assert_eq!(emulator::report(ordinal).live_objects(), 0);
//! # Ok::<(), neap::driver::DriverError>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`Profile`] | what a device claims to be, and what contexts, modules and graphs cost on it |
//! | [`FaultPlan`] | calls that fail, memory that runs out, launches that fault or hang |
//! | [`DeviceReport`] | live objects, memory by holder, calls, counters |
//! | [`probes`] | single instructions over fixed operands, for recordings of real GPUs |
//! | [`ptx`], [`ir`], [`exec`] | PTX text to intermediate form to execution |
//! | [`check`] | the checked mode: races, uninitialised reads, bounds, leaks |

pub mod check;
pub mod exec;
pub mod ir;
pub mod probes;
pub mod ptx;

mod driver;
mod expectation;
mod faults;
mod mem;
mod profile;
mod report;
mod time_model;

pub use check::{CheckKind, CheckOptions, CheckReport};
pub use exec::{Counters, InstructionClass, OpcodeCounts};
pub use expectation::{Expectation, Unexpected};
pub use faults::{FaultPlan, FaultPlanError, LaunchFault};
pub use profile::Profile;
pub use report::{DeviceReport, LiveObjects};
pub use time_model::ModelTime;

use crate::driver::{Api, CuResult, Driver};

impl Driver {
    /// The emulator's driver: one for the process, as a real one is.
    #[must_use]
    pub fn emulator() -> Driver {
        let api: &'static Api = &driver::API;
        // SAFETY: cuInit takes no pointers.
        let result = unsafe { (api.cu_init)(0) };
        debug_assert!(
            result.is_success(),
            "the emulator's cuInit has no way to fail"
        );
        Driver::from_api(
            api,
            true,
            driver::used_without_context_bytes,
            Some(driver::annotate),
        )
    }
}

/// Adds a device and gives its ordinal in [`Driver::emulator`]. Devices are never removed.
///
/// # Panics
/// When the granularity is not a power of two of at least 4 KiB, the device has no memory, or `NEAP_CHECK` is malformed.
pub fn add_device(profile: Profile) -> u32 {
    let grain = profile.granularity_bytes;
    assert!(
        grain.is_power_of_two() && grain >= 4096,
        "the granularity must be a power of two of at least 4096 bytes, not {grain}"
    );
    assert!(profile.total_bytes >= grain, "the device has no memory");
    let mut profile = profile;
    if profile.check.is_none() {
        profile.check = match CheckOptions::from_environment() {
            Ok(check) => check,
            Err(message) => panic!("{message}"),
        };
    }
    driver::add_device(profile)
}

/// The state of a device.
///
/// # Panics
/// When there is no device of this ordinal.
#[must_use]
pub fn report(ordinal: u32) -> DeviceReport {
    match driver::report(ordinal) {
        Some(report) => report,
        None => panic!("the emulator has no device {ordinal}"),
    }
}

/// Text of the latest fault that ended the life of a context of the device: which kernel, block, warp,
/// lane, PTX line and address. It stays when the context is gone.
#[must_use]
pub fn last_fault(ordinal: u32) -> Option<String> {
    driver::fault(ordinal)
}

/// Everything the checked mode has found on the device so far, one entry a kind and place; empty without checked mode.
///
/// # Panics
/// When there is no device of this ordinal.
#[must_use]
pub fn check_reports(ordinal: u32) -> Vec<CheckReport> {
    match driver::checker(ordinal) {
        Some(checker) => checker.map_or_else(Vec::new, |checker| checker.reports()),
        None => panic!("the emulator has no device {ordinal}"),
    }
}

/// As [`check_reports`], and forgets them.
///
/// # Panics
/// When there is no device of this ordinal.
pub fn take_check_reports(ordinal: u32) -> Vec<CheckReport> {
    match driver::checker(ordinal) {
        Some(checker) => checker.map_or_else(Vec::new, |checker| checker.take_reports()),
        None => panic!("the emulator has no device {ordinal}"),
    }
}

/// Why the calling thread's latest failed call on the emulator failed, where there is more to say than the code.
#[must_use]
pub fn last_error_detail() -> Option<String> {
    driver::detail()
}

/// Makes the `nth` call (from 1, counted from now) of the C function `call` on this device fail with
/// `code`, without effect. A code that ends a context's life does so here as well.
pub fn fail_call(ordinal: u32, call: &str, nth: u64, code: CuResult) {
    driver::fail_call(ordinal, call, nth, code);
}

/// Runs `body` before the driver is initialised (`cuInit`) for the first time in this process: the time at which NVIDIA's driver
/// reads the environment. It must not call the driver.
pub fn before_init(body: fn()) {
    driver::before_init(body);
}

/// Puts a plan in force on a device, beside what is in force already; its counts begin now.
pub fn add_faults(ordinal: u32, plan: FaultPlan) {
    driver::add_faults(ordinal, plan);
}

/// Puts a plan in force for the whole process: its counts run over the calls and launches of all
/// devices, those that belong to no device (`cuInit`, `cuDeviceGet`) included.
pub fn add_process_faults(plan: FaultPlan) {
    driver::faults::add_to_process(plan);
}

/// The address of an emulated driver function by the name that a driver library exports, `_v2`, `_ptsz`
/// and all; of a function that answers `CUDA_ERROR_NOT_SUPPORTED` where the emulator does not offer it.
#[must_use]
pub fn entry_point(symbol: &str) -> *const std::ffi::c_void {
    driver::entry_point(symbol)
}
