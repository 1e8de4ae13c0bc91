#!/usr/bin/env bash
# Load mutated JPEGs through the image path under ASan and UBSan:  scripts/fuzz.sh [SECONDS [SEED [FILE...]]]
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/native-address,undefined
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DFORELOAD_BUILD_TESTS=ON -DFORELOAD_SANITIZE=address,undefined >/dev/null
cmake --build "$build" --parallel "$(nproc)" --target fuzz_jpeg >/dev/null
exec "$build/fuzz_jpeg" "${@:-60}"
