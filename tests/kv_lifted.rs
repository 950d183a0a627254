//! Conditions that keep other servers from sizing KV after capture, on an emulated 141 GB device: each is eligible here, and
//! its pools are carved from what capture leaves.

use neap::arena::{AllocationGate, Arena, Claims, LedgerMeter, Stage};
use neap::driver::{Context, Driver};
use neap::emulator::{self, Profile};
use neap::kv::eligibility::{Lifted, StartUp, eligibility};
use neap::kv::{Geometry, KvArena, KvDtype, PageSize, Shard};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn read(config: &Value, dtype: KvDtype, shard: &Shard) -> Geometry {
    Geometry::from_config_sharded(config, PageSize::new(16).unwrap(), dtype, shard).unwrap()
}

/// Reserves, lets "capture" take `graphs_mib`, carves, and holds the ledger to the grain.
fn carve_after_capture(geometry: &Geometry, graphs_mib: u64) -> u64 {
    let profile = Profile::named("h200").unwrap();
    let (context_bytes, grain_bytes) = (profile.context_bytes, profile.granularity_bytes);
    let ordinal = emulator::add_device(profile);
    let context = Context::retain_primary(&Driver::emulator().device(ordinal).unwrap()).unwrap();
    let gate = AllocationGate::new();
    let first = context.mem_info().unwrap();
    let mut meter = LedgerMeter::start(first, context_bytes);
    meter.record(Stage::Modules, first);
    let mut kv = KvArena::reserve(&context, &gate, geometry, first.free_bytes).unwrap();
    assert_eq!(
        kv.arena().mapped_bytes(),
        kv.layout().null_bytes().next_multiple_of(grain_bytes)
    );
    meter.record(Stage::Arena, context.mem_info().unwrap());
    let mut graphs = Arena::reserve(&context, &gate, "graphs", graphs_mib * MIB).unwrap();
    graphs.map_to(graphs_mib * MIB).unwrap();

    let headroom = 256 * MIB;
    let extension = kv.extend(headroom, None).unwrap();
    let carved = extension.carve.carved_bytes;
    // The null pages were backed before, and belong to the carve.
    assert_eq!(
        carved,
        (first.free_bytes - graphs_mib * MIB - headroom) / grain_bytes * grain_bytes
    );
    meter.record(Stage::Graphs, extension.measured);
    let claims = Claims {
        weights_bytes: 0,
        workspace_bytes: 0,
        headroom_bytes: extension.headroom_bytes,
        kv: extension.shares(geometry, 8_192),
        tail_bytes: extension.carve.tail_bytes,
        unmapped_bytes: extension.unmapped_bytes(),
        grain_bytes,
        ineligible: None,
    };
    let ledger = meter.finish(context.mem_info().unwrap(), claims);
    assert!(ledger.closes(), "{ledger}");
    assert_eq!(ledger.graphs_bytes, graphs_mib * MIB);
    for group in geometry.group_ids() {
        let page = kv.null_page(group).offset_bytes();
        assert!(page < kv.layout().null_bytes());
    }
    kv.close().unwrap();
    graphs.close().unwrap();
    context.close().unwrap();
    assert_eq!(emulator::report(ordinal).live_objects(), 0);
    extension.carve.max_requests(geometry, 8_192)
}

fn check(geometry: &Geometry, shard: &Shard, lifted: Lifted) {
    let found = eligibility(&StartUp::default(), geometry, shard, false);
    assert!(
        found.is_eligible() && found.lifted.contains(&lifted),
        "{found:?}"
    );
    let (small, large) = (
        carve_after_capture(geometry, 512),
        carve_after_capture(geometry, 20_480),
    );
    // What capture takes is all that KV loses: 19,968 MiB of requests, and one more by rounding.
    let lost = (u128::from(19_968 * MIB) / geometry.request_bytes(8_192)) as u64;
    assert!(
        small - large <= lost + lost / 50 + 1 && small - large + lost / 50 + 1 >= lost,
        "{lifted:?}: {small} {large} {lost}"
    );
}

#[test]
fn latent_attention_is_sized_after_capture() {
    let geometry = read(
        &json!({"model_type": "deepseek_v32"}),
        KvDtype::Bf16,
        &Shard::WHOLE,
    );
    check(&geometry, &Shard::WHOLE, Lifted::Latent);
}

#[test]
fn compressed_attention_is_sized_after_capture() {
    let geometry = read(
        &json!({"model_type": "deepseek_v4"}),
        KvDtype::Bf16,
        &Shard::WHOLE,
    );
    check(&geometry, &Shard::WHOLE, Lifted::Compressed);
}

#[test]
fn block_sparse_attention_is_sized_after_capture() {
    let types = (0..60).map(|i| {
        if i < 3 {
            "full_attention"
        } else {
            "minimax_m3_sparse"
        }
    });
    let config =
        json!({"model_type": "minimax_m3_vl_text", "layer_types": types.collect::<Vec<_>>()});
    check(
        &read(&config, KvDtype::Bf16, &Shard::WHOLE),
        &Shard::WHOLE,
        Lifted::BlockSparse,
    );
}

#[test]
fn recurrent_state_is_sized_after_capture() {
    let geometry = read(
        &json!({"model_type": "qwen3_next"}),
        KvDtype::Bf16,
        &Shard::WHOLE,
    );
    check(&geometry, &Shard::WHOLE, Lifted::Recurrent);
}

#[test]
fn fp4_and_mxfp8_are_sized_after_capture() {
    for dtype in [KvDtype::Fp4E2m1, KvDtype::Mxfp8] {
        let geometry = read(&json!({"model_type": "gpt_oss"}), dtype, &Shard::WHOLE);
        check(&geometry, &Shard::WHOLE, Lifted::BlockScales);
    }
}

#[test]
fn drafts_and_stages_are_sized_after_capture() {
    let stage = Shard {
        tensor_parallel: 2,
        layers: Some(31..62),
    };
    let gemma = json!({"model_type": "gemma3_text", "num_hidden_layers": 62, "num_key_value_heads": 16, "head_dim": 128,
                       "sliding_window": 1024});
    let geometry = read(&gemma, KvDtype::Bf16, &stage);
    check(&geometry, &stage, Lifted::PipelineStage);
    let draft = json!({"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 8});
    let draft = read(
        &draft,
        KvDtype::Bf16,
        &Shard {
            layers: None,
            ..stage.clone()
        },
    );
    let both = geometry.with_draft(&draft).unwrap();
    check(&both, &stage, Lifted::Draft);
}
