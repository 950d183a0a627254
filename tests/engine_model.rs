//! Reading a model folder: both generations of configuration, checkpoints with every kind of damage, the tokenizer.

use std::fs;
use std::path::{Path, PathBuf};

use neap::kv::{Geometry, KvDtype, PageSize};
use neap::model::{Checkpoint, ModelConfig, ModelProgram, RopeScaling, WeightLayout};
use serde_json::{Value, json};

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv")
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("file is readable")).expect("file is JSON")
}

/// A copy of the bundled model's configuration and weights in a fresh folder.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(bundled().join(name), dir.path().join(name)).expect("copies");
    }
    dir
}

fn plan(dir: &Path) -> Result<WeightLayout, String> {
    let config = ModelConfig::from_dir(dir).map_err(|error| error.to_string())?;
    let checkpoint = Checkpoint::open(dir).map_err(|error| error.to_string())?;
    WeightLayout::plan(&config, &checkpoint).map_err(|error| error.to_string())
}

/// A safetensors image with the header's entries passed through `edit`.
fn with_header(dir: &Path, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let path = dir.join("model.safetensors");
    let image = fs::read(&path).expect("readable");
    let header_bytes = u64::from_le_bytes(image[..8].try_into().expect("8 bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&image[8..8 + header_bytes]).expect("a header");
    edit(header.as_object_mut().expect("an object"));
    let header = serde_json::to_vec(&header).expect("serializes");
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(&image[8 + header_bytes..]);
    fs::write(path, out).expect("writes");
}

#[test]
fn legacy_and_current_configurations_agree() {
    let current = ModelConfig::from_dir(&bundled()).expect("loads");
    let path = bundled().join("config.legacy.json");
    let generation = read_json(&bundled().join("generation_config.json"));
    let legacy =
        ModelConfig::from_json(&path, &read_json(&path), Some(&generation)).expect("loads");
    let facts = |config: &ModelConfig| {
        (
            (
                config.hidden_size,
                config.num_layers,
                config.num_q_heads,
                config.num_kv_heads,
                config.head_dim,
            ),
            (
                config.intermediate_size,
                config.vocab_size,
                config.max_position_embeddings,
            ),
            (
                config.rms_norm_eps,
                config.attention_scale,
                config.embed_scale,
            ),
            (
                config.rope_full,
                config.rope_sliding,
                config.tied_lm_head,
                config.bos_token,
            ),
            config.eos_tokens.clone(),
        )
    };
    assert_eq!(facts(&current), facts(&legacy));
    assert_eq!(
        (current.rope_full.theta, current.rope_sliding.theta),
        (1e6, 1e4)
    );
    assert_eq!(
        (current.attention_scale, current.bos_token),
        (0.125, Some(2))
    );
    assert_eq!(current.eos_tokens, [1]);
    assert!(
        (current.embed_scale - 13.856_406).abs() < 1e-6,
        "sqrt(192), not rounded to bf16"
    );
}

#[test]
fn a_published_27b_configuration_loads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs/gemma-3-27b-it.json");
    let config = ModelConfig::from_json(&path, &read_json(&path), None).expect("loads");
    assert_eq!(
        (config.hidden_size, config.num_q_heads, config.head_dim),
        (5376, 32, 128)
    );
    assert_eq!(
        config.rope_full.scaling,
        RopeScaling::Linear { factor: 8.0 }
    );
    assert_eq!(
        config.rope_sliding.scaling,
        RopeScaling::None,
        "rope_scaling is for the full layers only"
    );
    assert!((config.attention_scale - 168f32.powf(-0.5)).abs() < 1e-7);
}

#[test]
fn class_defaults_fill_what_published_configurations_leave_out() {
    let config = json!({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}
        }
    });
    let config = ModelConfig::from_json(Path::new("config.json"), &config, None).expect("loads");
    assert_eq!(
        (
            config.num_q_heads,
            config.num_kv_heads,
            config.head_dim,
            config.vocab_size
        ),
        (8, 4, 256, 262_208)
    );
    assert_eq!(config.eos_tokens, [1, 106]);
    assert_eq!(config.text["sliding_window"], 1024);
}

#[test]
fn malformed_configurations_name_the_field() {
    let path = bundled().join("config.json");
    let good = read_json(&path);
    let error = |field: &str, value: Value| {
        let mut config = good.clone();
        config[field] = value;
        ModelConfig::from_json(&path, &config, None)
            .expect_err("is refused")
            .to_string()
    };
    for (field, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!("wide")),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(60)),
        ("rms_norm_eps", json!(-1)),
        ("hidden_activation", json!("relu")),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!("yes")),
        ("eos_token_id", json!(-1)),
        ("num_hidden_layers", json!(1.5)),
    ] {
        let message = error(field, value.clone());
        assert!(
            message.contains(field) && message.contains(&value.to_string()),
            "{field}: {message}"
        );
        assert!(
            message.contains("config.json") && !message.contains('\n'),
            "{message}"
        );
    }
    let message = error("architectures", json!(["MambaForCausalLM"]));
    assert!(
        message.contains("MambaForCausalLM") && message.contains("Gemma3ForCausalLM"),
        "{message}"
    );
    let message = error(
        "rope_parameters",
        json!({"full_attention": {"rope_type": "yarn"}}),
    );
    assert!(
        message.contains("rope_parameters.full_attention.rope_type"),
        "{message}"
    );
}

#[test]
fn weights_are_fused_and_cover_the_checkpoint_once() {
    let config = ModelConfig::from_dir(&bundled()).expect("loads");
    let checkpoint = Checkpoint::open(&bundled()).expect("opens");
    let layout = WeightLayout::plan(&config, &checkpoint).expect("plans");
    assert_eq!(layout.lm_head, layout.embed, "tied");
    let layer = &layout.layers[5];
    assert_eq!((layer.qkv.rows, layer.qkv.cols), (512, 192));
    assert_eq!((layer.gate_up.rows, layer.gate_up.cols), (1024, 192));
    let parameters: usize = layout
        .pieces
        .iter()
        .map(|piece| checkpoint.bytes(&piece.tensor).len() / 2)
        .sum();
    assert_eq!(
        parameters, 3_446_208,
        "every parameter of the model is placed exactly once"
    );
    let mut end_bytes = 0;
    for piece in &layout.pieces {
        assert!(
            piece.offset_bytes >= end_bytes,
            "pieces overlap at {}",
            piece.offset_bytes
        );
        end_bytes = piece.offset_bytes + checkpoint.bytes(&piece.tensor).len() as u64;
    }
    assert_eq!(end_bytes, layout.total_bytes);
}

#[test]
fn the_layer_program_follows_the_configuration() {
    let config = ModelConfig::from_dir(&bundled()).expect("loads");
    let weights =
        WeightLayout::plan(&config, &Checkpoint::open(&bundled()).expect("opens")).expect("plans");
    let program = |config: &ModelConfig| {
        let page_size = PageSize::new(16).expect("a page size");
        let geometry =
            Geometry::from_config(&config.text, page_size, KvDtype::Bf16).expect("a geometry");
        ModelProgram::new(config, &geometry, &weights).expect("a program")
    };
    let hybrid = program(&config);
    let facts: Vec<_> = hybrid
        .layers
        .iter()
        .map(|layer| {
            (
                layer.group,
                layer.layer_in_group,
                layer.window,
                hybrid.ropes[layer.rope].theta,
            )
        })
        .collect();
    for (index, found) in facts[..5].iter().enumerate() {
        assert_eq!(*found, (1, index as u32, Some(64), 1e4));
    }
    assert_eq!(facts[5], (0, 0, None, 1e6));
    // The last layer's add belongs to the output norm.
    let steps: Vec<_> = hybrid
        .layers
        .iter()
        .map(|layer| layer.steps.len())
        .collect();
    assert_eq!(
        (steps, hybrid.prologue.len(), hybrid.epilogue.len()),
        (vec![9, 9, 9, 9, 9, 8], 2, 3)
    );

    // A window as long as the model's limit hides nothing, so the layers join the full group, but they keep their RoPE.
    let mut wide = config.clone();
    wide.text["sliding_window"] = config.max_position_embeddings.into();
    let wide = program(&wide);
    for (index, layer) in wide.layers.iter().enumerate() {
        assert_eq!(
            (layer.group, layer.layer_in_group, layer.window),
            (0, index as u32, None)
        );
        assert_eq!(
            wide.ropes[layer.rope].theta,
            if index == 5 { 1e6 } else { 1e4 }
        );
    }
}

#[test]
fn tensors_are_found_under_every_published_prefix() {
    let plain = plan(&bundled()).expect("plans");
    for prefix in ["language_model.model.", "model.language_model."] {
        let dir = copy();
        with_header(dir.path(), |header| {
            let entries = std::mem::take(header);
            header.extend(entries.into_iter().map(
                |(name, entry)| match name.strip_prefix("model.") {
                    Some(rest) => (format!("{prefix}{rest}"), entry),
                    None => (name, entry),
                },
            ));
        });
        let found = plan(dir.path()).expect("plans");
        let places = |layout: &WeightLayout| {
            layout
                .pieces
                .iter()
                .map(|piece| piece.offset_bytes)
                .collect::<Vec<_>>()
        };
        assert_eq!(places(&found), places(&plain), "{prefix}");
    }
}

#[test]
fn an_output_head_of_its_own_must_be_there() {
    let dir = copy();
    let mut config = read_json(&dir.path().join("config.json"));
    config["tie_word_embeddings"] = json!(false);
    fs::write(dir.path().join("config.json"), config.to_string()).expect("writes");
    let message = plan(dir.path()).expect_err("is refused");
    assert!(
        message.contains("lm_head.weight") && message.contains("[4096, 192]"),
        "{message}"
    );
}

#[test]
fn shards_are_found_through_the_index() {
    let dir = copy();
    let image = fs::read(dir.path().join("model.safetensors")).expect("readable");
    fs::remove_file(dir.path().join("model.safetensors")).expect("removes");
    fs::write(dir.path().join("model-00001-of-00001.safetensors"), &image).expect("writes");
    let index = json!({"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}});
    fs::write(
        dir.path().join("model.safetensors.index.json"),
        index.to_string(),
    )
    .expect("writes");
    let sharded = plan(dir.path()).expect("plans");
    assert_eq!(
        sharded.total_bytes,
        plan(&bundled()).expect("plans").total_bytes
    );

    for (name, found) in [
        ("../elsewhere.safetensors", "../elsewhere"),
        ("missing.safetensors", "missing.safetensors"),
    ] {
        let index = json!({"weight_map": {"model.norm.weight": name}});
        fs::write(
            dir.path().join("model.safetensors.index.json"),
            index.to_string(),
        )
        .expect("writes");
        let message = plan(dir.path()).expect_err("is refused");
        assert!(message.contains(found), "{message}");
    }
}

#[test]
fn damaged_checkpoints_are_refused_in_one_sentence() {
    let check = |dir: &tempfile::TempDir, words: &[&str]| {
        let message = plan(dir.path()).expect_err("is refused");
        assert!(!message.contains('\n'), "{message}");
        for word in words {
            assert!(message.contains(word), "`{word}` is not in: {message}");
        }
    };
    let file = |dir: &tempfile::TempDir| dir.path().join("model.safetensors");

    let dir = copy();
    fs::remove_file(file(&dir)).expect("removes");
    check(&dir, &["model.safetensors", "cannot be read"]);

    let image = fs::read(bundled().join("model.safetensors")).expect("readable");
    for bytes in [0, 4, 100, image.len() / 2, image.len() - 1] {
        let dir = copy();
        fs::write(file(&dir), &image[..bytes]).expect("writes");
        check(&dir, &["model.safetensors"]);
    }

    let dir = copy();
    with_header(dir.path(), |header| {
        header.remove("model.norm.weight");
    });
    // The hole that the removed entry leaves is damage to the safetensors parser as well.
    check(&dir, &["model.safetensors"]);

    let dir = copy();
    with_header(dir.path(), |header| {
        let entry = header
            .remove("model.layers.3.self_attn.k_proj.weight")
            .expect("is there");
        header.insert("model.layers.3.self_attn.key.weight".to_owned(), entry);
    });
    check(
        &dir,
        &["model.layers.3.self_attn.k_proj.weight", "[128, 192]"],
    );

    let dir = copy();
    with_header(dir.path(), |header| {
        header["model.layers.3.self_attn.k_proj.weight"]["shape"] = json!([192, 128]);
    });
    check(
        &dir,
        &[
            "model.layers.3.self_attn.k_proj.weight",
            "[192, 128]",
            "[128, 192]",
        ],
    );

    let dir = copy();
    with_header(dir.path(), |header| {
        header["model.layers.3.self_attn.k_proj.weight"]["dtype"] = json!("F16");
    });
    check(
        &dir,
        &["model.layers.3.self_attn.k_proj.weight", "F16", "BF16"],
    );
}

#[cfg(feature = "text")]
mod text {
    use super::*;
    use neap::model::Tokenizer;

    #[test]
    fn ids_and_text_match_the_reference_tokenizer() {
        let tokenizer = Tokenizer::from_dir(&bundled()).expect("loads");
        let goldens =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens/tokenizer.json");
        let cases = read_json(&goldens)["cases"]
            .as_array()
            .expect("a list")
            .clone();
        assert!(cases.len() > 10);
        for case in cases {
            let text = case["text"].as_str().expect("a string");
            let ids: Vec<u32> = case["ids"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|id| id.as_u64().expect("an id") as u32)
                .collect();
            assert_eq!(tokenizer.encode(text).expect("encodes"), ids, "{text:?}");
            let decoded = tokenizer.decode(&ids).expect("decodes");
            assert_eq!(
                decoded,
                case["decoded_skip_special"].as_str().expect("a string"),
                "{text:?}"
            );

            let mut stream = tokenizer.stream();
            let mut streamed = String::new();
            for id in &ids {
                let piece = stream.push(*id).expect("decodes");
                assert!(
                    !piece.contains('\u{FFFD}') || text.contains('\u{FFFD}'),
                    "{text:?} split a character: {piece:?}"
                );
                streamed += &piece;
            }
            streamed += &stream.finish().expect("decodes");
            assert_eq!(streamed, decoded, "{text:?}");
        }
    }

    #[test]
    fn an_incomplete_character_is_held_back() {
        let tokenizer = Tokenizer::from_dir(&bundled()).expect("loads");
        let ids = tokenizer.encode("\u{1F600}").expect("encodes");
        assert!(
            ids.len() > 2,
            "the emoji takes several byte tokens: {ids:?}"
        );
        let mut stream = tokenizer.stream();
        for id in &ids[..ids.len() - 1] {
            assert_eq!(stream.push(*id).expect("decodes"), "");
        }
        assert_eq!(
            stream.push(ids[ids.len() - 1]).expect("decodes"),
            "\u{1F600}"
        );

        let mut cut = tokenizer.stream();
        for id in &ids[..ids.len() - 1] {
            cut.push(*id).expect("decodes");
        }
        assert_eq!(cut.finish().expect("decodes"), "\u{FFFD}");
    }

    #[test]
    fn a_damaged_tokenizer_is_named() {
        let dir = copy();
        fs::write(dir.path().join("tokenizer.json"), "{").expect("writes");
        let message = Tokenizer::from_dir(dir.path())
            .err()
            .expect("is refused")
            .to_string();
        assert!(
            message.contains("tokenizer.json") && !message.contains('\n'),
            "{message}"
        );
    }
}
