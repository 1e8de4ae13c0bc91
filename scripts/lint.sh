#!/usr/bin/env bash
# Style and types of Python, the native module's stub against the module, format of C++, the containers' files and the
# workflows, the site's links.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python scripts/check_stubs.py
git ls-files -z '*.cpp' '*.hpp' | xargs -0 .venv/bin/clang-format --dry-run --Werror
.venv/bin/hadolint Dockerfile
matches() { .venv/bin/check-jsonschema --quiet --builtin-schema "vendor.$1" "${@:2}"; }
matches compose-spec compose.yaml
matches github-workflows .github/workflows/*.yml
matches dependabot .github/dependabot.yml
matches github-issue-config .github/ISSUE_TEMPLATE/config.yml
matches github-issue-forms .github/ISSUE_TEMPLATE/{bug,feature,slow}.yml
.venv/bin/zizmor --offline --quiet .github
scripts/docs.sh
