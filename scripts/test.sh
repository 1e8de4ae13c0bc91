#!/usr/bin/env bash
# The contract: fast tests and the examples in docstrings. --all: the slow tests too; --slow: only those.
set -euo pipefail
cd "$(dirname "$0")/.."
select=(-m "not slow")
case "${1:-}" in
  --all) select=(--hypothesis-profile=thorough); shift ;;
  --slow) select=(-m slow --hypothesis-profile=thorough); shift ;;
esac
# Where this is set, each of thousands of processes would compile what it imports.
unset PYTHONDONTWRITEBYTECODE
# Many tests wait for processes of their own, so two for each core at a time keep the cores busy.
exec .venv/bin/python -m pytest -n "$((2 * $(nproc)))" "${select[@]}" "$@"
