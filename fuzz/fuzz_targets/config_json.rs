//! `config.json` and the options of a plan, bent out of shape.

#![no_main]

#[path = "../../tests/bent_configs/mod.rs"]
mod bent_configs;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    bent_configs::run_bytes(bytes);
});
