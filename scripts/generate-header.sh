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

fresh=$(mktemp)
trap 'rm -f "$fresh"' EXIT
"$cbindgen" --quiet --config cbindgen.toml --crate neap --output "$fresh"
if $check; then
    diff -u include/neap.h "$fresh" || {
        echo 'include/neap.h is not what src/capi says: run scripts/generate-header.sh and commit the result.' >&2
        exit 1
    }
else
    install -m 644 "$fresh" include/neap.h
fi
