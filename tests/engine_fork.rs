//! Several completions of one prompt share its pages, and each is what it would be alone.

use std::path::Path;

use neap::driver::Driver;
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineError, EngineOptions, FinishReason, Request, RequestId};
use neap::kv::GroupId;

const FULL: GroupId = GroupId(0);

fn engine(options: &EngineOptions) -> Engine {
    let mut profile = Profile::named("tiny").expect("a known profile");
    profile.granularity_bytes = 64 << 10;
    let device = Driver::emulator()
        .device(emulator::add_device(profile))
        .expect("the device just added");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
    Engine::load(&device, &dir, options, &mut |_| {}).expect("the bundled model loads")
}

/// Without cached prefixes, so that pages are counted for sequences alone.
fn options() -> EngineOptions {
    EngineOptions {
        max_seqs: 8,
        max_chunk_tokens: 64,
        decode_buckets: Some(vec![8]),
        prefill_buckets: Some(vec![64]),
        prefix_cache: false,
        ..EngineOptions::default()
    }
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|index| 4 + index * 619 % 4092).collect()
}

fn request(len: u32, max_new_tokens: u32) -> Request {
    Request {
        prompt: prompt(len),
        max_new_tokens,
        stop_tokens: Vec::new(),
    }
}

/// Runs everything to its end; the tokens of each id, in order.
fn run(engine: &mut Engine, ids: &[RequestId]) -> Vec<Vec<u32>> {
    let mut tokens = vec![Vec::new(); ids.len()];
    while engine.has_work() {
        for event in engine.step().expect("runs") {
            let index = ids.iter().position(|id| *id == event.request);
            tokens[index.expect("one of ours")].push(event.token);
        }
    }
    tokens
}

/// Tokens by descending logit, the lower id first among equals.
fn ranked(logits: &[f32]) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
    tokens.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    tokens
}

/// Each completion, decoded again by a sequence of its own: the logits it saw choose exactly its tokens.
fn assert_independent(engine: &mut Engine, prompt: &[u32], completions: &[Vec<u32>]) {
    for (place, tokens) in completions.iter().enumerate() {
        let rows = engine
            .logits_for(prompt, &tokens[..tokens.len() - 1])
            .expect("runs");
        assert_eq!(tokens[0], ranked(&rows[0])[place], "completion {place}");
        for (row, token) in rows.iter().zip(tokens).skip(1) {
            assert_eq!(ranked(row)[0], *token, "completion {place}");
        }
    }
}

#[test]
fn completions_share_their_prompt_and_are_what_they_are_alone() {
    let mut engine = engine(&options());
    // In the middle of a page, at its end, and beyond the window.
    for len in [9, 32, 100] {
        let ids = engine
            .submit_completions(request(len, 20), 3)
            .expect("is accepted");
        assert_eq!(ids.len(), 3);
        let mut tokens = vec![Vec::new(); 3];
        while tokens[0].is_empty() {
            for event in engine.step().expect("runs") {
                let index = ids.iter().position(|id| *id == event.request);
                tokens[index.expect("one of ours")].push(event.token);
            }
        }
        assert_eq!(engine.num_running(), 3, "{len}");
        // Nothing is copied yet: the full pages of the prompt, once.
        let pages = u64::from(len.div_ceil(16));
        assert_eq!(engine.kv().allocator().used_pages(FULL), pages);
        // Promised to each: what it will have beyond the prompt's whole pages.
        let each = u64::from((len + 19).div_ceil(16)) - pages;
        let partly = u64::from(len % 16 != 0);
        let charged = engine.kv().charged_pages(FULL);
        assert_eq!(charged, pages + 3 * each + 2 * partly, "{len}");
        for (tokens, more) in tokens.iter_mut().zip(run(&mut engine, &ids)) {
            tokens.extend(more);
        }
        assert!(tokens.iter().all(|tokens| tokens.len() == 20));
        assert_independent(&mut engine, &prompt(len), &tokens);
        for group in engine.kv().geometry().group_ids() {
            assert_eq!(engine.kv().allocator().used_pages(group), 0);
        }
        engine.kv().allocator().audit().expect("books in order");
    }
}

#[test]
fn completions_that_find_no_room_wait_and_lose_nothing() {
    for prefix_cache in [true, false] {
        let options = EngineOptions {
            page_size: 4,
            kv_limit_bytes: Some(448 << 10),
            admit_new_tokens: 8,
            max_seqs: 3,
            decode_buckets: Some(vec![1]),
            prefix_cache,
            ..options()
        };
        let mut engine = engine(&options);
        let ids = engine
            .submit_completions(request(90, 24), 5)
            .expect("is accepted");
        let tokens = run(&mut engine, &ids);
        println!("{} preemptions", engine.num_preemptions());
        assert!(tokens.iter().all(|tokens| tokens.len() == 24));
        assert_independent(&mut engine, &prompt(90), &tokens);
    }
}

#[test]
fn a_running_request_forks_where_it_stands() {
    let mut engine = engine(&options());
    let parent = engine.submit(request(50, 24)).expect("is accepted");
    let error = engine.fork(parent, 7).expect_err("nothing to fork yet");
    assert!(
        matches!(error, EngineError::NothingToFork { .. }),
        "{error}"
    );
    let mut before = Vec::new();
    for _ in 0..6 {
        before.extend(engine.step().expect("runs").iter().map(|event| event.token));
    }
    let error = engine.fork(parent, 4096).expect_err("no such token");
    assert!(matches!(error, EngineError::UnknownToken { .. }), "{error}");
    let fork = engine.fork(parent, 77).expect("forks");
    assert_eq!(engine.num_running(), 2);
    let tokens = run(&mut engine, &[parent, fork]);
    let whole = |rest: &[u32], last: u32| {
        let mut tokens = before.clone();
        *tokens.last_mut().expect("some are generated") = last;
        tokens.extend(rest);
        tokens
    };
    let parents = whole(&tokens[0], *before.last().expect("some"));
    let forks = whole(&tokens[1], 77);
    assert_eq!((parents.len(), forks.len()), (24, 24));
    assert_ne!(parents[before.len()..], forks[before.len()..]);
    for (tokens, chosen) in [(&parents, 0), (&forks, before.len())] {
        let rows = engine.logits_for(&prompt(50), &tokens[..23]).expect("runs");
        for (position, (row, token)) in rows.iter().zip(tokens).enumerate() {
            if chosen == 0 || position + 1 != chosen {
                assert_eq!(ranked(row)[0], *token, "position {position}");
            }
        }
    }
    assert!(engine.fork(parent, 7).is_err(), "it has ended");
}

#[test]
fn completions_end_on_their_own_terms() {
    let mut engine = engine(&options());
    assert!(engine.submit_completions(request(5, 4), 0).is_err());
    assert!(engine.submit_completions(request(5, 4), 4097).is_err());
    // One token each: nobody needs a sequence of its own.
    let ids = engine
        .submit_completions(request(5, 1), 3)
        .expect("is accepted");
    let events = engine.step().expect("runs");
    assert_eq!(events.len(), 3);
    assert!(
        events
            .iter()
            .all(|event| event.finished == Some(FinishReason::Length))
    );
    assert!(!engine.has_work() && ids.len() == 3);
    // Cancelled before the prompt has run: one of them, then all.
    let ids = engine
        .submit_completions(request(5, 4), 3)
        .expect("is accepted");
    engine.cancel(ids[1]).expect("is usable");
    let tokens = run(&mut engine, &ids);
    assert_eq!(tokens.iter().map(Vec::len).collect::<Vec<_>>(), [4, 0, 4]);
    let ids = engine
        .submit_completions(request(5, 4), 3)
        .expect("is accepted");
    engine.cancel(ids[0]).expect("is usable");
    assert!(!engine.has_work());
}
