#!/usr/bin/env bash
# Tests under AddressSanitizer, with overflow checks and debug assertions. Needs a nightly toolchain.
#
#   scripts/sanitize.sh kv                   src/kv: about five minutes of building on two cores and as many of tests
#   scripts/sanitize.sh emulator [SECONDS]   the emulator, without and with its checked mode, then so many seconds of fuzzing (600)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=target/sanitizer CARGO_PROFILE_RELEASE_OPT_LEVEL=1
export RUSTFLAGS='-Zsanitizer=address -Coverflow-checks=on -Cdebug-assertions=on'
test=(cargo +nightly test --release --locked --no-default-features --target "$(rustc -vV | sed -n 's/^host: //p')")
case ${1-} in
kv)
    "${test[@]}" --lib kv::
    "${test[@]}" --test 'kv_*'
    ;;
emulator)
    # Tests end processes on purpose, which then hold what they had.
    export ASAN_OPTIONS=detect_leaks=0
    for check in '' 1; do
        NEAP_CHECK=$check "${test[@]}" --test emulator_ops --test driver --test emulator_checked
    done
    NEAP_FUZZ_SECONDS=${2:-600} "${test[@]}" --test emulator_fuzz -- --ignored a_minute
    ;;
*)
    echo 'name what to test: kv or emulator' >&2
    exit 2
    ;;
esac
