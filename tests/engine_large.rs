//! A start-up at the size of gpt-oss-120b on an emulated H200, in the whole order and with every graph, without a byte of weights.
//!
//! neap runs Gemma 3 models, so this is one with gpt-oss-120b's layers as far as KV is concerned (18 full, 18 sliding of 128 tokens,
//! eight KV heads of 64), its hidden size, vocabulary and bytes of weights.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use neap::driver::Driver;
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions};
use serde_json::{Map, Value, json};

const LAYERS: u64 = 36;
const HIDDEN: u64 = 2_880;
const HEADS: u64 = 64;
const KV_HEADS: u64 = 8;
const HEAD_DIM: u64 = 64;
const INTERMEDIATE: u64 = 92_160;
const VOCABULARY: u64 = 201_088;

/// `config.json`, and a checkpoint whose tensors are a hole in the file.
fn write_model(dir: &Path) -> u64 {
    let kinds = ["sliding_attention", "full_attention"];
    let layer_types: Vec<_> = kinds.iter().cycle().take(LAYERS as usize).collect();
    let config = json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "query_pre_attn_scalar": HEAD_DIM,
        "vocab_size": VOCABULARY, "layer_types": layer_types, "sliding_window": 128, "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131_072, "rope_theta": 1e6,
        "rope_local_base_freq": 1e4, "tie_word_embeddings": true, "eos_token_id": 1, "bos_token_id": 2
    });
    std::fs::write(dir.join("config.json"), config.to_string()).expect("writes");
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let mut tensors = vec![
        (
            "model.embed_tokens.weight".to_owned(),
            vec![VOCABULARY, HIDDEN],
        ),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let parts = [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("pre_feedforward_layernorm", vec![HIDDEN]),
            ("post_feedforward_layernorm", vec![HIDDEN]),
            ("self_attn.q_norm", vec![HEAD_DIM]),
            ("self_attn.k_norm", vec![HEAD_DIM]),
            ("self_attn.q_proj", vec![q, HIDDEN]),
            ("self_attn.k_proj", vec![kv, HIDDEN]),
            ("self_attn.v_proj", vec![kv, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, q]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
        ];
        let named =
            parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}.weight"), shape));
        tensors.extend(named);
    }
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<u64>();
        header.insert(
            name,
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}),
        );
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = File::create(dir.join("model.safetensors")).expect("creates");
    file.write_all(&(header.len() as u64).to_le_bytes())
        .expect("writes");
    file.write_all(header.as_bytes()).expect("writes");
    file.set_len(8 + header.len() as u64 + end)
        .expect("a file with a hole");
    end
}

/// The most memory this process has had resident, in bytes.
fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.expect("a number of KiB") << 10
}

#[test]
fn a_large_model_starts_up_in_little_host_memory() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let weights_bytes = write_model(dir.path());
    assert!(
        (60e9..62e9).contains(&(weights_bytes as f64)),
        "{weights_bytes}"
    );
    let ordinal = emulator::add_device(Profile::named("h200").expect("a known profile"));
    let device = Driver::emulator().device(ordinal).expect("just added");
    let options = EngineOptions {
        dummy_weights: true,
        max_seqs: 256,
        ..EngineOptions::default()
    };
    let begin = std::time::Instant::now();
    let engine = Engine::load(&device, dir.path(), &options, &mut |_| {}).expect("loads");
    println!(
        "{:.2} s, {} MiB of host memory",
        begin.elapsed().as_secs_f64(),
        peak_resident_bytes() >> 20
    );
    println!("{}", engine.ledger());
    assert!(engine.ledger().closes());
    let report = emulator::report(ordinal);
    // Nine decode buckets and four prefill ones, and the moves.
    assert_eq!(report.live.graph_execs, 14, "{report}");
    assert!(report.physical_bytes > 130 << 30, "{report}");
    assert!(peak_resident_bytes() < 2 << 30);
    engine.close().expect("closes");
    let report = emulator::report(ordinal);
    assert_eq!(
        (report.live_objects(), report.physical_bytes),
        (0, 0),
        "{report}"
    );
}
