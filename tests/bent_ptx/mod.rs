//! PTX of real kernels, and images that hold some, bent out of shape: what still loads is run. Nothing panics, and nothing
//! reaches memory that it was not given.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use neap::emulator::exec::{
    DeviceHeap, GRID_WORKSPACE_BYTES, KernelCode, LaunchSpec, ModuleCode, Output, run,
};
use neap::emulator::probes::{self, Probe};

#[path = "../fuzzing/mod.rs"]
pub mod fuzzing;
mod images;
mod memory;

use fuzzing::{Bytes, Choices};
use memory::Memory;

/// Modules, or the first kernel of large ones.
static SOURCES: LazyLock<Vec<Vec<&str>>> = LazyLock::new(|| {
    let whole = [
        include_str!("../../csrc/prebuilt/cache/table_update.ptx"),
        include_str!("../../csrc/prebuilt/dense/embed.ptx"),
        include_str!("../../csrc/prebuilt/dense/gated_act.ptx"),
        include_str!("../../csrc/prebuilt/dense/gemv.ptx"),
        include_str!("../../csrc/prebuilt/sample/argmax.ptx"),
        include_str!("../data/ptx/collective.ptx"),
        include_str!("../data/ptx/functions.ptx"),
        include_str!("../data/ptx/numba.ptx"),
        include_str!("dense.ptx"),
    ];
    let large = [
        include_str!("../../csrc/prebuilt/attention/decode_merge.ptx"),
        include_str!("../../csrc/prebuilt/dense/add_norm.ptx"),
        include_str!("../../csrc/prebuilt/dense/qkv_rope.ptx"),
        include_str!("../data/ptx/arithmetic.ptx"),
        include_str!("../../csrc/prebuilt/dense/gemm_decode.ptx"),
    ];
    let lines = |text: &'static str| {
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .collect::<Vec<_>>()
    };
    let first = |text| {
        let mut lines = lines(text);
        let end = lines.iter().position(|line| *line == "}");
        lines.truncate(end.map_or(lines.len(), |end| end + 1));
        lines
    };
    whole
        .into_iter()
        .map(lines)
        .chain(large.into_iter().map(first))
        .collect()
});

/// The kernels of all instruction probes: every instruction that there is.
static PROBES: LazyLock<Vec<Vec<&str>>> = LazyLock::new(|| {
    let text = |probe: &Probe| -> &'static str { probe.module(&probe.needs.target()).leak() };
    let probes = probes::all();
    probes
        .iter()
        .map(|probe| text(probe).lines().collect())
        .collect()
});

/// A source, or a probe.
fn source(choices: &mut impl Choices) -> &'static [&'static str] {
    let from = match below(choices, 2) {
        0 => &SOURCES,
        _ => &PROBES,
    };
    &from[below(choices, from.len())]
}

/// All words of the sources and probes, and some that are in none.
static WORDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut words: BTreeSet<&str> = SOURCES
        .iter()
        .chain(PROBES.iter())
        .flatten()
        .flat_map(|line| tokens(line))
        .filter(|word| word.len() < 60)
        .collect();
    words.extend([
        "%envreg1",
        "%clusterid.x",
        "WARP_SZ",
        "_",
        "|",
        "!",
        "/*",
        "\"",
        "<4294967295>",
        ".b128",
        ".extern",
        ".weak",
        ".alias",
        "malloc",
        "free",
        "vprintf",
        "brx.idx",
        "0d7FF0000000000000",
        "0f7FC00000",
        "#",
        "@",
        "$",
        "\0",
    ]);
    words.into_iter().collect()
});

/// Parts of opcodes and directives between dots.
static PARTS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut parts: BTreeSet<&str> = WORDS
        .iter()
        .filter(|word| word.contains('.') && !word.starts_with(|c: char| c.is_ascii_digit()))
        .flat_map(|word| word.split('.'))
        .collect();
    parts.extend([
        "s8",
        "u128",
        "bf16x2",
        "v8",
        "cluster",
        "sys",
        "acq_rel",
        "e4m3x2",
        "tf32",
        "shared::cluster",
        "param",
    ]);
    parts.into_iter().collect()
});

/// Numbers at which sizes, shifts and offsets go wrong.
const NUMBERS: [&str; 20] = [
    "0",
    "1",
    "-1",
    "3",
    "7",
    "31",
    "32",
    "33",
    "63",
    "64",
    "255",
    "4096",
    "65535",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "0xffffffffffffffff",
];

/// Names, numbers and single marks of a line.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_$%.:".contains(c);
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let end = match is_word(first) {
            true => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        let (token, behind) = rest.split_at(end);
        rest = behind;
        Some(token)
    })
}

/// Loads and runs what `bytes` spell; returns how many launches came to a good end.
pub fn run_bytes(bytes: &[u8]) -> u64 {
    let choices = &mut Bytes(bytes);
    match choices.below(10) {
        Some(0) => images::image(choices),
        Some(1) => images::linked(choices),
        Some(2) => images::driven(choices),
        _ => interpreted(choices),
    }
}

/// The end of an input means the first of all choices from there on.
fn below(choices: &mut impl Choices, bound: usize) -> usize {
    choices.below(bound as u32).unwrap_or(0) as usize
}

/// A module with some of its lines changed.
fn bent(choices: &mut impl Choices) -> String {
    let mut lines: Vec<String> = source(choices)
        .iter()
        .map(|&line| line.to_owned())
        .collect();
    for _ in 0..below(choices, 7) {
        if bend(&mut lines, choices).is_none() {
            break;
        }
    }
    lines.join("\n")
}

/// Changes a line; nothing at the end of the input.
fn bend(lines: &mut Vec<String>, choices: &mut impl Choices) -> Option<()> {
    if lines.is_empty() {
        return None;
    }
    let kind = choices.below(12)?;
    let at = choices.below(lines.len() as u32)? as usize;
    match kind {
        0 => {
            lines.remove(at);
        }
        1 => {
            let copy = lines[at].clone();
            lines.insert(choices.below(lines.len() as u32)? as usize, copy);
        }
        2 => {
            let other = choices.below(lines.len() as u32)? as usize;
            lines.swap(at, other);
        }
        3 => {
            let source = source(choices);
            let line = source[choices.below(source.len() as u32)? as usize];
            lines.insert(at, line.to_owned());
        }
        4 => lines.truncate(at),
        5 => {
            // The bytes of ASCII text are characters.
            let mut bytes = std::mem::take(&mut lines[at]).into_bytes();
            let place = choices.below(bytes.len().max(1) as u32)? as usize;
            if let Some(byte) = bytes.get_mut(place) {
                *byte = choices.below(128)? as u8;
            }
            lines[at] = String::from_utf8_lossy(&bytes).into_owned();
        }
        _ => lines[at] = bent_words(&lines[at], kind, choices)?,
    }
    Some(())
}

/// A line with one of its words changed.
fn bent_words(line: &str, kind: u32, choices: &mut impl Choices) -> Option<String> {
    let mut words: Vec<&str> = tokens(line).collect();
    if words.is_empty() {
        return Some(line.to_owned());
    }
    let place = choices.below(words.len() as u32)? as usize;
    let mut part = String::new();
    match kind {
        6 => words[place] = WORDS[choices.below(WORDS.len() as u32)? as usize],
        7 => words[place] = words[choices.below(words.len() as u32)? as usize],
        8 => {
            words.remove(place);
        }
        9 => {
            let numbers: Vec<usize> = (0..words.len())
                .filter(|&index| words[index].starts_with(|c: char| c.is_ascii_digit()))
                .collect();
            let number = NUMBERS[choices.below(NUMBERS.len() as u32)? as usize];
            match numbers.get(place % numbers.len().max(1)) {
                Some(&index) => words[index] = number,
                None => words[place] = number,
            }
        }
        _ => {
            let parts: Vec<&str> = words[place].split('.').collect();
            let changed = choices.below(parts.len() as u32)? as usize;
            let new = PARTS[choices.below(PARTS.len() as u32)? as usize];
            for (index, old) in parts.iter().enumerate() {
                if index > 0 {
                    part.push('.');
                }
                part.push_str(if index == changed { new } else { old });
            }
            words[place] = &part;
        }
    }
    Some(words.join(" "))
}

/// Loads a bent module without a driver and runs its kernels on a small memory.
fn interpreted(choices: &mut impl Choices) -> u64 {
    let text = bent(choices);
    let mut memory = Memory::new();
    let loaded = ModuleCode::load(&text, &mut |bytes, align| memory.allocate(bytes, align));
    let module = match loaded {
        Ok(module) => module,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return 0;
        }
    };
    let names: Vec<String> = module
        .kernel_names()
        .iter()
        .take(2)
        .map(|name| (*name).to_owned())
        .collect();
    let kernels = names.iter().filter_map(|name| module.kernel(name));
    kernels
        .map(|kernel| u64::from(launched(&kernel, &mut memory, choices)))
        .sum()
}

/// Runs a kernel with arguments of any value; true where it comes to a good end.
fn launched(kernel: &KernelCode, memory: &mut Memory, choices: &mut impl Choices) -> bool {
    let Some(buffer) = memory.allocate(4096, 256) else {
        return false;
    };
    if kernel.param_bytes > 1 << 12 || kernel.local_bytes > 1 << 14 {
        return false;
    }
    let mut params = Vec::with_capacity(kernel.param_bytes + 8);
    while params.len() < kernel.param_bytes {
        let word = match below(choices, 8) {
            0..4 => buffer + 64 * below(choices, 64) as u64,
            4 => below(choices, 256) as u64,
            5 => u64::MAX << below(choices, 64),
            6 => memory.end() - below(choices, 64) as u64,
            _ => 0x3f80_0000_0000_0001 * below(choices, 3) as u64,
        };
        params.extend_from_slice(&word.to_le_bytes());
    }
    let cooperative =
        (below(choices, 8) == 7).then(|| memory.allocate(GRID_WORKSPACE_BYTES as u64, 16));
    let mut options = neap::emulator::exec::ExecOptions::default();
    options.threads = 1;
    options.watchdog_branches = 1 << 7;
    options.stack_bytes = 1 << 10;
    options.counters = below(choices, 2) == 1;
    options.poison = below(choices, 4) != 3;
    options.output = Output::Buffer(std::sync::Arc::default());
    options.heap = memory
        .allocate(1024, 256)
        .map(|address| std::sync::Arc::new(DeviceHeap::new(address, 1024)));
    let block = [1, 32, 33, 64, 96][below(choices, 5)];
    let required = kernel.required_block.filter(|_| below(choices, 8) < 7);
    let spec = LaunchSpec {
        kernel,
        grid: [1 + below(choices, 2) as u32, 1, 1],
        block: required.unwrap_or([block, 1, 1]),
        cluster: [[0; 3], [2, 1, 1]][below(choices, 8) / 7],
        cooperative: cooperative.flatten(),
        dynamic_shared_bytes: 1024 * below(choices, 16) as u32,
        params: &params,
    };
    match run(&spec, memory, &options) {
        Ok(_) => true,
        Err(fault) => {
            assert!(!fault.to_string().is_empty());
            false
        }
    }
}
