//! Random operations on all of KV memory against a plain model, ten million of them and more.
//!
//! A plain loop over seeds, not proptest: a run of millions of operations has no small counterexample to shrink to, and the loop spends its
//! time on operations. A failure names its setup and seed; the same bytes-driven interpreter is the fuzz target `kv_operations`.

mod life;

use life::fuzzing::{Bytes, Choices, Random, run_inputs};
use life::{SETUPS, World};

/// All tests together: at least 10 million.
const OPERATIONS: u64 = 1_200_000;

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
                && (seen.cuts > 1_000 || setup.keeps_state()),
            "{seen:?}"
        );
        assert!(
            seen.copies > 1_000
                && seen.moved > 200
                && seen.shrunk > 15
                && seen.refused_shrinks > 100,
            "{seen:?}"
        );
        if setup.groups.len() > 1 && !setup.keeps_state() {
            assert!(seen.out_of_pages > 2 && seen.promises_kept > 0, "{seen:?}");
        }
        if setup.keeps_state() {
            assert_eq!((seen.hits, seen.evicted), (0, 0), "{seen:?}");
        } else {
            assert!(seen.evicted > 1_000, "{seen:?}");
            assert!(
                seen.hits > 200 || setup.rewind < setup.page_tokens,
                "{seen:?}"
            );
        }
    }
    println!(
        "{}: {} operations in {:.1} s",
        setup.name,
        operations,
        begin.elapsed().as_secs_f64()
    );
}

/// What the fuzz target does: `cargo test --release --test kv_life -- --ignored a_minute`.
#[test]
#[ignore = "takes a minute"]
fn a_minute_of_operations() {
    let operations = run_inputs(6_000, life::run_bytes);
    assert!(operations > 100_000);
}

#[test]
fn bytes_drive_the_same_interpreter() {
    assert_eq!(life::run_bytes(&[]), 0);
    // Creates, launches, completes, and so on, by their numbers.
    let bytes = (0..4_000_u32)
        .map(|place| (place * 37 % 251) as u8)
        .collect::<Vec<_>>();
    assert!(life::run_bytes(&bytes) > 500);
    assert_eq!(Bytes(&[7, 1, 2]).below(1_000), Some((7 << 8 | 1) % 1_000));
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

#[test]
fn latent_rows_and_chunks() {
    run(7);
}

#[test]
fn compressed_rows_beside_windows() {
    run(8);
}

#[test]
fn recurrent_state() {
    run(9);
}
