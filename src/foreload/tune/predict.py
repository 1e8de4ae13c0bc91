"""Predictions of a loader's samples per second with other settings, from its statistics with the present ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from foreload.options import WorkerKind
from foreload.record.pace import measured_pace
from foreload.tune.costs import PYTHON_STAGES, Cost, Costs, make_servers
from foreload.tune.gil import LOCK_FULL, lock_held_share
from foreload.tune.handover import (
    CROWDING,
    HAND_OVER,
    handover_seconds,
    stock_handover_seconds,
    with_native_decoder,
    without_handover,
    without_stock,
)
from foreload.tune.queueing import Servers

if TYPE_CHECKING:
    from foreload.record.stats import Stats


__all__ = ["HitForm", "hit_bytes", "predict"]

HitForm = Literal["encoded", "decoded"]

# Bytes per second of copying a hit out of the cache, if no cache was there to measure it.
_HIT_BANDWIDTH = 4e9

# The share of that time which is left if images are read where they are: a crop of them, and nothing is written.
_IN_PLACE = 0.5

# CPU seconds to make Python objects of a hit.
_RESTORE = 2e-5

# From this hit rate on, the time measured for the cache is that of hits.
_MOSTLY_HITS = 0.9

# Size of decoded images (planes, 4:2:0) over that of their JPEG files.
_DECODED_SIZE = 3

# Share of the CPU time of reading a small file that is left if it is part of a large one: no open, stat, close.
_PACKED_READ = 0.35

# CPU seconds per batch of any collate function, however few the samples.
_COLLATE_CALL = 1e-5

# The factor by which handing the interpreter's lock from thread to thread raises the CPU time of Python.
_CONTENDED = 1.15

# CPU seconds per batch of any loop, however few the samples.
_LOOP_CALL = 4e-6

# Seconds to start worker processes: once, and per process.
_START_POOL, _START_PROCESS = 0.03, 0.005

# CPU seconds to take a batch of indices from a drawn order.
_TAKE_INDICES = 2e-6


def predict(
    stats: Stats | Mapping[str, Any],
    *,
    workers: int | None = None,
    kind: WorkerKind | None = None,
    cache: float | None = None,
    keep: HitForm | None = None,
    source: Literal["packed"] | None = None,
    cores: float | None = None,
    batch_size: int | None = None,
    loader: Literal["foreload"] | None = None,
    decoder: Literal["native"] | None = None,
    fitted: Costs | None = None,
) -> float:
    """Predict the samples per second of a loader with some settings changed; the others stay as they are.

    A queueing model (:mod:`foreload.tune.queueing`, which lists its assumptions and sources) is fitted to the
    statistics and then evaluated with the change. The unknown is taken at its worst: Python in worker processes,
    whose use of the interpreter's lock was not observed, is assumed to hold it in threads.

    Args:
        stats: from ``loader.stats()``.
        workers: number of workers.
        kind: ``"threads"`` or ``"processes"``.
        cache: the cache's hit rate, 0 to 1.
        keep: the form of cached samples: a hit saves reading (``"encoded"``), or decoding too (``"decoded"``).
        source: ``"packed"``: samples are parts of large files (``foreload pack``), not a file each.
        cores: cores that this process may use.
        batch_size: samples per batch.
        loader: ``"foreload"``: foreload's in place of torch's, with the same number of workers.
        decoder: ``"native"``: foreload's decoder and transforms in place of Pillow's and torchvision's.
        fitted: the costs of these statistics, if they are known already; fitting them takes longest.

    Returns:
        Samples per second, from the start of an epoch to its end.

    Raises:
        ValueError: nothing has been loaded yet, or an argument is invalid.

    >>> stage = {"count": 100, "seconds": 10.0, "cpu_seconds": 0.1, "samples": 1000, "bytes": 0}
    >>> seen = {"epochs": 1, "batches": 100, "samples": 1000, "seconds": 10.1, "first_batch_seconds": 0.1,
    ...     "wait_seconds": 10.0, "loop_seconds": 0.1, "loop_cpu_seconds": 0.1, "stages": {"sample": stage},
    ...     "cache": None, "memory": {"batch_bytes": 0}, "cpu": {"cores": 8, "share": 0.0025},
    ...     "workers": {"kind": "threads", "count": 1, "depth": 2}, "loader": {"native": False}}
    >>> round(predict(seen)), round(predict(seen, workers=4), -1)   # its samples wait, which takes no core
    (99, 400.0)
    """
    _check(workers, kind, cache, keep, source, cores, batch_size)
    before = Costs.of(stats) if fitted is None else fitted
    costs = before
    if cache is not None or keep is not None:
        costs = _cached(stats, costs, cache, keep)
    if source == "packed":
        read = costs.stages["read"]
        costs = _with(costs, read=replace(read, cpu=read.cpu * _PACKED_READ))
    if batch_size is not None:
        costs = _batched(costs, batch_size)
    if loader is not None:
        costs = without_stock(stats, costs)
    if decoder is not None:
        costs = with_native_decoder(costs)
    costs = _with_servers(
        stats, costs, workers, kind or ("threads" if costs.servers.one_lock else "processes"), cores
    )
    pace = costs.pace()
    if costs is before:
        pace = costs.steady_pace(stats)
    return _with_start(stats, pace, before, costs)


def _start_seconds(servers: Servers) -> float:
    """Return the time that starting the workers takes in each epoch."""
    if servers.one_lock or servers.workers == 0:
        return 0.0
    return _START_POOL + _START_PROCESS * servers.workers


def _first_seconds(costs: Costs) -> float:
    """Return the time that the first batch takes to make, while each process makes one of its own."""
    servers, demand = costs.servers, costs.demand
    at_once = 1 if servers.one_lock else max(1, servers.workers)
    return costs.batch * ((demand.locked + demand.free) * max(1.0, at_once / servers.cores) + demand.blocked)


def _check(workers: Any, kind: Any, cache: Any, keep: Any, source: Any, cores: Any, batch_size: Any) -> None:
    if workers is not None and workers < 0:
        raise ValueError(f"workers must be 0 or more, got {workers}")
    if kind not in (None, "threads", "processes"):
        raise ValueError(f"kind must be 'threads' or 'processes', got {kind!r}")
    if cache is not None and not 0 <= cache <= 1:
        raise ValueError(f"cache must be a hit rate from 0 to 1, got {cache}")
    if keep not in (None, "encoded", "decoded"):
        raise ValueError(f"keep must be 'encoded' or 'decoded', got {keep!r}")
    if source not in (None, "packed"):
        raise ValueError(f"source must be 'packed', got {source!r}")
    if cores is not None and not cores > 0:
        raise ValueError(f"cores must be positive, got {cores}")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be positive, got {batch_size}")


def _with(costs: Costs, **stages: Cost) -> Costs:
    return replace(costs, stages={**costs.stages, **stages})


def _with_servers(stats: Any, costs: Costs, workers: int | None, kind: WorkerKind, cores: float | None) -> Costs:
    count = int(stats["workers"]["count"]) if workers is None else workers
    was: WorkerKind = "threads" if costs.servers.one_lock else "processes"
    cores = costs.servers.cores if cores is None else cores
    if (count, kind, cores) == (int(stats["workers"]["count"]), was, costs.servers.cores):
        return costs
    each = costs.depth / max(1, stats["workers"]["count"])
    depth = costs.depth if costs.native else max(1, round(each * count))
    had = costs.servers.workers
    if count:
        taken = given = handover_seconds(count, kind, cores) - handover_seconds(had, was, costs.servers.cores)
        if stats["loader"].get("stock") and not had:
            taken, given = stock_handover_seconds(stats)
        elif kind == was == "processes" and 0 < had < round(cores) <= count:
            taken, given = taken + CROWDING, given + CROWDING
        # The losses of another kind of lock are not those of this one.
        gain = max(1.0, costs.gain) if had and kind != was else costs.gain
        if had > 1 and was == "threads" != kind and (lock_held_share(stats) or 0.0) >= LOCK_FULL:
            costs = _uncontended(costs)
        costs = replace(
            costs, handing=max(0.0, costs.handing + taken), dispatch=max(0.0, costs.dispatch + given), gain=gain
        )
    elif had and not count:
        drawing = max(_TAKE_INDICES, stats["stages"].get("order", {"seconds": 0.0})["seconds"] / stats["batches"])
        costs = without_handover(stats, costs) if stats["loader"].get("stock") else costs
        # Where workers were more than the cores, the gain is what other programs leave of these.
        gain = min(1.0, costs.gain) if had > costs.servers.cores else 1.0
        costs = replace(costs, handing=min(costs.handing, drawing), dispatch=0.0, gap=0.0, gain=gain)
    return replace(costs, servers=make_servers(count, kind, cores, depth), depth=depth)


def _uncontended(costs: Costs) -> Costs:
    """Return the costs of threads that contend for the interpreter's lock without those of handing it around."""
    stages = {
        name: replace(cost, cpu=cost.cpu / _CONTENDED) if name in PYTHON_STAGES and not costs.native else cost
        for name, cost in costs.stages.items()
    }
    return replace(costs, stages=stages, handing=min(costs.handing, HAND_OVER))


def _batched(costs: Costs, batch_size: int) -> Costs:
    """Return the costs with another batch size, over which the cost per batch is spread."""
    batch = costs.stages["batch"]
    fixed = min(_COLLATE_CALL, batch.cpu * costs.batch)
    cpu = batch.cpu + fixed * (1 / batch_size - 1 / costs.batch)
    entering = min(_LOOP_CALL, costs.loop * costs.batch)
    loop = costs.loop + entering * (1 / batch_size - 1 / costs.batch)
    more = _with(
        replace(costs, batch=float(batch_size), gain=1.0, loop=max(loop, costs.holding)),
        batch=replace(batch, cpu=cpu),
    )
    if costs.gain >= 1:
        return replace(more, gain=costs.gain)
    pace = costs.pace()
    lost = (1 / pace - costs.gain / pace) * costs.batch  # seconds per batch
    return replace(more, gain=1 / (1 + lost / batch_size * more.pace()))


def _cached(stats: Any, costs: Costs, cache: float | None, keep: HitForm | None) -> Costs:
    """Return the costs with another hit rate: hits save reading, and decoding too if samples are kept decoded."""
    had = stats["cache"]["hit_rate"] if stats["cache"] else 0.0
    rate = had if cache is None else cache
    if rate < had and had >= 1:
        raise ValueError(
            "every sample came from the cache, so the cost of a miss is not known; "
            "predict after an epoch with misses"
        )
    misses = 1 - rate
    stages = dict(costs.stages)
    decoded_hits = had > 0 and stages["decode"].share > 1 - had / 2
    keep = keep or ("encoded" if decoded_hits else "decoded")
    for name in ("read", "sample", *(["decode"] if keep == "decoded" else [])):
        stages[name] = _of_misses(stages[name], had, misses)
    if keep == "encoded":
        stages["decode"] = replace(stages["decode"], share=1.0)
    copying = hit_bytes(stats, costs, keep) / _HIT_BANDWIDTH
    copied = Cost(cpu=copying * _IN_PLACE if costs.native else copying + _RESTORE)
    hit = stages["cache"]
    if had == 0 or (had < _MOSTLY_HITS and copied.cpu < hit.cpu + hit.idle):
        hit = copied  # the measured time is that of storing misses
    stages["cache"] = replace(hit, share=rate)
    # CPU time outside the stages is mostly theirs, counted too low; each batch is handed over as before.
    handed = min(costs.dispatch, HAND_OVER)
    left = min(1.0, _cpu(stages) / _cpu(costs.stages)) if rate != had and _cpu(costs.stages) > 0 else 1.0
    return replace(costs, stages=stages, dispatch=handed + (costs.dispatch - handed) * left)


def _cpu(stages: Mapping[str, Cost]) -> float:
    return sum(cost.share * cost.cpu for cost in stages.values())


def hit_bytes(stats: Any, costs: Costs, keep: HitForm) -> float:
    """Estimate the bytes that a cache keeps of a sample, and copies for a hit."""
    read = stats["stages"].get("read", {"bytes": 0, "samples": 0})
    encoded = float(read["bytes"] / read["samples"]) if read["samples"] else 0.0
    if keep == "encoded" and encoded:
        return encoded
    # Images are kept whole; cropping and resizing come after the cache.
    return (
        encoded * _DECODED_SIZE
        if costs.native and encoded
        else float(stats["memory"]["batch_bytes"]) / costs.batch
    )


def _of_misses(cost: Cost, had: float, misses: float) -> Cost:
    """Return the cost of a stage with a share of misses, from its cost when ``had`` of the samples were hits."""
    # Hits that pass the stage too cost almost nothing there.
    each = 1 - had if cost.share > 1 - had / 2 and had < 1 else 1.0
    return Cost(cost.cpu / each, cost.idle / each, misses)


def _with_start(stats: Any, pace: float, before: Costs, after: Costs) -> float:
    """Return the pace with the cost of an epoch's start spread over its samples."""
    epochs = max(1, stats["epochs"])
    samples = float(stats["samples"] / epochs)
    if pace <= 0 or pace == float("inf"):
        return pace
    steady = stats["samples"] / before.steady_pace(stats)
    start = max(0.0, float(stats["seconds"]) - steady) / epochs
    had, has = before.servers, after.servers
    if has.workers < had.workers and not (had.one_lock or has.one_lock):
        # Processes start one after the other, and all make a batch at first, from which the steady pace is on.
        is_full = before.steady_pace(stats) < measured_pace(stats)
        making = 0.0 if is_full else min(start, _first_seconds(before))
        start = (start - making) * has.workers / had.workers + min(making, _first_seconds(after))
    else:
        start += max(0.0, _start_seconds(has) - _start_seconds(had))
    spent = samples / pace + start
    return samples / spent if spent > 0 else float("inf")
