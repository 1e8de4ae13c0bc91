#!/usr/bin/env bash
# The contract: fast tests and the examples in docstrings. --all: the slow tests too; --slow: only those.
set -euo pipefail
cd "$(dirname "$0")/.."
select=(-m "not slow")
thorough=(--hypothesis-profile=thorough)
case "${1:-}" in
  --all) select=("${thorough[@]}"); shift ;;
  --slow) select=(-m slow "${thorough[@]}"); shift ;;
  *) thorough=() ;;
esac
# Where this is set, each of thousands of processes would compile what it imports.
unset PYTHONDONTWRITEBYTECODE
# Many tests wait for processes of their own, so two for each core at a time keep the cores busy.
parallel=(-n "$((2 * $(nproc)))")
if [ $# = 0 ] && [ ${#thorough[@]} != 0 ]; then
  # Each process that tests on a Ray cluster starts one, so these tests run in a process of their own.
  .venv/bin/python -m pytest "${parallel[@]}" "${select[@]}" --ignore=tests/ray
  exec .venv/bin/python -m pytest -n 0 "${select[@]}" tests/ray
fi
exec .venv/bin/python -m pytest "${parallel[@]}" "${select[@]}" "$@"
