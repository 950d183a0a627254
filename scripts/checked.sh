#!/usr/bin/env bash
# Runs the tests in the emulator's checked mode (NEAP_CHECK): every access compared with what is known of order, ownership
# and initialisation; blocks, warps and streams in a seeded order. A report fails the launch it is about, and so the test.
#
#   scripts/checked.sh [SEED...]       all suites that use a device, with these seeds (1 2 3)
#   scripts/checked.sh --subset SEED   every kernel and the engine's pages, about a minute of CPU time; suites get seeds from SEED on
#
# No test is skipped: those that do on purpose what the mode reports expect its report.
# Left out: emulator_mutants and most of emulator_checked, which set the mode themselves, and suites without a device.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A suite, and the names of its tests to run if not all.
suites=(
    kernels_cache kernels_dense kernels_projection kernels_traffic kernels_attention
    driver emulator_ops kv_arena kv_life
    engine_fork engine_elastic engine_prefix engine_serving engine_shapes engine_invariance engine_memory
    engine_model engine_sizing engine_eligibility engine_large goldens
    bad_input cli c_abi
)
subset=(
    kernels_cache kernels_dense kernels_projection kernels_traffic kernels_attention
    driver emulator_ops kv_arena kv_life
    'engine_fork completions_that_find_no_room' 'engine_elastic c28'
)

seeds=("${@:-1 2 3}")
step=0
if [[ ${1:-} == --subset ]]; then
    suites=("${subset[@]}")
    seeds=("${2:?a seed}")
    step=1
fi

# $1: seed; then a suite and tests of it.
run() {
    local seed=$1 suite=$2
    printf '== %s, seed %s (%s s)\n' "${*:2}" "$seed" "$SECONDS"
    NEAP_CHECK=$seed cargo test --quiet --release --locked --test "$suite" -- "${@:3}"
}

for seed in ${seeds[*]}; do
    # Believes nothing that a device without the mode would pass as well.
    run "$seed" emulator_checked the_environment_turns_the_mode_on
    for words in "${suites[@]}"; do
        # shellcheck disable=SC2086
        run "$seed" $words
        seed=$((seed + step))
    done
done
