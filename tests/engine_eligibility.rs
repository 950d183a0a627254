//! An engine that may not size KV from what capture leaves keeps the static reserve and says why in its ledger.

use std::path::Path;

use neap::driver::Driver;
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions};
use neap::kv::reserve::{PrefillGraphs, StaticReserve};

const MIB: u64 = 1 << 20;

fn load(total_mib: u64, eager: bool) -> Engine {
    let mut profile = Profile::named("tiny").expect("a known profile");
    profile.total_bytes = total_mib * MIB;
    let device = Driver::emulator()
        .device(emulator::add_device(profile))
        .expect("the device just added");
    let options = EngineOptions {
        eager,
        max_seqs: 2,
        max_chunk_tokens: 64,
        decode_buckets: Some(vec![1]),
        prefill_buckets: Some(vec![64]),
        ..EngineOptions::default()
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
    Engine::load(&device, &model, &options, &mut |_| {}).expect("the bundled model loads")
}

fn kv_bytes(engine: &Engine) -> u64 {
    let ledger = engine.ledger();
    ledger.kv.iter().map(|share| share.bytes).sum::<u64>() + ledger.tail_bytes
}

#[test]
fn eager_mode_keeps_the_static_reserve_and_says_why() {
    let (eager, captured) = (load(8_192, true), load(8_192, false));
    let reason = eager.ledger().ineligible.as_deref().expect("a reason");
    assert!(
        reason.contains("decode runs without graphs")
            && reason.contains("prefill runs without graphs"),
        "{reason}"
    );
    assert!(reason.contains("drop --eager"), "{reason}");
    assert_eq!(captured.ledger().ineligible, None);
    assert!(
        eager.ledger().closes() && captured.ledger().closes(),
        "{}",
        eager.ledger()
    );
    // 512 + 1.5 * 2,048 + 128 MiB of 8,192, as a fraction of three decimals.
    let reserve = StaticReserve {
        chunk_tokens: 64,
        decode_max_batch: None,
        prefill_graphs: PrefillGraphs::Off,
        ..StaticReserve::of_card(8_192, 1)
    };
    assert_eq!(
        (reserve.reserved_mib(), reserve.fraction()),
        (3_712.0, 0.547)
    );
    let ledger = eager.ledger();
    let before =
        ledger.total_bytes - ledger.foreign_bytes - ledger.context_bytes - ledger.modules_bytes;
    let after = before - ledger.weights_bytes - ledger.workspace_bytes;
    let budget = reserve.kv_budget_bytes(before, after);
    let kept = kv_bytes(&eager);
    assert!(
        kept <= budget && kept + 4 * ledger.grain_bytes >= budget,
        "{kept} of {budget}"
    );
    // Sizing after capture wins back what the reserve keeps, less the graphs.
    let won = kv_bytes(&captured) - kept;
    let slack = before - (before as f64 * reserve.fraction()) as u64;
    let expected = slack - captured.ledger().graphs_bytes;
    assert!(
        won.abs_diff(expected) <= 4 * ledger.grain_bytes,
        "{won} of {expected}"
    );
}

#[test]
fn a_device_smaller_than_the_reserve_keeps_the_leftover() {
    let engine = load(512, true);
    assert!(engine.ledger().ineligible.is_some() && engine.ledger().closes());
    assert!(kv_bytes(&engine) > 100 * MIB, "{}", engine.ledger());
}
