#!/usr/bin/env bash
# Run the README's commands as they are written there, one after the other (questions are answered with yes):
#   scripts/readme.sh [PATTERN]        only the lines that match it (an extended regular expression)
set -euo pipefail
cd "$(dirname "$0")/.."
commands=$(awk '/^```/ {shell = ($0 == "```sh"); next} shell' README.md | grep -E -- "${1:-.}")
bash -euxc "$commands" < <(yes)
