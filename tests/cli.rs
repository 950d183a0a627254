//! The command line as a user meets it, on the emulator's tiny device.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::tensor::SafeTensors;
use serde_json::Value;

const MODEL: &str = "models/gemma3-tiny-kjv";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neap"));
    command
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null());
    command
}

#[track_caller]
fn succeed(arguments: &[&str]) -> Output {
    let output = command(arguments).output().expect("neap starts");
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    serde_json::from_slice(&succeed(arguments).stdout).expect("standard output is one JSON value")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn run_streams_what_its_json_says_and_accounts_for_every_byte() {
    let arguments = ["run", "--device", "emu:tiny", "--max-new-tokens", "24"];
    let report = json(&[&arguments[..], &["--json"]].concat());

    // The start of the reference's greedy continuation of the default prompt.
    let written = report["text"].as_str().expect("text");
    assert!(
        written.starts_with(" of the flesh.\n20 And the Spirit"),
        "{written:?}"
    );
    assert_eq!(report["tokens"].as_array().map(Vec::len), Some(24));
    assert_eq!(report["finish_reason"], "length");

    let bytes = |name: &str| {
        report["ledger"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("no {name}"))
    };
    let parts = [
        "foreign_bytes",
        "context_bytes",
        "modules_bytes",
        "weights_bytes",
        "workspace_bytes",
        "graphs_bytes",
        "headroom_bytes",
        "tail_bytes",
    ];
    let kv: u64 = report["ledger"]["kv"]
        .as_array()
        .expect("kv")
        .iter()
        .filter_map(|share| share["bytes"].as_u64())
        .sum();
    let sum = kv + parts.iter().map(|part| bytes(part)).sum::<u64>();
    let grain = report["device"]["granularity_bytes"]
        .as_u64()
        .expect("a grain");
    assert_eq!(bytes("total_bytes"), 512 << 20);
    assert!(
        sum.abs_diff(bytes("total_bytes")) <= grain,
        "{sum} of {}",
        bytes("total_bytes")
    );

    let pools = report["carve"]["pools"].as_array().expect("pools");
    let groups: Vec<&str> = pools
        .iter()
        .filter_map(|pool| pool["group"].as_str())
        .collect();
    assert_eq!(groups, ["full", "swa"]);
    assert!(
        pools.iter().all(|pool| pool["pages"].as_u64() > Some(0)),
        "{pools:?}"
    );
    assert!(report["timings"]["startup_us"].as_u64() > Some(0));

    let streamed = succeed(&arguments);
    assert_eq!(text(streamed.stdout), format!("{written}\n"));
    let told = text(streamed.stderr);
    for word in [
        "foreign",
        "context",
        "modules",
        "weights",
        "workspace",
        "graphs",
        "headroom",
        "KV",
        "tail",
    ] {
        assert!(told.contains(word), "the waterfall has no {word}:\n{told}");
    }
}

#[test]
fn tokens_depend_neither_on_graphs_nor_on_the_page_size() {
    let prompt = "And it came to pass in those days, that there went out a decree; and all the people, every one into \
                  his own city, went up from Galilee, and the number of them was as the sand of the sea shore, and \
                  they pitched their tents over against the river, and abode there seven days and seven nights.";
    let tokens = |more: &[&str]| {
        let arguments = [
            "run",
            "--device",
            "emu:tiny",
            "--json",
            "--max-new-tokens",
            "12",
            "--prompt",
            prompt,
        ];
        let report = json(&[&arguments[..], more].concat());
        assert!(
            report["prompt_tokens"].as_array().map(Vec::len) > Some(64),
            "the window is not left"
        );
        report["tokens"].clone()
    };
    let expected = tokens(&[]);
    assert_eq!(tokens(&["--eager"]), expected);
    assert_eq!(tokens(&["--page-size", "1"]), expected);
    assert_eq!(tokens(&["--page-size", "64"]), expected);
}

#[test]
fn headroom_is_taken_from_kv_and_left_free() {
    let kv_bytes = |headroom: &str| {
        let report = json(&[
            "run",
            "--device",
            "emu:tiny",
            "--json",
            "--max-new-tokens",
            "1",
            "--headroom",
            headroom,
        ]);
        let ledger = &report["ledger"];
        let bytes = |name: &str| ledger[name].as_u64().expect("a number");
        let kv: u64 = ledger["kv"]
            .as_array()
            .expect("kv")
            .iter()
            .filter_map(|share| share["bytes"].as_u64())
            .sum();
        (bytes("headroom_bytes"), kv + bytes("tail_bytes"))
    };
    let (none, all) = kv_bytes("0");
    let (some, less) = kv_bytes("128MiB");
    let grain = 2 << 20;
    assert!(
        none <= grain && (128 << 20..=(128 << 20) + grain).contains(&some),
        "{none} {some}"
    );
    assert!((all - less).abs_diff(128 << 20) <= grain, "{all} - {less}");
}

#[test]
fn a_prompt_comes_from_a_file_or_from_standard_input() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("prompt.txt");
    fs::write(&path, "In the beginning").expect("written");
    let run = ["run", "--device", "emu:tiny", "--max-new-tokens", "4"];
    let from_text = text(succeed(&[&run[..], &["--prompt", "In the beginning"]].concat()).stdout);
    let file = path.to_str().expect("UTF-8");
    assert_eq!(
        text(succeed(&[&run[..], &["--prompt-file", file]].concat()).stdout),
        from_text
    );
    let piped = command(&[&run[..], &["--prompt-file", "-"]].concat())
        .stdin(fs::File::open(&path).expect("the file"))
        .output()
        .expect("neap starts");
    assert_eq!(text(piped.stdout), from_text);
}

#[test]
fn a_reader_that_hangs_up_is_no_error() {
    let mut child = command(&["run", "--device", "emu:tiny", "--max-new-tokens", "24"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("neap starts");
    let mut first = [0];
    child
        .stdout
        .take()
        .expect("piped")
        .read_exact(&mut first)
        .expect("a byte of text");
    let output = child.wait_with_output().expect("neap ends");
    let told = text(output.stderr);
    assert!(
        !told.contains("panicked") && !told.contains("neap:"),
        "{told}"
    );
    assert!(output.status.success(), "{:?}", output.status);
}

#[test]
fn devices_lists_what_is_there_and_why_the_rest_cannot_be_used() {
    let listed = text(succeed(&["devices"]).stdout);
    for profile in ["emu:tiny", "emu:h200", "emu:h100", "emu:a100"] {
        assert!(listed.contains(profile), "{listed}");
    }
    assert!(listed.contains("cuda"), "{listed}");
    let entries = json(&["devices", "--json"]);
    for entry in entries.as_array().expect("a list") {
        let usable = entry["usable"].as_bool().expect("usable");
        assert_eq!(usable, entry["reason"].is_null(), "{entry}");
    }
}

#[test]
fn help_and_version_go_to_standard_output() {
    let help = text(succeed(&["--help"]).stdout);
    for subcommand in ["run", "plan", "devices", "selftest"] {
        assert!(help.contains(subcommand), "{help}");
    }
    let version = text(succeed(&["--version"]).stdout);
    assert_eq!(
        version.trim(),
        format!("neap {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn counters_of_kernels_opcodes_and_graphs_agree() {
    let arguments = ["counters", "--prompt-tokens", "8", "--new-tokens", "3"];
    let report = json(&[&arguments[..], &["--json"]].concat());
    let kernels = report["kernels"].as_array().expect("kernels");
    let number = |value: &Value| value.as_u64().expect("a number");
    let total = |counts: &Value| -> u64 {
        let counts = counts.as_object().expect("counts by name");
        counts.values().map(number).sum()
    };
    let mut launches = 0;
    for kernel in kernels {
        let counters = &kernel["counters"];
        let instructions = number(&counters["warp_instructions"]);
        assert_eq!(total(&kernel["opcodes"]), instructions, "{kernel}");
        assert_eq!(total(&kernel["classes"]), instructions, "{kernel}");
        let products = kernel["opcodes"].as_object().expect("counts by name");
        let products = products
            .iter()
            .filter(|(opcode, _)| opcode.starts_with("mma."));
        let products: u64 = products.map(|(_, count)| number(count)).sum();
        assert_eq!(products, number(&counters["mma_ops"]), "{kernel}");
        launches += number(&counters["launches"]);
    }
    let graphs = report["graphs"].as_array().expect("graphs");
    let in_graphs: u64 = graphs
        .iter()
        .map(|graph| number(&graph["counters"]["launches"]))
        .sum();
    // Every step of the engine is a graph.
    assert_eq!(in_graphs, launches);
    let table = text(succeed(&arguments).stdout);
    for heading in [
        "model us",
        "mma by shape",
        "graphs, in order of instantiation",
    ] {
        assert!(table.contains(heading), "{table}");
    }
}

#[test]
fn plan_answers_from_a_config_alone() {
    let config = "tests/data/configs/gemma-3-27b-it.json";
    let arguments = [
        "plan",
        config,
        "--kv-bytes",
        "40GB",
        "--length",
        "8k",
        "--length",
        "131072",
        "--json",
    ];
    let plan = json(&arguments);
    let pools = plan["pools"].as_array().expect("pools");
    assert_eq!(pools.len(), 2);
    for pool in pools {
        for field in ["group", "layers", "page_bytes", "pages", "tokens"] {
            assert!(!pool[field].is_null(), "{field} of {pool}");
        }
    }
    let capacity = plan["capacity"].as_array().expect("capacity");
    let lengths: Vec<u64> = capacity
        .iter()
        .filter_map(|row| row["length"].as_u64())
        .collect();
    assert_eq!(lengths, [8192, 131_072]);
    for row in capacity {
        let number = |name: &str| row[name].as_u64().expect("a number");
        assert!(number("requests") > 0);
        assert_eq!(number("tokens"), number("requests") * number("length"));
    }
    let table = text(succeed(&arguments[..arguments.len() - 1]).stdout);
    assert!(table.contains("131,072"), "{table}");
    // A model folder does as well, and an emulator profile instead of bytes.
    assert!(
        json(&["plan", MODEL, "--device-profile", "h200", "--json"])["slab_bytes"].as_u64()
            > Some(0)
    );
}

#[test]
fn plan_compares_policies_and_servers_and_draws_the_memory() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let svg = folder.path().join("map.svg");
    let svg = svg.to_str().expect("a path in UTF-8");
    let config = "tests/data/configs/gpt-oss-20b.json";
    let base = ["plan", config, "--kv-bytes", "40GB", "--length", "8k"];
    let arguments = [
        &base[..],
        &[
            "--device-profile",
            "h200",
            "--policy",
            "ratio(0.8)",
            "--policy",
            "requests(64)",
        ],
        &["--group-dtype", "full=fp8", "--svg", svg],
    ]
    .concat();
    let table = text(succeed(&arguments).stdout);
    for expected in [
        "ratio(0.8)",
        "requests(64)",
        "fp8_e4m3",
        "models of the rules of SGLang",
    ] {
        assert!(table.contains(expected), "{expected} in {table}");
    }
    let drawn = std::fs::read_to_string(svg).expect("the drawing");
    assert!(drawn.starts_with("<svg ") && drawn.contains("all but KV") && drawn.contains("KV swa"));
    let plan = json(&[&base[..], &["--json"]].concat());
    assert_eq!(plan["policies"][0]["policy"], "dynamic");
    // The models of the reference: vLLM keeps 194 running, TensorRT-LLM's first manager 99.
    assert_eq!(
        (
            &plan["servers"][0]["vllm"],
            &plan["servers"][0]["tensorrt_llm_v1"]
        ),
        (&194.into(), &99.into())
    );
}

#[test]
fn the_gpu_check_passes_on_the_emulator() {
    let out = tempfile::TempDir::new().expect("a folder");
    let output = Command::new("bash")
        .arg(root().join("scripts/gpu-check.sh"))
        .args([
            "--neap",
            env!("CARGO_BIN_EXE_neap"),
            "--device",
            "emu:tiny",
            "--out",
        ])
        .arg(out.path())
        .output()
        .expect("bash starts");
    let told = text(output.stdout);
    println!("{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success());
    assert!(told.contains("gpu-check: all passed"));
    let table: Value =
        serde_json::from_slice(&fs::read(out.path().join("selftest.json")).expect("the table"))
            .expect("JSON");
    let checks = table["checks"].as_array().expect("checks");
    let names: BTreeSet<&str> = checks
        .iter()
        .filter_map(|check| check["name"].as_str())
        .collect();
    for name in [
        "device",
        "start-up",
        "ledger closes",
        "ledger against cuMemGetInfo",
        "carve of the whole card",
        "goldens len65",
        "goldens len700",
        "graph against eager",
        "nothing left behind",
    ] {
        assert!(names.contains(name), "no check {name}");
    }
    assert!(
        checks.iter().all(|check| check["outcome"] == "pass"),
        "{checks:?}"
    );
}

/// The goldens built into `neap selftest` are those of tests/data (scripts/embed-goldens.py writes them).
#[test]
fn built_in_goldens_are_an_excerpt_of_the_full_ones() {
    let folder: PathBuf = root().join("tests/data/goldens");
    let bytes = fs::read(folder.join("gemma3-tiny-kjv.safetensors")).expect("goldens");
    let full = SafeTensors::deserialize(&bytes).expect("safetensors");
    let words = |name: String| {
        full.tensor(&name)
            .expect("the tensor")
            .data()
            .as_chunks::<4>()
            .0
            .to_vec()
    };
    let ids = |name: String| {
        words(name)
            .into_iter()
            .map(u32::from_le_bytes)
            .collect::<Vec<_>>()
    };
    let built_in: Value =
        serde_json::from_str(include_str!("../src/bin/neap/goldens.json")).expect("JSON");
    let prompts = built_in["prompts"].as_array().expect("prompts");
    assert_eq!(prompts.len(), 7);
    for prompt in prompts {
        let name = prompt["name"].as_str().expect("a name");
        let listed = |field: &str| {
            prompt[field]
                .as_array()
                .expect(field)
                .iter()
                .map(|id| id.as_u64().expect("an id") as u32)
                .collect::<Vec<_>>()
        };
        assert_eq!(listed("prompt"), ids(format!("{name}.input_ids")));
        assert!(ids(format!("{name}.decoded_ids")).starts_with(&listed("decoded")));
        let (top_ids, top_logits) = (
            ids(format!("{name}.step_topk_ids")),
            words(format!("{name}.step_topk_logits")),
        );
        for (step, row) in prompt["top"].as_array().expect("top").iter().enumerate() {
            for (rank, pair) in row.as_array().expect("a row").iter().enumerate() {
                assert_eq!(
                    pair[0].as_u64(),
                    Some(u64::from(top_ids[step * 20 + rank])),
                    "{name} {step} {rank}"
                );
                let logit = f64::from(f32::from_le_bytes(top_logits[step * 20 + rank]));
                assert!(
                    (pair[1].as_f64().expect("a logit") - logit).abs() < 1e-5,
                    "{name} {step} {rank}"
                );
            }
        }
    }
}

#[test]
fn run_completes_a_prompt_several_times_and_draws_its_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("map.svg");
    let svg = svg.to_str().expect("a path in UTF-8");
    let run = |more: &[&str]| {
        let fixed = [
            "run",
            "--device",
            "emu:tiny",
            "--max-new-tokens",
            "8",
            "--json",
        ];
        json(&[&fixed[..], more].concat())
    };
    let one = run(&[]);
    let three = run(&[
        "--completions",
        "3",
        "--policy",
        "requests(8)",
        "--max-kv-tokens",
        "4k",
        "--role",
        "decode",
        "--no-prefix-cache",
        "--svg",
        svg,
    ]);
    let completions = three["completions"].as_array().expect("a list");
    assert_eq!(completions.len(), 3);
    assert_eq!(completions[0]["tokens"], one["tokens"]);
    let firsts: BTreeSet<_> = completions
        .iter()
        .map(|completion| completion["tokens"][0].as_u64().expect("a token"))
        .collect();
    assert_eq!(firsts.len(), 3, "they begin differently");
    let bytes = |run: &Value| run["ledger"]["kv"][0]["bytes"].as_u64().expect("bytes");
    assert!(bytes(&three) < bytes(&one));
    let drawn = fs::read_to_string(svg).expect("the drawing");
    assert!(drawn.starts_with("<svg ") && drawn.contains("KV swa") && drawn.contains("graphs"));
}

/// Instruction probes are listed by family, recorded on a device, and written as PTX; each way the same forms.
#[test]
fn selftest_lists_records_and_writes_instruction_probes() {
    let listed = json(&["selftest", "--list", "--json"]);
    let forms = listed["forms"].as_array().expect("a list");
    assert!(forms.len() > 4_000, "{} forms", forms.len());
    let out = tempfile::tempdir().expect("a folder");
    let path = |name: &str| out.path().join(name).to_str().expect("UTF-8").to_owned();
    let counts = text(
        succeed(&[
            "selftest",
            "--device",
            "emu:h200",
            "--record",
            &path("all.txt"),
        ])
        .stdout,
    );
    assert!(counts.contains("atomic"), "{counts}");
    let recorded = fs::read_to_string(path("all.txt")).expect("a recording");
    let names: Vec<&str> = recorded
        .lines()
        .filter_map(|line| line.strip_prefix("form "))
        .collect();
    assert_eq!(names.len(), forms.len());
    for form in forms {
        assert!(
            names.contains(&form["form"].as_str().expect("a form")),
            "{form}"
        );
        assert_eq!(form["recorded_on"], serde_json::json!([]));
    }
    // On sm_90 only what later architectures have is refused.
    let refused = recorded.lines().filter(|line| line.starts_with("refused "));
    assert!(
        refused.clone().all(|line| line == "refused needs sm_100a"),
        "{:?}",
        refused.collect::<Vec<_>>()
    );
    succeed(&["selftest", "--ptx", &path("ptx")]);
    let kernels = fs::read_dir(path("ptx")).expect("a folder").map(|entry| {
        let module = fs::read_to_string(entry.expect("an entry").path()).expect("a module");
        module.matches(".visible .entry ").count()
    });
    assert_eq!(kernels.sum::<usize>(), forms.len());
    let nowhere = path("none/all.txt");
    let refused = command(&["selftest", "--device", "emu:h200", "--record", &nowhere])
        .output()
        .expect("neap starts");
    assert!(!refused.status.success());
    assert!(text(refused.stderr).contains("name a writable file"));
}
