//! `neap selftest --record`, `--list` and `--ptx`: single instructions on a device, written down for the emulator to be held
//! to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use neap::DeviceChoice;
use neap::driver::{Context, Device, DriverError, LaunchConfig, Module, Stream};
use neap::emulator::probes::{self, FIXTURES, Family, GIVEN, Outcome, Probe, Recorded};
use serde_json::json;

use crate::report::{CommandError, note, print, print_json, write_file};
use crate::session;

/// Runs every probe on a device and writes the recording.
pub fn record(choice: &DeviceChoice, file: &Path) -> Result<(), CommandError> {
    let device = session::open(choice)?;
    let outcome = record_all(&device, file);
    session::ended(&device, outcome)
}

/// What runs probes, one after the other.
struct Bench {
    context: Context,
    stream: Stream,
}

impl Bench {
    fn new(device: &Device) -> Result<Bench, CommandError> {
        let context = Context::retain_primary(device).map_err(CommandError::refused)?;
        let stream = Stream::new(&context).map_err(CommandError::refused)?;
        Ok(Bench { context, stream })
    }

    fn close(self) -> Result<(), CommandError> {
        self.stream.close().map_err(CommandError::refused)?;
        self.context.close().map_err(CommandError::refused)
    }
}

/// Forms of a family by how they went: recorded, refused, failed.
type Counts = BTreeMap<Family, [usize; 3]>;

/// Writes each probe's outcome as it comes, so that what has run survives whatever a later one does.
fn record_all(device: &Device, file: &Path) -> Result<(), CommandError> {
    let unwritten = |error: std::io::Error| {
        CommandError::Refused(format!(
            "the recording cannot be written to {} ({error}); name a writable file",
            file.display()
        ))
    };
    let (major, minor) = device.compute_capability().map_err(CommandError::refused)?;
    let capability = 10 * major + minor;
    // Architecture-specific instructions need the target with an `a`, which exists from Hopper on.
    let suffix = if major >= 9 { "a" } else { "" };
    let target = format!("sm_{capability}{suffix}");
    let mut bench = Bench::new(device)?;
    let mut recording = File::create(file).map_err(unwritten)?;
    writeln!(
        recording,
        "neap instruction probes\ndevice {}, compute capability {major}.{minor}",
        device.name()
    )
    .map_err(unwritten)?;
    let mut counts = Counts::new();
    for probe in probes::all() {
        let outcome = if probe.needs.runs_on(capability) {
            run(&bench, &probe, &target)
        } else {
            Outcome::Refused(format!("needs {}", probe.needs.target()))
        };
        let way = match &outcome {
            Outcome::Results(_) => 0,
            Outcome::Refused(_) => 1,
            Outcome::Failed(reason) => {
                note(&format!("{}: {reason}", probe.form));
                2
            }
        };
        counts.entry(probe.family).or_default()[way] += 1;
        write!(recording, "{}", probe.record(&outcome)).map_err(unwritten)?;
        if bench.context.poison().is_some() {
            // The error stays with the context: the others run in a new one.
            drop(bench);
            bench = Bench::new(device)?;
        }
    }
    bench.close()?;
    print(&tally(&counts))?;
    let failed: usize = counts.values().map(|ways| ways[2]).sum();
    if failed > 0 {
        return Err(CommandError::Refused(format!(
            "{failed} probes failed on this device, each named above: the recording lacks them"
        )));
    }
    Ok(())
}

/// A line a family.
fn tally(counts: &Counts) -> String {
    let mut text = String::from("family         recorded  refused  failed\n");
    let mut sum = [0; 3];
    let mut line = |name: String, ways: [usize; 3]| {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name:<14} {:>8} {:>8} {:>7}",
            ways[0], ways[1], ways[2]
        );
    };
    for (family, ways) in counts {
        line(family.to_string(), *ways);
        sum = [0, 1, 2].map(|way| sum[way] + ways[way]);
    }
    line("all".into(), sum);
    text
}

fn run(bench: &Bench, probe: &Probe, target: &str) -> Outcome {
    let module = match Module::load(&bench.context, probe.module(target).as_bytes()) {
        Ok(module) => module,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let results = launch(bench, &module, probe);
    match results.and_then(|results| module.close().map(|()| results)) {
        Ok(results) => Outcome::Results(results),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn launch(bench: &Bench, module: &Module, probe: &Probe) -> Result<Vec<u32>, DriverError> {
    let stream = &bench.stream;
    let (operands, _) = module.global("operands")?;
    let (results, _) = module.global("results")?;
    stream.copy_to_device(operands, &probe.operand_bytes())?;
    if let Some(map) = &probe.map {
        let (tensor, _) = module.global(map.variable)?;
        let words = map.tensor.encode(&bench.context, tensor)?;
        let (place, _) = module.global("map")?;
        stream.copy_to_device(place, bytemuck::cast_slice(&words))?;
    }
    let kernel = module.kernel("probe")?;
    let config = LaunchConfig {
        grid: [probe.blocks, 1, 1],
        block: [probe.threads, 1, 1],
        shared_bytes: 0,
    };
    // SAFETY: every probe's one parameter is as long as `GIVEN`, and its variables hold its operands and results.
    unsafe { stream.launch(&kernel, config, &GIVEN) }?;
    let mut read = vec![0u8; probe.results_bytes()];
    stream.copy_to_host(&mut read, results)?;
    Ok(probe.results(&read))
}

/// Every form, and the devices whose recordings of it are checked in.
pub fn list(as_json: bool) -> Result<(), CommandError> {
    let recorded: Vec<(&str, Vec<Recorded>)> = FIXTURES
        .iter()
        .map(|(device, text)| (*device, probes::read(text)))
        .collect();
    let devices = |probe: &Probe| -> Vec<&str> {
        let has = |found: &[Recorded]| {
            found.iter().any(|recorded| {
                recorded.form == probe.form && matches!(recorded.outcome, Outcome::Results(_))
            })
        };
        let named = recorded.iter().filter(|(_, found)| has(found));
        named.map(|(device, _)| *device).collect()
    };
    let mut all = probes::all();
    all.sort_by_key(|probe| probe.family);
    if as_json {
        let forms: Vec<_> = all
            .iter()
            .map(|probe| {
                json!({
                    "form": probe.form,
                    "family": probe.family.to_string(),
                    "needs": probe.needs.target(),
                    "recorded_on": devices(probe),
                })
            })
            .collect();
        return print_json(&json!({ "forms": forms }));
    }
    // Writing to a string does not fail.
    let mut text = String::new();
    let mut counts: BTreeMap<Family, [usize; 2]> = BTreeMap::new();
    for probe in &all {
        let names = devices(probe);
        let count = counts.entry(probe.family).or_default();
        count[0] += 1;
        count[1] += usize::from(names.is_empty());
        let names = if names.is_empty() {
            "no GPU yet".to_owned()
        } else {
            names.join(", ")
        };
        let _ = writeln!(
            text,
            "{:<14} {:<8} {:<60} {names}",
            probe.family.to_string(),
            probe.needs.target(),
            probe.form
        );
    }
    text += "\nfamily            forms  without a recording of a GPU\n";
    for (family, [forms, without]) in &counts {
        let _ = writeln!(text, "{:<14} {forms:>8} {without:>8}", family.to_string());
    }
    let without: usize = counts.values().map(|count| count[1]).sum();
    let _ = writeln!(
        text,
        "{} forms, {without} without a recording of a GPU (neap selftest --record FILE makes one)",
        all.len()
    );
    print(&text)
}

/// Writes the kernels of all probes, one module a target and PTX version, named after both.
pub fn write_ptx(folder: &Path) -> Result<(), CommandError> {
    fs::create_dir_all(folder).map_err(|error| {
        CommandError::Refused(format!(
            "{} cannot be made ({error}); name another folder",
            folder.display()
        ))
    })?;
    for (needs, text) in probes::modules(&probes::all()) {
        let name = format!("probes-{}.{}.ptx", needs.ptx, needs.target());
        write_file(&folder.join(name), &text)?;
    }
    Ok(())
}
