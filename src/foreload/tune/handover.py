"""The cost of handing batches to the loop, by foreload's workers and by torch's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foreload.options import WorkerKind
from foreload.tune.costs import Cost, Costs, busy_share

__all__ = [
    "CROWDING",
    "HAND_OVER",
    "TORCHVISION_IMAGES",
    "handover_seconds",
    "stock_handover_seconds",
    "swap_unknown",
    "with_native_decoder",
    "without_handover",
    "without_stock",
]

# CPU seconds per batch, on each side, of handing it from thread to thread; and the surcharge between processes.
HAND_OVER, _ACROSS_PROCESSES = 2e-5, 3e-5

# What each side loses per batch to switches of processes on a core, if they are more than the cores.
_SWITCHES = 3e-5

# What each side loses per batch beyond that where more workers take the last core that the loop had to itself:
# whoever is woken up waits for a core, though another one may be idle.
CROWDING = 5e-5

# What torch's own workers add to that: on each side, for each tensor of a batch, which is a file in shared memory;
# and for each of its bytes, for the consumer and for the worker, as that memory is new each time.
_STOCK_TENSOR, _STOCK_BYTE, _STOCK_BYTE_WRITTEN = 1.3e-4, 1.5e-10, 6e-10

# What foreload's workers take for each byte of a batch at least: copying it.
_OWN_BYTE = 1.7e-10

# Arrays of so many bytes are in memory of their own (glibc's M_MMAP_THRESHOLD), which is new for each sample in
# torch's workers, and used again in foreload's: seconds of a worker per byte that this saves, and the largest
# share of a sample's time.
_MAPPED, _NEW_BYTE, _MOST_OF_SAMPLE = 128 << 10, 3e-10, 0.5

# CPU seconds to gather a batch of rows of tensors natively, and per byte; benchmarks/tensors.py measures less.
_GATHERING, _GATHERED_BYTE = 1e-5, 2.5e-10

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
        return HAND_OVER
    # (Of two cores, a little less than two are free.)
    return HAND_OVER + _ACROSS_PROCESSES + (_SWITCHES if count + 1 > round(cores) else 0.0)


def stock_handover_seconds(stats: Any) -> tuple[float, float]:
    """Return the same of torch's own workers: on the side of the consumer, and on that of the worker."""
    tensors, size = stats["loader"].get("batch_tensors") or 1, stats["memory"]["batch_bytes"]
    least = HAND_OVER + _ACROSS_PROCESSES + _STOCK_TENSOR * tensors
    return least + _STOCK_BYTE * size, least + _STOCK_BYTE_WRITTEN * size


def swap_unknown(stats: Any) -> str | None:
    """Say why the pace of foreload's loader in place of torch's cannot be predicted; None if it can."""
    if stats["loader"].get("is_rows"):
        return None
    if not stats["workers"]["count"]:
        return "without workers no batch is handed over, so no gain is predicted"
    if not stats["loader"].get("batch_tensors"):
        return "no gain is predicted, as what is in a batch was not recorded"
    return None


def without_handover(stats: Any, costs: Costs) -> Costs:
    """Return the costs of torch's loader without what its workers take to hand batches over."""
    if not costs.servers.workers:
        return costs
    least = HAND_OVER + _ACROSS_PROCESSES
    taken, given = (seconds - least for seconds in stock_handover_seconds(stats))
    return replace(
        costs,
        stages={**costs.stages, "batch": _collating(costs, given, least)},
        handing=max(min(costs.handing, least), costs.handing - taken),
    )


def without_stock(stats: Any, costs: Costs) -> Costs:
    """Return the costs with foreload's loader in place of torch's, with as many worker processes.

    Batches are handed over in its way, into memory that is used again, as that of large samples is.
    """
    count, size = costs.servers.workers, stats["memory"]["batch_bytes"]
    if stats["loader"].get("is_rows"):
        return _gathering(costs, size)
    if not count:
        return costs
    least, own = HAND_OVER + _ACROSS_PROCESSES, handover_seconds(count, "processes", costs.servers.cores)
    batch = _collating(costs, stock_handover_seconds(stats)[1] - least, least + _OWN_BYTE * size)
    sample, new = costs.stages["sample"], 0.0
    if size / costs.batch >= _MAPPED:
        new = min(_NEW_BYTE * size / costs.batch, _MOST_OF_SAMPLE * sample.cpu)
    order = stats["stages"].get("order", {"seconds": 0.0})["seconds"] / stats["batches"]
    # Workers that sleep take long to wake up, whoever's they are.
    dispatch = min(costs.dispatch, own)
    waking = (costs.dispatch - dispatch) * (1 - busy_share(stats))
    return replace(
        costs,
        stages={**costs.stages, "batch": batch, "sample": replace(sample, cpu=sample.cpu - new)},
        handing=min(costs.handing, order + own),
        dispatch=dispatch,
        gap=costs.gap + waking,
        # The loop gives a batch's memory back when it lets go of it.
        loop=costs.loop - min(costs.loop, _STOCK_BYTE * size / costs.batch),
    )


def _gathering(costs: Costs, size: int) -> Costs:
    """Return the costs with rows of tensors, ``size`` bytes a batch, that the loop's thread gathers natively."""
    gathered = Cost((_GATHERING + _GATHERED_BYTE * size) / costs.batch)
    return replace(
        costs,
        stages={name: gathered if name == "batch" else Cost() for name in costs.stages},
        handing=0.0,
        dispatch=0.0,
        gap=0.0,
        gain=1.0,
        servers=costs.servers._replace(workers=0),
    )


def _collating(costs: Costs, given: float, least: float) -> Cost:
    """Return the cost of collating without handing over (seconds per batch), which torch's workers do there."""
    batch = costs.stages["batch"]
    return replace(batch, cpu=max(min(batch.cpu, least / costs.batch), batch.cpu - given / costs.batch))


def with_native_decoder(costs: Costs) -> Costs:
    """Return the costs with native decoding and transforms in place of Pillow's and torchvision's."""
    faster = {
        name: replace(costs.stages[name], cpu=costs.stages[name].cpu * _NATIVE_SHARE)
        for name in ("decode", "transform")
    }
    return replace(costs, stages={**costs.stages, **faster})
