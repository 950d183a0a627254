//! Decisions out of an input's bytes, and inputs until something fails or the time is up.
//!
//! The same interpreters run under `cargo fuzz` (`fuzz/`).

#![allow(dead_code)] // each test binary uses a part

use std::time::{Duration, Instant};

mod shrink;

pub use shrink::shrink;

/// Where decisions come from.
pub trait Choices {
    /// A number below `bound`; `None` at the end of the input.
    fn below(&mut self, bound: u32) -> Option<u32>;
}

/// SplitMix64.
pub struct Random(pub u64);

impl Choices for Random {
    fn below(&mut self, bound: u32) -> Option<u32> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Some(((u128::from(mixed(self.0)) * u128::from(bound)) >> 64) as u32)
    }
}

/// Bytes of an input, two for a bound beyond 256.
pub struct Bytes<'a>(pub &'a [u8]);

impl Choices for Bytes<'_> {
    fn below(&mut self, bound: u32) -> Option<u32> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        if bound <= 256 {
            return Some(u32::from(first) % bound.max(1));
        }
        let (&second, rest) = self.0.split_first()?;
        self.0 = rest;
        Some((u32::from(first) << 8 | u32::from(second)) % bound)
    }
}

/// SplitMix64's finalizer.
pub const fn mixed(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Runs inputs of random bytes, at most `most_bytes` each, for a minute, or `NEAP_FUZZ_SECONDS`, from a seed that is printed, or
/// `NEAP_FUZZ_SEED`; returns the sum of what `run` returns. An input that fails is made shorter and printed before it fails again.
pub fn run_inputs(most_bytes: u32, run: impl Fn(&[u8]) -> u64 + std::panic::RefUnwindSafe) -> u64 {
    let number = |variable| {
        let text = std::env::var(variable).ok()?;
        Some(text.parse::<u64>().expect("a number"))
    };
    let time = Duration::from_secs(number("NEAP_FUZZ_SECONDS").unwrap_or(60));
    let seed = number("NEAP_FUZZ_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now();
        let since = now
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970");
        since.as_nanos() as u64
    });
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut below = |bound| random.below(bound).expect("random numbers do not end");
    let begin = Instant::now();
    let (mut inputs, mut sum) = (0_u64, 0);
    while begin.elapsed() < time {
        let bytes = (0..1 + below(most_bytes))
            .map(|_| below(256) as u8)
            .collect::<Vec<_>>();
        match std::panic::catch_unwind(|| run(&bytes)) {
            Ok(more) => sum += more,
            Err(_) => {
                let input = shrink(&bytes, |bytes| {
                    run(bytes);
                });
                println!("input {inputs} fails; as {} bytes: {input:?}", input.len());
                run(&input);
            }
        }
        inputs += 1;
    }
    println!("{inputs} inputs, {sum} in all");
    sum
}
