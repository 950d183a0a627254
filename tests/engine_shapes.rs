//! Models of other shapes than the bundled one, with random weights, against the host twin: other head dims, group sizes, widths that no
//! tile divides, RoPE scaling, an output head of its own, soft-capped logits.

// Each test crate uses a part of it.
#[allow(dead_code)]
mod gemma_twin;

use std::path::Path;

use gemma_twin::{Precision, Twin};
use half::bf16;
use neap::driver::Driver;
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

/// As in `goldens.rs`.
const ERROR_RATIO: f32 = 1.5;

/// A sum of twelve uniform numbers: normal enough, mean 0, variance 1.
struct Normal(u64);

impl Normal {
    fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 40) as f32 / (1 << 24) as f32
        };
        (0..12).map(|_| uniform()).sum::<f32>() - 6.0
    }
}

/// Writes a model folder with random weights of the configuration's shapes.
fn write_model(dir: &Path, config: &Value) {
    let size = |field: &str| config[field].as_u64().expect("a size") as usize;
    let (hidden, intermediate, head_dim) = (
        size("hidden_size"),
        size("intermediate_size"),
        size("head_dim"),
    );
    let q_width = size("num_attention_heads") * head_dim;
    let kv_width = size("num_key_value_heads") * head_dim;
    let vocab = size("vocab_size");
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if config["tie_word_embeddings"] == false {
        shapes.push(("lm_head.weight".to_owned(), vec![vocab, hidden]));
    }
    for layer in 0..size("num_hidden_layers") {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.push((
                format!("model.layers.{layer}.{name}.weight"),
                shape.to_vec(),
            ));
        };
        add("self_attn.q_proj", &[q_width, hidden]);
        add("self_attn.k_proj", &[kv_width, hidden]);
        add("self_attn.v_proj", &[kv_width, hidden]);
        add("self_attn.o_proj", &[hidden, q_width]);
        add("self_attn.q_norm", &[head_dim]);
        add("self_attn.k_norm", &[head_dim]);
        add("mlp.gate_proj", &[intermediate, hidden]);
        add("mlp.up_proj", &[intermediate, hidden]);
        add("mlp.down_proj", &[hidden, intermediate]);
        for norm in [
            "input",
            "post_attention",
            "pre_feedforward",
            "post_feedforward",
        ] {
            add(&format!("{norm}_layernorm"), &[hidden]);
        }
    }
    let mut normal = Normal(0x5EED_1234_5678);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            // Norm weights are deviations from one; matrices keep the variance of what they multiply.
            let scale = if shape.len() == 1 {
                0.2
            } else {
                (shape[1] as f32).sqrt().recip()
            };
            let count = shape.iter().product::<usize>();
            let bytes = (0..count)
                .flat_map(|_| bf16::from_f32(normal.next() * scale).to_le_bytes())
                .collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (
            name.clone(),
            TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("shape and bytes agree"),
        )
    });
    serialize_to_file(views, None, &dir.join("model.safetensors")).expect("writes");
    std::fs::write(dir.join("config.json"), config.to_string()).expect("writes");
}

fn config(changes: Value) -> Value {
    let mut config = json!({
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "query_pre_attn_scalar": 64, "vocab_size": 512,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 24,
        "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 512,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "tie_word_embeddings": true, "eos_token_id": 1,
        "bos_token_id": 2
    });
    for (key, value) in changes.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

/// Runs a prompt in chunks and some forced tokens, and compares all logits with the twin's.
fn check(name: &str, changes: Value) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_model(dir.path(), &config(changes));
    let ordinal = emulator::add_device(Profile::named("tiny").expect("a known profile"));
    let device = Driver::emulator()
        .device(ordinal)
        .expect("the device just added");
    let options = EngineOptions {
        max_seqs: 2,
        max_chunk_tokens: 64,
        decode_buckets: Some(vec![1]),
        prefill_buckets: Some(vec![64]),
        ..EngineOptions::default()
    };
    let mut engine =
        Engine::load(&device, dir.path(), &options, &mut |_| {}).expect("the model loads");
    let vocab = engine.config().vocab_size;
    let ids: Vec<u32> = (0..100u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 7) % vocab)
        .collect();
    let (prompt, forced) = ids.split_at(90);
    let found = engine.logits_for(prompt, forced).expect("runs").concat();

    let twin = Twin::load(dir.path());
    let exact = twin.logits(&ids, prompt.len() - 1, Precision::Float32);
    let rounded = twin.logits(&ids, prompt.len() - 1, Precision::Bfloat16);
    let error = |logits: &[f32]| {
        let error = |(a, b): (&f32, &f32)| {
            if (a - b).is_nan() {
                f32::INFINITY
            } else {
                (a - b).abs()
            }
        };
        logits.iter().zip(&exact).map(error).fold(0.0, f32::max)
    };
    let (ours, theirs) = (error(&found), error(&rounded));
    println!("{name}: {ours:.4}, bf16 twin {theirs:.4}");
    assert_eq!(found.len(), exact.len());
    assert!(
        ours <= ERROR_RATIO * theirs,
        "{name}: {ours} against {theirs}"
    );
}

#[test]
fn wide_heads_and_large_groups() {
    check(
        "head_dim 128, 8 query heads a kv head",
        json!({"head_dim": 128, "num_attention_heads": 8, "num_key_value_heads": 1}),
    );
    check(
        "head_dim 256",
        json!({"head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "query_pre_attn_scalar": 256}),
    );
    check(
        "one query head a kv head",
        json!({"num_attention_heads": 2, "num_key_value_heads": 2}),
    );
    check(
        "three query heads a kv head",
        json!({"num_attention_heads": 6, "num_key_value_heads": 2}),
    );
}

#[test]
fn widths_that_no_tile_divides() {
    check("odd vocabulary", json!({"vocab_size": 1003}));
    check(
        "hidden 136, intermediate 300",
        json!({"hidden_size": 136, "intermediate_size": 300}),
    );
    check("hidden 100", json!({"hidden_size": 100}));
}

#[test]
fn constants_of_larger_models() {
    check(
        "scale of another width",
        json!({"query_pre_attn_scalar": 168}),
    );
    check(
        "rope scaling on full layers",
        json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    );
    check("final softcap", json!({"final_logit_softcapping": 3.0}));
    check(
        "an output head of its own",
        json!({"tie_word_embeddings": false}),
    );
}

#[test]
fn one_kind_of_layer_only() {
    check(
        "all sliding",
        json!({"layer_types": ["sliding_attention", "sliding_attention", "sliding_attention"]}),
    );
    check(
        "all full",
        json!({"layer_types": ["full_attention", "full_attention", "full_attention"]}),
    );
    check("window of one", json!({"sliding_window": 1}));
    check(
        "window as long as the model",
        json!({"sliding_window": 512}),
    );
}
