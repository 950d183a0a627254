//! Random operations on all of KV memory against a plain model, ten million of them and more.
//!
//! A plain loop over seeds, not proptest: a run of millions of operations has no small counterexample to shrink to, and the loop spends its
//! time on operations. A failure names its setup and seed; the same bytes-driven interpreter is the fuzz target `kv_operations`.

mod life;

use life::{Bytes, Random, Setup, World};

/// All tests together: at least 10 million.
const OPERATIONS: u64 = 1_500_000;

const SETUPS: [Setup; 7] = [
    setup(
        "exact slabs",
        &[(1, None, 64), (5, Some(64), 64)],
        16,
        3,
        24,
        500,
        31,
    ),
    setup(
        "pages of one token",
        &[(1, None, 64), (2, Some(9), 64)],
        1,
        70,
        8,
        120,
        3,
    ),
    setup(
        "slabs with a remainder",
        &[(3, None, 64), (7, Some(33), 96)],
        8,
        2,
        30,
        250,
        0,
    ),
    setup(
        "slabs of one page",
        &[(1, None, 64), (1, Some(20), 64)],
        4,
        1,
        90,
        130,
        7,
    ),
    setup(
        "a window of one token",
        &[(1, None, 64), (1, Some(1), 64)],
        4,
        8,
        24,
        130,
        2,
    ),
    setup("all layers slide", &[(4, Some(31), 64)], 8, 5, 14, 400, 15),
    setup(
        "three pools",
        &[(2, None, 64), (3, Some(16), 64), (5, Some(100), 32)],
        8,
        4,
        40,
        300,
        15,
    ),
];

const fn setup(
    name: &'static str,
    groups: &'static [(usize, Option<u32>, u32)],
    page_tokens: u32,
    slab_pages: u64,
    slabs: u32,
    longest: u32,
    rewind: u32,
) -> Setup {
    Setup {
        name,
        groups,
        page_tokens,
        slab_pages,
        slabs,
        longest,
        rewind,
        audit_every: 257,
    }
}

fn run(place: usize) {
    let setup = &SETUPS[place];
    let begin = std::time::Instant::now();
    let mut operations = 0;
    for seed in 1..=3 {
        println!("{}, seed {seed}", setup.name);
        let mut world = World::new(setup);
        world.run(&mut Random(seed), OPERATIONS / 3);
        let seen = world.seen;
        println!("{seen:?}");
        operations += seen.operations;
        // A run that exercised nothing proves nothing.
        assert!(
            seen.fresh_pages > 10_000
                && seen.reads > 50_000
                && seen.forks > 1_000
                && seen.cuts > 1_000,
            "{seen:?}"
        );
        assert!(
            seen.copies > 1_000
                && seen.moved > 200
                && seen.shrunk > 20
                && seen.refused_shrinks > 100,
            "{seen:?}"
        );
        if setup.groups.len() > 1 {
            assert!(seen.out_of_pages > 2 && seen.promises_kept > 0, "{seen:?}");
        }
        assert!(seen.evicted > 1_000, "{seen:?}");
        assert!(
            seen.hits > 200 || setup.rewind < setup.page_tokens,
            "{seen:?}"
        );
    }
    println!(
        "{}: {} operations in {:.1} s",
        setup.name,
        operations,
        begin.elapsed().as_secs_f64()
    );
}

/// What the fuzz target does, for a minute, or `NEAP_FUZZ_SECONDS`, on bytes from a seed that is printed, or `NEAP_FUZZ_SEED`:
/// `cargo test --release --test kv_life -- --ignored a_minute`.
#[test]
#[ignore = "takes a minute"]
fn a_minute_of_the_fuzz_target() {
    let number = |variable| {
        let text = std::env::var(variable).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let seconds = number("NEAP_FUZZ_SECONDS").unwrap_or(60);
    let seed = number("NEAP_FUZZ_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        since.as_nanos() as u64
    });
    println!("seed {seed}");
    let mut random = Random(seed);
    let begin = std::time::Instant::now();
    let (mut inputs, mut operations) = (0_u64, 0);
    while begin.elapsed().as_secs() < seconds {
        let length = 1 + life::Choices::below(&mut random, 6_000).unwrap();
        let bytes = (0..length)
            .map(|_| life::Choices::below(&mut random, 256).unwrap() as u8)
            .collect::<Vec<_>>();
        operations += life::run_bytes(&SETUPS, &bytes);
        inputs += 1;
    }
    println!("{inputs} inputs, {operations} operations");
    assert!(operations > 100_000);
}

#[test]
fn bytes_drive_the_same_interpreter() {
    assert_eq!(life::run_bytes(&SETUPS, &[]), 0);
    // Creates, launches, completes, and so on, by their numbers.
    let bytes = (0..4_000_u32)
        .map(|place| (place * 37 % 251) as u8)
        .collect::<Vec<_>>();
    assert!(life::run_bytes(&SETUPS, &bytes) > 500);
    assert_eq!(
        life::Choices::below(&mut Bytes(&[7, 1, 2]), 1_000),
        Some((7 << 8 | 1) % 1_000)
    );
}

#[test]
fn exact_slabs() {
    run(0);
}

#[test]
fn pages_of_one_token() {
    run(1);
}

#[test]
fn slabs_with_a_remainder() {
    run(2);
}

#[test]
fn slabs_of_one_page() {
    run(3);
}

#[test]
fn a_window_of_one_token() {
    run(4);
}

#[test]
fn all_layers_slide() {
    run(5);
}

#[test]
fn three_pools() {
    run(6);
}
