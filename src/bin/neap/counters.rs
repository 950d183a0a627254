//! `neap counters`: what each kernel of a model does, counted on the emulator.

use std::collections::BTreeMap;

use neap::emulator::{self, Counters, InstructionClass, ModelTime, OpcodeCounts, Profile};
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
    let before = emulator::report(ordinal);
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
    let after = emulator::report(ordinal);
    engine.close().map_err(CommandError::refused)?;
    let rows = since(&before.kernels, &after.kernels);
    let graphs = since(&before.graphs, &after.graphs);
    let opcodes = opcodes_since(&before.opcodes, &after.opcodes);
    if args.json {
        let kernels: Vec<_> = rows
            .iter()
            .map(|(name, counters)| {
                json!({
                    "kernel": name,
                    "counters": counters,
                    "classes": classes(&opcodes[name]),
                    "opcodes": opcodes[name],
                    "model": ModelTime::new(&profile, counters, true),
                })
            })
            .collect();
        let graphs: Vec<_> = graphs
            .iter()
            .map(|(number, counters)| json!({ "graph": number, "counters": counters }))
            .collect();
        return print_json(&json!({
            "profile": args.profile,
            "prompt_tokens": args.prompt_tokens,
            "new_tokens": args.new_tokens,
            "kernels": kernels,
            "graphs": graphs,
        }));
    }
    let mut text = table(&profile, args, &rows);
    text += &class_table(&opcodes);
    text += &graph_table(&graphs);
    print(&text)
}

/// What was counted between two readings, of those that ran.
fn since<K: Ord + Clone>(
    before: &BTreeMap<K, Counters>,
    after: &BTreeMap<K, Counters>,
) -> Vec<(K, Counters)> {
    let rows = after.iter().map(|(key, counters)| {
        let start = before.get(key).copied().unwrap_or_default();
        (key.clone(), counters.since(&start))
    });
    rows.filter(|(_, counters)| counters.launches > 0).collect()
}

/// As [`since`], by kernel and opcode.
fn opcodes_since(
    before: &BTreeMap<String, OpcodeCounts>,
    after: &BTreeMap<String, OpcodeCounts>,
) -> BTreeMap<String, OpcodeCounts> {
    let earlier = |kernel: &str, opcode: &str| {
        let counts = before.get(kernel).and_then(|counts| counts.get(opcode));
        counts.copied().unwrap_or(0)
    };
    let kernels = after.iter().map(|(kernel, counts)| {
        let counts = counts
            .iter()
            .map(|(opcode, count)| (opcode.clone(), count - earlier(kernel, opcode)))
            .filter(|&(_, count)| count > 0);
        (kernel.clone(), counts.collect())
    });
    kernels.collect()
}

/// Executions by class of instruction.
fn classes(opcodes: &OpcodeCounts) -> BTreeMap<InstructionClass, u64> {
    let mut classes = BTreeMap::new();
    for (opcode, count) in opcodes {
        *classes.entry(InstructionClass::of(opcode)).or_default() += count;
    }
    classes
}

/// Shares of the classes of instructions, and the tensor-core instructions by shape.
fn class_table(kernels: &BTreeMap<String, OpcodeCounts>) -> String {
    let columns = [
        ("float", InstructionClass::Float),
        ("double", InstructionClass::Double),
        ("special", InstructionClass::Special),
        ("integer", InstructionClass::Integer),
        ("convert", InstructionClass::Conversion),
        ("move", InstructionClass::Move),
        ("memory", InstructionClass::Memory),
        ("atomic", InstructionClass::Atomic),
        ("matrix", InstructionClass::Matrix),
        ("exchange", InstructionClass::Exchange),
        ("sync", InstructionClass::Synchronization),
        ("control", InstructionClass::Control),
    ];
    let mut text = format!("\n{:<34}", "instructions, % of warps'");
    for (title, _) in columns {
        text += &format!(" {title:>8}");
    }
    text += "  mma by shape\n";
    for (kernel, opcodes) in kernels.iter().filter(|(_, opcodes)| !opcodes.is_empty()) {
        let classes = classes(opcodes);
        let total = classes.values().sum::<u64>().max(1) as f64;
        text += &format!("{kernel:<34}");
        for (_, class) in columns {
            let share = 100.0 * classes.get(&class).copied().unwrap_or(0) as f64 / total;
            text += &format!(" {share:>8.1}");
        }
        let products = opcodes.iter().filter_map(|(opcode, count)| {
            let mut parts = opcode.split('.');
            let base = parts
                .next()
                .filter(|base| matches!(*base, "mma" | "wgmma"))?;
            let shape = parts.find(|part| part.starts_with('m') && part.contains('k'))?;
            Some(format!("{base} {shape} {count}"))
        });
        text += &format!("  {}\n", products.collect::<Vec<_>>().join(", "));
    }
    text
}

/// One line a graph.
fn graph_table(graphs: &[(u64, Counters)]) -> String {
    let mut text = format!(
        "\n{:<34} {:>8} {:>11} {:>9} {:>9} {:>9}\n",
        "graphs, in order of instantiation", "kernels", "warp instr", "KiB read", "KiB writ", "mma"
    );
    for (number, counters) in graphs {
        text += &format!(
            "{number:<34} {:>8} {:>11} {:>9} {:>9} {:>9}\n",
            counters.launches,
            counters.warp_instructions,
            counters.global_load_bytes >> 10,
            counters.global_store_bytes >> 10,
            counters.mma_ops,
        );
    }
    text
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
