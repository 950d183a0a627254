//! What the command line accepts.

use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use neap::DeviceChoice;
use neap::kv::eligibility::Role;
use neap::kv::{KvDtype, Policy};

/// Runs language models that mix full and sliding-window attention: graphs are captured first, KV pools are
/// carved from the memory that is then left.
#[derive(Debug, Parser)]
#[command(name = "neap", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generates text: loads a model, captures its graphs, carves the KV pools, and streams what it writes
    Run(RunArgs),
    /// Says how many requests fit, from a model's config alone: no weights, no device
    Plan(PlanArgs),
    /// Lists the devices that are there, and why one cannot be used
    Devices(DevicesArgs),
    /// Checks a device and a model: goldens, graph against eager, the ledger, a carve of the whole card
    Selftest(SelftestArgs),
    /// Counts what each kernel of a model does, on the emulator: instructions, bytes, sectors, bank conflicts, modelled time
    Counters(CountersArgs),
}

/// `neap run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Folder with config.json, model.safetensors and tokenizer.json [default: the bundled gemma3-tiny-kjv]
    pub model: Option<PathBuf>,

    /// What the model continues [default: "In the beginning"]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_file")]
    pub prompt: Option<String>,

    /// A UTF-8 file with the prompt; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,

    /// The most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_new_tokens: u32,

    /// Device: auto, cuda, cuda:N, emu or emu:PROFILE
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,

    /// Tokens a KV page
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = page_size)]
    pub page_size: u32,

    /// Device memory left to others, such as 512MiB
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub headroom: Option<u64>,

    /// How the KV pools share the memory: dynamic, ratio(0.8), requests(256) or workload(1024,256)
    #[arg(long, value_name = "POLICY", default_value_t = Policy::Dynamic)]
    pub policy: Policy,

    /// No more KV than this many resident tokens can fill
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub max_kv_tokens: Option<u32>,

    /// Capture the graphs of one role alone: both, prefill or decode; what else comes runs without graphs
    #[arg(long, value_name = "ROLE", default_value = "both", value_parser = role)]
    pub role: Role,

    /// Continue the prompt this many times: the k-th begins with the k-th most likely token
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub completions: u32,

    /// Compute every prompt in full; the tokens are the same
    #[arg(long)]
    pub no_prefix_cache: bool,

    /// Launch kernel by kernel instead of replaying graphs; the tokens are the same
    #[arg(long)]
    pub eager: bool,

    /// Draw the device's memory before and after the carve into this SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print one JSON object with ledger, carve, tokens, text and timings instead of streaming
    #[arg(long)]
    pub json: bool,
}

/// `neap plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A config.json, or a model folder that holds one
    #[arg(value_name = "MODEL|config.json")]
    pub model: PathBuf,

    /// The device, by its emulator profile. Without --kv-bytes all its memory is for KV: weights and the rest are not
    /// subtracted. With it, the drawing shows the rest of the device [default without --kv-bytes: h200]
    #[arg(long, value_name = "PROFILE")]
    pub device_profile: Option<String>,

    /// Plan for this much memory for KV, such as 40GB (10^9) or 64GiB (2^30)
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub kv_bytes: Option<u64>,

    /// Tokens of a request, prompt and answer together; may be given several times [default: 1k, 8k, 32k, and the
    /// longest the model takes]
    #[arg(long = "length", value_name = "TOKENS", value_parser = tokens)]
    pub lengths: Vec<u32>,

    /// Tokens a KV page
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = page_size)]
    pub page_size: u32,

    /// Type of the cached keys and values: bf16, fp16, fp8_e4m3, fp8_e5m2, int8, fp4_e2m1 or mxfp8
    #[arg(long, value_name = "DTYPE", default_value = "bf16")]
    pub kv_dtype: KvDtype,

    /// Another type for one layer group, such as swa=bf16; may be given several times
    #[arg(long = "group-dtype", value_name = "GROUP=DTYPE", value_parser = group_dtype)]
    pub group_dtypes: Vec<(String, KvDtype)>,

    /// Tensor-parallel ranks among which the KV heads are shared out
    #[arg(long, value_name = "RANKS", default_value_t = 1, value_parser = tokens)]
    pub tp: u32,

    /// The layers of one pipeline stage, the last one excluded, such as 0..31
    #[arg(long, value_name = "FIRST..END", value_parser = layer_range)]
    pub layers: Option<Range<u32>>,

    /// A draft model's config.json, or its folder: its layers become further groups in the same memory
    #[arg(long, value_name = "MODEL|config.json")]
    pub draft: Option<PathBuf>,

    /// A split policy to compare: dynamic, ratio(0.8), requests(256) or workload(1024,256); may be given several
    /// times [default: dynamic, ratio(0.8) and requests(256)]
    #[arg(long = "policy", value_name = "POLICY")]
    pub policies: Vec<Policy>,

    /// No more KV than this many resident tokens can fill
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    pub max_tokens: Option<u32>,

    /// No more KV than this many resident requests can fill, as far as that bounds a pool
    #[arg(long, value_name = "REQUESTS", value_parser = tokens)]
    pub max_requests: Option<u32>,

    /// Draw the memory before and after the carve into this SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `neap devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `neap selftest`.
#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Folder with config.json and model.safetensors [default: the bundled gemma3-tiny-kjv]
    pub model: Option<PathBuf>,

    /// Device: auto, cuda, cuda:N, emu or emu:PROFILE
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,

    /// Folder with MODEL.json and MODEL.safetensors goldens [default: the few built in for the bundled model]
    #[arg(long, value_name = "DIR")]
    pub goldens: Option<PathBuf>,

    /// Instead, run every instruction probe on the device and write operands and results to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "goldens", "out", "list"])]
    pub record: Option<PathBuf>,

    /// Instead, list the instruction probes by family, with the GPUs whose recordings are checked in
    #[arg(long, conflicts_with_all = ["model", "goldens", "out"])]
    pub list: bool,

    /// Instead, write the probes' kernels to this folder, one PTX module a target, for a compiler to check
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "goldens", "out", "list", "record", "json"])]
    pub ptx: Option<PathBuf>,

    /// Also write the table to this folder, as selftest.txt and selftest.json
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `neap counters`.
#[derive(Debug, Args)]
pub struct CountersArgs {
    /// Folder with config.json, model.safetensors and tokenizer.json [default: the bundled gemma3-tiny-kjv]
    pub model: Option<PathBuf>,

    /// The emulator profile that says how many multiprocessors there are and how fast memory is
    #[arg(long, value_name = "PROFILE", default_value = "h200")]
    pub profile: String,

    /// Tokens of the prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_tokens: u32,

    /// Tokens to generate
    #[arg(long, value_name = "TOKENS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub new_tokens: u32,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A size in bytes: a whole or decimal number and an optional unit, decimal (kB, MB, GB, TB) or binary (KiB,
/// MiB, GiB, TiB).
fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("", 1),
        ("b", 1),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
    ];
    let accepted = || "expected a size such as 0, 512MiB, 1.5GiB or 40GB".to_owned();
    let text = text.trim();
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let scale = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|&(_, scale)| scale)
        .ok_or_else(accepted)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || (whole.is_empty() && fraction.is_empty()) {
        return Err(accepted());
    }
    let digits = |digits: &str| {
        if digits.is_empty() {
            Ok(0)
        } else {
            digits.parse::<u128>()
        }
    };
    let (whole, numerator) = (
        digits(whole).map_err(|_| accepted())?,
        digits(fraction).map_err(|_| accepted())?,
    );
    let denominator = 10_u128.pow(fraction.len() as u32);
    let scaled = whole.checked_mul(u128::from(scale)).ok_or_else(accepted)?
        + numerator * u128::from(scale) / denominator;
    u64::try_from(scaled).map_err(|_| "is more than 2^64 bytes; give a smaller size".to_owned())
}

/// A role by its name.
fn role(text: &str) -> Result<Role, String> {
    match text {
        "both" => Ok(Role::Both),
        "prefill" => Ok(Role::Prefill),
        "decode" => Ok(Role::Decode),
        _ => Err("expected both, prefill or decode".to_owned()),
    }
}

/// A number of tokens; `8k` is 8 * 1024.
fn tokens(text: &str) -> Result<u32, String> {
    let (digits, scale) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    digits
        .parse::<u32>()
        .ok()
        .and_then(|count| count.checked_mul(scale))
        .filter(|&count| count > 0)
        .ok_or_else(|| "expected a number of tokens of at least 1, such as 4096 or 8k".to_owned())
}

/// A layer group and its type, `GROUP=DTYPE`.
fn group_dtype(text: &str) -> Result<(String, KvDtype), String> {
    let (group, dtype) = text
        .split_once('=')
        .ok_or_else(|| "expected GROUP=DTYPE, such as full=fp8".to_owned())?;
    let dtype = dtype
        .parse::<KvDtype>()
        .map_err(|error| error.to_string())?;
    Ok((group.to_owned(), dtype))
}

/// Layers `FIRST..END`, the end excluded.
fn layer_range(text: &str) -> Result<Range<u32>, String> {
    let range = text.split_once("..").and_then(|(first, end)| {
        let (first, end) = (first.parse().ok()?, end.parse().ok()?);
        (first < end).then_some(first..end)
    });
    range.ok_or_else(|| "expected FIRST..END with FIRST below END, such as 0..31".to_owned())
}

/// Tokens a page: a power of two that the kernels take.
fn page_size(text: &str) -> Result<u32, String> {
    text.parse::<u32>()
        .ok()
        .filter(|size| size.is_power_of_two() && *size <= 256)
        .ok_or_else(|| "expected a power of two from 1 to 256".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{bytes, group_dtype, layer_range, page_size, tokens};

    #[test]
    fn bytes_take_decimal_and_binary_units() {
        for (text, expected) in [
            ("0", 0),
            ("4096", 4096),
            ("1b", 1),
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("1.5GiB", 3 << 29),
            (".5KiB", 512),
            ("40GB", 40_000_000_000),
            ("0.000000001GB", 1),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "MiB",
            "1.2.3GiB",
            "-1",
            "12 parsecs",
            "1e9",
            "18446744073709551616",
            "99999999TiB",
            ".",
            "1.0000000001GiB",
        ] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tokens_and_page_sizes() {
        assert_eq!(tokens("8k"), Ok(8192));
        assert_eq!(tokens("131072"), Ok(131_072));
        for text in ["0", "k", "-1", "8m", "4294967295k"] {
            assert!(tokens(text).is_err(), "{text}");
        }
        assert_eq!(page_size("256"), Ok(256));
        for text in ["0", "3", "512", "x"] {
            assert!(page_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn groups_and_ranges() {
        assert_eq!(layer_range("0..31"), Ok(0..31));
        for text in ["", "3", "3..3", "4..3", "0..x", "-1..2", "0..=3"] {
            assert!(layer_range(text).is_err(), "{text}");
        }
        assert!(group_dtype("full=fp8").is_ok());
        for text in ["full", "full=", "full=fp3"] {
            assert!(group_dtype(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
