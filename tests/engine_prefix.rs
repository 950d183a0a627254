//! Cached prefixes: fewer tokens computed, and not one bit of what a request gets is different (I13).

use std::path::Path;

use neap::driver::Driver;
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions, Forced, Request};
use neap::kv::{GroupId, PrefixCounters};

/// Tokens of a page, here of a block too.
const PAGE: usize = 16;
/// The bundled model's window.
const WINDOW: usize = 64;

fn engine_on(profile: Profile, options: &EngineOptions) -> Engine {
    let ordinal = emulator::add_device(profile);
    let device = Driver::emulator()
        .device(ordinal)
        .expect("the device just added");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv");
    Engine::load(&device, &dir, options, &mut |_| {}).expect("the bundled model loads")
}

fn engine(prefix_cache: bool) -> Engine {
    engine_on(
        Profile::named("tiny").expect("a known profile"),
        &EngineOptions {
            prefix_cache,
            ..options()
        },
    )
}

fn options() -> EngineOptions {
    EngineOptions {
        max_seqs: 6,
        max_chunk_tokens: 256,
        decode_buckets: Some(vec![1]),
        prefill_buckets: Some(vec![64]),
        ..EngineOptions::default()
    }
}

/// `len` tokens, other ones for another seed.
fn text(seed: u32, len: usize) -> Vec<u32> {
    let token =
        |index: u32| 4 + (index.wrapping_mul(2_654_435_761).wrapping_add(seed * 977)) % 4092;
    (1..=len as u32).map(token).collect()
}

fn request(prompt: Vec<u32>, max_new_tokens: u32) -> Request {
    Request {
        prompt,
        max_new_tokens,
        stop_tokens: Vec::new(),
    }
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let of_row = |row: &Vec<f32>| row.iter().map(|logit| logit.to_bits()).collect();
    rows.iter().map(of_row).collect()
}

fn counters(engine: &Engine) -> PrefixCounters {
    engine
        .prefix_counters()
        .expect("the cache is on by default")
        .clone()
}

/// Each prompt twice and a third that leaves it after `shared` tokens, around every boundary of pages and window.
#[test]
fn a_hit_changes_no_bit() {
    let (mut cached, mut plain) = (engine(true), engine(false));
    assert!(plain.prefix_counters().is_none());
    let forced = text(900, 2);
    let mut saved = 0;
    for (seed, len) in [PAGE, WINDOW, WINDOW + 1, 2 * WINDOW + PAGE, 155]
        .into_iter()
        .enumerate()
    {
        let prompt = text(seed as u32, len);
        let other = [
            &prompt[..len - len.min(5)],
            &text(50 + seed as u32, 20 + seed)[..],
        ]
        .concat();
        for prompt in [&prompt, &prompt, &other] {
            let expected = plain.logits_for(prompt, &forced).expect("runs");
            let found = cached.logits_for(prompt, &forced).expect("runs");
            assert_eq!(bits(&found), bits(&expected), "prompt of {len} tokens");
        }
        // The second time all but the last, started block is there.
        saved += (len - 1) / PAGE * PAGE;
        assert!(
            counters(&cached).saved_tokens as usize >= saved,
            "{len}: {:?}",
            counters(&cached)
        );
    }
    let seen = counters(&cached);
    println!("{seen:?}");
    assert_eq!(seen.lookups, 15);
    assert_eq!(
        seen.misses_too_short, 2,
        "a prompt of one page has no block to spare"
    );
}

#[test]
fn what_several_prompts_begin_with_is_found_from_the_third_on() {
    let mut engine = engine(true);
    let mut plain = self::engine(false);
    let system = text(1, 150);
    let boundary = 150 / PAGE * PAGE;
    for user in 0..3 {
        let prompt = [&system[..], &text(10 + user, 40)].concat();
        let before = counters(&engine);
        let found = engine
            .generate(&[request(prompt.clone(), 8)])
            .expect("runs");
        assert_eq!(
            found,
            plain.generate(&[request(prompt, 8)]).expect("runs"),
            "user {user}"
        );
        let after = counters(&engine);
        let saved = (after.saved_tokens - before.saved_tokens) as usize;
        match user {
            0 => assert_eq!(after.misses_unknown, 1),
            // The first prompt left windows at its own end only; the second leaves them where the two part.
            1 => assert_eq!((after.misses_no_window, saved), (1, 0)),
            _ => assert_eq!(saved, boundary),
        }
    }
}

/// Generated tokens come from decode kernels, which add in another order: what they leave must not serve prompts.
#[test]
fn generated_tokens_are_not_taken_for_prompts() {
    let mut engine = engine(true);
    let first = text(3, 40);
    let answer = engine
        .generate(&[request(first.clone(), 60)])
        .expect("runs")
        .remove(0);
    let dialogue = [&first[..], &answer, &text(4, 10)].concat();
    let before = counters(&engine).saved_tokens;
    let found = engine.logits_for(&dialogue, &[]).expect("runs");
    assert_eq!(
        counters(&engine).saved_tokens - before,
        32,
        "the first prompt"
    );
    let expected = self::engine(false)
        .logits_for(&dialogue, &[])
        .expect("runs");
    assert_eq!(bits(&found), bits(&expected));
}

/// Pools for a few hundred tokens: prefixes come and go, requests are preempted, and everybody gets what they get alone.
#[test]
fn eviction_and_preemption_change_nothing() {
    let small = |prefix_cache| {
        let mut profile = Profile::named("tiny").expect("a known profile");
        profile.granularity_bytes = 64 << 10;
        let options = EngineOptions {
            page_size: 4,
            kv_limit_bytes: Some(448 << 10),
            max_seqs: 8,
            admit_new_tokens: 4,
            prefix_cache,
            ..options()
        };
        engine_on(profile, &options)
    };
    let heads: Vec<Vec<u32>> = (0..2)
        .map(|seed| text(30 + seed, 40 + 30 * seed as usize))
        .collect();
    let requests: Vec<Request> = (0..16)
        .map(|index| {
            let head = &heads[index as usize / 8];
            let prompt = [&head[..], &text(100 + index, 3 + index as usize % 11)].concat();
            request(prompt, 12 + 4 * (index % 5))
        })
        .collect();
    let mut cached = small(true);
    let found = cached.generate(&requests).expect("runs");
    let seen = counters(&cached);
    println!(
        "{seen:?}, {} preemptions, {} pages moved",
        cached.num_preemptions(),
        cached.num_moved_pages()
    );
    assert!(seen.hits >= 5, "{seen:?}");
    assert!(
        seen.evicted_pages.iter().all(|pages| *pages > 0),
        "{seen:?}"
    );
    assert!(cached.num_preemptions() > 0);
    cached
        .kv()
        .allocator()
        .audit()
        .expect("the books are in order");
    cached.clear_prefix_cache().expect("is usable");
    for group in [GroupId(0), GroupId(1)] {
        assert_eq!(cached.kv().allocator().used_pages(group), 0);
    }
    let mut roomy = engine(false);
    for (index, request) in requests.iter().enumerate() {
        let alone = roomy.generate(std::slice::from_ref(request)).expect("runs");
        assert_eq!(found[index], alone[0], "request {index}");
    }
}

/// A cached prefix is nobody's charge, and no reason to make a request wait.
#[test]
fn cached_pages_count_as_free() {
    let mut engine = engine(true);
    for seed in 0..4 {
        engine
            .generate(&[request(text(seed, 200), 2)])
            .expect("runs");
    }
    for group in [GroupId(0), GroupId(1)] {
        assert!(engine.kv().allocator().used_pages(group) > 0);
        assert_eq!(engine.kv().charged_pages(group), 0);
    }
    // Several on one prefix are charged for it once.
    let prompts: Vec<_> = (0..3)
        .map(|user| [&text(0, 192)[..], &text(70 + user, 9)].concat())
        .collect();
    let forced: Vec<Forced> = prompts
        .iter()
        .map(|prompt| Forced {
            prompt,
            continuation: &[],
        })
        .collect();
    engine.logits_for_batch(&forced).expect("runs");
    for prompt in prompts {
        engine.submit(request(prompt, 40)).expect("is accepted");
    }
    engine.step().expect("runs");
    assert_eq!(engine.num_running(), 3);
    // 201 tokens and 39 more with keys: 12 pages that all share, and 3 of each one's own.
    assert_eq!(engine.kv().charged_pages(GroupId(0)), 12 + 3 * 3);
}
