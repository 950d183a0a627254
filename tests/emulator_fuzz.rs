//! Bent PTX and images: a module or one error, a finished launch or one fault, never a panic.

mod bent_ptx;

use bent_ptx::fuzzing::{Choices, Random, run_inputs};
use bent_ptx::run_bytes;

#[test]
fn bent_modules_load_and_run_or_are_refused() {
    let mut random = Random(1);
    let mut below = |bound| random.below(bound).unwrap();
    let mut ended = 0;
    for _ in 0..1_500 {
        let length = 1 + below(200);
        let bytes = (0..length).map(|_| below(256) as u8).collect::<Vec<_>>();
        ended += run_bytes(&bytes);
    }
    // A good part still runs.
    assert!((100..1_500).contains(&ended), "{ended} ended well");
}

/// What the fuzz target does: `cargo test --release --test emulator_fuzz -- --ignored a_minute`.
#[test]
#[ignore = "takes a minute"]
fn a_minute_of_bent_modules() {
    assert!(run_inputs(200, run_bytes) > 200);
}
