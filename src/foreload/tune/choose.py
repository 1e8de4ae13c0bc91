"""Threads or processes, and how many: measured, for a moment, in a process that is thrown away.

Whether threads pay depends on how long a sample holds the interpreter's lock, which nobody can see from outside.
So the candidates are run, on some samples of the dataset itself. That happens in a fork, since a dataset that was
used (an open HDF5 file, a database) must not be forked afterwards, and so that nothing the user can see changes:
no random number is drawn, no handle opened.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any

from torch.utils.data import Sampler

from foreload.cache.opt import leave_stores
from foreload.cache.serialize import flatten
from foreload.machine import granted_cores, granted_memory
from foreload.record.units import workers
from foreload.tune.costs import WorkerKind

__all__ = ["Choice", "Workload", "choose_workers", "waiters"]

# Samples per second, by kind and number of workers.
Rates = dict[tuple[WorkerKind, int], float]

# Beside them: the bytes of a sample; who is to be measured with others than the loop's own thread.
_BYTES, _CANDIDATES = "bytes", "candidates"

# Fewer samples are loaded before anything is known about them.
_WORTH_ASKING = 256

# Epochs shorter than this are not worth starting processes for.
_MIN_EPOCH_SECONDS = 1.0

# Seconds for a candidate at a time, for all of it before threads are taken unmeasured, and after which there are
# no more turns.
_SLICE, _PATIENCE, _ENOUGH = 0.05, 3.0, 0.6

# The candidates take turns, and the best of its turns counts for each: what else a machine does slows down this
# one or that, and makes none of them faster.
_TURNS = 3

# Seconds of work in a batch that is measured with: many small ones make the count exact.
_BATCH = 0.005

# Seconds of a sample that may cost less to load than to hand over.
_TINY = 2e-5

# The part of memory that batches in the making may take, and that the candidates may take all together, of which
# each worker has so many batches: two in the making, and their samples.
_SHARE, _COPIES = 0.25, 4

# Samples are taken from all over the dataset.
_STRIDE = 7919

# Of two that are as good, threads: they share the dataset and start at once.
_FAVOUR = {"threads": 1.1, "processes": 1.0}

# Waiting takes no core, so there may be many of those who wait.
_MOST_THREADS = 32

# Workers leave the loop free for other work, so loading without any must be better by this.
_IN_FAVOUR = 1.1


# Samples of a server that are to be on their way at a time, and the fewest who ask for them.
_ON_THEIR_WAY, _FEWEST_WAITERS = 768, 2


def waiters(batch_size: int | None) -> int:
    """Say how many threads to ask a server with, each for a batch at a time.

    >>> waiters(64), waiters(1), waiters(1024)
    (12, 32, 2)
    """
    wanted = -(-_ON_THEIR_WAY // max(1, batch_size or 1))
    return max(_FEWEST_WAITERS, min(_MOST_THREADS, wanted))


@dataclass(frozen=True)
class Choice:
    """Who loads the samples.

    Attributes:
        kind: threads or processes.
        count: how many; 0: the calling thread.
        why: in words.
        rates: what was measured, samples per second.
        seconds: what that took.
    """

    kind: WorkerKind
    count: int
    why: str
    rates: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Workload:
    """The samples that workers are to load.

    Attributes:
        view: the dataset as workers see it.
        batch_size: samples per batch; None without batching.
        prefetch_factor: batches made ahead per worker.
        memory_limit: bytes that batches in the making and the cache may take; None: no limit.
        batches: begins to load: takes the kind and number of workers, the batch size and a sampler.
    """

    view: Any
    batch_size: int | None
    prefetch_factor: int | None
    memory_limit: int | None
    batches: Callable[[WorkerKind, int, int | None, Sampler[int]], Any]


def choose_workers(work: Workload, count: int | None) -> Choice:
    """Choose the workers for a map-style dataset that Python loads.

    Args:
        work: what is to be loaded.
        count: the number of workers that the user wants; None: as many as are best.
    """
    cores = granted_cores()
    threads = Choice("threads", cores if count is None else count, "threads are the rule")
    size = len(work.view)
    if size < _WORTH_ASKING:
        return replace(threads, why=f"only {size} samples")
    if "fork" not in multiprocessing.get_all_start_methods():
        return replace(threads, why="this system has no fork to measure in")
    began = time.monotonic()
    found, trouble = _measured(work, count, cores)
    took = time.monotonic() - began
    measured: Rates = {who: rate for who, rate in found.items() if isinstance(who, tuple)}
    if ("threads", 0) not in measured:
        return replace(threads, why=f"the samples could not be measured ({trouble})", seconds=took)
    missing = [who for who in found.get(_CANDIDATES, []) if who not in measured]
    best = _best(measured, count, cores, size, missing, trouble)
    batches = max(1, work.prefetch_factor or 1) * found.get(_BYTES, 0.0) * (work.batch_size or 1)
    room = int(_SHARE * granted_memory() / batches) if batches else best.count
    if count is None and best.count > max(1, room):
        why = f"{best.why}, but {batches / (1 << 20):,.0f} MiB each are too much for more than {max(1, room)}"
        best = replace(best, count=max(1, room), why=why)
    return replace(best, seconds=took)


def _best(
    measured: Rates, count: int | None, cores: int, size: int, missing: list[tuple[WorkerKind, int]], trouble: str
) -> Choice:
    rates = {f"{number} {kind}" if number else "none": rate for (kind, number), rate in measured.items()}
    alone = measured["threads", 0]
    others = {choice: rate for choice, rate in measured.items() if choice[1] > 0}
    if not others:
        why = f"an epoch takes {size / alone:.2g} s in one thread"
        if trouble:
            why = f"the samples could not be measured ({trouble})"
        return Choice("threads", cores if count is None else count, why, rates)
    best = max(others, key=lambda choice: (others[choice] * _FAVOUR[choice[0]], -choice[1]))
    if missing:
        # Who was not measured may be better than all of them.
        why = f"{' and '.join(workers(who[1], who[0]) for who in missing)} could not be measured ({trouble})"
        return Choice(best[0], best[1], why, rates)
    if count is None and alone > _IN_FAVOUR * others[best]:
        times = f"{alone / others[best]:.2g} times"
        why = f"one thread, the loop's own, loads {times} what {workers(best[1], best[0])} do"
        if 1 / alone < _TINY:
            why = f"a sample takes {1e6 / alone:.2g} us, less than to hand it from a worker to the loop"
        return Choice("threads", 0, why, rates)
    why = f"{workers(best[1], best[0])} load {others[best] / alone:.2g} times what one thread does"
    return Choice(best[0], best[1], why, rates)


def _measured(work: Workload, count: int | None, cores: int) -> tuple[dict[Any, Any], str]:
    """Measure in a fork; give also what went wrong there."""
    out, into = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads; whatever happens to this one, it is waited for no longer.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(out)
            os.setpgid(0, 0)
            with open(into, "wb", buffering=0) as file, open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
                # What torch computes, several threads share, which wait for this one's word. They stayed behind
                # in the fork, and another one begins with new ones (OpenMP runtimes have them by the thread).
                measuring = threading.Thread(target=_report, args=(file, work, count, cores))
                measuring.start()
                measuring.join()
        finally:
            os._exit(0)
    os.close(into)
    try:
        return _answers(out)
    finally:
        os.close(out)
        with suppress(OSError):
            os.killpg(child, signal.SIGKILL)  # with the workers that it may have
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _report(file: Any, work: Workload, count: int | None, cores: int) -> None:
    try:
        for measured in _measure(work, count, cores):
            file.write(pickle.dumps(measured))
        trouble = ""
    except Exception as error:  # whatever the dataset raises is raised in the loop, where it belongs
        trouble = f"{type(error).__name__}: {error}"
    file.write(pickle.dumps(("trouble", trouble)))


def _answers(pipe: int) -> tuple[dict[Any, Any], str]:
    text = b""
    deadline = time.monotonic() + _PATIENCE
    trouble = "they took too long"
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
        if name == "trouble":
            trouble = value
        else:
            found[name] = value
    return found, trouble


def _measure(work: Workload, count: int | None, cores: int) -> Iterator[tuple[Any, Any]]:
    """Measure the candidates, in the process that is thrown away."""
    leave_stores()
    began = time.monotonic()
    size = len(work.view)
    seconds, busy = _cost(work.view, size)
    batch = 1 if work.batch_size is None else max(1, min(work.batch_size, int(_BATCH / seconds)))
    alone = _Trial(work, "threads", 0, batch)
    yield ("threads", 0), alone.rate()
    sample = float(sum(map(len, flatten(work.view[0]))))
    yield _BYTES, sample
    is_short = size / alone.best < _MIN_EPOCH_SECONDS
    if is_short and (count is not None or seconds > _TINY):
        return
    numbers = [cores if count is None else count]
    waits = busy < 0.5 * seconds
    if waits and count is None:
        enough = max(cores, int(seconds / max(busy, 1e-7)) + 1)
        numbers = sorted({min(_MOST_THREADS, cores * 4), min(_MOST_THREADS, enough)})
    candidates: list[tuple[WorkerKind, int]] = [("threads", number) for number in numbers]
    if not is_short and (not waits or count is not None):
        candidates.append(("processes", numbers[0]))
    yield _CANDIDATES, candidates
    room = _SHARE * (granted_memory() if work.memory_limit is None else work.memory_limit)
    room = room / max(1.0, sample) / _COPIES  # in samples
    if room < sum(number for _, number in candidates):
        # They cannot be there all together.
        for who in candidates:
            if room < who[1]:
                who_each = f"{workers(who[1], who[0])} with samples of {sample / (1 << 20):,.0f} MiB each"
                raise MemoryError(f"{who_each} find no room to be tried")
            trial = _Trial(work, *who, min(batch, int(room / who[1])))
            yield who, trial.rate()
            trial.close()
        return
    batch = min(batch, int(room / sum(number for _, number in candidates)))
    trials = {who: _Trial(work, *who, batch) for who in candidates}
    trials["threads", 0] = alone
    last = alone
    for turn in range(_TURNS):
        if turn > 0 and time.monotonic() - began > _ENOUGH:
            return
        for who, trial in trials.items():
            last.rest()
            yield who, trial.rate()
            last = trial


def _cost(dataset: Any, size: int) -> tuple[float, float]:
    """Give the seconds that a sample takes, and those of them that it keeps a core busy."""
    dataset[0]  # which may open files
    started, busy = time.perf_counter(), time.process_time()
    done = 0
    while done < 1000 and time.perf_counter() - started < 0.02:
        done += 1
        dataset[done * _STRIDE % size]
    return (time.perf_counter() - started) / done, (time.process_time() - busy) / done


class _Spread(Sampler[int]):
    """Samples from all over the dataset, without end."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        at = 0
        while True:
            at = (at + _STRIDE) % self.size
            yield at


class _Trial:
    """Such workers, at work.

    Attributes:
        best: samples per second that they load, as far as was seen.
    """

    def __init__(self, work: Workload, kind: WorkerKind, number: int, batch: int) -> None:
        self.best = 0.0
        self._workers = number
        self._batch = batch
        self._ahead = 2 * number
        size = None if work.batch_size is None else batch
        self._batches = work.batches(kind, number, size, _Spread(len(work.view)))

    def rate(self) -> float:
        """Take a turn; give the best until now."""
        # What was made ahead comes at once; counting starts when that is through.
        for _ in range(max(1, self._ahead)):
            next(self._batches)
        started = time.perf_counter()
        given = 0
        # Workers that began together end together: all of them have to be counted alike.
        while time.perf_counter() - started < _SLICE or given < 2 or given % max(1, self._workers):
            next(self._batches)
            given += 1
        self.best = max(self.best, given * self._batch / (time.perf_counter() - started))
        return self.best

    def rest(self) -> None:
        """Let be made what was asked for ahead, which would take cores from who is next."""
        time.sleep(self._ahead * self._batch / self.best)

    def close(self) -> None:
        """End them."""
        self._batches.close()
