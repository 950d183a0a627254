//! Operation sequences on KV memory, against the plain model of the tests.

#![no_main]

#[path = "../../tests/life/mod.rs"]
mod life;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    life::run_bytes(bytes);
});
