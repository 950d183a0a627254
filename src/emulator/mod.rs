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
//! | [`DeviceReport`] | live objects, memory by holder, calls, counters |
//! | [`ptx`], [`ir`], [`exec`] | PTX text to intermediate form to execution |

pub mod exec;
pub mod ir;
pub mod ptx;

mod profile;
mod report;

pub use exec::Counters;
pub use profile::Profile;
pub use report::{DeviceReport, LiveObjects};

use crate::driver::{CuResult, Driver};

impl Driver {
    /// The emulator's driver: one for the process, as a real one is.
    #[must_use]
    pub fn emulator() -> Driver {
        unimplemented!("the emulated driver lands next")
    }
}

/// Adds a device and gives its ordinal in [`Driver::emulator`]. Devices are never removed.
pub fn add_device(_profile: Profile) -> u32 {
    unimplemented!("the emulated driver lands next")
}

/// The state of a device.
///
/// # Panics
/// When there is no device of this ordinal.
#[must_use]
pub fn report(_ordinal: u32) -> DeviceReport {
    unimplemented!("the emulated driver lands next")
}

/// Text of the fault that ended the life of the device's context, if one did.
#[must_use]
pub fn last_fault(_ordinal: u32) -> Option<String> {
    unimplemented!("the emulated driver lands next")
}

/// Why the calling thread's latest failed call on the emulator failed, where there is more to say than the code.
#[must_use]
pub fn last_error_detail() -> Option<String> {
    unimplemented!("the emulated driver lands next")
}

/// Makes the `nth` call (from 1, counted from now) of the C function `call` on this device fail with `code`.
pub fn fail_call(_ordinal: u32, _call: &'static str, _nth: u64, _code: CuResult) {
    unimplemented!("the emulated driver lands next")
}
