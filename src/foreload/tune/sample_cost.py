"""Measurement of what a sample costs: the seconds that loading it and collating it take."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from foreload._torch import patch_worker_info
from foreload.cache.serialize import flatten, flatten_exactly, restore
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.digest import CHANGES, StateWatch
from foreload.dataset_state.given import find_held, find_reference
from foreload.dataset_state.probes.fills import Fills, content_of
from foreload.dataset_state.sealed import UNTOLD, find_sealed
from foreload.dataset_state.walk import find_open_file
from foreload.forks.descriptors import READS_ON, Positions
from foreload.record.usage import queued_seconds
from foreload.tune.workload import STRIDE, Sending, Workload

__all__ = [
    "MIN_EPOCH_SECONDS",
    "SLOW_SECONDS",
    "common_samples",
    "made_by_others",
    "note_questions",
    "sample_cost",
    "why_changed",
    "why_not_copied",
]

# Why copies of a dataset might not do.
NOT_SENT = "a process could not send batches as they are: {}"
_OPEN = "the dataset holds {!r} open, which processes forked from this one would share"
_ASKS = "samples ask for get_worker_info(), which in worker processes says something else"

# In epochs shorter than this, no workers are tried: trying would take longer than what is gained.
MIN_EPOCH_SECONDS = 1.0

# The time for which samples are loaded to see what they cost, less if an epoch of them is clearly short.
_COST_SECONDS, _SHORT_COST_SECONDS = 0.02, 0.002
SLOW_SECONDS = 0.5  # If the first samples take longer, two are enough,
_TOO_SLOW_SECONDS = 1.4  # and one, since the time to measure is limited.
_FEWEST_SAMPLES = 3

# The samples that show what loading makes in the dataset.
_MADE_BY, _MOST_MADE = 3, 1000

# The samples that are loaded once more, after others, to see whether they are the same: at most these, this share
# of all, and as many as take these seconds.
_MOST_COMMON, _COMMON_SHARE, _COMMON_SECONDS = 64, 0.05, 0.2

# The samples that are collated to see what that takes, as many as a batch has, or loading is measured with.
_MOST_COLLATED = 64


def sample_cost(
    work: Workload, size: int, watch: StateWatch, reasons: list[str]
) -> tuple[float, float, Sending | None]:
    """Return the seconds that a sample takes, those on a core, or in a queue for one, and those to hand it over.

    The slowest sample is left out: the machine may have paused
    meanwhile. Of the user's collate function, which may do most of the work, a sample's share of a batch counts.

    Args:
        work: what is loaded.
        size: the number of samples in it.
        watch: looks at what loading changes.
        reasons: why batches of the copies' could not be delivered is added to it.
    """
    dataset, collate = work.view, work.collate or _nothing
    started, busy = time.perf_counter(), _busy_seconds()
    kept = [dataset[0]]  # which may open files
    taken, loading = time.perf_counter() - started, _busy_seconds() - busy
    first: list[Any] = [*_timed(collate, kept[:1])]
    one = first[-1]
    reasons += _why_not_sent(work, first, [kept])
    done = 1
    watch.compare()
    if taken + one <= SLOW_SECONDS:
        one = _timed(collate, [dataset[0]])[1]
    if taken <= SLOW_SECONDS:
        taken, loading, done = 0.0, 0.0, 0
    slowest, sample = taken, None
    started, busy = time.perf_counter() - taken, _busy_seconds() - loading
    while done < _FEWEST_SAMPLES or (done < 1000 and taken - slowest < _COST_SECONDS):
        others = taken - slowest
        is_short = others > _SHORT_COST_SECONDS and others / max(1, done) * size < MIN_EPOCH_SECONDS / 4
        # (One sample that takes long may have set up what the others need.)
        if taken > (SLOW_SECONDS if done > 1 else _TOO_SLOW_SECONDS) or (done >= _FEWEST_SAMPLES and is_short):
            break
        done += 1
        sample = dataset[(done * STRIDE + 1) % size]
        if len(kept) < _MOST_COLLATED:
            kept.append(sample)
        before, taken = taken, time.perf_counter() - started
        slowest = max(slowest, taken - before)
    sample = None  # whose references would count
    cost = taken / done if done < 2 else (taken - slowest) / (done - 1)
    busy = min(cost, (_busy_seconds() - busy) / done)
    most = max(2, min(work.batch_size or 1, int(SLOW_SECONDS / max(one, 1e-6))))
    several: list[Any] = [*_collating(collate, kept[:most], one, work.batch_size or 1)]
    collating = several[-1]
    watch.compare()
    reasons += _why_not_sent(work, several, [first, kept])
    is_sent = work.collate is not None and "threads" not in work.kinds and not reasons
    sending = _sending(first, several, len(kept[:most])) if is_sent else None
    return cost + collating[0], busy + collating[1], sending


def why_not_copied(parts: tuple[Any, ...], held: CopiedState) -> str:
    """Return why copies of the dataset cannot be told to be still the same; "": they can."""
    open_file = next(map(_OPEN.format, filter(None, map(find_open_file, parts))), "")
    return open_file or next(map(UNTOLD.format, filter(None, map(find_sealed, parts))), "") or held.untold or ""


def why_changed(watch: StateWatch, asked: list[str], positions: Positions) -> str:
    """Return what loading was seen to change, or to ask; "": nothing."""
    if asked:
        return asked[0]
    if watch.change is not None:
        return CHANGES.format(watch.change)
    moved = positions.moved()
    return "" if moved is None else READS_ON.format(moved)


def common_samples(work: Workload, count: int | None = None) -> list[bytes]:
    """Return hashes of some samples, which are the same whatever was loaded before, but for what they draw.

    Args:
        work: what is loaded.
        count: how many, which are loaded the last first; None: as many as take a moment.
    """
    began, found, size = time.perf_counter(), [], len(work.view)
    most = min(_MOST_COMMON, max(_FEWEST_SAMPLES, int(_COMMON_SHARE * size)))
    for place in range(most) if count is None else reversed(range(count)):
        found.append(_content(work, (place * STRIDE + size // 3) % size))
        if count is None and time.perf_counter() - began > _COMMON_SECONDS:
            break
    return found if count is None else found[::-1]


def _content(work: Workload, index: int) -> bytes:
    random.seed(index)
    np.random.seed(index)
    torch.manual_seed(index)
    try:
        sample = work.view[index]
    except Exception as error:  # whatever the dataset raises, which the loop may skip
        sample = type(error).__qualname__  # (Its text may be another each time.)
    return content_of(sample)


def made_by_others(work: Workload, common: int = 0) -> tuple[Fills, list[bytes]]:
    """Return what loading makes in the dataset where nothing was, if other samples are the first.

    Args:
        work: what is loaded.
        common: the number of the common samples that are loaded after these, and whose hashes are returned too.
    """
    held, size = CopiedState(*work.watched), len(work.view)
    samples = []
    for place in range(_MADE_BY):
        with suppress(Exception):  # which the loop may skip
            samples.append(work.view[(size - 1 - place * STRIDE) % size])
    hashes = common_samples(work, common)
    if work.collate is not None and samples:
        work.collate(samples)
    began = time.perf_counter()
    for place in range(_MOST_MADE):  # as those that cost was told by, so that they make the same
        if time.perf_counter() - began > 2 * _COST_SECONDS:
            break
        with suppress(Exception):
            work.view[(place * STRIDE + 1) % size]
    return held.made(), hashes


def note_questions() -> list[str]:
    """Note from now on, in this fork, when samples ask in which worker they are loaded."""
    asked: list[str] = []

    def note() -> None:
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if caller.partition(".")[0] not in ("foreload", "torch"):  # which collate in workers and elsewhere alike
            asked.append(_ASKS)

    patch_worker_info(note)
    return asked


def _why_not_sent(work: Workload, batch: list[Any], others: list[Any]) -> list[str]:
    """Return why a process could not send a batch as it is.

    Args:
        work: what is loaded.
        batch: a list that holds it.
        others: samples that it may have been made of, and what else refers to them here.
    """
    if "threads" in work.kinds or work.collate is None:
        return []
    try:
        if (held := find_held(batch, others)) is not None:
            return [held]
        flatten_exactly(batch)
    except Exception as error:  # whatever a user's class raises
        return [NOT_SENT.format(error)]
    return []


def _sending(one: list[Any], several: list[Any], count: int) -> Sending:
    """Return what it takes to hand over a sample in a batch.

    Args:
        one: a list that holds a batch of one sample.
        several: one that holds a batch of ``count`` samples.
        count: how many there are.
    """
    least = [map(min, zip(*(_handed_over(batch) for _ in range(2)), strict=True)) for batch in (one, several)]
    others = max(1, count - 1)
    return Sending(*(max(0.0, more - first) / others for first, more in zip(*least, strict=True)))


def _handed_over(batch: list[Any]) -> Sending:
    """Hand over a batch that a list holds, in this process."""
    began = time.perf_counter()
    find_reference(batch)  # (What refers to it here does not matter: what looking takes is measured.)
    parts = flatten_exactly(batch[0])
    sent = time.perf_counter()
    flatten(batch[0])
    pickled = time.perf_counter()
    restore([bytearray(part) for part in parts])
    return Sending(sent - began, max(0.0, (sent - began) - (pickled - sent)), time.perf_counter() - pickled)


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
