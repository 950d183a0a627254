//! KV memory given back and taken again while requests run: the device sees the bytes, and nobody's tokens change (I12).

use std::path::Path;

use neap::driver::{Context, Device, Driver, Stream};
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineError, EngineOptions, Request, RequestId};

const MIB: u64 = 1 << 20;

fn device() -> Device {
    let mut profile = Profile::named("tiny").expect("a known profile");
    profile.granularity_bytes = 64 << 10;
    Driver::emulator()
        .device(emulator::add_device(profile))
        .expect("the device just added")
}

fn load(device: &Device, options: &EngineOptions) -> Engine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
    Engine::load(device, &dir, options, &mut |_| {}).expect("the bundled model loads")
}

fn options() -> EngineOptions {
    EngineOptions {
        max_seqs: 6,
        max_chunk_tokens: 64,
        decode_buckets: Some(vec![6]),
        prefill_buckets: Some(vec![64]),
        page_size: 4,
        kv_limit_bytes: Some(4 * MIB),
        admit_new_tokens: 16,
        max_model_len: Some(512),
        ..EngineOptions::default()
    }
}

fn requests() -> Vec<Request> {
    let prompt = |seed: u32, len: u32| (0..len).map(|i| 4 + (i * 619 + seed * 83) % 4092).collect();
    (0..6)
        .map(|seed| Request {
            prompt: prompt(seed, 40 + 17 * seed),
            max_new_tokens: 30,
            stop_tokens: Vec::new(),
        })
        .collect()
}

fn submit(engine: &mut Engine) -> Vec<RequestId> {
    let requests = requests().into_iter();
    requests
        .map(|request| engine.submit(request).expect("is accepted"))
        .collect()
}

fn steps(engine: &mut Engine, ids: &[RequestId], tokens: &mut [Vec<u32>], count: usize) {
    for _ in 0..count {
        if !engine.has_work() {
            return;
        }
        for event in engine.step().expect("runs") {
            let index = ids.iter().position(|id| *id == event.request);
            tokens[index.expect("one of ours")].push(event.token);
        }
    }
}

fn free_bytes(engine: &Engine) -> u64 {
    engine.memory_info().expect("reads").free_bytes
}

fn expected() -> Vec<Vec<u32>> {
    load(&device(), &options())
        .generate(&requests())
        .expect("runs")
}

/// The ledger says what the device does.
fn assert_accounted(engine: &Engine, device: &Device) {
    let ledger = engine.ledger();
    assert!(ledger.closes(), "{ledger}");
    let report = emulator::report(device.ordinal());
    let kv = ledger.kv.iter().map(|share| share.bytes).sum::<u64>();
    assert_eq!(kv, engine.kv_bytes());
    let arenas = ledger.weights_bytes + ledger.workspace_bytes + kv + ledger.tail_bytes;
    assert!(
        arenas.abs_diff(report.physical_bytes) <= device.granularity_bytes(),
        "{ledger}{report}"
    );
    let map = engine.memory_map("now");
    let drawn = map.after.iter().map(|piece| piece.bytes).sum::<u64>();
    assert!(drawn.abs_diff(ledger.total_bytes) <= device.granularity_bytes());
}

#[test]
fn shrinking_and_growing_between_steps_changes_no_token() {
    let device = device();
    let mut engine = load(&device, &options());
    let (whole, graphs) = (
        engine.kv_bytes(),
        engine.captured_kernels().expect("graphs"),
    );
    let ids = submit(&mut engine);
    let mut tokens = vec![Vec::new(); ids.len()];
    steps(&mut engine, &ids, &mut tokens, 6);
    let (free, in_use) = (free_bytes(&engine), engine.kv().allocator().online_slabs());
    // Down in three strides, below what all of them need at once.
    for target in [whole / 2, whole / 4, whole / 8] {
        let before = engine.kv_bytes();
        let given_back = engine.shrink(target).expect("shrinks");
        assert!(given_back > 0 && engine.kv_bytes() < before);
        assert_accounted(&engine, &device);
        steps(&mut engine, &ids, &mut tokens, 3);
    }
    assert_eq!(
        free_bytes(&engine) - free,
        whole.next_multiple_of(64 << 10) - engine.kv_bytes().next_multiple_of(64 << 10)
    );
    println!(
        "{in_use} slabs, then {}; {} pages moved, {} preemptions",
        engine.kv().allocator().online_slabs(),
        engine.num_moved_pages(),
        engine.num_preemptions()
    );
    assert!(engine.num_moved_pages() > 0 && engine.num_preemptions() > 0);
    assert_eq!(engine.grow(u64::MAX).expect("grows"), whole);
    assert_accounted(&engine, &device);
    assert_eq!(free_bytes(&engine), free);
    steps(&mut engine, &ids, &mut tokens, usize::MAX);
    assert_eq!(tokens, expected());
    assert_eq!(engine.captured_kernels().expect("graphs"), graphs);
    engine.kv().allocator().audit().expect("books in order");
    engine.close().expect("closes");
    let report = emulator::report(device.ordinal());
    assert_eq!((report.live_objects(), report.physical_bytes), (0, 0));
}

#[test]
fn c23_sleep_gives_all_kv_back_and_requests_go_on_after_it() {
    let device = device();
    let mut engine = load(&device, &options());
    let (whole, free) = (engine.kv_bytes(), free_bytes(&engine));
    let ids = submit(&mut engine);
    let mut tokens = vec![Vec::new(); ids.len()];
    steps(&mut engine, &ids, &mut tokens, 9);
    let given_back = engine.sleep().expect("sleeps");
    assert!(given_back >= whole && engine.is_asleep());
    assert_eq!(free_bytes(&engine) - free, given_back);
    assert_eq!(
        (engine.kv_bytes(), engine.sleep().expect("sleeps on")),
        (0, 0)
    );
    assert_accounted(&engine, &device);
    let refused = [
        engine.step().err(),
        engine.shrink(0).err(),
        engine.grow(1).err(),
        engine.logits_for(&[2], &[]).err(),
    ];
    assert!(
        refused
            .iter()
            .all(|error| matches!(error, Some(EngineError::Asleep)))
    );
    assert_eq!(engine.wake().expect("wakes"), whole);
    assert_accounted(&engine, &device);
    assert_eq!((free_bytes(&engine), engine.is_asleep()), (free, false));
    steps(&mut engine, &ids, &mut tokens, usize::MAX);
    assert_eq!(tokens, expected());
}

#[test]
fn what_was_accepted_is_not_shrunk_away() {
    let mut engine = load(&device(), &options());
    let whole = engine.kv_bytes();
    let long = Request {
        prompt: vec![2; 400],
        max_new_tokens: 100,
        stop_tokens: Vec::new(),
    };
    let id = engine.submit(long).expect("is accepted");
    let error = engine.shrink(whole / 16).expect_err("is refused");
    assert!(
        matches!(error, EngineError::ShrinkBelowRequest { request, tokens: 499, .. } if request == id),
        "{error}"
    );
    assert_eq!(engine.kv_bytes(), whole);
    engine.cancel(id).expect("is usable");
    assert!(engine.shrink(whole / 16).expect("shrinks") > 0);
    // What is left decides what is accepted from now on.
    assert!(engine.max_tokens() < 499);
    assert!(
        engine
            .submit(Request {
                prompt: vec![2; 499],
                max_new_tokens: 1,
                stop_tokens: Vec::new(),
            })
            .is_err()
    );
    let error = engine.shrink(1).expect_err("not even one token");
    assert!(matches!(error, EngineError::KvArena(_)), "{error}");
    assert_eq!(engine.shrink(u64::MAX).expect("nothing to do"), 0);
}

/// Fresh memory is not cleared, and needs not be: whatever stands in it, no kernel reads a page before it is written (imp#1709 cleared pages on
/// another stream and erased what had been written).
#[test]
fn c28_fresh_pages_may_hold_anything() {
    let device = device();
    let mut engine = load(&device, &options());
    let context = Context::retain_primary(&device).expect("the engine's context");
    let stream = Stream::new(&context).expect("a stream");
    let ids = submit(&mut engine);
    let mut tokens = vec![Vec::new(); ids.len()];
    let poison = |engine: &Engine, from: u64| {
        let [_, _, kv] = engine.arenas();
        assert!(kv.bytes > from);
        // SAFETY: the range is mapped, and no sequence holds a page in it.
        unsafe { stream.memset_d8_async(kv.base.add(from), 0xff, (kv.bytes - from) as usize) }
            .expect("fills");
        stream.synchronize().expect("fills");
    };
    steps(&mut engine, &ids, &mut tokens, 4);
    let whole = engine.kv_bytes();
    engine.shrink(whole / 4).expect("shrinks");
    let [_, _, kept] = engine.arenas();
    engine.grow(whole).expect("grows");
    // NaN in every format there is.
    poison(&engine, kept.bytes);
    steps(&mut engine, &ids, &mut tokens, 5);
    engine.sleep().expect("sleeps");
    engine.wake().expect("wakes");
    poison(&engine, 0);
    steps(&mut engine, &ids, &mut tokens, usize::MAX);
    assert_eq!(tokens, expected());
}
