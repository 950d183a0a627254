#!/usr/bin/env bash
# Checks the kernels against a CUDA toolkit: csrc/prebuilt is what nvcc makes of csrc today, no kernel spills or
# exceeds its registers and static shared memory in csrc/budget.txt, and the toolkit's assembler takes every instruction probe
# (`neap selftest --ptx`), so that a GPU can run them. With --update the budget is rewritten instead.
# Needs nvcc 13.0.88 in NEAP_NVCC.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
: "${NEAP_NVCC:?name nvcc 13.0.88 in NEAP_NVCC}"
ptxas=$(dirname "$NEAP_NVCC")/ptxas

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -r csrc/prebuilt "$scratch/before"
scripts/rebuild-ptx.sh
if ! diff -rq "$scratch/before" csrc/prebuilt; then
    echo 'csrc/prebuilt was stale; it has been rewritten: check it in' >&2
    exit 1
fi

# kernel, architecture, registers, static shared bytes, spilled bytes
for architecture in sm_80 sm_90a; do
    find csrc -name '*.ptx' | LC_ALL=C sort | while read -r file; do
        "$ptxas" -O3 -v -arch="$architecture" "$file" -o /dev/null 2>&1
    done | awk -v architecture="$architecture" '
        /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2] }
        /spill stores/ { spills = $5 + $9 }
        /Used [0-9]+ registers/ {
            shared = 0
            for (i = 2; i <= NF; i++) if ($i ~ /^smem/) shared = $(i - 2)
            match($0, /Used [0-9]+/)
            print kernel, architecture, substr($0, RSTART + 5, RLENGTH - 5), shared, spills
        }'
done | LC_ALL=C sort >"$scratch/measured"

if [[ ${1-} == --update ]]; then
    {
        echo '# kernel architecture registers static_shared_bytes spilled_bytes (nvcc 13.0.88; scripts/check-kernels.sh --update)'
        cat "$scratch/measured"
    } >csrc/budget.txt
fi

awk '
    FNR == 1 { file++ }
    /^#/ { next }
    file == 1 { registers[$1 " " $2] = $3; shared[$1 " " $2] = $4; next }
    {
        key = $1 " " $2
        seen[key] = 1
        if (!(key in registers)) { print key ": not in csrc/budget.txt"; bad = 1; next }
        if ($3 > registers[key]) { print key ": " $3 " registers, budget " registers[key]; bad = 1 }
        if ($4 > shared[key]) { print key ": " $4 " bytes of shared memory, budget " shared[key]; bad = 1 }
        if ($5 > 0) { print key ": spills " $5 " bytes"; bad = 1 }
    }
    END {
        for (key in registers) if (!(key in seen)) { print key ": in csrc/budget.txt, but no such kernel"; bad = 1 }
        exit bad
    }' csrc/budget.txt "$scratch/measured"
echo "kernels: $(wc -l <"$scratch/measured") entries within budget, prebuilt PTX fresh"

cargo run --quiet --release --locked -- selftest --ptx "$scratch/probes"
for file in "$scratch"/probes/*.ptx; do
    architecture=$(sed -n 's/^\.target //p' "$file")
    "$ptxas" -O1 -arch="$architecture" "$file" -o /dev/null
done
echo "probes: $(cat "$scratch"/probes/*.ptx | grep -c '^\.visible \.entry') kernels assembled"
