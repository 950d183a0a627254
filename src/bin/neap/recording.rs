//! `neap selftest --record` and `--list`: single instructions on a device, written down for the emulator to be held to.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use neap::DeviceChoice;
use neap::driver::{Context, Device, DriverError, LaunchConfig, Module, Stream};
use neap::emulator::probes::{self, FIXTURES, Outcome, Probe, ROWS};
use serde_json::json;

use crate::report::{CommandError, note, print, print_json};
use crate::session;

/// Runs every probe on a device and writes the recording.
pub fn record(choice: &DeviceChoice, file: &Path) -> Result<(), CommandError> {
    let device = session::open(choice)?;
    let outcome = probe_all(&device).and_then(|(text, refused)| {
        fs::write(file, text).map_err(|error| {
            CommandError::Refused(format!(
                "the recording cannot be written to {} ({error}); name a writable file",
                file.display()
            ))
        })?;
        print(&format!(
            "{} forms recorded, {refused} of them refused by the device\n",
            probes::all().len()
        ))
    });
    session::ended(&device, outcome)
}

/// The recording and the number of refused forms.
fn probe_all(device: &Device) -> Result<(String, usize), CommandError> {
    let (major, minor) = device.compute_capability().map_err(CommandError::refused)?;
    // Architecture-specific instructions need the target with an `a`, which exists from Hopper on.
    let suffix = if major >= 9 { "a" } else { "" };
    let target = format!("sm_{major}{minor}{suffix}");
    let context = Context::retain_primary(device).map_err(CommandError::refused)?;
    let stream = Stream::new(&context).map_err(CommandError::refused)?;
    let mut text = format!(
        "neap instruction probes\ndevice {}, compute capability {major}.{minor}\n",
        device.name()
    );
    let mut refused = 0;
    for probe in probes::all() {
        let outcome = match Module::load(&context, probe.module(&target).as_bytes()) {
            Ok(module) => {
                let results = run(&stream, &module, &probe).map_err(|error| {
                    CommandError::Refused(format!("`{}` failed: {error}", probe.statement))
                })?;
                module.close().map_err(CommandError::refused)?;
                Outcome::Results(results)
            }
            Err(error) => {
                if let Some(cause) = context.poison() {
                    return Err(CommandError::refused(cause));
                }
                refused += 1;
                note(&format!("{}: refused", probe.statement));
                Outcome::Refused(error.to_string())
            }
        };
        text += &probe.record(&outcome);
    }
    stream.close().map_err(CommandError::refused)?;
    context.close().map_err(CommandError::refused)?;
    Ok((text, refused))
}

fn run(stream: &Stream, module: &Module, probe: &Probe) -> Result<Vec<u64>, DriverError> {
    let (operands, _) = module.global("operands")?;
    let (results, _) = module.global("results")?;
    stream.copy_to_device(operands, bytemuck::cast_slice(&probe.operand_words()))?;
    let kernel = module.kernel("probe")?;
    let config = LaunchConfig {
        grid: [ROWS.div_ceil(64) as u32, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 0,
    };
    // SAFETY: the kernel's one parameter is the number of rows, and both variables hold that many.
    unsafe { stream.launch(&kernel, config, &(ROWS as u32)) }?;
    let mut read = vec![0u64; ROWS];
    stream.copy_to_host(bytemuck::cast_slice_mut(&mut read), results)?;
    Ok(read)
}

/// Every form, and the devices whose recordings of it are checked in.
pub fn list(as_json: bool) -> Result<(), CommandError> {
    let recorded: Vec<(&str, Vec<(String, Outcome)>)> = FIXTURES
        .iter()
        .map(|(device, text)| (*device, probes::read(text)))
        .collect();
    let devices = |statement: &str| -> Vec<&str> {
        let has = |found: &[(String, Outcome)]| {
            found
                .iter()
                .any(|(form, outcome)| form == statement && matches!(outcome, Outcome::Results(_)))
        };
        let named = recorded.iter().filter(|(_, found)| has(found));
        named.map(|(device, _)| *device).collect()
    };
    let all = probes::all();
    if as_json {
        let forms: Vec<_> = all
            .iter()
            .map(|probe| json!({"form": probe.statement, "recorded_on": devices(probe.statement)}))
            .collect();
        return print_json(&json!({ "forms": forms }));
    }
    let mut text = String::new();
    let mut without = 0;
    for probe in &all {
        let names = devices(probe.statement);
        without += usize::from(names.is_empty());
        let names = if names.is_empty() {
            "no GPU yet".to_owned()
        } else {
            names.join(", ")
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:<60} {names}", probe.statement);
    }
    let _ = writeln!(
        text,
        "{} forms, {without} without a recording of a GPU (neap selftest --record FILE makes one)",
        all.len()
    );
    print(&text)
}
