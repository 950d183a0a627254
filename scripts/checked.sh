#!/usr/bin/env bash
# Runs the tests in the emulator's checked mode (NEAP_CHECK): every access compared with what is known of order, ownership
# and initialisation; blocks, warps and streams in a seeded order. A report fails the launch it is about, and so the test.
#
#   scripts/checked.sh [SEED...]       all suites that use a device, with these seeds (1 2 3)
#   scripts/checked.sh --subset SEED   every kernel and the engine's pages, about a minute of CPU time; suites get seeds from SEED on
#
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

# Tests that do on purpose what the mode reports, or ask for what it changes; `--skip` takes parts of names.
skips=(
    # Reads memory that nobody has written, to see the poison in it.
    memory::access_is_needed_and_its_kind_is_checked memory::fresh_memory_reads_as_poison_also_after_reuse
    memory::poison_shows_what_was_never_written
    # Work of two streams that nothing orders, and in which order it runs.
    streams::a_wait_means_the_record_at_the_time_of_the_call streams::events_order_streams_and_without_them_nothing_does
    streams::blocking_streams_and_the_default_stream_wait_for_each_other
    # The host touches a buffer before its copy is complete.
    streams::pageable_sources_may_change_after_the_call_and_pinned_ones_may_not
    streams::work_runs_when_somebody_waits_and_not_before
    # Pipelines with a wait too few, and barriers in memory that holds none.
    matrix::a_late_copy_makes_pipeline_mistakes_visible hopper::bulk_copies_and_reductions_arrive_when_waited_for
    hopper::misused_barriers_are_faults
    # Lanes that meet at different places of the text: the mode calls that divergence.
    device_runtime::lanes_
    # Which of several faults comes first depends on the order.
    memory::wrong_addresses_are_faults_that_say_where
    # Reads what nobody wrote.
    threads::what_waits_for_a_stream_waits_for_its_host_functions
    # Runs the suite again in another process, the tests above included.
    load::cpus_without_avx
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
    NEAP_CHECK=$seed cargo test --quiet --release --locked --test "$suite" -- "${@:3}" "${skips[@]/#/--skip=}"
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
