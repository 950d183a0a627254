//! Configurations against an outside authority: `tests/data/hf-config-defaults.json` holds what Hugging Face's own
//! configuration classes make of an empty `config.json` (written by `scripts/dump-hf-configs.py`).
//!
//! Each class is read twice here: from its `model_type` alone, so that our defaults are compared with theirs, and from
//! all the fields that the class writes.

use neap::kv::config::layer_kv;
use neap::kv::{AttentionKind, Geometry, KvDtype, LayerKv, LayerSpec, PageSize};
use serde_json::{Map, Value, json};

fn dump() -> Map<String, Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/hf-config-defaults.json"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let dump = serde_json::from_str::<Value>(&text).unwrap();
    dump["classes"].as_object().unwrap().clone()
}

fn number(fields: &Value, name: &str) -> u32 {
    let value = fields[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {fields}"));
    u32::try_from(value).unwrap()
}

/// What a layer of the class keeps, said independently of the code under test: from the resolved type and the fields.
fn expected(model_type: &str, class: &Value, layer: usize) -> LayerKv {
    let fields = &class["fields"];
    let resolved = |name: &str| &class["resolved"][name][layer];
    if let Some(source) = resolved("kv_source").as_u64() {
        return LayerKv::SharedWith(source as u32);
    }
    let of_layer = |name: &str| {
        resolved(name)
            .as_u64()
            .map_or_else(|| number(fields, name), |value| value as u32)
    };
    let rows = |kind, num_kv_heads, k_head_dim, v_head_dim| LayerSpec {
        kind,
        num_kv_heads,
        k_head_dim,
        v_head_dim,
    };
    if let Some(rank) = fields["kv_lora_rank"].as_u64() {
        let index_dim = fields["index_head_dim"].as_u64().unwrap_or(0) as u32;
        let row = rank as u32 + number(fields, "qk_rope_head_dim");
        return rows(AttentionKind::Latent { index_dim }, 1, row, 0).into();
    }
    let k_head_dim = match resolved("head_dim")
        .as_u64()
        .or(fields["head_dim"].as_u64())
    {
        Some(dim) => dim as u32,
        None => number(fields, "hidden_size") / number(fields, "num_attention_heads"),
    };
    let v_head_dim = fields["v_head_dim"]
        .as_u64()
        .map_or(k_head_dim, |dim| dim as u32);
    let heads = of_layer("num_key_value_heads");
    let plain = |kind| rows(kind, heads, k_head_dim, v_head_dim).into();
    let window = fields["sliding_window"]
        .as_u64()
        .filter(|&window| window > 0);
    let one_row = |kind| rows(kind, 1, k_head_dim, 0);
    let state = |head_bytes, heads| rows(AttentionKind::Recurrent { head_bytes }, heads, 0, 0);
    match resolved("layer_types").as_str() {
        // Mistral, Phi-3, Starcoder 2 and Qwen 3 MoE: no list, and the model's mask slides wherever there is a window.
        None => plain(
            window.map_or(AttentionKind::Full, |window| AttentionKind::Sliding {
                window: window as u32,
            }),
        ),
        Some("full_attention") => plain(AttentionKind::Full),
        Some("sliding_attention") => plain(AttentionKind::Sliding {
            window: window.unwrap() as u32,
        }),
        Some("chunked_attention") => plain(AttentionKind::Chunked {
            chunk: number(fields, "attention_chunk_size"),
        }),
        Some("linear_attention") if model_type == "minimax" => state(
            k_head_dim * k_head_dim * 4,
            number(fields, "num_attention_heads"),
        )
        .into(),
        Some("linear_attention") => {
            let [k_heads, v_heads, k_dim, v_dim, kernel] = [
                "num_key_heads",
                "num_value_heads",
                "key_head_dim",
                "value_head_dim",
                "conv_kernel_dim",
            ]
            .map(|name| number(fields, &format!("linear_{name}")));
            let matrices = v_heads * k_dim * v_dim * 4;
            let convolution = (kernel - 1) * (2 * k_heads * k_dim + v_heads * v_dim) * 2;
            state((matrices + convolution) / k_heads, k_heads).into()
        }
        Some(compressed @ ("compressed_sparse_attention" | "heavily_compressed_attention")) => {
            let ratio = number(&fields["compress_rates"], compressed);
            let sparse = compressed.starts_with("compressed");
            let index_dim = if sparse {
                number(fields, "index_head_dim")
            } else {
                0
            };
            let kept = ratio * 2 * (k_head_dim + index_dim) * if sparse { 3 } else { 1 };
            LayerKv::Own(vec![
                one_row(AttentionKind::Sliding {
                    window: window.unwrap() as u32,
                }),
                one_row(AttentionKind::Compressed { ratio, index_dim }),
                state(kept * 4, 1),
            ])
        }
        Some(other) => panic!("{model_type}: {other}"),
    }
}

#[test]
fn every_class_gives_the_layers_that_hugging_face_gives() {
    let classes = dump();
    assert!(classes.len() >= 35, "{}", classes.len());
    for (model_type, class) in &classes {
        let num_layers = number(&class["fields"], "num_hidden_layers") as usize;
        let expected = (0..num_layers)
            .map(|layer| expected(model_type, class, layer))
            .collect::<Vec<_>>();
        let bare = json!({"model_type": model_type});
        assert_eq!(
            layer_kv(&bare).unwrap(),
            expected,
            "{model_type} by its defaults"
        );
        let mut written = class["fields"].clone();
        written["model_type"] = json!(model_type);
        assert_eq!(
            layer_kv(&written).unwrap(),
            expected,
            "{model_type} by its fields"
        );
        // As a vision model nests it.
        let nested = json!({"model_type": "some_vlm", "text_config": written});
        assert_eq!(layer_kv(&nested).unwrap(), expected, "{model_type} nested");
    }
}

#[test]
fn every_class_makes_a_geometry_that_covers_its_layers() {
    for (model_type, class) in &dump() {
        let config = json!({"model_type": model_type});
        let geometry =
            Geometry::from_config(&config, PageSize::new(16).unwrap(), KvDtype::Bf16).unwrap();
        let fields = &class["fields"];
        assert_eq!(
            geometry.num_layers,
            number(fields, "num_hidden_layers"),
            "{model_type}"
        );
        assert_eq!(
            geometry.max_position_tokens,
            Some(number(fields, "max_position_embeddings")),
            "{model_type}"
        );
        for layer in 0..geometry.num_layers {
            assert!(
                geometry.locate(layer).is_some(),
                "{model_type} layer {layer}"
            );
        }
    }
}

/// Where fields alone say it, the model type is not needed: no decision hangs on a name.
#[test]
fn fields_decide_without_a_model_type() {
    for (model_type, class) in &dump() {
        let fields = &class["fields"];
        // These classes say by their name alone which layers slide, or how a state is shaped.
        let by_name = [
            "minimax",
            "mistral",
            "ministral3",
            "phi3",
            "starcoder2",
            "mixtral",
            "qwen3_moe",
        ];
        if by_name.contains(&model_type.as_str()) {
            continue;
        }
        let expected = layer_kv(&json!({"model_type": model_type})).unwrap();
        assert_eq!(layer_kv(fields).unwrap(), expected, "{model_type}");
    }
}
