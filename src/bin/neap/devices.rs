//! `neap devices`: what is there, and why an entry cannot be used.

use neap::driver::{Attribute, Device, Driver, DriverError};
use neap::emulator::Profile;
use serde::Serialize;

use crate::args::DevicesArgs;
use crate::report::{CommandError, print, print_json};

/// One line of the list.
#[derive(Debug, Serialize)]
struct Entry {
    /// What to give to --device.
    device: String,
    name: String,
    total_bytes: Option<u64>,
    granularity_bytes: Option<u64>,
    compute_capability: Option<String>,
    multiprocessors: Option<u32>,
    /// Whether neap runs on it.
    usable: bool,
    /// Why not.
    reason: Option<String>,
}

impl Entry {
    fn unusable(device: String, name: String, reason: String) -> Entry {
        Entry {
            device,
            name,
            total_bytes: None,
            granularity_bytes: None,
            compute_capability: None,
            multiprocessors: None,
            usable: false,
            reason: Some(reason),
        }
    }
}

/// Runs the command.
pub fn run(args: &DevicesArgs) -> Result<(), CommandError> {
    let mut entries = cuda_entries();
    entries.extend(
        Profile::names()
            .into_iter()
            .filter_map(|name| Some(profile_entry(name, &Profile::named(name)?))),
    );
    if args.json {
        return print_json(&entries);
    }
    let mut text = String::new();
    for entry in &entries {
        text += &line(entry);
    }
    print(&text)
}

fn line(entry: &Entry) -> String {
    if let Some(reason) = &entry.reason {
        return format!(
            "{:<12} {} cannot be used: {reason}\n",
            entry.device, entry.name
        );
    }
    let mib =
        |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    format!(
        "{:<12} {:<32} {:>10}, granularity {}, sm_{}, {} SMs\n",
        entry.device,
        entry.name,
        mib(entry.total_bytes),
        mib(entry.granularity_bytes),
        entry
            .compute_capability
            .as_deref()
            .unwrap_or("?")
            .replace('.', ""),
        entry
            .multiprocessors
            .map_or("?".to_owned(), |count| count.to_string()),
    )
}

fn cuda_entries() -> Vec<Entry> {
    let driver = match Driver::cuda() {
        Ok(driver) => driver,
        Err(error) => {
            return vec![Entry::unusable(
                "cuda".to_owned(),
                String::new(),
                error.to_string(),
            )];
        }
    };
    match driver.device_count() {
        Ok(0) => vec![Entry::unusable(
            "cuda".to_owned(),
            String::new(),
            "the driver shows no device; check CUDA_VISIBLE_DEVICES and nvidia-smi".to_owned(),
        )],
        Ok(count) => (0..count)
            .map(|ordinal| cuda_entry(&driver, ordinal))
            .collect(),
        Err(error) => vec![Entry::unusable(
            "cuda".to_owned(),
            String::new(),
            error.to_string(),
        )],
    }
}

fn cuda_entry(driver: &Driver, ordinal: u32) -> Entry {
    let name = format!("cuda:{ordinal}");
    match driver
        .device(ordinal)
        .and_then(|device| usable_entry(name.clone(), &device))
    {
        Ok(entry) => entry,
        Err(error) => Entry::unusable(name, String::new(), error.to_string()),
    }
}

/// The least compute capability the kernels are built for.
const LEAST_CAPABILITY: (u32, u32) = (8, 0);

fn usable_entry(name: String, device: &Device) -> Result<Entry, DriverError> {
    let capability = device.compute_capability()?;
    let reason = if capability < LEAST_CAPABILITY {
        Some(format!(
            "compute capability {}.{} is below {}.{}, the least the kernels are built for",
            capability.0, capability.1, LEAST_CAPABILITY.0, LEAST_CAPABILITY.1
        ))
    } else if device.attribute(Attribute::VirtualMemoryManagement)? == 0 {
        Some("it has no virtual memory management (cuMemCreate), which the arenas need".to_owned())
    } else {
        None
    };
    Ok(Entry {
        device: name,
        name: device.name().to_owned(),
        total_bytes: Some(device.total_bytes()),
        granularity_bytes: Some(device.granularity_bytes()),
        compute_capability: Some(format!("{}.{}", capability.0, capability.1)),
        multiprocessors: u32::try_from(device.attribute(Attribute::MultiprocessorCount)?).ok(),
        usable: reason.is_none(),
        reason,
    })
}

fn profile_entry(name: &str, profile: &Profile) -> Entry {
    let (major, minor) = profile.compute_capability;
    Entry {
        device: format!("emu:{name}"),
        name: profile.name.clone(),
        total_bytes: Some(profile.total_bytes),
        granularity_bytes: Some(profile.granularity_bytes),
        compute_capability: Some(format!("{major}.{minor}")),
        multiprocessors: Some(profile.sm_count),
        usable: true,
        reason: None,
    }
}
