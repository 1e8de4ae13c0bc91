#!/usr/bin/env bash
# The contract: fast tests and the examples in docstrings. --all: the slow tests too; --slow: only those, and --ray those
# of them that need a Ray cluster, which --slow leaves out.
set -euo pipefail
cd "$(dirname "$0")/.."
# Where this is set, each of thousands of processes would compile what it imports.
unset PYTHONDONTWRITEBYTECODE
# OpenMP's threads wait for work in a loop by default, on cores that other tests could use.
export OMP_WAIT_POLICY=PASSIVE
run() { .venv/bin/python -m pytest "$@"; }
# Many tests wait for processes of their own, so two for each core at a time keep the cores busy.
parallel=(-n "$((2 * $(nproc)))")
slow=(-m slow --hypothesis-profile=thorough)
# Lightning, Accelerate and Transformers make a process half as large again, and each fork of it as much dearer: theirs are
# processes of their own. Ray's tests run in one, since each that uses a cluster starts one.
apart=(--ignore=tests/ray --ignore=tests/frameworks)
case "${1:-}" in
  --all)
    run "${parallel[@]}" --hypothesis-profile=thorough "${apart[@]}"
    run "${parallel[@]}" --hypothesis-profile=thorough tests/frameworks
    run "${slow[@]}" tests/ray
    ;;
  --slow)
    run "${parallel[@]}" "${slow[@]}" "${apart[@]}" "${@:2}"
    run -n 2 "${slow[@]}" tests/frameworks "${@:2}"
    ;;
  --ray) run "${slow[@]}" tests/ray "${@:2}" ;;
  *) run "${parallel[@]}" -m "not slow" "$@" ;;
esac
