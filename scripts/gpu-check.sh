#!/usr/bin/env bash
# Checks a machine with a GPU in under three minutes, with nothing but a built `neap` and a model folder: no Rust,
# no compiler, no network.
#
#   scripts/gpu-check.sh [--neap BINARY] [--model DIR] [--goldens DIR] [--device DEVICE] [--out DIR]
#
# It lists the devices, then runs `neap selftest`: the goldens, graph against eager, the ledger against cuMemGetInfo,
# and a carve of the whole card; then one `neap run`. The table goes to standard output and, with --out, to
# DIR/selftest.txt and .json beside devices.txt and run.json. Exit code: 0 only when every check passed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
neap=$here/target/release/neap
model=$here/models/gemma3-tiny-kjv
goldens=
device=cuda
out=

while (($#)); do
    (($# > 1)) || {
        echo "gpu-check: $1 lacks its value; options are --neap, --model, --goldens, --device and --out" >&2
        exit 2
    }
    case $1 in
        --neap) neap=$2 ;;
        --model) model=$2 ;;
        --goldens) goldens=$2 ;;
        --device) device=$2 ;;
        --out) out=$2 ;;
        *)
            echo "gpu-check: unknown option $1; known are --neap, --model, --goldens, --device and --out" >&2
            exit 2
            ;;
    esac
    shift 2
done
[[ -x $neap ]] || {
    echo "gpu-check: $neap is not an executable; build it with 'cargo build --release' or name it with --neap" >&2
    exit 2
}
[[ -n $out ]] || {
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
}
mkdir -p "$out"

"$neap" --version
"$neap" devices | tee "$out/devices.txt"
echo
status=0
timeout 150 "$neap" selftest "$model" --device "$device" --out "$out" ${goldens:+--goldens "$goldens"} || status=$?
if ((status == 0)); then
    timeout 30 "$neap" run "$model" --device "$device" --max-new-tokens 32 --json >"$out/run.json" || status=$?
fi
((status != 0)) || sed -n 's/^ *"decode_tokens_per_second": *\([0-9.]*\).*/decode: \1 tokens a second/p' "$out/run.json"
((status == 0)) && echo 'gpu-check: all passed' || echo "gpu-check: failed ($status)"
exit "$status"
