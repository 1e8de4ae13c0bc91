#!/usr/bin/env bash
# Style and types of Python, the native module's stub against the module, format of C++, the site's links.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python scripts/check_stubs.py
git ls-files -z '*.cpp' '*.hpp' | xargs -0 .venv/bin/clang-format --dry-run --Werror
scripts/docs.sh
