//! I13: what a sequence gets does not depend on its neighbours, its bucket, its pages, or on graphs, bit for bit.

use std::path::{Path, PathBuf};

use neap::driver::{Device, Driver};
use neap::emulator::{self, Profile};
use neap::engine::{Engine, EngineOptions, Forced, Request};

fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/gemma3-tiny-kjv")
}

fn device() -> Device {
    let ordinal = emulator::add_device(Profile::named("tiny").expect("a known profile"));
    Driver::emulator()
        .device(ordinal)
        .expect("the device just added")
}

fn engine(options: &EngineOptions) -> Engine {
    Engine::load(&device(), &bundled(), options, &mut |_| {}).expect("the bundled model loads")
}

/// Buckets that these tests use, so that no time goes into capturing others. Prompts are computed in full whenever they come.
fn options() -> EngineOptions {
    EngineOptions {
        max_seqs: 8,
        prefix_cache: false,
        decode_buckets: Some(vec![1, 8]),
        ..EngineOptions::default()
    }
}

/// A prompt that differs in every token from one with another seed; any token but the special ones.
fn prompt(seed: u64, len: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        4 + (state % 4092) as u32
    };
    std::iter::once(2)
        .chain(std::iter::repeat_with(&mut next))
        .take(len)
        .collect()
}

/// Logits as bits: NaN would equal itself, so there must be none.
fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    assert!(
        rows.iter().flatten().all(|logit| logit.is_finite()),
        "logits are finite"
    );
    rows.iter()
        .map(|row| row.iter().map(|logit| logit.to_bits()).collect())
        .collect()
}

#[test]
fn graph_replay_equals_eager() {
    let mut graphs = engine(&options());
    let mut eager = engine(&EngineOptions {
        eager: true,
        ..options()
    });
    for len in [1, 5, 64, 65, 200] {
        let (prompt, forced) = (prompt(1, len), prompt(2, 12));
        let replayed = graphs.logits_for(&prompt, &forced).expect("runs");
        let issued = eager.logits_for(&prompt, &forced).expect("runs");
        assert_eq!(bits(&replayed), bits(&issued), "prompt of {len} tokens");
    }
}

#[test]
fn a_batch_of_five_equals_five_singles() {
    let mut engine = engine(&options());
    let prompts: Vec<Vec<u32>> = [(3, 5), (4, 63), (5, 130), (6, 16), (7, 1)]
        .map(|(seed, len)| prompt(seed, len))
        .into();
    // Continuations of unequal lengths, so that batches of 5, 4, ... 1 occur.
    let forced: Vec<Vec<u32>> = (0..5)
        .map(|index| prompt(20 + index, 4 + 2 * index as usize))
        .collect();
    let batch: Vec<Forced> = prompts
        .iter()
        .zip(&forced)
        .map(|(prompt, continuation)| Forced {
            prompt,
            continuation,
        })
        .collect();
    let together = engine.logits_for_batch(&batch).expect("runs");
    for (index, forced) in batch.iter().enumerate() {
        let alone = engine
            .logits_for(forced.prompt, forced.continuation)
            .expect("runs");
        assert_eq!(bits(&together[index]), bits(&alone), "sequence {index}");
    }
}

#[test]
fn prompts_packed_into_one_step_generate_what_they_generate_alone() {
    let mut engine = engine(&options());
    let requests: Vec<Request> = [(8, 40), (9, 3), (10, 90), (11, 64), (12, 17)]
        .map(|(seed, len)| Request {
            prompt: prompt(seed, len),
            max_new_tokens: 12,
            stop_tokens: Vec::new(),
        })
        .into();
    let together = engine.generate(&requests).expect("runs");
    for (request, together) in requests.iter().zip(&together) {
        let alone = engine
            .generate(std::slice::from_ref(request))
            .expect("runs");
        assert_eq!((&alone[0], together.len()), (together, 12));
    }
}

#[test]
fn page_sizes_agree() {
    let (prompt, forced) = (prompt(13, 150), prompt(14, 24));
    let run = |page_size| {
        let options = EngineOptions {
            page_size,
            ..options()
        };
        bits(&engine(&options).logits_for(&prompt, &forced).expect("runs"))
    };
    let sixteen = run(16);
    for page_size in [1, 64] {
        assert_eq!(run(page_size), sixteen, "pages of {page_size} tokens");
    }
}

#[test]
fn pages_and_slots_do_not_matter() {
    let mut engine = engine(&options());
    let (prompt, forced) = (prompt(15, 100), prompt(16, 10));
    let fresh = bits(&engine.logits_for(&prompt, &forced).expect("runs"));
    // Other requests take the first slots and pages, and are still there when the sequence under test comes back.
    for seed in 0..3 {
        let request = Request {
            prompt: self::prompt(30 + seed, 80),
            max_new_tokens: 200,
            stop_tokens: Vec::new(),
        };
        engine.submit(request).expect("is accepted");
    }
    for _ in 0..5 {
        engine.step().expect("runs");
    }
    let beside_others = bits(&engine.logits_for(&prompt, &forced).expect("runs"));
    assert!(engine.has_work(), "the others are still running");
    assert_eq!(beside_others, fresh);
}

#[test]
fn chunked_prompts_equal_whole_ones() {
    let (prompt, forced) = (prompt(17, 300), prompt(18, 4));
    let run = |max_chunk_tokens| {
        let options = EngineOptions {
            max_chunk_tokens,
            ..options()
        };
        bits(&engine(&options).logits_for(&prompt, &forced).expect("runs"))
    };
    let whole = run(1024);
    // Chunks that end on tile boundaries, and chunks that do not.
    for chunk in [64, 128, 50, 7] {
        assert_eq!(run(chunk), whole, "chunks of {chunk} tokens");
    }
}

/// One decode graph replayed at every length, by plans that differ each time (rtp-llm#378: captured at 1k, replayed at 100k with the plan
/// of 1k).
#[test]
fn c22_a_graph_follows_the_plan_of_its_step() {
    let options = EngineOptions {
        max_seqs: 1,
        decode_buckets: Some(vec![1]),
        ..options()
    };
    let mut graphs = engine(&options);
    let mut eager = engine(&EngineOptions {
        eager: true,
        ..options.clone()
    });
    let forced = prompt(41, 3);
    for len in [1, 127, 128, 129, 1024, 7, 511] {
        let prompt = prompt(40, len);
        let replayed = graphs.logits_for(&prompt, &forced).expect("runs");
        let issued = eager.logits_for(&prompt, &forced).expect("runs");
        assert_eq!(bits(&replayed), bits(&issued), "prompt of {len} tokens");
    }
}
