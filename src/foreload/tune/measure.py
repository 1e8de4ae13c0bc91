"""Measurement of loading by threads and by processes, in a fork that is thrown away.

A dataset that was used (an open HDF5 file, a database) must not be forked afterwards, and measuring should change
nothing that the user can see: no random number is drawn, no handle opened. So all of it happens in a fork.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from torch.utils.data import Sampler

from foreload.cache.opt import leave_stores
from foreload.cache.serialize import flatten
from foreload.machine import granted_memory
from foreload.record.units import workers
from foreload.record.usage import queued_seconds
from foreload.tune.costs import WorkerKind
from foreload.tune.dataset_state import StateWatch, find_open_file

__all__ = [
    "MAX_THREADS",
    "MEMORY_SHARE",
    "TINY_SAMPLE_SECONDS",
    "TOO_LONG",
    "Candidate",
    "Measurement",
    "Rates",
    "Workload",
    "measure_workers",
]

# The kind and number of workers; none: the thread of the loop.
Candidate = tuple[WorkerKind, int]

# Samples per second of each.
Rates = dict[Candidate, float]

# Threads that only wait take no core, so there may be many of them.
MAX_THREADS = 32

# The part of the memory that unfinished batches may take, and that all candidates may take together.
MEMORY_SHARE = 0.25

# The most worker processes per core, for samples that wait.
_PROCESSES_PER_CORE = 4

# A sample that takes less may cost less to load than to hand over.
TINY_SAMPLE_SECONDS = 2e-5

# The trouble if time was up.
TOO_LONG = "they took too long"

# What the fork sends besides rates.
_SAMPLE_BYTES, _CANDIDATES, _TROUBLE, _STATE = "sample bytes", "candidates", "trouble", "state"

# Epochs shorter than this are not worth starting processes for.
_MIN_EPOCH_SECONDS = 1.0

# The time of a turn of a candidate; after which no other round of turns begins; after which the parent goes on.
_TURN_SECONDS, _ROUNDS_SECONDS, _TIMEOUT_SECONDS = 0.05, 0.6, 3.0

# The time for which samples are loaded to see what they cost, less if an epoch of them is clearly short.
_COST_SECONDS, _SHORT_COST_SECONDS = 0.02, 0.002
_SLOW_SECONDS = 0.5  # If the first sample takes longer, no other is needed.

# Candidates take turns, of which the best counts: what else the machine does makes none of them faster.
_NUM_ROUNDS = 3

# The work in a measured batch: many small batches make the count exact.
_BATCH_SECONDS = 0.005

# Two unfinished batches, and the samples of both.
_BATCHES_PER_WORKER = 4

# Measured samples come from all over the dataset.
_STRIDE = 7919


@dataclass(frozen=True)
class Workload:
    """The samples to load.

    Attributes:
        view: the dataset as workers see it.
        batch_size: samples per batch; None without batching.
        prefetch_factor: batches made ahead per worker.
        memory_limit: bytes that unfinished batches and the cache may take; None: no limit.
        batches: begins to load: takes the kind and number of workers, the batch size and a sampler.
        kinds: the kinds of workers that may be used.
        watched: the dataset and what is applied to samples, if copies must not depend on their state.
        collate: the user's collate function; None if it is torch's.
    """

    view: Any
    batch_size: int | None
    prefetch_factor: int | None
    memory_limit: int | None
    batches: Callable[[WorkerKind, int, int | None, Sampler[int]], Any]
    kinds: tuple[WorkerKind, ...] = ("threads", "processes")
    watched: tuple[Any, ...] = ()
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True)
class Measurement:
    """What loading a workload with each candidate gave.

    Attributes:
        rates: samples per second.
        missing: the candidates that were to be measured, and were not.
        sample_bytes: the size of a sample; 0: not measured.
        trouble: why something is missing.
        state: why copies of the dataset might load other samples; "": they do not.
    """

    rates: Rates
    missing: list[Candidate]
    sample_bytes: float
    trouble: str
    state: str


def measure_workers(work: Workload, cores: int) -> Measurement:
    """Measure the candidates in a fork.

    Args:
        work: what they load.
        cores: the cores that they may use.
    """
    out, into = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads. Should this one hang, it is killed after a timeout.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(out)
            os.setpgid(0, 0)
            with open(into, "wb", buffering=0) as file, open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
                # The threads that torch computes with did not survive the fork, and the forked thread would wait
                # for them. A new thread starts new ones (OpenMP runtimes keep a team for each thread).
                measuring = threading.Thread(target=_report, args=(file, work, cores))
                measuring.start()
                measuring.join()
        finally:
            os._exit(0)
    os.close(into)
    try:
        return _answers(out)
    finally:
        os.close(out)
        for kill in (os.killpg, os.kill):  # with any workers of its own
            with suppress(OSError):
                kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _report(file: Any, work: Workload, cores: int) -> None:
    try:
        for measured in _measure(work, cores):
            file.write(pickle.dumps(measured))
        trouble = ""
    except Exception as error:  # whatever the dataset raises, the loop will raise it again, where it belongs
        trouble = f"{type(error).__name__}: {error}"
    file.write(pickle.dumps((_TROUBLE, trouble)))


def _answers(pipe: int) -> Measurement:
    """Read what the fork sends until it ends or time is up."""
    text = b""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    trouble = TOO_LONG
    while wait([pipe], max(0.0, deadline - time.monotonic())):
        part = os.read(pipe, 1 << 16)
        if not part:
            trouble = "the process that measured ended"
            break
        text += part
    found: dict[Any, Any] = {}
    file = io.BytesIO(text)
    while file.tell() < len(text):
        name, value = pickle.load(file)
        found[name] = value
    rates: Rates = {name: rate for name, rate in found.items() if isinstance(name, tuple)}
    missing = [candidate for candidate in found.get(_CANDIDATES, []) if candidate not in rates]
    size, trouble, state = found.get(_SAMPLE_BYTES, 0.0), found.get(_TROUBLE, trouble), found.get(_STATE, "")
    return Measurement(rates, missing, size, trouble, state)


def _measure(work: Workload, cores: int) -> Iterator[tuple[Any, Any]]:
    """Measure the candidates, in the fork; yield names and values, the rate of a candidate after each turn."""
    leave_stores()
    began = time.monotonic()
    size = len(work.view)
    if (name := next(filter(None, map(find_open_file, work.watched)), None)) is not None:
        yield _STATE, f"the dataset holds {name!r} open, which processes forked from this one would share"
        return
    watch = StateWatch(*work.watched)
    seconds, busy = _cost(work, size, watch)
    if watch.change is not None:
        yield _STATE, f"loading samples changes {watch.change!r}, which copies of the dataset would not share"
        return
    yield ("threads", 0), 1 / seconds
    if size * seconds < _MIN_EPOCH_SECONDS:
        return
    candidates = _candidates(work, cores, seconds, busy)
    yield _CANDIDATES, candidates
    batch = 1 if work.batch_size is None else max(1, min(work.batch_size, int(_BATCH_SECONDS / seconds)))
    alone = _Trial(work, "threads", 0, batch)
    yield ("threads", 0), alone.rate()
    sample = float(sum(map(len, flatten(work.view[0]))))
    yield _SAMPLE_BYTES, sample
    room = MEMORY_SHARE * (granted_memory() if work.memory_limit is None else work.memory_limit)
    room = room / max(1.0, sample) / _BATCHES_PER_WORKER  # in samples
    if room < sum(number for _, number in candidates):
        yield from _one_by_one(work, candidates, batch, room, sample)
        return
    batch = min(batch, int(room / sum(number for _, number in candidates)))
    trials = {candidate: _Trial(work, *candidate, batch) for candidate in candidates}
    trials["threads", 0] = alone
    last = alone
    for turn in range(_NUM_ROUNDS):
        if turn > 0 and time.monotonic() - began > _ROUNDS_SECONDS:
            break
        for candidate, trial in trials.items():
            last.rest()
            yield candidate, trial.rate()
            last = trial
    if "threads" not in work.kinds:  # only to say what they would load
        last.rest()
        number = max(number for _, number in candidates)
        yield ("threads", number), _Trial(work, "threads", number, batch).rate()


def _candidates(work: Workload, cores: int, seconds: float, busy: float) -> list[Candidate]:
    """Return the workers to try; a sample takes ``seconds``, and keeps a core busy for ``busy`` of them."""
    numbers = [cores]
    waits = busy < 0.5 * seconds
    if waits:
        most = MAX_THREADS if "threads" in work.kinds else cores * _PROCESSES_PER_CORE
        enough = max(cores, int(seconds / max(busy, 1e-7)) + 1)
        numbers = sorted({min(most, cores * 4), min(most, enough)})
    candidates: list[Candidate] = [("threads", number) for number in numbers if "threads" in work.kinds]
    if "processes" in work.kinds and (not waits or not candidates):
        candidates += [("processes", number) for number in (numbers[:1] if candidates else numbers)]
    return candidates


def _one_by_one(
    work: Workload, candidates: list[Candidate], batch: int, room: float, sample_bytes: float
) -> Iterator[tuple[Any, Any]]:
    """Measure candidates of which memory has no room for all together; ``room`` is in samples."""
    for candidate in candidates:
        kind, number = candidate
        if room < number:
            too_large = f"{workers(number, kind)} with samples of {sample_bytes / (1 << 20):,.0f} MiB each"
            raise MemoryError(f"no room to try {too_large}")
        trial = _Trial(work, kind, number, min(batch, int(room / number)))
        yield candidate, trial.rate()
        trial.close()


def _cost(work: Workload, size: int, watch: StateWatch) -> tuple[float, float]:
    """Return the seconds that a sample takes, and those of them that it keeps a core busy, or queues for one."""
    started, busy = time.perf_counter(), _busy_seconds()
    dataset, collate = work.view, work.collate or (lambda samples: None)
    collate([dataset[0]])  # which may open files
    done = 1
    watch.look()
    if time.perf_counter() - started < _SLOW_SECONDS:
        started, busy, done = time.perf_counter(), _busy_seconds(), 0
    while done < 1000 and (taken := time.perf_counter() - started) < _COST_SECONDS:
        if done and taken > _SHORT_COST_SECONDS and taken / done * size < _MIN_EPOCH_SECONDS / 4:
            break
        done += 1
        dataset[(done * _STRIDE + 1) % size]
    cost = (time.perf_counter() - started) / done, (_busy_seconds() - busy) / done
    collate([dataset[1 % size]])
    watch.look()
    return cost


def _busy_seconds() -> float:
    return time.process_time() + queued_seconds("thread-self")


class _Spread(Sampler[int]):
    """Indices from all over the dataset, without end."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        at = 0
        while True:
            at = (at + _STRIDE) % self.size
            yield at


class _Trial:
    """Workers of one candidate, loading.

    Attributes:
        best: samples per second of the best turn so far.
    """

    def __init__(self, work: Workload, kind: WorkerKind, number: int, batch: int) -> None:
        self.best = 0.0
        self._workers = number
        self._batch = batch
        self._ahead = 2 * number
        size = None if work.batch_size is None else batch
        self._batches = work.batches(kind, number, size, _Spread(len(work.view)))

    def rate(self) -> float:
        """Take a turn; return the best rate so far."""
        # Batches made ahead come at once; counting starts after them.
        for _ in range(max(1, self._ahead)):
            next(self._batches)
        started = time.perf_counter()
        given = 0
        # Workers that began together end together: only whole rounds of them count.
        while time.perf_counter() - started < _TURN_SECONDS or given < 2 or given % max(1, self._workers):
            next(self._batches)
            given += 1
        self.best = max(self.best, given * self._batch / (time.perf_counter() - started))
        return self.best

    def rest(self) -> None:
        """Wait until the batches ahead are made, which would take cores from the next candidate."""
        time.sleep(self._ahead * self._batch / self.best)

    def close(self) -> None:
        """End the workers."""
        self._batches.close()
