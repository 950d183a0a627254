//! Operation sequences on KV memory, against the plain model of the tests.

#![no_main]

#[path = "../../tests/life/mod.rs"]
mod life;

use libfuzzer_sys::fuzz_target;

const fn setup(
    name: &'static str,
    groups: &'static [(usize, Option<u32>, u32)],
    page_tokens: u32,
    slab_pages: u64,
    slabs: u32,
    longest: u32,
    rewind: u32,
) -> life::Setup {
    life::Setup { name, groups, page_tokens, slab_pages, slabs, longest, rewind, audit_every: 16 }
}

const SETUPS: [life::Setup; 4] = [
    setup("exact slabs", &[(1, None, 64), (5, Some(64), 64)], 16, 3, 24, 500, 31),
    setup("pages of one token", &[(1, None, 64), (2, Some(9), 64)], 1, 70, 8, 120, 3),
    setup("slabs of one page", &[(1, None, 64), (1, Some(20), 64)], 4, 1, 90, 130, 7),
    setup("three pools", &[(2, None, 64), (3, Some(16), 64), (5, Some(100), 32)], 8, 4, 40, 300, 15),
];

fuzz_target!(|bytes: &[u8]| {
    life::run_bytes(&SETUPS, bytes);
});
