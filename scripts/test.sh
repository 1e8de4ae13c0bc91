#!/usr/bin/env bash
# The contract: fast tests and the examples in docstrings. --all: the slow tests too; --slow: only those.
set -euo pipefail
cd "$(dirname "$0")/.."
select=(-m "not slow")
case "${1:-}" in
  --all) select=(--hypothesis-profile=thorough); shift ;;
  --slow) select=(-m slow --hypothesis-profile=thorough); shift ;;
esac
# Half of the tests wait for processes of their own to start; two at a time take half as long.
exec .venv/bin/python -m pytest -n auto "${select[@]}" "$@"
