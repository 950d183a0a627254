#!/usr/bin/env bash
# Compiles csrc/**/*.cu with nvcc (NEAP_NVCC, CUDA_HOME, PATH or a PyPI nvidia/cu13) and writes csrc/prebuilt.
# The checked-in files are made with nvcc 13.0.88; another version makes other text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
NEAP_UPDATE_PREBUILT=1 cargo check --quiet --lib --no-default-features
