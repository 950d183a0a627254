#!/usr/bin/env bash
# Runs programs that nobody here wrote on the drop-in driver library: a C program against NVIDIA's cuda.h, numba-cuda's own tests,
# cudarc's tests and examples. Installs from PyPI and crates.io into $NEAP_CI_TOOLS, outside the project. Exit code 1 when a test
# fails that scripts/foreign/*-not-expected.txt does not list. With --all: every numba-cuda test, file by file, which takes most of
# an hour on two cores; docs/foreign-programs.md has the counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=${NEAP_CI_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/neap-ci}/foreign
here=$PWD/scripts/foreign
mkdir -p "$tools"

if [[ -z ${NEAP_LIBCUDA:-} ]]; then
    cargo build --quiet --release --locked -p libcuda
    NEAP_LIBCUDA=$PWD/target/release
fi
# A device of 512 MiB: a test that fills the device's memory must not fill this machine's.
small=${NEAP_EMULATOR:-tiny*2}
export LD_LIBRARY_PATH=$NEAP_LIBCUDA NEAP_EMULATOR=$small NEAP_CHECK=

python=$tools/venv/bin/python3
[[ -x $python ]] || python3 -m venv "$tools/venv"
# Without nvJitLink numba links through the driver, which is handed PTX.
"$python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
nvidia=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
failed=0

echo '== C against cuda.h'
cc -Wall -Wextra -std=gnu11 -I"$nvidia/include" "$here/driver.c" "$NEAP_LIBCUDA/libcuda.so.1" -o "$tools/driver"
"$tools/driver" || failed=1

# Names of tests that are not expected to pass: one a line, a reason after #.
names() {
    sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$1"
}

echo '== numba-cuda'
# A large device: the modules of all tests stay loaded, and memory that nobody touches costs nothing.
export NEAP_EMULATOR=${NEAP_NUMBA_EMULATOR:-h200*2}
packages=$("$python" -c 'import os, numba_cuda; print(os.path.dirname(os.path.dirname(numba_cuda.__file__)))')
wanted=
while read -r name; do
    wanted+="${wanted:+ and }not ${name##*::}"
done < <(names "$here/numba-not-expected.txt")
# Runs test modules in one process, with so many seconds of time.
numba_tests() {
    (cd "$packages" && PYTHONPATH=$here CUDA_HOME=$nvidia timeout "$1" "$python" -m pytest --quiet --no-header --tb=line \
        --rootdir "$packages" --import-mode=importlib -p no:cacheprovider -p numba_fixtures -W ignore -k "$wanted" \
        --pyargs "${@:2}" | tail -n 25)
}
mapfile -t own < <(names "$here/numba-own-runner.txt")
if [[ ${1-} == --all ]]; then
    while read -r file; do
        module=${file%.py}
        module=${module//\//.}
        [[ " ${own[*]} " != *" $module "* ]] || continue
        printf '%s: ' "$module"
        numba_tests 600 "numba.cuda.tests.$module" || failed=1
    done < <(cd "$packages/numba_cuda/numba/cuda/tests" && printf '%s\n' {cudadrv,cudapy,cudasim,doc_examples,nocuda,nrt}/test_*.py)
else
    mapfile -t modules < <(names "$here/numba-stable.txt")
    numba_tests 1200 "${modules[@]/#/numba.cuda.tests.}" || failed=1
fi
# These spawn processes that must import the tests, which numba's own runner lets them.
CUDA_HOME=$nvidia "$python" -W ignore -m numba.runtests "${own[@]/#/numba.cuda.tests.}" || failed=1
export NEAP_EMULATOR=$small

echo '== cudarc'
version=0.19.10
source=$tools/cudarc-$version
if [[ ! -d $source ]]; then
    # A crate that needs it makes cargo fetch it; its tests need its own folder.
    mkdir -p "$tools/fetch/src"
    printf 'fn main() {}\n' >"$tools/fetch/src/main.rs"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\ncudarc = { version = "=%s", default-features = false, features = ["std", "driver", "nvrtc", "dynamic-loading", "cuda-13000"] }\n[workspace]\n' \
        "$version" >"$tools/fetch/Cargo.toml"
    cargo fetch --quiet --manifest-path "$tools/fetch/Cargo.toml"
    cp -r "$(cargo metadata --format-version 1 --manifest-path "$tools/fetch/Cargo.toml" | "$python" -c '
import json, os, sys
packages = json.load(sys.stdin)["packages"]
print(next(os.path.dirname(p["manifest_path"]) for p in packages if p["name"] == "cudarc"))')" "$source"
fi
skipped=()
while read -r name; do
    skipped+=(--skip "$name")
done < <(names "$here/cudarc-not-expected.txt")
features=(--no-default-features --features std,driver,nvrtc,dynamic-loading,cuda-13000)
export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$nvidia/lib CARGO_TARGET_DIR=$tools/cudarc-target
cargo test --quiet --manifest-path "$source/Cargo.toml" "${features[@]}" --lib driver:: -- "${skipped[@]}" || failed=1
while read -r example; do
    if (cd "$source" && cargo run --quiet "${features[@]}" --example "$example" >"$tools/example.log" 2>&1); then
        echo "example $example: ok"
    else
        echo "example $example: failed"
        tail -n 5 "$tools/example.log"
        failed=1
    fi
done < <(names "$here/cudarc-examples.txt")
exit "$failed"
