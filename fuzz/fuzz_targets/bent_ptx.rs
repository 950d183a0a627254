//! PTX modules and images bent out of shape, loaded and run.

#![no_main]

#[path = "../../tests/bent_ptx/mod.rs"]
mod bent_ptx;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    bent_ptx::run_bytes(bytes);
});
