//! Split policies, caps, roles and ranks: the engine sizes KV by the functions that `neap plan` shows.

use std::path::{Path, PathBuf};

use neap::driver::{Device, Driver};
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineError, EngineOptions, Request};
use neap::kv::eligibility::Role;
use neap::kv::policy::agree;
use neap::kv::{PageSize, PlanOptions, Policy, PolicyError, plan};

const KIB: u64 = 1 << 10;
const KV_BYTES: u64 = 2048 * KIB;

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv")
}

fn device(foreign_bytes: u64) -> Device {
    let mut profile = Profile::named("tiny").expect("a known profile");
    profile.granularity_bytes = 64 * KIB;
    profile.foreign_bytes = foreign_bytes;
    Driver::emulator()
        .device(emulator::add_device(profile))
        .expect("the device just added")
}

fn load(options: &EngineOptions) -> Result<Engine, EngineError> {
    Engine::load(&device(0), &bundled(), options, &mut |_| {})
}

fn options() -> EngineOptions {
    EngineOptions {
        max_seqs: 8,
        max_chunk_tokens: 64,
        decode_buckets: Some(vec![8]),
        prefill_buckets: Some(vec![64]),
        page_size: 4,
        admit_new_tokens: u32::MAX,
        kv_limit_bytes: Some(KV_BYTES),
        ..EngineOptions::default()
    }
}

fn requests() -> Vec<Request> {
    (0..8)
        .map(|seed| Request {
            prompt: (0..50 + 9 * seed)
                .map(|index| 4 + (index * 619 + seed * 83) % 4092)
                .collect(),
            max_new_tokens: 12,
            stop_tokens: Vec::new(),
        })
        .collect()
}

#[test]
fn policies_are_those_of_the_plan_and_change_no_token() {
    let config = std::fs::read(bundled().join("config.json")).expect("is there");
    let config = serde_json::from_slice(&config).expect("is JSON");
    let expected = load(&options())
        .expect("loads")
        .generate(&requests())
        .expect("runs");
    for (policy, fewest_running) in [
        (Policy::Ratio(0.5), 8),
        (Policy::Requests(3), 3),
        (
            Policy::Workload {
                prompt_tokens: 100,
                output_tokens: 20,
            },
            8,
        ),
    ] {
        let planned = plan(
            &config,
            &PlanOptions {
                kv_bytes: KV_BYTES,
                page_size: PageSize::new(4).expect("valid"),
                policies: vec![policy],
                lengths: vec![1024, 2048],
                ..PlanOptions::default()
            },
        )
        .expect("plans");
        let planned = &planned.policies[0];
        let options = EngineOptions {
            policy,
            ..options()
        };
        let mut engine = load(&options).expect("loads");
        assert!(engine.ledger().closes(), "{}", engine.ledger());
        let carve = engine.carve().clone();
        assert_eq!(carve.capacity, planned.capacity, "{policy}");
        for (found, planned) in carve.pools.iter().zip(&planned.pools) {
            assert_eq!(
                (&found.group, found.pages, found.tokens),
                (&planned.group, planned.pages, planned.tokens),
                "{policy}"
            );
        }
        let ids: Vec<_> = requests()
            .into_iter()
            .map(|request| engine.submit(request).expect("is accepted"))
            .collect();
        let mut tokens = vec![Vec::new(); ids.len()];
        let mut most_running = 0;
        while engine.has_work() {
            for event in engine.step().expect("runs") {
                let index = ids.iter().position(|id| *id == event.request);
                tokens[index.expect("one of ours")].push(event.token);
            }
            most_running = most_running.max(engine.num_running());
            let kv = engine.kv();
            for (group, pool) in kv.geometry().group_ids().zip(&carve.pools) {
                assert!(kv.charged_pages(group) <= pool.pages, "{policy}");
                assert!(kv.allocator().used_pages(group) <= pool.pages, "{policy}");
            }
        }
        println!("{policy}: {most_running} at once");
        assert!(most_running >= fewest_running, "{policy}: {most_running}");
        assert_eq!(tokens, expected, "{policy}");
        let error = engine.shrink(KV_BYTES / 2).expect_err("pools are fixed");
        assert!(matches!(error, EngineError::FixedPools { .. }), "{error}");
        // Asleep nothing has a line to keep.
        engine.sleep().expect("sleeps");
        engine.wake().expect("wakes");
        assert_eq!(engine.carve(), &carve);
    }
    let options = EngineOptions {
        policy: Policy::Ratio(7.0),
        ..options()
    };
    let error = load(&options).err().expect("is refused");
    assert!(matches!(error, EngineError::Policy(_)), "{error}");
}

/// A pool that a static policy made small holds requests back, whatever the other has to spare.
#[test]
fn a_small_pool_bounds_admission() {
    let options = EngineOptions {
        policy: Policy::Requests(2),
        prefix_cache: false,
        ..options()
    };
    let mut engine = load(&options).expect("loads");
    let most = engine.carve().capacity[0].requests;
    let pages = engine.carve().pools[1].pages;
    // 64 tokens of window in pages of 4: 17 pages a sequence.
    assert!(pages / 17 < 8, "{}", engine.carve());
    assert!(most <= pages / 17);
    for request in requests() {
        engine.submit(request).expect("is accepted");
    }
    engine.step().expect("runs");
    assert_eq!(engine.num_running() as u64, pages / 17);
}

#[test]
fn a_token_cap_leaves_the_rest_free() {
    let capped = EngineOptions {
        max_kv_tokens: Some(256),
        max_seqs: 2,
        decode_buckets: Some(vec![2]),
        ..options()
    };
    let mut engine = load(&capped).expect("loads");
    let whole = load(&options()).expect("loads").kv_bytes();
    assert!(engine.kv_bytes() < whole / 2, "{}", engine.kv_bytes());
    assert!(
        (256..600).contains(&engine.max_tokens()),
        "{}",
        engine.max_tokens()
    );
    assert!(engine.ledger().closes());
    let requests = &requests()[..2];
    assert_eq!(engine.generate(requests).expect("runs").len(), 2);
}

#[test]
fn a_role_captures_its_own_graphs_and_runs_the_rest_without() {
    let run = |role| {
        let mut engine = load(&EngineOptions { role, ..options() }).expect("loads");
        // Decode of 8, prefill of 64, and what comes before a step.
        let kernels = engine.captured_kernels().expect("graphs").len();
        assert_eq!(engine.ledger().ineligible, None, "{role:?}");
        assert!(engine.ledger().closes());
        let tokens = engine.generate(&requests()).expect("runs");
        (kernels, engine.ledger().graphs_bytes, tokens)
    };
    let (both, prefill, decode) = (run(Role::Both), run(Role::Prefill), run(Role::Decode));
    assert!(prefill.0 < both.0 && decode.0 < both.0);
    assert!(prefill.1 < both.1 && decode.1 < both.1);
    assert_eq!((&prefill.2, &decode.2), (&both.2, &both.2));
}

#[test]
fn ranks_agree_on_the_least() {
    let options = EngineOptions {
        kv_limit_bytes: None,
        ..options()
    };
    let foreign = [0, 40 << 20];
    // What each rank measures, twice.
    let measured = foreign.map(|bytes| {
        let mut seen = Vec::new();
        let mut note = |bytes| {
            seen.push(bytes);
            Ok(bytes)
        };
        Engine::load_rank(&device(bytes), &bundled(), &options, &mut |_| {}, &mut note)
            .expect("loads");
        seen
    });
    assert_eq!(measured.each_ref().map(Vec::len), [2, 2]);
    let rank = |foreign_bytes, tolerance| {
        let mut calls = 0;
        let mut gather = |_| {
            let all = measured.each_ref().map(|seen| seen[calls]);
            calls += 1;
            agree(&all, tolerance)
        };
        Engine::load_rank(
            &device(foreign_bytes),
            &bundled(),
            &options,
            &mut |_| {},
            &mut gather,
        )
    };
    let ranks = foreign.map(|bytes| rank(bytes, 0.5).expect("loads"));
    assert_eq!(ranks[0].carve(), ranks[1].carve());
    assert_eq!(ranks[0].kv_bytes(), ranks[1].kv_bytes());
    assert!(ranks.iter().all(|rank| rank.ledger().closes()));
    let error = rank(0, 0.01).err().expect("they differ too much");
    assert!(
        matches!(
            error,
            EngineError::Policy(PolicyError::RanksDiverge { rank: 1, .. })
        ),
        "{error}"
    );
}
