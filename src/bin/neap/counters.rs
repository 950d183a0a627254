//! `neap counters`: what each kernel of a model does, counted on the emulator.

use neap::emulator::{self, Counters, ModelTime, Profile};
use neap::engine::{EngineOptions, Request};
use serde_json::json;

use crate::args::CountersArgs;
use crate::bundled;
use crate::report::{CommandError, print, print_json};
use crate::session;

pub fn run(args: &CountersArgs) -> Result<(), CommandError> {
    let Some(mut profile) = Profile::named(&args.profile) else {
        let names = Profile::names().join(", ");
        return Err(CommandError::refused(format!(
            "'{}' is no emulator profile; use one of {names}",
            args.profile
        )));
    };
    profile.counters = true;
    let ordinal = emulator::add_device(profile.clone());
    let device = neap::driver::Driver::emulator()
        .device(ordinal)
        .map_err(CommandError::refused)?;
    let model = bundled::model_or_bundled(args.model.as_deref())?;
    let mut engine = session::load(&device, &model, &EngineOptions::default(), false)?;
    let before = emulator::report(ordinal).kernels;
    let prompt: Vec<u32> = (0..args.prompt_tokens)
        .map(|token| 2 + token % 100)
        .collect();
    let request = Request {
        prompt,
        max_new_tokens: args.new_tokens,
        stop_tokens: Vec::new(),
    };
    engine.submit(request).map_err(CommandError::refused)?;
    while engine.has_work() {
        engine.step().map_err(CommandError::refused)?;
    }
    let after = emulator::report(ordinal).kernels;
    engine.close().map_err(CommandError::refused)?;
    let rows: Vec<(String, Counters)> = after
        .into_iter()
        .map(|(name, counters)| {
            let start = before.get(&name).copied().unwrap_or_default();
            (name, counters.since(&start))
        })
        .filter(|(_, counters)| counters.launches > 0)
        .collect();
    if args.json {
        let kernels: Vec<_> = rows
            .iter()
            .map(|(name, counters)| {
                json!({
                    "kernel": name,
                    "counters": counters,
                    "model": ModelTime::new(&profile, counters, true),
                })
            })
            .collect();
        return print_json(&json!({
            "profile": args.profile,
            "prompt_tokens": args.prompt_tokens,
            "new_tokens": args.new_tokens,
            "kernels": kernels,
        }));
    }
    print(&table(&profile, args, &rows))
}

fn table(profile: &Profile, args: &CountersArgs, rows: &[(String, Counters)]) -> String {
    let mut text = format!(
        "{profile}\n{} prompt tokens, {} new tokens; all kernels of start-up left out\n\n\
         {:<34} {:>8} {:>11} {:>6} {:>9} {:>9} {:>7} {:>8} {:>9} {:>9} {:>8} {:>10}  bound (model)\n",
        args.prompt_tokens,
        args.new_tokens,
        "kernel",
        "launches",
        "warp instr",
        "lanes",
        "KiB read",
        "KiB writ",
        "sectors",
        "banks",
        "mma",
        "barriers",
        "atomics",
        "model us",
    );
    for (name, counters) in rows {
        let time = ModelTime::new(profile, counters, true);
        let percent = |part: Option<f64>| match part {
            Some(part) => format!("{:.0} %", 100.0 * part),
            None => "-".to_owned(),
        };
        text += &format!(
            "{name:<34} {:>8} {:>11} {:>6} {:>9} {:>9} {:>7} {:>8} {:>9} {:>9} {:>8} {:>10.1}  {}\n",
            counters.launches,
            counters.warp_instructions,
            percent(counters.active_lane_ratio()),
            counters.global_load_bytes >> 10,
            counters.global_store_bytes >> 10,
            percent(counters.sector_efficiency()),
            percent(counters.bank_efficiency()),
            counters.mma_ops,
            counters.barriers,
            counters.atomics,
            time.total_us(),
            time.bound(),
        );
    }
    text += "\nsectors: distinct bytes of the 32-byte sectors touched; banks: ideal passes over shared memory of those needed;\n\
             model us: bytes / bandwidth, multiply-adds / rate or instructions / issue rate, whichever is longest, and the gaps\n\
             between launches. A model, not a measurement.\n";
    text
}
