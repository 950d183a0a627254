//! Sizing: the solver's stated bounds on random geometries, the reported capacity lived through, and configurations of
//! any shape answered without a panic.

use neap::kv::{
    AttentionKind, Carve, FreeMemory, Geometry, KvDtype, KvError, KvSequences, LayerSpec, PageSize,
    Phase, PlanOptions, SequenceId, plan, solve_slab,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn kind() -> impl Strategy<Value = AttentionKind> {
    let index_dim = prop_oneof![Just(0), 1_u32..257];
    prop_oneof![
        3 => Just(AttentionKind::Full),
        3 => (1_u32..5_000).prop_map(|window| AttentionKind::Sliding { window }),
        1 => (1_u32..9_000).prop_map(|chunk| AttentionKind::Chunked { chunk }),
        1 => index_dim.clone().prop_map(|index_dim| AttentionKind::Latent { index_dim }),
        1 => (1_u32..257).prop_map(|index_dim| AttentionKind::BlockSparse { index_dim }),
        1 => (1_u32..129, index_dim).prop_map(|(ratio, index_dim)| AttentionKind::Compressed { ratio, index_dim }),
        1 => (1_u32..100_000).prop_map(|head_bytes| AttentionKind::Recurrent { head_bytes }),
    ]
}

fn group() -> impl Strategy<Value = (usize, LayerSpec)> {
    (1_usize..64, kind(), 1_u32..17, 1_u32..33, 0_u32..33).prop_map(
        |(layers, kind, num_kv_heads, k, v)| {
            let spec = LayerSpec {
                kind,
                num_kv_heads,
                k_head_dim: k * 8,
                v_head_dim: v * 8,
            };
            (layers, spec)
        },
    )
}

fn geometry() -> impl Strategy<Value = Geometry> {
    let page = prop_oneof![Just(1_u64), Just(16), Just(64), Just(256)];
    let dtype = prop::sample::select(&DTYPES[..]);
    (proptest::collection::vec(group(), 1..4), page, dtype).prop_map(|(groups, page, dtype)| {
        let layers = groups
            .into_iter()
            .flat_map(|(layers, spec)| vec![spec; layers])
            .collect::<Vec<_>>();
        Geometry::new(&layers, PageSize::new(page).unwrap(), dtype, None).unwrap()
    })
}

/// 2,000 cases of each property, or as many as `NEAP_FUZZ_CASES` says. Geometries without an affordable exact slab are
/// rejected where a bound is stated for exact ones.
fn config() -> ProptestConfig {
    let asked = std::env::var("NEAP_FUZZ_CASES").ok();
    let cases = asked.and_then(|cases| cases.parse().ok()).unwrap_or(2_000);
    ProptestConfig {
        max_global_rejects: u32::MAX,
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(config())]

    /// I5 and I6: pages fit slabs whole, at 256-byte bases; exact whenever that costs at most 1/64.
    #[test]
    fn slabs_keep_their_stated_bounds(geometry in geometry(), bound in 1_u64..(1 << 40)) {
        let layout = solve_slab(&geometry, bound).unwrap();
        let pools = layout.pools.len() as u64;
        let largest = geometry.groups.iter().map(|group| group.page_bytes()).max().unwrap();
        prop_assert!(layout.slab_bytes >= largest && layout.slab_bytes.is_multiple_of(256));
        for (pool, group) in layout.pools.iter().zip(&geometry.groups) {
            prop_assert_eq!(u64::from(pool.pages_per_slab) * pool.page_bytes + pool.remainder_bytes, layout.slab_bytes);
            prop_assert!(pool.remainder_bytes < pool.page_bytes);
            prop_assert_eq!(pool.layer_stride_bytes * group.layers.len() as u64 + pool.remainder_bytes, layout.slab_bytes);
            prop_assert!(pool.layer_page_bytes.is_multiple_of(256));
        }
        // The least slab that every pool packs without remainder.
        let exact = geometry.groups.iter().fold(1_u128, |multiple, group| {
            let (mut a, mut b) = (multiple, u128::from(group.page_bytes()));
            while b != 0 { (a, b) = (b, a % b); }
            multiple / a * u128::from(group.page_bytes())
        });
        let affordable = (bound / 64).max(largest * pools);
        if exact * u128::from(pools) <= u128::from(affordable) {
            prop_assert!(layout.is_exact() && layout.rounding_bound_bytes() <= affordable);
        } else {
            // The least loss, hence no more than a slab of one largest page loses.
            let loss = |slab: u64| {
                let remainder = geometry.groups.iter().map(|group| slab % group.page_bytes()).max().unwrap();
                u128::from(slab) * u128::from(pools) + u128::from(bound) * u128::from(remainder) / u128::from(slab)
            };
            prop_assert!(loss(layout.slab_bytes) <= loss(largest));
        }
    }

    /// The bound in the solver's documentation: whatever weighs at most `C - P * S` fits, null pages and tail included.
    #[test]
    fn what_weighs_less_than_the_bound_fits(geometry in geometry(), bound in (1_u64 << 24)..(1 << 40), shares in any::<[u32; 3]>()) {
        let layout = solve_slab(&geometry, bound).unwrap();
        prop_assume!(layout.is_exact() && layout.rounding_bound_bytes() < bound);
        let mut budget = u128::from(bound - layout.rounding_bound_bytes());
        let demand = geometry.groups.iter().zip(shares).map(|(group, share)| {
            let most = budget / u128::from(group.page_bytes());
            let pages = most * u128::from(share) / u128::from(u32::MAX);
            budget -= pages * u128::from(group.page_bytes());
            pages as u64
        }).collect::<Vec<_>>();
        let free = FreeMemory::empty(&layout, bound / layout.slab_bytes);
        prop_assert!(free.fits(&demand), "{:?} of {}", demand, bound);
        // And it counts: once more than it fits does not fit.
        let times = free.times(&demand);
        let scaled = |times: u64| demand.iter().map(|pages| pages * times).collect::<Vec<_>>();
        if demand.iter().any(|pages| *pages > 0) {
            prop_assert!(times >= 1 && free.fits(&scaled(times)) && !free.fits(&scaled(times + 1)));
        }
    }

    /// Any values in the fields that are read: an answer or one sentence.
    #[test]
    fn configurations_of_any_shape_are_answered(
        values in proptest::collection::vec((0_usize..FIELDS.len(), value()), 0..12),
        model_type in prop::sample::select(&MODEL_TYPES[..]),
        dtype in prop::sample::select(&DTYPES[..]),
        nested in any::<bool>(),
        kv_bytes in any::<u64>(),
        length in any::<u32>(),
    ) {
        let mut fields = Map::from_iter([("model_type".to_owned(), json!(model_type))]);
        fields.extend(values.into_iter().map(|(field, value)| (FIELDS[field].to_owned(), value)));
        let fields = Value::Object(fields);
        let config = if nested { json!({"text_config": fields}) } else { fields };
        let options = PlanOptions {
            kv_bytes,
            page_size: PageSize::new(16).unwrap(),
            dtype,
            lengths: vec![length],
        ..PlanOptions::default()
        };
        match plan(&config, &options) {
            Ok(plan) => {
                prop_assert_eq!(u64::from(plan.carve.slabs) * plan.report.slab_bytes + plan.report.tail_bytes, kv_bytes);
                prop_assert!(!plan.to_string().is_empty());
            }
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}

const MODEL_TYPES: [&str; 16] = [
    "llama",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "qwen2",
    "qwen3_next",
    "mimo_v2_flash",
    "gpt_oss",
    "llama4_text",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "minimax",
    "minimax_m3_vl_text",
    "step3p5",
    "",
];

const DTYPES: [KvDtype; 5] = [
    KvDtype::Bf16,
    KvDtype::Fp8E4m3,
    KvDtype::Int8,
    KvDtype::Fp4E2m1,
    KvDtype::Mxfp8,
];

const FIELDS: [&str; 37] = [
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "v_head_dim",
    "hidden_size",
    "max_position_embeddings",
    "sliding_window",
    "sliding_window_size",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "layer_types",
    "hybrid_layer_pattern",
    "use_sliding_window",
    "max_window_layers",
    "swa_num_key_value_heads",
    "swa_head_dim",
    "swa_v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "index_head_dim",
    "index_topk",
    "attention_chunk_size",
    "no_rope_layers",
    "num_kv_shared_layers",
    "compress_ratios",
    "compress_rates",
    "attn_type_list",
    "full_attention_interval",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "global_head_dim",
    "per_layer_config",
    "sparse_attention_config",
];

/// Keys of objects inside a configuration.
const INNER: [&str; 5] = [
    "0",
    "heavily_compressed_attention",
    "sparse_index_dim",
    "head_dim",
    "num_attention_groups",
];

fn value() -> impl Strategy<Value = Value> {
    let entry = prop_oneof![
        Just(json!("full_attention")),
        Just(json!("sliding_attention")),
        Just(json!("chunked_attention")),
        Just(json!("indexed_attention")),
        Just(json!("minimax_m3_sparse")),
        Just(json!("compressed_sparse_attention")),
        Just(json!("heavily_compressed_attention")),
        Just(json!("linear_attention")),
        Just(json!(4)),
        Just(json!(128)),
        Just(json!(0)),
        Just(json!(1)),
        Just(json!(null))
    ];
    prop_oneof![
        4 => (1_u64..300).prop_map(|n| json!(n)),
        2 => any::<u64>().prop_map(|n| json!(n)),
        1 => (0_u32..64).prop_map(|bit| json!(1_u64 << bit)),
        1 => any::<i64>().prop_map(|n| json!(n)),
        1 => any::<f64>().prop_map(|n| json!(n)),
        1 => any::<bool>().prop_map(|b| json!(b)),
        1 => Just(Value::Null),
        1 => ".{0,80}".prop_map(|text| json!(text)),
        2 => proptest::collection::vec(entry, 0..40).prop_map(|list| json!(list)),
        1 => (prop::sample::select(&INNER[..]), 0_u64..300).prop_map(|(field, n)| json!({field: n})),
        1 => (prop::sample::select(&INNER[..]), 0_u32..64).prop_map(|(key, bit)| json!({key: {"head_dim": 1_u64 << bit}})),
    ]
}

fn configured(file: &str) -> Geometry {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/configs")
        .join(file);
    let config = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    Geometry::from_config(&config, PageSize::new(16).unwrap(), KvDtype::Bf16).unwrap()
}

/// Admits all the sequences that the report promises and takes every one to its last token: prefill in chunks, then decode in
/// turns. Returns the sequences.
fn live_through(kv: &mut KvSequences, requests: u64, tokens: u32) -> Vec<SequenceId> {
    let ids = (0..requests)
        .map(|_| kv.create(tokens).unwrap())
        .collect::<Vec<_>>();
    assert!(
        matches!(kv.create(tokens), Err(KvError::NoRoomNow { .. })),
        "one more was admitted"
    );
    let prompt = tokens - 40;
    let mut updates = Vec::new();
    let mut grow = |kv: &mut KvSequences, id, more, phase| {
        updates.clear();
        kv.append(id, more, phase, &mut updates).unwrap();
        let step = kv.begin_step();
        kv.complete_step(step).unwrap();
        let now = kv.tokens(id).unwrap();
        kv.settle(id, now).unwrap();
    };
    for (&id, chunk) in ids.iter().zip([512, 2_048, 300, 77].into_iter().cycle()) {
        while kv.tokens(id).unwrap() < prompt {
            let more = chunk.min(prompt - kv.tokens(id).unwrap());
            grow(kv, id, more, Phase::Prefill);
        }
    }
    for _ in prompt..tokens {
        for &id in &ids {
            grow(kv, id, 1, Phase::Decode);
        }
    }
    kv.allocator().audit().unwrap();
    ids
}

#[test]
fn c04_every_reported_request_is_admitted_and_reaches_its_length() {
    for file in [
        "gpt-oss-20b.json",
        "gpt-oss-120b.json",
        "gemma-3-27b-it.json",
        "mimo-v2-flash.json",
        "llama-3.1-8b.json",
    ] {
        let geometry = configured(file);
        let bytes = 4_000_000_000;
        let carve = Carve::new(&geometry, &solve_slab(&geometry, bytes).unwrap(), bytes).unwrap();
        let mut kv =
            KvSequences::new(geometry.clone(), carve.layout(), carve.slabs, 1_024).unwrap();
        // Traffic of short sequences, then long ones, then short ones again, without a restart (drift).
        for tokens in [1_024, 16_384, 1_000] {
            let requests = carve.max_requests(&geometry, tokens);
            assert!(requests >= 1, "{file}");
            for id in live_through(&mut kv, requests, tokens) {
                kv.release(id).unwrap();
            }
            assert_eq!(
                kv.allocator().free_slabs() as usize,
                carve.slabs as usize - geometry.groups.len(),
                "{file}"
            );
        }
    }
}
