#!/usr/bin/env bash
# Build the documentation site into build/site; a broken link or reference is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
export NO_MKDOCS_2_WARNING=1  # (a notice of the theme)
exec .venv/bin/python -m mkdocs build --strict --quiet "$@"
