#!/usr/bin/env bash
# The tests of src/kv under AddressSanitizer, with overflow checks and debug assertions. Needs a nightly toolchain; about five minutes
# of building on two cores and as many of tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=target/sanitizer CARGO_PROFILE_RELEASE_OPT_LEVEL=1
export RUSTFLAGS='-Zsanitizer=address -Coverflow-checks=on -Cdebug-assertions=on'
test=(cargo +nightly test --release --locked --no-default-features --target "$(rustc -vV | sed -n 's/^host: //p')")
"${test[@]}" --lib kv::
"${test[@]}" --test 'kv_*'
