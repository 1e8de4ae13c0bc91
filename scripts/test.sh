#!/usr/bin/env bash
# The tests and the examples in the docstrings.
set -euo pipefail
cd "$(dirname "$0")/.."
# Half of the tests wait for processes of their own to start; two at a time take half as long.
exec .venv/bin/python -m pytest -n auto "$@"
