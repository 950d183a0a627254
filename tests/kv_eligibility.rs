//! Who may size KV after capture, and the static reserve of those who may not.

use neap::kv::eligibility::{Eligibility, Lifted, Reason, Role, StartUp, Transfer, eligibility};
use neap::kv::reserve::{CardDefaults, PrefillGraphs, StaticReserve, prefill_capture_sizes};
use neap::kv::{Carve, Geometry, KvDtype, PageSize, Shard, solve_slab};
use serde_json::{Value, json};

fn geometry(config: &Value, dtype: KvDtype, shard: &Shard) -> Geometry {
    Geometry::from_config_sharded(config, PageSize::new(16).unwrap(), dtype, shard).unwrap()
}

fn gpt_oss() -> Geometry {
    geometry(
        &json!({"model_type": "gpt_oss"}),
        KvDtype::Bf16,
        &Shard::WHOLE,
    )
}

fn of(start_up: &StartUp) -> Eligibility {
    eligibility(start_up, &gpt_oss(), &Shard::WHOLE, false)
}

#[test]
fn the_default_start_up_is_eligible() {
    let found = of(&StartUp::default());
    assert!(found.is_eligible());
    assert_eq!((found.ledger_line(), found.lifted), (None, vec![]));
}

#[test]
fn each_condition_is_its_own_reason_with_a_remedy() {
    let start_up = StartUp::default;
    let cases = [
        (
            StartUp {
                wanted: false,
                ..start_up()
            },
            Reason::SwitchedOff,
            "drop",
        ),
        (
            StartUp {
                kv_of_another_engine: true,
                ..start_up()
            },
            Reason::KvOfAnotherEngine,
            "KV of its own",
        ),
        (
            StartUp {
                virtual_memory: false,
                ..start_up()
            },
            Reason::NoVirtualMemory,
            "use a CUDA device",
        ),
        (
            StartUp {
                decode_context_parallel: 2,
                ..start_up()
            },
            Reason::DecodeContextParallel { ranks: 2 },
            "to 1",
        ),
        (
            StartUp {
                kv_cache: false,
                ..start_up()
            },
            Reason::NoKvCache,
            "switch the cache on",
        ),
        (
            StartUp {
                transfer: Transfer::OwnPool,
                ..start_up()
            },
            Reason::PoolOfTransferLibrary,
            "register neap's arena",
        ),
        (
            StartUp {
                transfer: Transfer::CannotRegister,
                ..start_up()
            },
            Reason::UnregisterableMemory,
            "another transport",
        ),
        (
            StartUp {
                decode_buckets: vec![],
                ..start_up()
            },
            Reason::NoDecodeGraphs,
            "--eager",
        ),
        (
            StartUp {
                prefill_buckets: vec![],
                ..start_up()
            },
            Reason::NoPrefillGraphs,
            "--eager",
        ),
        (
            StartUp {
                chunked_prefill: false,
                ..start_up()
            },
            Reason::UnchunkedPrefill,
            "switch chunked prefill on",
        ),
        (
            StartUp {
                max_prefill_tokens: 1_025,
                ..start_up()
            },
            Reason::PrefillBeyondGraphs {
                max_prefill_tokens: 1_025,
                largest: 1_024,
            },
            "capture that size",
        ),
    ];
    for (start_up, reason, remedy) in cases {
        let found = of(&start_up);
        assert_eq!(found.reasons, [reason]);
        let line = found.ledger_line().unwrap();
        assert!(line.contains(remedy) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn all_reasons_are_told_at_once() {
    let eager = StartUp {
        decode_buckets: vec![],
        prefill_buckets: vec![],
        decode_context_parallel: 4,
        ..StartUp::default()
    };
    let found = of(&eager);
    assert_eq!(
        found.reasons,
        [
            Reason::DecodeContextParallel { ranks: 4 },
            Reason::NoDecodeGraphs,
            Reason::NoPrefillGraphs
        ]
    );
    assert_eq!(found.ledger_line().unwrap().matches("; ").count(), 5);
}

#[test]
fn an_engine_of_one_role_captures_its_own_graphs_alone() {
    let prefill = StartUp {
        role: Role::Prefill,
        decode_buckets: vec![],
        ..StartUp::default()
    };
    assert!(of(&prefill).is_eligible());
    let decode = StartUp {
        role: Role::Decode,
        prefill_buckets: vec![],
        chunked_prefill: false,
        max_prefill_tokens: 1 << 20,
        ..StartUp::default()
    };
    assert!(of(&decode).is_eligible());
    let idle = StartUp {
        decode_buckets: vec![],
        ..decode
    };
    assert_eq!(of(&idle).reasons, [Reason::NoDecodeGraphs]);
    let idle = StartUp {
        prefill_buckets: vec![],
        ..prefill
    };
    assert_eq!(of(&idle).reasons, [Reason::NoPrefillGraphs]);
}

/// Each lifted condition: eligible, and the leftover of 40 GB makes a carve that loses less than a slab a pool.
#[test]
fn what_keeps_others_from_it_is_sized_from_the_leftover() {
    let whole = Shard::WHOLE;
    let stage = Shard {
        tensor_parallel: 2,
        layers: Some(0..18),
    };
    let of_type =
        |model_type: &str| geometry(&json!({"model_type": model_type}), KvDtype::Bf16, &whole);
    let sparse = json!({"model_type": "minimax_m3_vl", "num_hidden_layers": 4,
        "sparse_attention_config": {"sparse_attention_freq": [0, 0, 1, 1]}});
    let gpt_oss_config = json!({"model_type": "gpt_oss"});
    let draft = geometry(
        &json!({"model_type": "llama", "num_hidden_layers": 1}),
        KvDtype::Bf16,
        &whole,
    );
    let cases = [
        (of_type("deepseek_v3"), &whole, false, Lifted::Latent),
        (of_type("deepseek_v4"), &whole, false, Lifted::Compressed),
        (
            geometry(&sparse, KvDtype::Bf16, &whole),
            &whole,
            false,
            Lifted::BlockSparse,
        ),
        (of_type("qwen3_next"), &whole, false, Lifted::Recurrent),
        (
            geometry(&gpt_oss_config, KvDtype::Fp4E2m1, &whole),
            &whole,
            false,
            Lifted::BlockScales,
        ),
        (
            gpt_oss().with_draft(&draft).unwrap(),
            &whole,
            false,
            Lifted::Draft,
        ),
        (
            geometry(&gpt_oss_config, KvDtype::Bf16, &stage),
            &stage,
            false,
            Lifted::PipelineStage,
        ),
        (gpt_oss(), &whole, true, Lifted::MemoryGivenBack),
    ];
    for (geometry, shard, given_back, lifted) in cases {
        let found = eligibility(&StartUp::default(), &geometry, shard, given_back);
        assert!(found.is_eligible(), "{lifted:?}");
        assert!(
            found.lifted.contains(&lifted),
            "{lifted:?}: {:?}",
            found.lifted
        );
        let leftover = 40_000_000_000;
        let layout = solve_slab(&geometry, leftover).unwrap();
        let carve = Carve::new(&geometry, &layout, leftover).unwrap();
        let requests = u128::from(carve.max_requests(&geometry, 8_192));
        let request = geometry.request_bytes(8_192);
        let ideal = u128::from(leftover) / request;
        assert!(
            requests <= ideal && (requests + 1 >= ideal || requests * 100 >= ideal * 99),
            "{lifted:?}: {requests} of {ideal}"
        );
        assert_eq!(
            u64::from(carve.slabs) * layout.slab_bytes + carve.tail_bytes,
            leftover
        );
    }
}

/// The table of the reference: MiB and fraction of the fallback, and of SGLang's own reserve after capture.
#[test]
fn the_static_reserve_has_the_published_numbers() {
    #[rustfmt::skip]
    let table = [
        ("H100", 81_559, 1, 13_904.0, 0.830, 1_664.0, 0.980), ("H100", 81_559, 4, 14_800.0, 0.819, 2_048.0, 0.975),
        ("H100", 81_559, 8, 15_312.0, 0.812, 2_560.0, 0.969), ("H200", 143_771, 1, 13_904.0, 0.903, 1_664.0, 0.988),
        ("H200", 143_771, 4, 14_800.0, 0.897, 2_048.0, 0.986), ("H200", 143_771, 8, 15_312.0, 0.893, 2_560.0, 0.982),
        ("B200", 183_359, 1, 26_832.0, 0.854, 1_664.0, 0.991), ("B200", 183_359, 4, 27_216.0, 0.852, 2_048.0, 0.989),
        ("B200", 183_359, 8, 27_728.0, 0.849, 2_560.0, 0.986), ("A100-40", 40_960, 1, 7_248.0, 0.823, 1_664.0, 0.959),
        ("A100-40", 40_960, 4, 7_888.0, 0.807, 2_048.0, 0.950), ("A100-40", 40_960, 8, 8_400.0, 0.795, 2_560.0, 0.938),
        ("RTX4090", 24_564, 1, 7_280.0, 0.704, 1_664.0, 0.932), ("RTX4090", 24_564, 4, 7_888.0, 0.679, 2_048.0, 0.917),
        ("RTX4090", 24_564, 8, 8_400.0, 0.658, 2_560.0, 0.896),
    ];
    for (card, mib, ranks, reserved, fraction, after, after_fraction) in table {
        let reserve = StaticReserve::of_card(mib, ranks);
        assert_eq!(reserve.reserved_mib(), reserved, "{card} tp{ranks}");
        assert_eq!(reserve.fraction(), fraction, "{card} tp{ranks}");
        assert_eq!(reserve.after_capture_mib(), after, "{card} tp{ranks}");
        assert_eq!(
            reserve.after_capture_fraction(),
            after_fraction,
            "{card} tp{ranks}"
        );
    }
    let h100 = StaticReserve::of_card(81_559, 1);
    assert_eq!(h100.activation_mib(), 12_928.0);
    assert_eq!(StaticReserve::of_card(81_559, 8).activation_mib(), 13_824.0);
    assert_eq!(h100.reserved_bytes(), 13_904 << 20);
}

#[test]
fn the_reserve_follows_role_graphs_and_towers() {
    assert_eq!(prefill_capture_sizes(8_192).len(), 58);
    assert_eq!(prefill_capture_sizes(8_192).last(), Some(&8_192));
    assert!(prefill_capture_sizes(3).is_empty());
    assert_eq!(CardDefaults::of(16_000, 8).decode_max_batch, 8);
    let h100 = StaticReserve::of_card(81_559, 1);
    let with = |change: fn(&mut StaticReserve)| {
        let mut reserve = h100.clone();
        change(&mut reserve);
        reserve.reserved_mib()
    };
    assert_eq!(with(|r| r.decode_max_batch = None), 13_392.0);
    assert_eq!(with(|r| r.prefill_graphs = PrefillGraphs::Off), 13_440.0);
    assert_eq!(with(|r| r.prefill_graphs = PrefillGraphs::Latent), 14_976.0);
    assert_eq!(with(|r| r.attention_data_parallel = 2), 13_904.0 + 1_536.0);
    assert_eq!(with(|r| r.expert_all_to_all = true), 13_904.0 + 3_072.0);
    // A decode-only engine: 512 + 1.5 * 2,048 + 128 + 512 stays below the floor of a large card.
    let decode = |r: &mut StaticReserve| {
        (r.role, r.prefill_graphs, r.decode_tokens) = (Role::Decode, PrefillGraphs::Off, 512);
    };
    let mut reserve = h100.clone();
    decode(&mut reserve);
    assert_eq!(reserve.reserved_mib(), 10_240.0);
    // Gemma 3's SigLIP: the factor 0.910, hence 0.755 of the card.
    let mut vision = h100.clone();
    (vision.prefill_graphs, vision.vision_tower) = (PrefillGraphs::Off, Some((27, 1_152)));
    assert!(
        (vision.fraction() - 0.760).abs() < 0.0005,
        "{}",
        vision.fraction()
    );
}

/// gpt-oss-20b on an H100: 51.78 GiB of KV by the fallback (sglang_sizing.out).
#[test]
fn the_fallback_budget_is_sglang_s() {
    let gib = |gib: f64| (gib * f64::from(1 << 30)) as u64;
    let card = 81_559.0 / 1_024.0;
    let (before, after) = (card - 1.0, card - 1.0 - 13.2 - 0.3);
    let budget = StaticReserve::of_card(81_559, 1).kv_budget_bytes(gib(before), gib(after));
    assert_eq!(
        format!("{:.2}", budget as f64 / f64::from(1 << 30)),
        "51.78"
    );
    let none = StaticReserve::of_card(81_559, 1).kv_budget_bytes(gib(before), gib(1.0));
    assert_eq!(none, 0);
}
