#!/usr/bin/env bash
# The contract: fast tests and the examples in docstrings. --all: the slow tests too; --slow: only those.
set -euo pipefail
cd "$(dirname "$0")/.."
select=(-m "not slow")
# (Groups, such as the tests that share a Ray cluster, stay in one process.)
thorough=(--hypothesis-profile=thorough --dist loadgroup)
case "${1:-}" in
  --all) select=("${thorough[@]}"); shift ;;
  --slow) select=(-m slow "${thorough[@]}"); shift ;;
esac
# Where this is set, each of thousands of processes would compile what it imports.
unset PYTHONDONTWRITEBYTECODE
# Many tests wait for processes of their own, so two for each core at a time keep the cores busy.
exec .venv/bin/python -m pytest -n "$((2 * $(nproc)))" "${select[@]}" "$@"
