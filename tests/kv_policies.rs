//! Split policies, caps, and agreement across ranks.

use neap::kv::policy::{agree, stages_max_requests};
use neap::kv::{
    AttentionKind, Caps, Carve, FreeMemory, Geometry, KvDtype, LayerSpec, PageSize, PlanOptions,
    Policy, PolicyError, Shard, plan, solve_slab,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn config(file: &str) -> Value {
    let path = format!("{}/tests/data/configs/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn read(config: &Value) -> Geometry {
    Geometry::from_config(config, PageSize::new(16).unwrap(), KvDtype::Bf16).unwrap()
}

fn carve(geometry: &Geometry, bytes: u64) -> Carve {
    Carve::new(geometry, &solve_slab(geometry, bytes).unwrap(), bytes).unwrap()
}

const CONFIGS: [&str; 5] = [
    "gpt-oss-20b.json",
    "gpt-oss-120b.json",
    "gemma-3-27b-it.json",
    "mimo-v2-flash.json",
    "llama-3.1-8b.json",
];

const STATIC: [Policy; 5] = [
    Policy::Ratio(0.8),
    Policy::Ratio(0.1),
    Policy::Requests(64),
    Policy::Workload {
        prompt_tokens: 1_024,
        output_tokens: 256,
    },
    Policy::Workload {
        prompt_tokens: 100_000,
        output_tokens: 1_000,
    },
];

#[test]
fn policies_are_written_as_they_are_read() {
    for policy in STATIC.into_iter().chain([Policy::Dynamic]) {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!(
        "workload( 10 , 20 )".parse(),
        Ok(Policy::Workload {
            prompt_tokens: 10,
            output_tokens: 20
        })
    );
    for text in [
        "",
        "ratio",
        "ratio()",
        "ratio(x)",
        "requests(-1)",
        "workload(1)",
        "static(1)",
        "requests(4294967296)",
    ] {
        assert!(
            matches!(text.parse::<Policy>(), Err(PolicyError::Unknown { .. })),
            "{text}"
        );
    }
    for text in ["ratio(0)", "ratio(1.01)", "ratio(NaN)", "ratio(-0.5)"] {
        assert!(
            matches!(text.parse::<Policy>(), Err(PolicyError::Ratio { .. })),
            "{text}"
        );
    }
    for text in ["requests(0)", "workload(0,0)"] {
        assert!(
            matches!(text.parse::<Policy>(), Err(PolicyError::Nothing { .. })),
            "{text}"
        );
    }
}

/// Every slab is in exactly one run, the runs are neighbours, and no static policy beats the moving line.
#[test]
fn static_pools_are_contiguous_and_never_better_than_dynamic() {
    for file in CONFIGS {
        let geometry = read(&config(file));
        for bytes in [10_000_000_000, 40_000_000_000] {
            let carve = carve(&geometry, bytes);
            for policy in STATIC {
                let split = match policy.split(&geometry, &carve) {
                    Ok(split) => split.unwrap(),
                    // 64 windows of 65 pages are 29 GB of Gemma's sliding layers.
                    Err(PolicyError::TooLittle { .. })
                        if file.starts_with("gemma")
                            && bytes == 10_000_000_000
                            && policy == Policy::Requests(64) =>
                    {
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                };
                // The last run begins at its null page; the others follow, in order.
                let mut next = split.pools.len() as u64 - 1;
                let order = split
                    .pools
                    .last()
                    .into_iter()
                    .chain(split.pools.iter().rev().skip(1).rev());
                for pool in order {
                    assert_eq!(pool.first_slab, next);
                    next += pool.slabs;
                }
                assert_eq!(next, u64::from(carve.slabs), "{file} {policy}");
                for tokens in [1, 500, 1_024, 8_192, 131_072] {
                    let (fixed, moving) = (
                        split.max_requests(&geometry, tokens),
                        carve.max_requests(&geometry, tokens),
                    );
                    assert!(
                        fixed <= moving,
                        "{file} {policy} {tokens}: {fixed} > {moving}"
                    );
                }
            }
        }
    }
}

/// A runtime that indexes pages itself: every page of every pool has a place of its own, inside its pool's run.
#[test]
fn pages_of_static_pools_have_places_of_their_own() {
    let geometry = read(&config("mimo-v2-flash.json"));
    let carve = carve(&geometry, 3_000_000_000);
    let layout = carve.layout();
    let split = Policy::Ratio(0.1)
        .split(&geometry, &carve)
        .unwrap()
        .unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for (group, pool) in geometry.group_ids().zip(&split.pools) {
        let run =
            pool.first_slab * layout.slab_bytes..(pool.first_slab + pool.slabs) * layout.slab_bytes;
        let stride = layout.pools[group.index()].layer_stride_bytes;
        let layers = geometry.group(group).layers.len() as u64;
        let null = split.entry(layout, group, 0).unwrap();
        assert_eq!(u64::from(null.0), u64::from(group.0) * layout.slab_units());
        assert!(seen.insert(null.offset_bytes()));
        for page in 1..=pool.pages {
            let first = split.entry(layout, group, page).unwrap().offset_bytes();
            let last = first + (layers - 1) * stride + geometry.group(group).layer_page_bytes();
            assert!(run.contains(&first) && last <= run.end, "{page}");
            assert!(seen.insert(first), "{page}");
        }
        assert_eq!(split.entry(layout, group, pool.pages + 1), None);
    }
}

#[test]
fn a_ratio_is_of_tokens() {
    for (file, ratio) in [("gemma-3-27b-it.json", 0.8), ("mimo-v2-flash.json", 0.1)] {
        let geometry = read(&config(file));
        let carve = carve(&geometry, 40_000_000_000);
        let split = Policy::Ratio(ratio)
            .split(&geometry, &carve)
            .unwrap()
            .unwrap();
        let [full, swa] = [0, 1].map(|pool| split.pools[pool].tokens as f64);
        assert!((swa / full - ratio).abs() < 0.01, "{file}: {}", swa / full);
    }
    // All layers slide: there is nothing to take the ratio of.
    let spec = LayerSpec {
        kind: AttentionKind::Sliding { window: 128 },
        num_kv_heads: 1,
        k_head_dim: 64,
        v_head_dim: 64,
    };
    let geometry =
        Geometry::new(&[spec; 4], PageSize::new(16).unwrap(), KvDtype::Bf16, None).unwrap();
    let carve = carve(&geometry, 1 << 30);
    let split = Policy::Ratio(0.5)
        .split(&geometry, &carve)
        .unwrap()
        .unwrap();
    assert_eq!(split.pools[0].slabs, u64::from(carve.slabs));
}

#[test]
fn requests_hold_whatever_their_lengths_and_the_rest_grows() {
    let geometry = read(&config("gpt-oss-20b.json"));
    let carve = carve(&geometry, 40_000_000_000);
    let split = Policy::Requests(256)
        .split(&geometry, &carve)
        .unwrap()
        .unwrap();
    assert!(split.pools[1].pages >= 256 * 9);
    // 41 % of SGLang's bytes lie idle in the window pool at 256 requests; here less than 2 %.
    let idle = (split.pools[1].pages - 256 * 9) * geometry.groups[1].page_bytes();
    assert!(idle * 50 < carve.carved_bytes, "{idle}");
    assert!(split.max_requests(&geometry, 512) >= 256);
    let too_many = Policy::Requests(u32::MAX)
        .split(&geometry, &carve)
        .unwrap_err();
    assert!(
        matches!(too_many, PolicyError::TooLittle { .. }),
        "{too_many}"
    );
}

#[test]
fn a_workload_gets_what_the_moving_line_gives_its_length() {
    for file in CONFIGS {
        let geometry = read(&config(file));
        let carve = carve(&geometry, 40_000_000_000);
        for tokens in [1_024, 8_192, 131_072] {
            let policy = Policy::Workload {
                prompt_tokens: tokens - 100,
                output_tokens: 100,
            };
            let fixed = policy.max_requests(&geometry, &carve, tokens).unwrap();
            assert_eq!(
                fixed,
                carve.max_requests(&geometry, tokens),
                "{file} {tokens}"
            );
        }
        // After a drift the static line stays where it is.
        if file == "gemma-3-27b-it.json" {
            let short = Policy::Workload {
                prompt_tokens: 924,
                output_tokens: 100,
            };
            let kept = short.max_requests(&geometry, &carve, 131_072).unwrap();
            assert!(kept * 2 < carve.max_requests(&geometry, 131_072), "{kept}");
        }
    }
}

#[test]
fn recurrent_state_takes_part_in_every_policy() {
    let geometry = read(&json!({"model_type": "qwen3_next"}));
    let carve = carve(&geometry, 40_000_000_000);
    for policy in STATIC {
        let split = policy.split(&geometry, &carve).unwrap().unwrap();
        assert!(
            split.pools[1].pages >= 1 && split.pools[1].tokens == 0,
            "{policy}"
        );
    }
    let split = Policy::Requests(100)
        .split(&geometry, &carve)
        .unwrap()
        .unwrap();
    assert!(split.max_requests(&geometry, 1_024) >= 100);
}

#[test]
fn plans_compare_policies_and_servers() {
    let options = PlanOptions {
        kv_bytes: 40_000_000_000,
        ..PlanOptions::default()
    };
    let found = plan(&config("gemma-3-27b-it.json"), &options).unwrap();
    let json = serde_json::to_value(&found).unwrap();
    for field in [
        "slab_bytes",
        "pools",
        "tail_bytes",
        "capacity",
        "policies",
        "servers",
    ] {
        assert!(!json[field].is_null(), "{field}");
    }
    assert_eq!(json["policies"][0]["policy"], "dynamic");
    assert_eq!(json["policies"][1]["policy"], "ratio(0.8)");
    assert_eq!(json["policies"][0]["capacity"], json["capacity"]);
    // 8k requests in 40 GB: 35 at best; vLLM runs 30, TensorRT-LLM 29 and 17, SGLang (all 62 layers full) 9.
    let row = &found.servers.as_ref().unwrap()[1];
    assert_eq!(
        (
            row.length,
            row.vllm,
            row.tensorrt_llm_v1,
            row.tensorrt_llm_v2,
            row.sglang
        ),
        (8_192, 30, 29, 17, 9)
    );
    let text = found.to_string();
    assert!(
        text.contains("by models of the rules of SGLang 0.5.23, vLLM 0.33.0 and TensorRT-LLM"),
        "{text}"
    );
    assert!(text.contains("by policy of the split"), "{text}");
    let other = plan(&json!({"model_type": "deepseek_v4"}), &options).unwrap();
    assert_eq!(other.servers, None);
    assert!(other.to_string().contains(
        "compressed2: 23 layers, one row for 128 tokens, rows of 512 bf16, pages of 2048 tokens"
    ));
    let map = found.map("gemma", 50_000_000_000);
    assert_eq!(map.before[0].bytes, 10_000_000_000);
    assert_eq!(
        map.after.iter().map(|piece| piece.bytes).sum::<u64>(),
        50_000_000_000
    );
}

#[test]
fn drafts_shards_and_dtypes_are_planned() {
    let target = json!({"model_type": "gpt_oss"});
    let options = PlanOptions {
        kv_bytes: 40_000_000_000,
        lengths: vec![8_192],
        draft: Some(
            json!({"model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 8}),
        ),
        shard: Shard {
            tensor_parallel: 2,
            layers: None,
        },
        group_dtypes: vec![("full".to_owned(), KvDtype::Fp8E4m3)],
        ..PlanOptions::default()
    };
    let found = plan(&target, &options).unwrap();
    let names = found
        .report
        .pools
        .iter()
        .map(|pool| pool.group.as_str())
        .collect::<Vec<_>>();
    assert_eq!(names, ["full", "swa", "draft-full"]);
    assert_eq!(found.geometry.groups[2].num_kv_heads, 4);
    assert_eq!(found.geometry.groups[0].layer_page_bytes(), 16 * 4 * 128);
    let ideal = 40_000_000_000 / found.geometry.request_bytes(8_192) as u64;
    let requests = found.report.capacity[0].requests;
    assert!(
        requests <= ideal && requests * 100 >= ideal * 99,
        "{requests} of {ideal}"
    );
    let unknown = PlanOptions {
        group_dtypes: vec![("latent".to_owned(), KvDtype::Bf16)],
        ..options
    };
    assert!(
        plan(&target, &unknown)
            .unwrap_err()
            .to_string()
            .contains("no layer group `latent`")
    );
}

#[test]
fn ranks_take_the_least_and_tell_who_lacks() {
    assert_eq!(agree(&[100, 99, 98], 0.05), Ok(98));
    let error = agree(&[100, 80, 100], 0.05).unwrap_err();
    assert_eq!(
        error,
        PolicyError::RanksDiverge {
            rank: 1,
            least: 80,
            most: 100
        }
    );
    assert_eq!(agree(&[], 0.05), Err(PolicyError::NoRanks));
    assert_eq!(agree(&[0, 0], 0.0), Ok(0));
    let stage = |layers| {
        let shard = Shard {
            tensor_parallel: 1,
            layers: Some(layers),
        };
        Geometry::from_config_sharded(
            &config("gemma-3-27b-it.json"),
            PageSize::new(16).unwrap(),
            KvDtype::Bf16,
            &shard,
        )
        .unwrap()
    };
    // Stages of 31 layers each; the second has one full layer more.
    let (first, second) = (stage(0..30), stage(30..62));
    let (one, two) = (
        carve(&first, 20_000_000_000),
        carve(&second, 20_000_000_000),
    );
    let together = stages_max_requests(&[(&first, &one), (&second, &two)], 8_192);
    assert_eq!(
        together,
        one.max_requests(&first, 8_192)
            .min(two.max_requests(&second, 8_192))
    );
    assert_eq!(stages_max_requests(&[], 1), 0);
}

fn demand() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(1_u32..20_000, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// A cap on tokens and requests leaves enough for any set of sequences within it, and no more than one slab a pool beyond.
    #[test]
    fn caps_leave_room_for_whatever_they_allow(lengths in demand(), file in prop::sample::select(&CONFIGS[..])) {
        let geometry = read(&config(file));
        let bytes = 200_000_000_000;
        let layout = solve_slab(&geometry, bytes).unwrap();
        let tokens = lengths.iter().map(|&n| u64::from(n)).sum::<u64>();
        let caps = Caps { tokens: Some(tokens), requests: Some(lengths.len() as u32), bytes: None };
        let capped = caps.apply(&geometry, &layout, bytes);
        prop_assert!(capped <= bytes);
        let mut demand = vec![0_u64; geometry.groups.len()];
        for &length in &lengths {
            for (sum, pages) in demand.iter_mut().zip(geometry.pages_for(length)) { *sum += pages; }
        }
        let free = FreeMemory::empty(&layout, capped / layout.slab_bytes);
        prop_assert!(free.fits(&demand) || capped == bytes, "{:?} {}", demand, capped);
        prop_assert_eq!(Caps { bytes: Some(12_345), ..caps }.apply(&geometry, &layout, bytes), 12_345);
        prop_assert_eq!(Caps::default().apply(&geometry, &layout, bytes), bytes);
    }
}
