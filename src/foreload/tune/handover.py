"""The cost of handing batches to the loop, by foreload's workers and by torch's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foreload.tune.costs import Costs, WorkerKind

__all__ = [
    "TORCHVISION_IMAGES",
    "handover_seconds",
    "stock_handover_seconds",
    "swap_unknown",
    "with_native_decoder",
    "without_stock",
]

# CPU seconds per batch, on each side, of handing it from thread to thread; and the surcharge between processes.
_HAND_OVER, _ACROSS_PROCESSES = 2e-5, 3e-5

# What each side loses per batch to switches of processes on a core, if they are more than the cores.
_SWITCHES = 3e-5

# What torch's own workers add to that: on each side, for each tensor of a batch, which is a file in shared memory;
# and for each of its bytes, for the consumer and for the worker, as that memory is new each time.
_STOCK_TENSOR, _STOCK_BYTE, _STOCK_BYTE_WRITTEN = 1.3e-4, 1.5e-10, 6e-10

# Datasets of torchvision that decode images with Pillow.
TORCHVISION_IMAGES = ("ImageFolder", "ImageNet", "DatasetFolder")

# The share of the CPU time of Pillow's decoding and torchvision's transforms that foreload's native ones take at
# most: benchmarks/images.py measures a third.
_NATIVE_SHARE = 0.4


def handover_seconds(count: int, kind: WorkerKind, cores: float) -> float:
    """Return the CPU seconds per batch, on each side, that foreload's workers take to hand it over."""
    if count == 0:
        return 0.0
    if kind == "threads":
        return _HAND_OVER
    return _HAND_OVER + _ACROSS_PROCESSES + (_SWITCHES if count + 1 > cores else 0.0)


def stock_handover_seconds(stats: Any) -> tuple[float, float]:
    """Return the same of torch's own workers: on the side of the consumer, and on that of the worker."""
    tensors, size = stats["loader"].get("batch_tensors") or 1, stats["memory"]["batch_bytes"]
    least = _HAND_OVER + _ACROSS_PROCESSES + _STOCK_TENSOR * tensors
    return least + _STOCK_BYTE * size, least + _STOCK_BYTE_WRITTEN * size


def swap_unknown(stats: Any) -> str | None:
    """Say why the pace of foreload's loader in place of torch's cannot be predicted; None if it can."""
    if not stats["workers"]["count"]:
        return "without workers no batch is handed over, so no gain is predicted"
    if not stats["loader"].get("batch_tensors"):
        return "no gain is predicted, as what is in a batch was not recorded"
    return None


def without_stock(stats: Any, costs: Costs) -> Costs:
    """Return the costs with foreload's loader in place of torch's: less for handing batches over, nothing else."""
    if not costs.servers.workers:
        return costs
    batch, least = costs.stages["batch"], _HAND_OVER + _ACROSS_PROCESSES
    taken, given = (seconds - least for seconds in stock_handover_seconds(stats))
    # Torch's workers hand over as part of collating.
    cpu = max(min(batch.cpu, least / costs.batch), batch.cpu - given / costs.batch)
    return replace(
        costs,
        stages={**costs.stages, "batch": replace(batch, cpu=cpu)},
        handing=max(min(costs.handing, least), costs.handing - taken),
    )


def with_native_decoder(costs: Costs) -> Costs:
    """Return the costs with native decoding and transforms in place of Pillow's and torchvision's."""
    faster = {
        name: replace(costs.stages[name], cpu=costs.stages[name].cpu * _NATIVE_SHARE)
        for name in ("decode", "transform")
    }
    return replace(costs, stages={**costs.stages, **faster})
