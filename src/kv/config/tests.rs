use serde_json::json;

use super::*;

fn geometry(config: Value) -> Result<Geometry, ConfigError> {
    Geometry::from_config(&config, PageSize::new(16).unwrap(), KvDtype::Bf16)
}

/// `(name, window, layers)` of each group.
fn groups(config: Value) -> Vec<(String, Option<u32>, Vec<u32>)> {
    let geometry = geometry(config).unwrap();
    geometry
        .groups
        .into_iter()
        .map(|g| (g.name, g.kind.window(), g.layers))
        .collect()
}

fn full_layers(config: Value) -> Vec<u32> {
    groups(config)
        .into_iter()
        .filter(|g| g.1.is_none())
        .flat_map(|g| g.2)
        .collect()
}

#[test]
fn layer_types_and_both_pattern_fields_agree() {
    let types = ["sliding_attention"; 5]
        .into_iter()
        .chain(["full_attention"])
        .collect::<Vec<_>>();
    let base = json!({"num_hidden_layers": 6, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 64,
                      "max_position_embeddings": 2048});
    for (field, value) in [
        ("layer_types", json!(types)),
        ("sliding_window_pattern", json!(6)),
        ("_sliding_window_pattern", json!(6)),
        ("sliding_window_pattern", json!("LLLLLG")),
        ("hybrid_layer_pattern", json!([1, 1, 1, 1, 1, 0])),
        ("model_type", json!("gemma3_text")),
    ] {
        let mut config = base.clone();
        config[field] = value;
        let expected = [
            ("full".to_owned(), None, vec![5]),
            ("swa".to_owned(), Some(64), vec![0, 1, 2, 3, 4]),
        ];
        assert_eq!(groups(config), expected, "{field}");
    }
}

#[test]
fn a_pattern_longer_than_the_model_leaves_no_full_layer() {
    let config =
        json!({"model_type": "gemma3_text", "num_hidden_layers": 4, "sliding_window": 512});
    assert_eq!(
        groups(config),
        [("swa".to_owned(), Some(512), vec![0, 1, 2, 3])]
    );
}

#[test]
fn class_defaults_fill_in_and_present_fields_win() {
    // google/gemma-3-4b-it leaves the heads, head_dim and pattern to the class.
    let gemma = json!({"model_type": "gemma3", "text_config":
        {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}});
    let read = geometry(gemma).unwrap();
    assert_eq!(read.groups[0].layers, [5, 11, 17, 23, 29]);
    assert_eq!(
        (read.groups[0].num_kv_heads, read.groups[0].k_head_dim),
        (4, 256)
    );
    assert_eq!(read.max_position_tokens, Some(131_072));

    assert_eq!(
        full_layers(json!({"model_type": "gpt_oss", "num_hidden_layers": 6})),
        [1, 3, 5]
    );
    assert_eq!(
        full_layers(json!({"model_type": "gemma2", "num_hidden_layers": 4})),
        [1, 3]
    );
    assert_eq!(
        full_layers(json!({"model_type": "cohere2", "num_hidden_layers": 8})),
        [3, 7]
    );
    assert_eq!(
        full_layers(
            json!({"model_type": "olmo3", "num_hidden_layers": 8, "max_position_embeddings": 65536})
        ),
        [3, 7]
    );
    assert_eq!(
        full_layers(json!({"model_type": "mimo_v2_flash", "num_hidden_layers": 12})),
        [0, 5, 11]
    );
    assert_eq!(
        full_layers(
            json!({"model_type": "gpt_oss", "num_hidden_layers": 2, "layer_types":
        ["full_attention", "sliding_attention"]})
        ),
        [0]
    );
}

#[test]
fn a_null_window_is_no_window_and_an_absent_one_is_the_class_s() {
    let mistral = |window: Value| json!({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": window});
    assert_eq!(
        groups(mistral(json!(null))),
        [("full".to_owned(), None, vec![0, 1])]
    );
    assert_eq!(
        groups(mistral(json!(4096))),
        [("swa".to_owned(), Some(4_096), vec![0, 1])]
    );
    assert_eq!(
        groups(json!({"model_type": "mistral", "num_hidden_layers": 1})),
        [("swa".to_owned(), Some(4_096), vec![0])]
    );
    assert_eq!(
        full_layers(json!({"model_type": "mixtral", "num_hidden_layers": 2})),
        [0, 1]
    );
    // Llama's class has no window to speak of.
    assert_eq!(
        full_layers(json!({"model_type": "llama", "num_hidden_layers": 2, "sliding_window": 1024})),
        [0, 1]
    );
}

#[test]
fn qwen_windows_need_their_switch() {
    let qwen = |model_type: &str, on: bool| {
        json!({"model_type": model_type, "num_hidden_layers": 4, "sliding_window": 1024, "max_window_layers": 3,
               "use_sliding_window": on})
    };
    for model_type in ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe"] {
        assert_eq!(
            full_layers(qwen(model_type, false)),
            [0, 1, 2, 3],
            "{model_type}"
        );
        let mut silent = qwen(model_type, true);
        silent.as_object_mut().unwrap().remove("use_sliding_window");
        assert_eq!(full_layers(silent), [0, 1, 2, 3], "{model_type}");
    }
    assert_eq!(full_layers(qwen("qwen2", true)), [0, 1, 2]);
    assert_eq!(full_layers(qwen("qwen3", true)), [0, 1, 2]);
    assert_eq!(full_layers(qwen("qwen2_moe", true)), [1, 3]);
    assert_eq!(full_layers(qwen("qwen3_moe", true)), [0; 0]);
}

#[test]
fn mimo_has_heads_and_dims_of_its_own_on_sliding_layers() {
    let config = json!({"model_type": "mimo_v2_flash", "num_hidden_layers": 3, "num_key_value_heads": 4, "head_dim": 192,
        "v_head_dim": 128, "swa_num_key_value_heads": 8, "swa_head_dim": 96, "hybrid_layer_pattern": [0, 1, 1],
        "sliding_window_size": 128});
    let read = geometry(config).unwrap();
    let heads = read
        .groups
        .iter()
        .map(|g| (g.num_kv_heads, g.k_head_dim, g.v_head_dim))
        .collect::<Vec<_>>();
    assert_eq!(heads, [(4, 192, 128), (8, 96, 96)]);
    // The class reads `sliding_window_size` as earlier tokens, the query not counted.
    assert_eq!(read.groups[1].kind.window(), Some(129));
}

#[test]
fn a_window_of_max_position_embeddings_is_full() {
    let config = json!({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096, "max_position_embeddings": 4096});
    assert_eq!(groups(config), [("full".to_owned(), None, vec![0, 1])]);
}

#[test]
fn what_is_not_understood_is_named() {
    for (config, sentence) in [
        (
            json!([]),
            "the configuration is not a JSON object; a model's config.json must be one",
        ),
        (
            json!({}),
            "the configuration has no `num_hidden_layers`, and model_type `` has no known default for it; add the field",
        ),
        (
            json!({"model_type": "gpt_oss", "num_hidden_layers": 2, "layer_types": ["full_attention", "chunked_attention"]}),
            "the configuration's `layer_types[1]` is \"chunked_attention\"; expected \"full_attention\" or \"sliding_attention\"",
        ),
        (
            json!({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": ["full_attention"]}),
            "the configuration's `layer_types` has 1 entries for 3 layers; it must have one a layer",
        ),
        (
            json!({"num_hidden_layers": 1, "head_dim": 8, "num_key_value_heads": 1, "layer_types": ["sliding_attention"]}),
            "the configuration's `layer_types` has sliding layers but there is no `sliding_window`; add it",
        ),
        (
            json!({"model_type": "new", "num_hidden_layers": 1, "sliding_window": 8}),
            "the configuration has a sliding window of 8 tokens, but model_type `new` does not say which layers use it; \
             add `layer_types`",
        ),
        (
            json!({"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3}),
            "hidden_size 100 is not a multiple of num_attention_heads 3; give `head_dim`",
        ),
        (
            json!({"model_type": "llama", "num_hidden_layers": 9_223_372_036_854_775_808_u64}),
            "the configuration's `num_hidden_layers` is 9223372036854775808; expected a whole number from 1 to 65536",
        ),
        (
            json!({"model_type": "deepseek_v3", "kv_lora_rank": 512}),
            "`kv_lora_rank` = 512 means latent attention (MLA), which this version cannot size; it understands full and \
             sliding-window attention with KV heads of their own",
        ),
    ] {
        assert_eq!(geometry(config).unwrap_err().to_string(), sentence);
    }
    for (field, value) in [
        ("head_dim", json!(0)),
        ("head_dim", json!(-1)),
        ("head_dim", json!("64")),
        ("num_key_value_heads", json!(1.5)),
        ("sliding_window", json!(u64::MAX)),
        ("max_position_embeddings", json!(1_u64 << 63)),
        ("use_sliding_window", json!("yes")),
        ("sliding_window_pattern", json!("LLX")),
        ("hybrid_layer_pattern", json!({"0": 1})),
        ("num_kv_shared_layers", json!(4)),
    ] {
        let mut config = json!({"model_type": "gemma3_text", "num_hidden_layers": 2});
        config[field] = value;
        let sentence = geometry(config).unwrap_err().to_string();
        assert!(sentence.contains(field), "{field}: {sentence}");
    }
}
