#!/usr/bin/env bash
# The tests and the examples in the docstrings.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest "$@"
