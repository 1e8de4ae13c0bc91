#!/usr/bin/env bash
# Photo-like JPEGs, and foreload beside stock torch on them.
set -euo pipefail
cd "$(dirname "$0")/.."
images=data/demo
[ -f "$images/.complete" ] || { .venv/bin/foreload synth "$images" --images 1000 --force && touch "$images/.complete"; }
.venv/bin/foreload bench "$images" --json data/demo.json --plot data/demo.png
