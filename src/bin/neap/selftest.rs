//! `neap selftest`: what a device and a model must satisfy, checked on the spot, as one table.

use std::fs;
use std::path::Path;
use std::time::Instant;

use neap::driver::{Context, Device, DriverError, MemoryUse, Stream};
use neap::engine::{Engine, EngineOptions};
use serde::Serialize;
use serde_json::json;

use crate::args::SelftestArgs;
use crate::bundled;
use crate::goldens::{self, Golden, TOLERANCE};
use crate::recording;
use crate::report::{CommandError, note, print, print_json};
use crate::session;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Pass,
    Fail,
    Skip,
}

/// One row of the table.
#[derive(Debug, Serialize)]
struct Check {
    name: String,
    outcome: Outcome,
    detail: String,
    elapsed_us: u64,
}

/// The table as it grows.
struct Table {
    checks: Vec<Check>,
    last: Instant,
}

impl Table {
    fn add(&mut self, name: &str, outcome: Outcome, detail: String) {
        let elapsed_us = self.last.elapsed().as_micros() as u64;
        self.last = Instant::now();
        note(&format!("{name}: {detail}"));
        self.checks.push(Check {
            name: name.to_owned(),
            outcome,
            detail,
            elapsed_us,
        });
    }

    fn check(&mut self, name: &str, holds: bool, detail: String) {
        self.add(
            name,
            if holds { Outcome::Pass } else { Outcome::Fail },
            detail,
        );
    }

    fn failures(&self) -> usize {
        self.checks
            .iter()
            .filter(|check| check.outcome == Outcome::Fail)
            .count()
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:<28} {:<6} {:>9}  what", "check", "", "ms")?;
        for check in &self.checks {
            let outcome = match check.outcome {
                Outcome::Pass => "pass",
                Outcome::Fail => "FAIL",
                Outcome::Skip => "skip",
            };
            writeln!(
                f,
                "{:<28} {outcome:<6} {:>9.1}  {}",
                check.name,
                check.elapsed_us as f64 / 1e3,
                check.detail
            )?;
        }
        Ok(())
    }
}

/// Runs the command.
pub fn run(args: &SelftestArgs) -> Result<(), CommandError> {
    if args.list {
        return recording::list(args.json);
    }
    if let Some(folder) = &args.ptx {
        return recording::write_ptx(folder);
    }
    if let Some(file) = &args.record {
        return recording::record(&args.device, file);
    }
    let model = bundled::model_or_bundled(args.model.as_deref())?;
    let goldens = match &args.goldens {
        Some(folder) => Some(goldens::from_folder(folder, &model)?),
        None => goldens::built_in(&model)?,
    };
    let mut table = Table {
        checks: Vec::new(),
        last: Instant::now(),
    };
    let device = session::open(&args.device)?;
    let about = session::device_json(&device)?;
    table.add(
        "device",
        Outcome::Pass,
        format!(
            "{}, {} MiB, granularity {} bytes, compute capability {}",
            about["name"].as_str().unwrap_or("?"),
            about["total_bytes"].as_u64().unwrap_or(0) >> 20,
            about["granularity_bytes"],
            about["compute_capability"].as_str().unwrap_or("?")
        ),
    );
    let replayed = with_graphs(&mut table, &device, &model, goldens.as_deref())?;
    eagerly(&mut table, &device, &model, &replayed)?;
    match session::nothing_left(&device) {
        Err(CommandError::CheckFailed(sentence)) => {
            table.add("nothing left behind", Outcome::Fail, sentence)
        }
        Err(other) => return Err(other),
        Ok(()) if device.driver().is_emulator() => {
            table.add(
                "nothing left behind",
                Outcome::Pass,
                "no driver object, no device memory".to_owned(),
            );
        }
        Ok(()) => table.add(
            "nothing left behind",
            Outcome::Skip,
            "a CUDA driver does not tell".to_owned(),
        ),
    }
    finish(args, &model, &about, &table)
}

fn finish(
    args: &SelftestArgs,
    model: &Path,
    about: &serde_json::Value,
    table: &Table,
) -> Result<(), CommandError> {
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "model": model,
        "device": about,
        "checks": table.checks,
        "failures": table.failures(),
    });
    if let Some(folder) = &args.out {
        let write = |name: &str, text: String| fs::write(folder.join(name), text);
        fs::create_dir_all(folder)
            .and_then(|()| write("selftest.txt", table.to_string()))
            .and_then(|()| write("selftest.json", format!("{report:#}\n")))
            .map_err(|error| {
                CommandError::Refused(format!(
                    "the table cannot be written to {} ({error}); name a writable folder",
                    folder.display()
                ))
            })?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        print(&table.to_string())?;
    }
    match table.failures() {
        0 => Ok(()),
        count => Err(CommandError::CheckFailed(format!(
            "{count} of {} checks failed; the table says which",
            table.checks.len()
        ))),
    }
}

/// A prompt, the tokens forced after it, and the logits that came out: one row of `vocab_size` a step.
struct Replayed {
    name: String,
    prompt: Vec<u32>,
    forced: Vec<u32>,
    rows: Vec<Vec<f32>>,
}

fn with_graphs(
    table: &mut Table,
    device: &Device,
    model: &Path,
    goldens: Option<&[Golden]>,
) -> Result<Vec<Replayed>, CommandError> {
    let mut engine = session::load(device, model, &EngineOptions::default(), true)?;
    let timings = engine.startup_timings();
    table.add(
        "start-up",
        Outcome::Pass,
        format!(
            "{:.1} ms: weights {:.1}, capture {:.1}, carve {:.1}",
            timings.total_us as f64 / 1e3,
            timings.weights_us as f64 / 1e3,
            timings.capture_us as f64 / 1e3,
            timings.carve_us as f64 / 1e3
        ),
    );
    memory(table, device, &engine)?;
    let mut replayed = Vec::new();
    match goldens {
        Some(goldens) => {
            for golden in goldens {
                let rows = engine
                    .logits_for(&golden.prompt, golden.forced())
                    .map_err(CommandError::refused)?;
                against_golden(table, golden, &rows);
                replayed.push(Replayed {
                    name: golden.name.clone(),
                    prompt: golden.prompt.clone(),
                    forced: golden.forced().to_vec(),
                    rows,
                });
            }
        }
        None => {
            table.add(
                "goldens",
                Outcome::Skip,
                "none are built in for these weights; give a folder with --goldens".to_owned(),
            );
            // Ids spread over the vocabulary: what they mean does not matter for graph against eager.
            let vocab_size = engine.config().vocab_size;
            for length in [5_u32, 65, 200] {
                let prompt: Vec<u32> = (0..length).map(|i| (i * 7919 + 11) % vocab_size).collect();
                let forced: Vec<u32> = (0..7).map(|i| (i * 104_729 + 5) % vocab_size).collect();
                let rows = engine
                    .logits_for(&prompt, &forced)
                    .map_err(CommandError::refused)?;
                replayed.push(Replayed {
                    name: format!("{length} ids"),
                    prompt,
                    forced,
                    rows,
                });
            }
        }
    }
    engine.close().map_err(CommandError::refused)?;
    Ok(replayed)
}

fn memory(table: &mut Table, device: &Device, engine: &Engine) -> Result<(), CommandError> {
    let grain = device.granularity_bytes();
    let ledger = engine.ledger();
    note(&format!("\n{ledger}\n{}", engine.carve()));
    table.check(
        "ledger closes",
        ledger.closes(),
        format!(
            "{} of {} bytes unaccounted for",
            ledger.unaccounted_bytes, ledger.total_bytes
        ),
    );
    let now = engine.memory_info().map_err(CommandError::refused)?;
    // The carve's tail is mapped only as far as its first grain reaches.
    let least = ledger.headroom_bytes.saturating_sub(grain);
    let most = ledger.headroom_bytes + ledger.tail_bytes + grain;
    table.check(
        "ledger against cuMemGetInfo",
        now.total_bytes == ledger.total_bytes && (least..=most).contains(&now.free_bytes),
        format!(
            "free: {} bytes measured, {} by the ledger",
            now.free_bytes, ledger.headroom_bytes
        ),
    );
    let carve = engine.carve();
    let kv_bytes = ledger.kv.iter().map(|share| share.bytes).sum::<u64>();
    let refused = ends_refused(device, engine).map_err(CommandError::refused)?;
    table.check(
        "carve of the whole card",
        kv_bytes % carve.slab_bytes == 0
            && carve.tail_bytes < carve.slab_bytes
            && refused.is_none(),
        format!(
            "{kv_bytes} bytes for KV in {} slabs of {}, tail {}; {}",
            kv_bytes / carve.slab_bytes,
            carve.slab_bytes,
            carve.tail_bytes,
            refused.map_or(
                "first, middle and last bytes hold what is written".to_owned(),
                |offset| { format!("bytes at offset {offset} do not hold what is written") }
            )
        ),
    );
    Ok(())
}

/// Writes to and reads from both ends and the middle of the KV arena while no sequence is there; the first offset
/// that does not hold what was written.
fn ends_refused(device: &Device, engine: &Engine) -> Result<Option<u64>, DriverError> {
    let Some(kv) = engine.arenas().into_iter().find(|arena| arena.name == "kv") else {
        return Ok(Some(0));
    };
    let context = Context::retain_primary(device)?;
    let stream = Stream::new(&context)?;
    let written: [u8; 256] = std::array::from_fn(|i| 0xA5 ^ i as u8);
    for offset in [0, kv.bytes / 2, kv.bytes - written.len() as u64] {
        let mut read = [0; 256];
        // No page is in use there, and one may be: the null page stays what it is.
        let name = "KV memory that selftest tries";
        device.annotate(kv.base.add(offset), 256, name, MemoryUse::HandedOut);
        stream.copy_to_device(kv.base.add(offset), &written)?;
        stream.copy_to_host(&mut read, kv.base.add(offset))?;
        if read != written {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

/// Last-position and step logits, teacher-forced along the golden ids, within 1.5 times what the reference's own bf16
/// run differs at that prompt.
fn against_golden(table: &mut Table, golden: &Golden, rows: &[Vec<f32>]) {
    let allowed = TOLERANCE * golden.bf16_error;
    let found = golden.compare(rows, allowed);
    let steps = golden.top.len();
    table.check(
        &format!("goldens {}", golden.name),
        rows.len() == steps && found.steps_within == steps && found.same_first == found.judged,
        format!(
            "{} of {steps} steps within {allowed:.4} (worst {:.4}), first token equal in {} of {} judged",
            found.steps_within, found.worst, found.same_first, found.judged
        ),
    );
}

fn eagerly(
    table: &mut Table,
    device: &Device,
    model: &Path,
    replayed: &[Replayed],
) -> Result<(), CommandError> {
    let options = EngineOptions {
        eager: true,
        ..EngineOptions::default()
    };
    let mut engine = session::load(device, model, &options, true)?;
    let mut differing = Vec::new();
    let mut compared = 0;
    for run in replayed {
        let rows = engine
            .logits_for(&run.prompt, &run.forced)
            .map_err(CommandError::refused)?;
        compared += rows.iter().map(Vec::len).sum::<usize>();
        let same = rows.len() == run.rows.len()
            && rows.iter().zip(&run.rows).all(|(eager, graph)| {
                eager.len() == graph.len()
                    && eager
                        .iter()
                        .zip(graph)
                        .all(|(eager, graph)| eager.to_bits() == graph.to_bits())
            });
        if !same {
            differing.push(run.name.as_str());
        }
    }
    engine.close().map_err(CommandError::refused)?;
    table.check(
        "graph against eager",
        differing.is_empty() && compared > 0,
        if differing.is_empty() {
            format!(
                "{compared} logits of {} prompts equal bit for bit",
                replayed.len()
            )
        } else {
            format!("logits differ for {}", differing.join(", "))
        },
    );
    Ok(())
}
