#!/usr/bin/env bash
# Record foreload's benchmark by Linux perf, and draw where the time goes:  perf_analysis.sh FOLDER [ARGUMENTS of foreload bench]
set -euo pipefail
results=${1:?perf_analysis.sh FOLDER [ARGUMENTS of foreload bench]}
[ $# -gt 1 ] || set -- "$1" --images 500 --seeds 1
recorded=$(mktemp --suffix=.perf)
trap 'rm -f "$recorded"' EXIT
# User space only, which needs no privilege. Compilers leave frame pointers out, so stacks are unwound by debug information.
perf record --quiet --event cpu-clock:u --freq 49 --call-graph dwarf,16384 --output "$recorded" -- \
  python -m foreload bench --json "$results/perf-bench.json" "${@:2}"
perf script --no-inline --input "$recorded" | python "$(dirname "$0")/flame_graph.py" "$results/flame-graph.html"
