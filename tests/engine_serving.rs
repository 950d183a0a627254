//! Continuous batching on pools that are too small for everybody at once.

use std::path::Path;

use neap::driver::Driver;
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions, FinishReason, Request, RequestId};

fn engine(options: &EngineOptions) -> Engine {
    engine_on(Profile::named("tiny").expect("a known profile"), options)
}

fn engine_on(profile: Profile, options: &EngineOptions) -> Engine {
    let ordinal = emulator::add_device(profile);
    let device = Driver::emulator()
        .device(ordinal)
        .expect("the device just added");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
    Engine::load(&device, &dir, options, &mut |_| {}).expect("the bundled model loads")
}

fn options() -> EngineOptions {
    EngineOptions {
        max_seqs: 6,
        max_chunk_tokens: 64,
        prefill_buckets: Some(vec![64]),
        ..EngineOptions::default()
    }
}

fn request(seed: u32, prompt_len: u32, max_new_tokens: u32) -> Request {
    let token =
        |index: u32| 4 + (index.wrapping_mul(2_654_435_761).wrapping_add(seed * 977)) % 4092;
    let prompt = std::iter::once(2)
        .chain((1..prompt_len).map(token))
        .collect();
    Request {
        prompt,
        max_new_tokens,
        stop_tokens: Vec::new(),
    }
}

/// Every page is back where it came from, or cached.
fn assert_idle(engine: &mut Engine) {
    assert!(!engine.has_work());
    engine.clear_prefix_cache().expect("the engine is usable");
    let allocator = engine.kv().allocator();
    allocator
        .audit()
        .expect("the allocator's books are in order");
    for group in engine.kv().geometry().group_ids() {
        assert_eq!(
            allocator.used_pages(group),
            0,
            "pages of {group:?} are still held"
        );
    }
}

/// An engine whose pools hold a few hundred tokens.
fn small_engine(options: EngineOptions) -> Engine {
    let mut profile = Profile::named("tiny").expect("a known profile");
    profile.granularity_bytes = 64 << 10;
    let options = EngineOptions {
        page_size: 4,
        kv_limit_bytes: Some(448 << 10),
        ..options
    };
    engine_on(profile, &options)
}

/// What the requests get where there is room for all of them.
fn with_room(requests: &[Request]) -> Vec<Vec<u32>> {
    let mut engine = engine(&EngineOptions {
        max_seqs: 8,
        ..options()
    });
    let generated = engine.generate(requests).expect("runs");
    assert_eq!(engine.num_preemptions(), 0);
    generated
}

#[test]
fn requests_wait_for_room_and_get_what_they_get_with_it() {
    let mut engine = small_engine(EngineOptions {
        admit_new_tokens: u32::MAX,
        ..options()
    });
    let requests: Vec<Request> = (0..8)
        .map(|index| request(index, 60 + 13 * index, 5 + index))
        .collect();
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).expect("is accepted"))
        .collect();
    let mut generated = vec![Vec::new(); requests.len()];
    let mut waited_for_memory = false;
    while engine.has_work() {
        for event in engine.step().expect("runs") {
            let index = ids
                .iter()
                .position(|id| *id == event.request)
                .expect("one of ours");
            generated[index].push(event.token);
        }
        waited_for_memory |= engine.num_waiting() > 0 && (1..6).contains(&engine.num_running());
    }
    assert!(waited_for_memory, "the pools are too large for this test");
    assert_eq!(
        engine.num_preemptions(),
        0,
        "what is admitted has room to its end"
    );
    assert_idle(&mut engine);
    assert_eq!(generated, with_room(&requests));
}

#[test]
fn preempted_requests_get_what_they_get_with_room() {
    let options = EngineOptions {
        max_seqs: 8,
        admit_new_tokens: 4,
        decode_buckets: Some(vec![1]),
        ..options()
    };
    let mut engine = small_engine(options);
    let requests: Vec<Request> = (0..8)
        .map(|index| request(40 + index, 9 + 11 * index, 70 - 4 * index))
        .collect();
    let generated = engine.generate(&requests).expect("runs");
    println!("{} preemptions", engine.num_preemptions());
    assert!(
        engine.num_preemptions() > 3,
        "only {} preemptions",
        engine.num_preemptions()
    );
    assert_idle(&mut engine);
    assert_eq!(generated, with_room(&requests));
}

#[test]
fn a_request_ends_where_its_own_terms_say() {
    let mut engine = engine(&EngineOptions {
        max_model_len: Some(160),
        ..options()
    });
    let free = engine
        .generate(&[request(1, 20, 12)])
        .expect("runs")
        .remove(0);
    let stop = free[5];
    let first = free
        .iter()
        .position(|token| *token == stop)
        .expect("is there");
    let stopped = Request {
        stop_tokens: vec![stop],
        ..request(1, 20, 12)
    };
    assert_eq!(
        engine.generate(&[stopped]).expect("runs")[0],
        free[..=first],
        "the stop token is the last"
    );

    let longest = Request {
        max_new_tokens: 500,
        ..request(1, engine.max_tokens() - 3, 1)
    };
    engine.submit(longest).expect("is accepted");
    let mut events = Vec::new();
    while engine.has_work() {
        events.extend(engine.step().expect("runs"));
    }
    assert_eq!(
        events.last().and_then(|event| event.finished),
        Some(FinishReason::Capacity)
    );
    assert_eq!(
        events.len(),
        4,
        "three more keys, and one token that needs none"
    );
    assert_idle(&mut engine);
}

#[test]
fn a_cancelled_request_frees_its_pages_and_leaves_others_alone() {
    let mut engine = engine(&options());
    let alone = engine
        .generate(&[request(3, 70, 10)])
        .expect("runs")
        .remove(0);
    let kept = engine.submit(request(3, 70, 10)).expect("is accepted");
    let running = engine.submit(request(4, 90, 500)).expect("is accepted");
    for _ in 0..4 {
        engine.step().expect("runs");
    }
    let waiting = engine.submit(request(5, 30, 500)).expect("is accepted");
    engine.cancel(running).expect("is cancelled");
    engine.cancel(waiting).expect("is cancelled");
    let mut tail = Vec::new();
    while engine.has_work() {
        for event in engine.step().expect("runs") {
            assert_eq!(event.request, kept);
            tail.push(event.token);
        }
    }
    assert!(
        !tail.is_empty() && alone.ends_with(&tail),
        "{alone:?} does not end with {tail:?}"
    );
    assert_idle(&mut engine);
}

#[test]
fn an_engine_may_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Engine>();
    let mut engine = engine(&options());
    let here = engine.generate(&[request(6, 10, 4)]).expect("runs");
    let there =
        std::thread::spawn(move || engine.generate(&[request(6, 10, 4)]).expect("runs")).join();
    assert_eq!(there.expect("does not panic"), here);
}
