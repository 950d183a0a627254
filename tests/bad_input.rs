//! Bad input: one sentence that names the file or value and the remedy, exit code 2, no panic, and nothing left on
//! the device. `neap` checks the last itself at exit (the emulator counts live objects) and would exit with 1.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A copy of the bundled model that a test may damage.
struct ModelCopy {
    folder: TempDir,
}

impl ModelCopy {
    fn new() -> ModelCopy {
        let folder = TempDir::new().expect("a temporary folder");
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
        for entry in fs::read_dir(bundled).expect("the bundled model") {
            let from = entry.expect("a file").path();
            let to = folder.path().join(from.file_name().expect("a name"));
            fs::copy(&from, to).expect("a copy");
        }
        ModelCopy { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn edit_config(&self, edit: impl FnOnce(&mut Value)) {
        let path = self.file("config.json");
        let mut config: Value =
            serde_json::from_slice(&fs::read(&path).expect("config.json")).expect("JSON");
        edit(&mut config);
        fs::write(path, config.to_string()).expect("written");
    }

    /// Rewrites the weights; `edit` returns what a tensor becomes, or `None` to leave it out.
    fn edit_tensors(&self, edit: impl Fn(&str, Stored) -> Option<Stored>) {
        let path = self.file("model.safetensors");
        let bytes = fs::read(&path).expect("weights");
        let edited: Vec<(String, Stored)> = SafeTensors::deserialize(&bytes)
            .expect("safetensors")
            .tensors()
            .into_iter()
            .filter_map(|(name, view)| {
                let stored = Stored {
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    data: view.data().to_vec(),
                };
                edit(&name, stored).map(|stored| (name, stored))
            })
            .collect();
        let views = edited.iter().map(|(name, stored)| {
            let view = TensorView::new(stored.dtype, stored.shape.clone(), &stored.data);
            (name.as_str(), view.expect("a consistent tensor"))
        });
        fs::write(
            &path,
            safetensors::serialize(views, None).expect("serialised"),
        )
        .expect("written");
    }
}

struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

fn neap(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_neap"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("neap starts")
}

fn run_json(model: &Path, more: &[&str]) -> Output {
    let model = model.to_str().expect("UTF-8");
    let mut arguments = vec![
        "run",
        model,
        "--device",
        "emu:tiny",
        "--json",
        "--max-new-tokens",
        "4",
    ];
    arguments.extend(more);
    neap(&arguments)
}

/// Asserts exit code 2, nothing on standard output, and exactly one line on standard error that has all `parts`.
#[track_caller]
fn assert_refused(output: &Output, parts: &[&str]) {
    let complaint = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(
        output.status.code(),
        Some(2),
        "exit code; said: {complaint}"
    );
    assert!(!complaint.contains("panicked"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "not one line: {complaint}");
    assert!(complaint.starts_with("neap: "), "{complaint}");
    assert!(
        complaint.contains(';') || complaint.contains(','),
        "no remedy in: {complaint}"
    );
    for part in parts {
        assert!(complaint.contains(part), "{part:?} is not in: {complaint}");
    }
    assert!(output.stdout.is_empty(), "wrote to standard output");
}

#[test]
fn model_folder_missing() {
    assert_refused(
        &run_json(Path::new("/no/such/model"), &[]),
        &["/no/such/model"],
    );
}

#[test]
fn weights_missing() {
    let model = ModelCopy::new();
    fs::remove_file(model.file("model.safetensors")).expect("removed");
    assert_refused(&run_json(model.path(), &[]), &["model.safetensors"]);
}

#[test]
fn weights_truncated() {
    let model = ModelCopy::new();
    let path = model.file("model.safetensors");
    let whole = fs::read(&path).expect("weights");
    for bytes in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..bytes]).expect("written");
        assert_refused(&run_json(model.path(), &[]), &["model.safetensors"]);
    }
    let mut nonsense_header = whole;
    nonsense_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&path, nonsense_header).expect("written");
    assert_refused(&run_json(model.path(), &[]), &["model.safetensors"]);
}

const Q_PROJ: &str = "model.layers.3.self_attn.q_proj.weight";

#[test]
fn tensor_of_wrong_shape() {
    let model = ModelCopy::new();
    model.edit_tensors(|name, mut stored| {
        if name == Q_PROJ {
            stored.shape.swap(0, 1);
        }
        Some(stored)
    });
    assert_refused(
        &run_json(model.path(), &[]),
        &["model.safetensors", Q_PROJ, "[192, 256]", "[256, 192]"],
    );
}

#[test]
fn tensor_of_wrong_dtype() {
    let model = ModelCopy::new();
    model.edit_tensors(|name, stored| {
        if name != Q_PROJ {
            return Some(stored);
        }
        Some(Stored {
            dtype: Dtype::F32,
            data: [&stored.data[..], &stored.data[..]].concat(),
            ..stored
        })
    });
    assert_refused(
        &run_json(model.path(), &[]),
        &["model.safetensors", Q_PROJ, "F32", "BF16"],
    );
}

#[test]
fn tensor_missing() {
    let model = ModelCopy::new();
    model.edit_tensors(|name, stored| (name != Q_PROJ).then_some(stored));
    assert_refused(&run_json(model.path(), &[]), &["model.safetensors", Q_PROJ]);
}

#[test]
fn unknown_architecture() {
    let model = ModelCopy::new();
    model.edit_config(|config| config["architectures"] = json!(["MambaForCausalLM"]));
    assert_refused(
        &run_json(model.path(), &[]),
        &["config.json", "MambaForCausalLM", "Gemma3ForCausalLM"],
    );
}

#[test]
fn config_malformed() {
    let model = ModelCopy::new();
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{\"architectures\": 7}",
        "\u{0}\u{1}",
    ] {
        fs::write(model.file("config.json"), text).expect("written");
        assert_refused(&run_json(model.path(), &[]), &["config.json"]);
    }
    fs::remove_file(model.file("config.json")).expect("removed");
    assert_refused(&run_json(model.path(), &[]), &["config.json"]);
}

#[test]
fn config_fields_out_of_range() {
    for (field, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-1)),
        ("hidden_size", json!(u64::MAX)),
        ("hidden_size", json!("many")),
        ("hidden_size", Value::Null),
        ("head_dim", json!(63)),
        ("num_attention_heads", json!(3)),
        ("num_attention_heads", json!(4_000_000_000_u32)),
        ("num_key_value_heads", json!(0)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!(100_000_000)),
        ("vocab_size", json!(0)),
        ("sliding_window", json!(0)),
        ("rms_norm_eps", json!("small")),
        ("layer_types", json!(["sliding_attention"])),
        ("layer_types", json!(vec!["diagonal_attention"; 6])),
        ("hidden_activation", json!("sine")),
    ] {
        let model = ModelCopy::new();
        model.edit_config(|config| config[field] = value.clone());
        let output = run_json(model.path(), &[]);
        println!(
            "{field} = {value}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_refused(&output, &["config.json"]);
    }
}

#[test]
fn tokenizer_missing_or_malformed() {
    let model = ModelCopy::new();
    fs::write(model.file("tokenizer.json"), "{}").expect("written");
    assert_refused(&run_json(model.path(), &[]), &["tokenizer.json"]);
    fs::remove_file(model.file("tokenizer.json")).expect("removed");
    assert_refused(&run_json(model.path(), &[]), &["tokenizer.json"]);
}

/// What the tiny profile's ledger says with this model and headroom 0: bytes that go to KV, tail included.
fn kv_bytes(model: &Path) -> u64 {
    let output = run_json(model, &["--headroom", "0"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let kv = report["ledger"]["kv"].as_array().expect("kv");
    let tail = report["ledger"]["tail_bytes"].as_u64().expect("tail_bytes");
    tail + kv
        .iter()
        .filter_map(|share| share["bytes"].as_u64())
        .sum::<u64>()
}

#[test]
fn prompt_longer_than_the_model_takes() {
    let prompt = "and the light ".repeat(2000);
    let model = ModelCopy::new();
    assert_refused(
        &run_json(model.path(), &["--prompt", &prompt]),
        &["2048", "tokens"],
    );
}

#[test]
fn prompt_longer_than_the_pool() {
    let model = ModelCopy::new();
    model.edit_config(|config| config["max_position_embeddings"] = json!(131_072));
    let left = 4 << 20;
    let headroom = (kv_bytes(model.path()) - left).to_string();
    let prompt = "and the light ".repeat(20_000);
    let file = model.file("prompt.txt");
    fs::write(&file, prompt).expect("written");
    let file = file.to_str().expect("UTF-8");
    assert_refused(
        &run_json(
            model.path(),
            &["--headroom", &headroom, "--prompt-file", file],
        ),
        &["tokens"],
    );
}

#[test]
fn too_little_memory_for_one_page() {
    let model = ModelCopy::new();
    let kv_bytes = kv_bytes(model.path());
    for headroom in [kv_bytes, kv_bytes + (64 << 20), 512 << 20, u64::MAX] {
        let output = run_json(model.path(), &["--headroom", &headroom.to_string()]);
        assert_refused(&output, &["bytes"]);
    }
}

#[test]
fn no_gpu_where_one_was_named() {
    let model = ModelCopy::new();
    let model = model.path().to_str().expect("UTF-8");
    let output = neap(&["run", model, "--device", "cuda:99", "--json"]);
    assert_refused(&output, &["cuda:99", "emu"]);
}

#[test]
fn option_values_that_do_not_exist_name_those_that_do() {
    for (arguments, parts) in [
        (
            &["run", "--device", "gpu"][..],
            &["gpu", "auto", "cuda:N", "emu", "tiny", "h200"][..],
        ),
        (
            &["run", "--device", "emu:abacus"],
            &["abacus", "tiny", "h200"],
        ),
        (&["run", "--page-size", "24"], &["24", "power of two"]),
        (&["run", "--headroom", "lots"], &["lots", "512MiB"]),
        (&["run", "--max-new-tokens", "0"], &["0"]),
        (&["run", "--tempo", "allegro"], &["--tempo"]),
        (&["sail"], &["sail", "neap --help"]),
        (
            &["run", "--prompt", "a", "--prompt-file", "b"],
            &["--prompt"],
        ),
    ] {
        assert_refused(&neap(arguments), parts);
    }
}

#[test]
fn prompt_files_that_cannot_be_used() {
    let model = ModelCopy::new();
    assert_refused(
        &run_json(model.path(), &["--prompt-file", "/no/such/prompt"]),
        &["/no/such/prompt"],
    );
    let file = model.file("latin1.txt");
    fs::write(&file, b"caf\xe9").expect("written");
    let file = file.to_str().expect("UTF-8");
    assert_refused(
        &run_json(model.path(), &["--prompt-file", file]),
        &[file, "UTF-8"],
    );
}
