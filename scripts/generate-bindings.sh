#!/usr/bin/env bash
# Writes src/driver/abi.rs from a cuda.h with bindgen, or with --check fails when it would change.
# Needs libclang, and NEAP_CUDA_INCLUDE: the folder with cuda.h (PyPI: nvidia/cu13/include of nvidia-cuda-runtime).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

: "${NEAP_CUDA_INCLUDE:?set it to the folder that has cuda.h}"
bindings=src/driver/abi.rs
kept=$(mktemp)
cp "$bindings" "$kept"
if [[ ${1-} == --check ]]; then
    trap 'cp "$kept" "$bindings"; rm -f "$kept"' EXIT
else
    trap 'rm -f "$kept"' EXIT
fi
export NEAP_CUDA_INCLUDE
# The build script writes the file; it must run even when nothing else has changed.
touch build.rs
cargo check --quiet --locked --no-default-features --features regenerate-bindings
if [[ ${1-} == --check ]]; then
    diff -u "$kept" "$bindings" || {
        echo "$bindings is not what this cuda.h gives: run scripts/generate-bindings.sh and commit the result." >&2
        exit 1
    }
fi
