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
            "the configuration has no `attention_chunk_size`, and model_type `gpt_oss` has no known default for it; add the field",
        ),
        (
            json!({"model_type": "gpt_oss", "num_hidden_layers": 2, "layer_types": ["full_attention", "mamba"]}),
            "the configuration's `layer_types[1]` is \"mamba\"; expected \"full_attention\", \"sliding_attention\", \
             \"chunked_attention\", \"indexed_attention\", \"minimax_m3_sparse\", \"compressed_sparse_attention\", \
             \"heavily_compressed_attention\" or \"linear_attention\"",
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
            json!({"model_type": "new", "num_hidden_layers": 1, "kv_lora_rank": 512}),
            "the configuration has no `qk_rope_head_dim`, and model_type `new` has no known default for it; add the field",
        ),
        (
            json!({"model_type": "jamba", "attn_layer_period": 8}),
            "`attn_layer_period` = 8 means recurrent layers of the Mamba kind, which this version cannot size; it \
             understands full, sliding, chunked, latent, compressed, block-sparse and linear attention",
        ),
        (
            json!({"model_type": "gemma3n_text", "num_kv_shared_layers": 32}),
            "the configuration's `num_kv_shared_layers` is 32; expected layers of every type before layer 3",
        ),
        (
            json!({"model_type": "gemma4_text", "per_layer_config": {"30": {"head_dim": 1}}}),
            "the configuration's `per_layer_config.30` is {\"head_dim\":1}; expected the number of one of 30 layers as its key",
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

/// `(name, tokens a page stands for, layers, layer page bytes)` of each group.
fn pages(config: Value) -> Vec<(String, u32, usize, u64)> {
    let groups = geometry(config).unwrap().groups.into_iter();
    groups
        .map(|g| {
            (
                g.name.clone(),
                g.tokens_per_page(),
                g.layers.len(),
                g.layer_page_bytes(),
            )
        })
        .collect()
}

#[test]
fn latent_rows_are_one_for_all_heads() {
    let plain = json!({"model_type": "deepseek_v3"});
    assert_eq!(pages(plain), [("latent".to_owned(), 16, 61, 16 * 576 * 2)]);
    let indexed = json!({"model_type": "deepseek_v32"});
    let expected = [("latent".to_owned(), 16, 61, 16 * (576 + 128) * 2)];
    assert_eq!(pages(indexed), expected);
    // The checkpoint of V3.2 names no layer types.
    let hub = json!({"model_type": "deepseek_v3", "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                     "index_topk": 2048, "index_head_dim": 128});
    assert_eq!(pages(hub), expected);
    let none = json!({"model_type": "deepseek_v3", "num_hidden_layers": 2, "kv_lora_rank": null});
    assert_eq!(pages(none)[0].0, "full");
}

#[test]
fn deepseek_v4_keeps_a_window_compressed_rows_and_state() {
    let read = pages(json!({"model_type": "deepseek_v4"}));
    // 21 heavily compressed layers and two that lead; 20 sparse ones.
    let expected = [
        ("compressed", 64, 20, 16 * (512 + 128) * 2),
        ("compressed2", 2_048, 23, 16 * 512 * 2),
        ("swa", 16, 43, 16 * 512 * 2),
        // f32: 3 * 4 tokens of K and gate of 512 + 128; 128 tokens of K and gate of 512.
        ("state", u32::MAX, 20, 3 * 4 * 2 * 640 * 4),
        ("state2", u32::MAX, 23, 128 * 2 * 512 * 4),
    ]
    .map(|(name, tokens, layers, bytes)| (name.to_owned(), tokens, layers, bytes));
    assert_eq!(read, expected);
    let hub = json!({"model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0]});
    let names = groups(hub)
        .into_iter()
        .map(|g| (g.0, g.2))
        .collect::<Vec<_>>();
    let expected = [
        ("compressed", vec![1, 3]),
        ("compressed2", vec![2]),
        ("swa", vec![0, 1, 2, 3]),
        ("state", vec![1, 3]),
        ("state2", vec![2]),
    ]
    .map(|(name, layers)| (name.to_owned(), layers));
    assert_eq!(names, expected);
}

#[test]
fn a_sparse_layer_pays_for_its_index_keys() {
    let config = json!({"model_type": "minimax_m3_vl", "text_config": {"model_type": "minimax_m3_vl_text",
        "num_hidden_layers": 3, "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1], "sparse_index_dim": 64}}});
    let expected = [
        ("full".to_owned(), 16, 1, 16 * 4 * 256 * 2),
        ("sparse".to_owned(), 16, 2, 16 * (4 * 256 + 64) * 2),
    ];
    assert_eq!(pages(config), expected);
}

#[test]
fn recurrent_state_is_a_page_a_sequence() {
    let read = pages(json!({"model_type": "qwen3_next"}));
    // 32 matrices of 128 x 128 in f32; 3 inputs of 2 * 16 * 128 + 32 * 128 channels in bf16.
    let state = 32 * 128 * 128 * 4 + 3 * (4_096 + 4_096) * 2;
    assert_eq!(read[1], ("state".to_owned(), u32::MAX, 36, state));
    let minimax = json!({"model_type": "minimax", "num_hidden_layers": 4, "attn_type_list": [0, 0, 0, 1], "head_dim": 128,
                         "num_attention_heads": 64});
    let state = 64 * 128 * 128 * 4;
    assert_eq!(pages(minimax)[1], ("state".to_owned(), u32::MAX, 3, state));
    let unknown =
        json!({"model_type": "new", "num_hidden_layers": 1, "layer_types": ["linear_attention"]});
    assert!(
        geometry(unknown)
            .unwrap_err()
            .to_string()
            .contains("linear_num_key_heads")
    );
}

#[test]
fn step_has_kv_heads_of_its_own_on_sliding_layers() {
    let config = json!({"model_type": "step3p5", "num_hidden_layers": 2, "num_attention_groups": 8, "head_dim": 128,
        "sliding_window": 512, "num_nextn_predict_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                    "num_attention_groups": 4, "head_dim": 64}});
    let read = geometry(config).unwrap();
    let heads = read.groups.iter().map(|g| (g.num_kv_heads, g.k_head_dim));
    assert_eq!(heads.collect::<Vec<_>>(), [(8, 128), (4, 64)]);
}

#[test]
fn layers_that_share_keep_nothing_and_are_found_at_their_source() {
    let read = geometry(json!({"model_type": "gemma3n_text"})).unwrap();
    let kept = read.groups.iter().map(|g| g.layers.len()).sum::<usize>();
    assert_eq!((kept, read.shared_layers.len()), (20, 15));
    assert_eq!(read.locate(34), read.locate(19));
    assert_eq!(read.locate(33), read.locate(18));
    assert_eq!(
        layer_specs(&json!({"model_type": "gemma3n_text"}))
            .unwrap()
            .len(),
        35
    );
}

#[test]
fn a_stage_and_a_rank_hold_their_part() {
    let config = json!({"model_type": "gpt_oss", "num_hidden_layers": 24});
    let part = |tensor_parallel, layers| {
        let shard = Shard {
            tensor_parallel,
            layers,
        };
        Geometry::from_config_sharded(&config, PageSize::new(16).unwrap(), KvDtype::Bf16, &shard)
    };
    let stage = part(4, Some(6..9)).unwrap();
    assert_eq!(stage.groups[0].layers, [7]);
    assert_eq!(
        (stage.groups[1].layers.as_slice(), stage.num_layers),
        (&[6, 8][..], 24)
    );
    assert_eq!(stage.groups[0].num_kv_heads, 2);
    assert_eq!(part(16, None).unwrap().groups[0].num_kv_heads, 1);
    for (shard, sentence) in [
        (
            part(3, None),
            "8 KV heads of layer 0 cannot be shared out among 3",
        ),
        (part(0, None), "among 0 tensor-parallel ranks"),
        (
            part(1, Some(8..8)),
            "layers 8 to 8 (excluded) are no pipeline stage of a model of 24",
        ),
        (part(1, Some(8..25)), "no pipeline stage"),
    ] {
        let found = shard.unwrap_err().to_string();
        assert!(found.contains(sentence), "{found}");
    }
    let shared = json!({"model_type": "gemma3n_text"});
    let stage = |layers| {
        let shard = Shard {
            tensor_parallel: 1,
            layers: Some(layers),
        };
        Geometry::from_config_sharded(&shared, PageSize::new(16).unwrap(), KvDtype::Bf16, &shard)
    };
    let error = stage(20..35).unwrap_err().to_string();
    assert!(
        error.contains("layer 20 reads the KV of layer 18"),
        "{error}"
    );
    assert_eq!(stage(18..35).unwrap().shared_layers.len(), 15);
}

/// Gemma 4 31B: 16,384 bytes a token and sliding layer, 8,192 a full one, so that one sequence of 262,144 tokens is 20.79 GiB.
#[test]
fn c02_gemma_4_has_wider_and_fewer_heads_on_full_layers() {
    let config = json!({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "num_hidden_layers": 60,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256, "global_head_dim": 512,
        "num_global_key_value_heads": 4, "attention_k_eq_v": true, "sliding_window": 1024,
        "max_position_embeddings": 262144, "use_bidirectional_attention": "vision"}});
    let read = geometry(config).unwrap();
    let bytes = read
        .groups
        .iter()
        .map(|g| (g.layers.len(), g.layer_page_bytes() / 16));
    assert_eq!(bytes.collect::<Vec<_>>(), [(10, 8_192), (50, 16_384)]);
    assert_eq!(read.request_bytes(262_144), 22_326_804_480);
}
