#!/usr/bin/env bash
# The contract: fast tests and the examples in docstrings. --all: the slow tests too; --slow: only those, without those
# that need a Ray cluster (--ray), or Lightning, Accelerate and Transformers (--frameworks).
set -euo pipefail
cd "$(dirname "$0")/.."
# Where this is set, each of thousands of processes would compile what it imports.
unset PYTHONDONTWRITEBYTECODE
# Threads of OpenMP and OpenBLAS wait for work in a loop by default, on cores that other tests could use; those of
# OpenBLAS start with each process that imports NumPy, and anew with each fork.
export OMP_WAIT_POLICY=PASSIVE OPENBLAS_NUM_THREADS=1
# Tests fork thousands of times, which takes the longer the more pages of memory there are: let them be large ones.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
# Ray gives its workers a low priority (15), with which they hardly run beside anything else.
export RAY_worker_niceness=0
run() { .venv/bin/python -m pytest "$@"; }
# Many tests wait for processes of their own, so two for each core at a time keep the cores busy.
parallel=(-n "$((2 * $(nproc)))")
slow=(-m slow --hypothesis-profile=thorough)
# A test process holds all tests that it is given and what they import, and the more it holds, the longer a fork of it
# takes. So those that fork most have processes of their own, and Lightning, Accelerate and Transformers have some too.
parts=(
  "tests/workers tests/epochs tests/batch tests/forks"
  "tests/datasets tests/cache tests/order"
)
rest=(-n "$(nproc)") each=(-n "$(nproc)")
# Parts run at the same time, of which only the last, the rest, is shown as it runs: one after the other, each would wait
# for the slowest test of the one before, and need as many processes, which import torch and start servers.
run_parts() {
  local part folder ignored=() running=() logs status=0
  logs=$(mktemp -d)
  for part in "${parts[@]}"; do
    # shellcheck disable=SC2086
    run "${each[@]}" $part "$@" >"$logs/${#running[@]}" 2>&1 &
    running+=($!)
    for folder in $part; do ignored+=("--ignore=$folder"); done
  done
  run "${rest[@]}" "${ignored[@]}" "$@" || status=$?
  for part in "${!running[@]}"; do
    wait "${running[part]}" || status=$?
    cat "$logs/$part"
  done
  rm -r "$logs"
  return "$status"
}
# Ray's tests run in one process, since each that uses a cluster starts one.
apart=(--ignore=tests/ray --ignore=tests/frameworks)
case "${1:-}" in
  --all)
    run_parts --hypothesis-profile=thorough "${apart[@]}"
    run "${parallel[@]}" --hypothesis-profile=thorough tests/frameworks
    run "${slow[@]}" tests/ray
    ;;
  --slow)
    # Of the slow ones, the rest waits the most, for programs and servers; so all parts end at about the same time.
    rest=("${parallel[@]}") each=(-n "$(((3 * $(nproc) + 1) / 2))")
    run_parts "${slow[@]}" "${apart[@]}" "${@:2}"
    ;;
  --frameworks) run -n 2 "${slow[@]}" tests/frameworks "${@:2}" ;;
  --ray) run "${slow[@]}" tests/ray "${@:2}" ;;
  "") run_parts -m "not slow" ;;
  *) run "${parallel[@]}" -m "not slow" "$@" ;;
esac
