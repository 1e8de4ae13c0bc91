"""The figures that :meth:`foreload.DataLoader.stats` returns: pace, waits, stages, memory and cores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch

from foreload.checks import Array
from foreload.machine import container_memory, granted_cores, granted_memory
from foreload.record.recorder import Recorder
from foreload.record.slowed import slowed_seconds
from foreload.record.spans import Spans, Stage
from foreload.record.usage import children_queued, children_seconds, idle_share, tree_bytes

__all__ = ["EpochStats", "LoaderFacts", "Stats", "collect"]


# Seconds that threads must have waited for the lock each time, on average, for it to be late.
_LEAST_DELAY = 1e-4


class BatchSeconds(TypedDict):
    """Times from one batch to the next, over at most the last 4,096 batches of a loop."""

    median: float
    p95: float
    p99: float


class StageStats(TypedDict):
    """The sums of a stage's spans over all workers; see :class:`~foreload.record.spans.Stage`."""

    count: int
    seconds: float  # without those of stages inside it
    cpu_seconds: float  # of ``seconds``, on a core; sampled. Less than ``seconds`` if the stage waits
    samples: int
    bytes: int


class MemoryStats(TypedDict):
    """Memory figures, in bytes."""

    limit: int | None  # the loader's ``memory=``
    batch_bytes: int  # of the largest batch, if there is a limit or a cache
    decisions: list[str]
    tree_bytes: int  # of this process and its descendants; memory that they share counts once (PSS)
    container_bytes: int | None  # the container's limit; None: there is none
    granted_bytes: int  # the machine's memory, or the container's limit if that is less


class CpuStats(TypedDict):
    """Use of the cores."""

    cores: int  # that this process may use
    share: float  # of their time, used by this process and its workers while epochs ran; 0 to 1
    queued_seconds: float  # in which worker threads and processes were ready to run, and had no core


class GpuStats(TypedDict):
    """The GPU that batches go to, or else the one in use."""

    idle_share: float  # of the time, 0 to 1


class LockStats(TypedDict):
    """The interpreter's lock (GIL): sampled while the loop waited for threads, and waited for while it worked."""

    looks: int
    held_share: float  # of the looks, those that found it held; 0 to 1
    held_seconds: float  # that these looks waited for it, until it was let go
    asked: int  # how often worker threads, about to load, asked for it while the loop worked
    delay_seconds: float  # that they waited for it then: the loop had it, or another thread
    slowed_seconds: NotRequired[float]  # that samples took longer then than while the loop waited


class WorkersStats(TypedDict):
    """The workers, and why they were chosen."""

    kind: str
    count: int
    why: str
    samples_per_second: dict[str, float]
    choosing_seconds: float  # the time that measuring took, once
    depth: int  # batches made ahead
    tuning: list[str]
    alone: NotRequired[bool]  # the calling thread has been found faster than threads
    start_cpu_seconds: NotRequired[float]  # of the cores' time, for starting processes
    end_seconds: NotRequired[float]  # after the last batches, until processes had ended


class LoaderStats(TypedDict):
    """The kind of loader."""

    batch_size: int | None
    iterable: bool  # an ``IterableDataset``
    pin_memory: bool
    native: bool  # foreload made batches natively, without the dataset's Python code
    stock: bool  # it is torch's own DataLoader
    dataset: str
    batch_tensors: NotRequired[int]  # tensors in a batch, if it is torch's
    is_rows: NotRequired[bool]  # torch's batches are rows of tensors in memory, which foreload gathers natively
    direct_problem: str | None  # the file that ``direct_io=True`` does not work for, and why


class EpochStats(TypedDict):
    """The latest epoch."""

    number: int  # from 0, as in ``set_epoch``
    batches: int  # delivered, left out by ``skip=``, or delivered before a state of the epoch was loaded
    length: int | None  # all its batches; None: only the user's code knows, which is not asked
    expected: int | None  # those of the epoch before it, if that came to its end
    running: bool  # it has neither ended nor been left
    seconds: float  # since it began


class Stats(TypedDict):
    """Figures of all epochs of a loader so far. Times are in seconds."""

    epochs: int
    batches: int
    samples: int
    seconds: float  # from iter() to the last batch; without the time between epochs
    batches_per_second: float
    samples_per_second: float
    batch_seconds: BatchSeconds
    first_batch_seconds: float  # from iter() to the first batch, in the last epoch that had one
    wait_share: float
    wait_seconds: float
    loop_seconds: float
    loop_cpu_seconds: float  # of ``loop_seconds``, on a core
    stages: dict[str, StageStats]
    bytes_read: int
    cache: dict[str, Any] | None
    memory: MemoryStats
    cpu: CpuStats
    gpu: GpuStats | None
    lock: LockStats | None  # None: never looked at
    errors: int
    restarts: list[dict[str, Any]]
    epoch: EpochStats | None  # None: none has begun
    workers: WorkersStats
    loader: LoaderStats


@dataclass(frozen=True)
class LoaderFacts:
    """The facts about a loader that its stats are made from.

    Attributes:
        recorder: the recorder of its epochs.
        cache: figures of its cache, if it has one.
        memory: figures of its memory budget.
        device: the device that batches are copied to, if any.
        num_errors: the number of samples that failed.
        restarts: the workers that were replaced.
        workers: which workers load, and why.
        loader: the kind of loader; ``native`` is filled in from the spans.
    """

    recorder: Recorder
    cache: dict[str, Any] | None
    memory: dict[str, Any]
    device: torch.device | None
    num_errors: int
    restarts: Sequence[Any]
    workers: WorkersStats
    loader: LoaderStats


def collect(facts: LoaderFacts) -> Stats:
    """Return the stats of a loader, for :meth:`foreload.DataLoader.stats`."""
    recorder = facts.recorder
    sums = recorder.sums()
    wait, loop = sums["wait"] * 1e-9, sums["loop"] * 1e-9
    seconds = wait + loop
    stages = _stages(recorder.spans)
    cores = granted_cores()
    idle = idle_share(facts.device)
    on_cores = sums["process_cpu"] * 1e-9
    queued = recorder.spans.queued_seconds()
    if recorder.since is not None:
        on_cores += children_seconds(recorder.since, recorder.children_before)
        queued += children_queued(recorder.since)
    return {
        "epochs": sums["epochs"],
        "batches": sums["batches"],
        "samples": sums["samples"],
        "seconds": seconds,
        "batches_per_second": sums["batches"] / seconds if seconds else 0.0,
        "samples_per_second": sums["samples"] / seconds if seconds else 0.0,
        "batch_seconds": _batch_seconds(recorder.spans),
        "first_batch_seconds": sums["first"] * 1e-9,
        "wait_share": wait / seconds if seconds else 0.0,
        "wait_seconds": wait,
        "loop_seconds": loop,
        "loop_cpu_seconds": sums["loop_cpu"] * 1e-9,
        "stages": stages,
        "bytes_read": stages["read"]["bytes"],
        "cache": facts.cache,
        "memory": {
            **facts.memory,  # type: ignore[typeddict-item]
            "tree_bytes": tree_bytes(),
            "container_bytes": container_memory(),
            "granted_bytes": granted_memory(),
        },
        "cpu": {
            "cores": cores,
            "share": min(1.0, on_cores / (seconds * cores)) if seconds else 0.0,
            "queued_seconds": queued,
        },
        "gpu": None if idle is None else {"idle_share": idle},
        "lock": _lock(recorder),
        "errors": facts.num_errors,
        "restarts": [{**vars(restart), "indices": _plain(restart.indices)} for restart in facts.restarts],
        "epoch": _epoch(recorder),
        "workers": {**facts.workers, "start_cpu_seconds": recorder.spans.started_seconds},
        "loader": {**facts.loader, "native": sums["batches"] > 0 and stages["sample"]["count"] == 0},
    }


def _plain(value: Any) -> Any:
    """Return indices, which may be of any type, as values that JSON has."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):  # NumPy or torch
        return value.tolist()
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _epoch(recorder: Recorder) -> EpochStats | None:
    watch = recorder.last
    if watch is None or watch.progress is None:
        return None
    over, length, expected = watch.progress()
    return {
        "number": watch.number,
        "batches": over - watch.num_ahead,
        "length": length,
        "expected": expected,
        "running": watch.is_open,
        "seconds": time.monotonic() - watch.began,
    }


def _lock(recorder: Recorder) -> LockStats | None:
    lock = recorder.lock
    if not (lock.looks or lock.asked):
        return None
    is_late = lock.delay_seconds > _LEAST_DELAY * lock.asked  # without which the figure says nothing
    return {
        "looks": lock.looks,
        "held_share": lock.held / max(1, lock.looks),
        "held_seconds": lock.held_seconds,
        "asked": lock.asked,
        "delay_seconds": lock.delay_seconds,
        "slowed_seconds": slowed_seconds(recorder.spans) if is_late else 0.0,
    }


def _stages(spans: Spans) -> dict[str, StageStats]:
    totals = spans.totals()
    # Either is estimated from a few short spans, and may come out a little too large.
    on_cores = np.minimum(totals["cpu_ns"], totals["wall_ns"])
    return {
        stage.name: {
            "count": int(totals["count"][:, stage].sum()),
            "seconds": float(totals["wall_ns"][:, stage].sum() * 1e-9),
            "cpu_seconds": float(on_cores[:, stage].sum() * 1e-9),
            "samples": int(totals["samples"][:, stage].sum()),
            "bytes": int(totals["bytes"][:, stage].sum()),
        }
        for stage in Stage
    }


def _batch_seconds(spans: Spans) -> BatchSeconds:
    """Return percentiles of the time from batch to batch, by the waits that are still in the rings."""
    seconds, weights = [np.zeros(0)], [np.zeros(0)]
    recent = spans.recent()
    recent = recent[recent["stage"] == Stage.wait]
    for lane in np.unique(recent["lane"]):
        waits = recent[recent["lane"] == lane]
        before, after = waits[:-1], waits[1:]
        batches = after["batch"].astype(np.int64) - before["batch"]
        ours = batches > 0  # otherwise another epoch has begun
        before, after, batches = before[ours], after[ours], batches[ours]
        # Of batches that were made together, only the first has a wait.
        work = (after["begin"] - before["end"]) * 1e-9 / batches
        seconds += [work + (after["end"] - after["begin"]) * 1e-9, work]
        weights += [np.ones(len(batches)), batches - 1.0]
    median, p95, p99 = _percentiles(np.concatenate(seconds), np.concatenate(weights), (0.5, 0.95, 0.99))
    return {"median": median, "p95": p95, "p99": p99}


def _percentiles(values: Array, weights: Array, shares: tuple[float, ...]) -> list[float]:
    """Return, for each share, the least value with that share of the weight at or below it; 0 without weight.

    >>> _percentiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 8.0]), (0.05, 0.5, 0.95))
    [1.0, 2.0, 3.0]
    """
    values, weights = values[weights > 0], weights[weights > 0]
    if not len(values):
        return [0.0] * len(shares)
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(weights[order])
    places = np.searchsorted(cumulated, np.array(shares) * cumulated[-1] * (1 - 1e-12))
    return [float(value) for value in values[order][places]]
