"""Measurement of what a sample costs: the seconds that loading it and collating it take."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

from foreload.cache.serialize import flatten_exactly, restore
from foreload.dataset_state.digest import StateWatch
from foreload.dataset_state.given import gives_its_own
from foreload.record.usage import queued_seconds
from foreload.tune.workload import STRIDE, Workload

__all__ = ["GIVES_ITS_OWN", "MIN_EPOCH_SECONDS", "sample_cost"]

# Why copies of a dataset might load other samples.
GIVES_ITS_OWN = "batches have objects that the dataset goes on to hold, which copies of it would not share"

NOT_SENT = "a process could not send batches as they are: {}"

# In epochs shorter than this, no workers are tried: trying would take longer than what is gained.
MIN_EPOCH_SECONDS = 1.0

# The time for which samples are loaded to see what they cost, less if an epoch of them is clearly short.
_COST_SECONDS, _SHORT_COST_SECONDS = 0.02, 0.002
_SLOW_SECONDS = 0.5  # If the first sample takes longer, no other is needed.
_FEWEST_SAMPLES = 3

# The samples that are collated to see what that takes, as many as a batch has, or loading is measured with.
_MOST_COLLATED = 64


def sample_cost(
    work: Workload, size: int, watch: StateWatch, reasons: list[str]
) -> tuple[float, float, tuple[float, float] | None]:
    """Return the seconds that a sample takes, those on a core, or in a queue for one, and those to send it.

    The last are as :class:`Workload` has them. The slowest sample is left out: the machine may have paused
    meanwhile. Of the user's collate function, which may do most of the work, a sample's share of a batch counts.

    Args:
        work: what is loaded.
        size: the number of samples in it.
        watch: looks at what loading changes.
        reasons: why no copy of the dataset could load them is added to it.
    """
    dataset, collate = work.view, work.collate or _nothing
    started, busy = time.perf_counter(), _busy_seconds()
    sample = dataset[0]  # which may open files
    taken, loading = time.perf_counter() - started, _busy_seconds() - busy
    batch, one = _timed(collate, [sample])
    if "threads" not in work.kinds:
        try:
            flatten_exactly(batch)  # raises the error that comes of it if a process sends it
        except pickle.PicklingError as error:
            reasons.append(NOT_SENT.format(error))
    done = 1
    watch.look()
    again: Any = None  # of another load of the same sample
    if taken + one <= _SLOW_SECONDS:
        again, one = _timed(collate, [dataset[0]])
        if gives_its_own(batch, again):
            reasons.append(GIVES_ITS_OWN)
    if taken <= _SLOW_SECONDS:
        taken, loading, done = 0.0, 0.0, 0
    kept, slowest = [sample], 0.0
    started, busy = time.perf_counter() - taken, _busy_seconds() - loading
    while done < _FEWEST_SAMPLES or (done < 1000 and taken - slowest < _COST_SECONDS):
        others = taken - slowest
        is_short = others > _SHORT_COST_SECONDS and others / max(1, done) * size < MIN_EPOCH_SECONDS / 4
        if (done and taken > _SLOW_SECONDS) or (done >= _FEWEST_SAMPLES and is_short):
            break
        done += 1
        sample = dataset[(done * STRIDE + 1) % size]
        if len(kept) < _MOST_COLLATED:
            kept.append(sample)
        before, taken = taken, time.perf_counter() - started
        slowest = max(slowest, taken - before)
    cost = taken / done if done < _FEWEST_SAMPLES else (taken - slowest) / (done - 1)
    busy = min(cost, (_busy_seconds() - busy) / done)
    most = max(2, min(work.batch_size or 1, int(_SLOW_SECONDS / max(one, 1e-6))))
    made, collating = _collating(collate, kept[:most], one, work.batch_size or 1)
    watch.look()
    if gives_its_own(again, made):  # which other samples have too
        reasons.append(GIVES_ITS_OWN)
    sent = (
        None
        if work.collate is None or "threads" in work.kinds or reasons
        else _sending(batch, made, len(kept[:most]))
    )
    return cost + collating[0], busy + collating[1], sent


def _sending(one: Any, several: Any, count: int) -> tuple[float, float]:
    """Return the seconds that it takes to send a sample in a batch, and to put it together again.

    Args:
        one: a batch of one sample.
        several: a batch of ``count`` samples.
        count: how many there are.
    """
    tries = [(*_sent(one), *_sent(several)) for _ in range(2)]
    first_sent, first_taken, sent, taken = map(min, zip(*tries, strict=True))
    others = max(1, count - 1)
    return max(0.0, sent - first_sent) / others, max(0.0, taken - first_taken) / others


def _sent(batch: Any) -> tuple[float, float]:
    began = time.perf_counter()
    parts = flatten_exactly(batch)
    sent = time.perf_counter()
    restore([bytearray(part) for part in parts])
    return sent - began, time.perf_counter() - sent


def _timed(collate: Callable[[list[Any]], Any], samples: list[Any]) -> tuple[Any, float]:
    """Return a batch, and the seconds that collating it took."""
    started = time.perf_counter()
    batch = collate(samples)
    return batch, time.perf_counter() - started


def _collating(
    collate: Callable[[list[Any]], Any], samples: list[Any], one: float, batch_size: int
) -> tuple[Any, tuple[float, float]]:
    """Return a batch, and a sample's share of the seconds that collating it takes, and of those on a core.

    Args:
        collate: the function.
        samples: some samples, perhaps fewer than a batch has: what any batch takes, however small, is told from
            what each sample in it takes.
        one: the seconds that a batch of one sample takes.
        batch_size: the samples of a batch.
    """
    busy = _busy_seconds()
    batch, taken = _timed(collate, samples)
    on_core = min(1.0, (_busy_seconds() - busy) / taken) if taken > 0 else 0.0
    each = max(0.0, taken - one) / (len(samples) - 1) if len(samples) > 1 else 0.0
    share = max(0.0, min(one, taken) - each) / batch_size + each
    return batch, (share, on_core * share)


def _nothing(samples: list[Any]) -> None:
    """Torch's collation is left out: it may be done natively."""


def _busy_seconds() -> float:
    return time.process_time() + queued_seconds("thread-self")
