#!/usr/bin/env bash
# Run the core's own tests: plain, under ASan and UBSan, and under TSan, or those named (plain, address,undefined, thread).
# The benchmarks' programs are built with the plain ones.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
[ $# -gt 0 ] || set -- plain address,undefined thread
for name in "$@"; do
  build=build/native-$name
  sanitizers=${name#plain}
  echo "==> core tests, ${sanitizers:-no sanitizer}"
  (
    flock 9 # benchmarks/counts builds there too
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DFORELOAD_BUILD_TESTS=ON -DFORELOAD_SANITIZE="$sanitizers" \
      -DFORELOAD_BUILD_BENCHMARKS="$([ -n "$sanitizers" ] && echo OFF || echo ON)" >/dev/null
    cmake --build "$build" --parallel "$(nproc)" >/dev/null
  ) 9>"$build.lock"
  ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure --no-tests=error
done
