#!/usr/bin/env bash
# foreload beside other loaders: installs those that install, then runs benchmarks/peers (its options are passed on).
set -euo pipefail
# Where this is set, each contestant would compile anew what it imports.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "$0")/.."
.venv/bin/python benchmarks/peers/install.py
.venv/bin/python -W ignore -m benchmarks.peers.run "$@"
