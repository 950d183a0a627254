#!/usr/bin/env bash
# Writes include/neap.h from src/capi with cbindgen 0.29.4, or with --check fails when it would change.
# Usage: scripts/generate-header.sh [path/to/cbindgen] [--check]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cbindgen=cbindgen
check=false
for argument in "$@"; do
    case $argument in
        --check) check=true ;;
        *) cbindgen=$argument ;;
    esac
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fresh=$scratch/neap.h
# One source of the room alone: given the crate, cbindgen also exports types of other rooms that have constants.
# Module comments (//!) may stand only at the top of a file.
cat src/capi/{status,device,engine,generate,memory,text}.rs | grep -v '^//!' >"$scratch/capi.rs"
"$cbindgen" --quiet --config cbindgen.toml --output "$fresh" "$scratch/capi.rs"
if $check; then
    diff -u include/neap.h "$fresh" || {
        echo 'include/neap.h is not what src/capi says: run scripts/generate-header.sh and commit the result.' >&2
        exit 1
    }
else
    install -m 644 "$fresh" include/neap.h
fi
