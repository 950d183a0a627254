//! neap's emulated CUDA driver as `libcuda.so.1`: a program that opens or links NVIDIA's library runs on it,
//! unmodified, where `LD_LIBRARY_PATH` has this one first.
//!
//! | variable | meaning |
//! |---|---|
//! | `CUDA_VISIBLE_DEVICES` | which of them the program sees, as for NVIDIA's: numbers in order, up to one that is none |
//! | `NEAP_EMULATOR` | devices by profile, `h200` where unset; `h100,a100` is two, `tiny*2` is two alike, none is an empty list |
//! | `NEAP_EMULATOR_FAULTS` | a [fault plan](neap::emulator::FaultPlan) for the process |
//! | `NEAP_EMULATOR_LOG` | `1` tells every call that fails, and why, on standard error |
//! | `NEAP_EMULATOR_LAZY` | `1` runs streams only when somebody waits for them, as neap's own tests do |
//!
//! Every name of CUDA 13's driver headers is exported. What the emulator does not offer answers
//! `CUDA_ERROR_NOT_SUPPORTED`.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use neap::emulator::{self, FaultPlan, Profile};

/// How long work may lie in a stream that nobody waits for.
const PROGRESS: Duration = Duration::from_millis(2);

/// Declares an exported function for each name: a jump to the entry point that the table has for it, which
/// leaves all arguments where they are.
macro_rules! export {
    ($($name:ident)*) => {
        /// Places in the table.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(usize)]
        enum Place { $($name),* }

        const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Addresses of the entry points, written once when the library is loaded.
        static TABLE: [AtomicPtr<c_void>; NAMES.len()] =
            [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

        $(
            #[allow(non_snake_case)]
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            extern "C" fn $name() {
                std::arch::naked_asm!(
                    "jmp qword ptr [rip + {table} + {offset}]",
                    table = sym TABLE,
                    offset = const Place::$name as usize * size_of::<usize>(),
                )
            }
        )*
    };
}

neap::for_each_driver_name!(export);

/// Runs when the library is loaded, before any program can call it.
extern "C" fn load() {
    for (place, name) in TABLE.iter().zip(NAMES) {
        place.store(emulator::entry_point(name).cast_mut(), Ordering::Release);
    }
    match variable("NEAP_EMULATOR_FAULTS").map(|text| text.parse::<FaultPlan>()) {
        Some(Ok(plan)) => emulator::add_process_faults(plan),
        Some(Err(error)) => eprintln!("neap emulator: {error}; nothing fails on purpose"),
        None => {}
    }
    emulator::before_init(|| {
        if let Err(reason) = add_devices() {
            // No device is what a program can cope with; why there is none is for people.
            eprintln!("neap emulator: {reason}; there are no devices");
        }
    });
}

/// A variable of the environment that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

/// Devices that a list of their numbers names, up to the first entry that names none or one again.
fn visible(all: &[Profile], wanted: &str) -> Vec<Profile> {
    let mut taken = std::collections::BTreeSet::new();
    wanted
        .split(',')
        .map_while(|entry| {
            let number = entry.trim().parse::<usize>().ok()?;
            let profile = all.get(number)?;
            taken.insert(number).then(|| profile.clone())
        })
        .collect()
}

/// Adds the devices that the environment asks for.
fn add_devices() -> Result<(), String> {
    let devices = std::env::var("NEAP_EMULATOR").unwrap_or_else(|_| "h200".to_owned());
    let lazy = variable("NEAP_EMULATOR_LAZY").is_some_and(|value| value != "0");
    let mut profiles = Vec::new();
    for part in devices
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (name, count) = match part.split_once('*') {
            Some((name, count)) => (
                name,
                count
                    .parse::<usize>()
                    .map_err(|_| format!("NEAP_EMULATOR: {count:?} is no number of devices"))?,
            ),
            None => (part, 1),
        };
        let profile = Profile::named(name).ok_or_else(|| {
            let known = Profile::names().join(", ");
            format!("NEAP_EMULATOR: there is no profile {name:?}; there are {known}")
        })?;
        profiles.extend(std::iter::repeat_n(profile, count));
    }
    if let Ok(wanted) = std::env::var("CUDA_VISIBLE_DEVICES") {
        profiles = visible(&profiles, &wanted);
    }
    for mut profile in profiles {
        profile.progress = (!lazy).then_some(PROGRESS);
        emulator::add_device(profile);
    }
    Ok(())
}
