#!/usr/bin/env bash
# Every figure, one after the other, on a machine that should be otherwise idle.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in files tiled text hdf5 remote tensors many_samples scale growth import_time python_items images memory cache/planning cache/hit_rates cache/images cache/recipes cache/workers cache/train \
  cache/worth workers/handover workers/processes workers/choice workers/faults workers/cluster workers/tuning record/overhead record/predict; do
  echo "==> benchmarks/$program.py"
  .venv/bin/python -W ignore "benchmarks/$program.py"
done
if .venv/bin/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
  echo "==> benchmarks/gpu.py"
  .venv/bin/python -W ignore benchmarks/gpu.py
fi
.venv/bin/python -W ignore -m benchmarks.tar_stream
.venv/bin/python -W ignore -m benchmarks.storage.run
.venv/bin/foreload bench --json benchmarks/results/bench_images.json
.venv/bin/foreload bench --dataset-size 10000,100 --seeds 10 --json benchmarks/results/bench_tensors.json
.venv/bin/python benchmarks/figures.py
