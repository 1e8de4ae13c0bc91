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
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.data import Sampler

from foreload.machine import granted_cores, granted_memory
from foreload.optcache import leave_stores
from foreload.stages.samples import flatten

if TYPE_CHECKING:
    from foreload.loader import DataLoader

__all__ = ["Choice", "choose", "waiters"]

Kind = Literal["threads", "processes"]

# Samples per second, by kind and number of workers.
Rates = dict[tuple[Kind, int], float]

# Beside them: the bytes of a sample.
_BYTES: tuple[Kind, int] = ("threads", -1)

# Fewer samples are loaded before anything is known about them.
_WORTH_ASKING = 256

# Epochs shorter than this are not worth starting processes for.
_SHORT = 1.0

# Seconds for a candidate, and for all of it before threads are taken unmeasured.
_SLICE, _PATIENCE = 0.12, 3.0

# Seconds of work in a batch that is measured with: many small ones make the count exact.
_BATCH = 0.005

# Seconds of a sample that may cost less to load than to hand over.
_TINY = 2e-5

# Where several workers load less than so many times what one does, they are measured once more.
_PLAUSIBLE = 1.3

# The part of memory that batches in the making may take.
_SHARE = 0.25

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
    """

    kind: Kind
    count: int
    why: str
    rates: dict[str, float] = field(default_factory=dict)


def choose(loader: DataLoader[Any], count: int | None) -> Choice:
    """Choose the workers for a map-style dataset that Python loads.

    Args:
        loader: whose.
        count: how many the user wants; None: as many as are best.
    """
    cores = granted_cores()
    threads = Choice("threads", cores if count is None else count, "threads are the rule")
    size = len(loader.dataset)  # type: ignore[arg-type]
    if size < _WORTH_ASKING:
        return _because(threads, f"only {size} samples")
    if "fork" not in multiprocessing.get_all_start_methods():
        return _because(threads, "this system has no fork to measure in")
    measured, trouble = _measured(loader, count, cores)
    if ("threads", 0) not in measured:
        return _because(threads, f"the samples could not be measured ({trouble})")
    sample = measured.pop(_BYTES, 0)
    best = _best(measured, count, cores, size)
    batches = max(1, loader.prefetch_factor or 1) * sample * (loader.batch_size or 1)
    room = int(_SHARE * granted_memory() / batches) if batches else best.count
    if count is None and best.count > max(1, room):
        why = f"{best.why}, but {batches / (1 << 20):,.0f} MiB each are too much for more than {max(1, room)}"
        return Choice(best.kind, max(1, room), why, best.rates)
    return best


def _because(choice: Choice, why: str) -> Choice:
    return Choice(choice.kind, choice.count, why, choice.rates)


def _best(measured: Rates, count: int | None, cores: int, size: int) -> Choice:
    rates = {f"{number} {kind}" if number else "none": rate for (kind, number), rate in measured.items()}
    alone = measured["threads", 0]
    others = {choice: rate for choice, rate in measured.items() if choice[1] > 0}
    if not others:
        why = f"an epoch takes {size / alone:.2g} s in one thread"
        return Choice("threads", cores if count is None else count, why, rates)
    best = max(others, key=lambda choice: (others[choice] * _FAVOUR[choice[0]], -choice[1]))
    if count is None and alone > _IN_FAVOUR * others[best]:
        why = f"a sample takes {1e6 / alone:.2g} us, less than to hand it from a worker to the loop"
        return Choice("threads", 0, why, rates)
    why = f"{best[1]} {best[0]} load {others[best] / alone:.2g} times what one thread does"
    return Choice(best[0], best[1], why, rates)


def _measured(loader: DataLoader[Any], count: int | None, cores: int) -> tuple[Rates, str]:
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
                for measured in _measure(loader, count, cores):
                    file.write(pickle.dumps(measured))
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


def _answers(pipe: int) -> tuple[Rates, str]:
    text = b""
    deadline = time.monotonic() + _PATIENCE
    trouble = "they took too long"
    while wait([pipe], max(0.0, deadline - time.monotonic())):
        part = os.read(pipe, 1 << 16)
        if not part:
            trouble = "the process that measured ended"
            break
        text += part
    rates: Rates = {}
    file = io.BytesIO(text)
    while file.tell() < len(text):
        name, value = pickle.load(file)
        if name == "trouble":
            trouble = value
        else:
            rates[name] = value
    return rates, trouble


def _measure(loader: DataLoader[Any], count: int | None, cores: int) -> Iterator[tuple[Any, Any]]:
    """Measure the candidates, in the process that is thrown away."""
    leave_stores()
    # The threads that torch computes with stayed behind; waiting for them would take for ever.
    torch.set_num_threads(1)
    try:
        size = len(loader.dataset)  # type: ignore[arg-type]
        seconds, work = _cost(loader._prepared, size)
        batch = 1 if loader.batch_size is None else max(1, min(loader.batch_size, int(_BATCH / seconds)))
        alone = _rate(loader, "threads", 0, batch)
        yield ("threads", 0), alone
        yield _BYTES, float(sum(map(len, flatten(loader._prepared[0]))))
        is_short = size / alone < _SHORT
        if is_short and (count is not None or seconds > _TINY):
            return
        numbers = [cores if count is None else count]
        waits = work < 0.5 * seconds
        if waits and count is None:
            enough = max(cores, int(seconds / max(work, 1e-7)) + 1)
            numbers = sorted({min(_MOST_THREADS, cores * 4), min(_MOST_THREADS, enough)})
        candidates: list[tuple[Kind, int]] = [("threads", number) for number in numbers]
        if not is_short and (not waits or count is not None):
            candidates.append(("processes", numbers[0]))
        rates = {who: _rate(loader, *who, batch) for who in candidates}
        yield from rates.items()
        if cores > 1 and seconds > _TINY and max(rates.values()) < _PLAUSIBLE * alone:
            # Somebody else may have had the cores just then.
            for who in candidates:
                yield who, max(rates[who], _rate(loader, *who, batch))
    except Exception as error:  # whatever the dataset raises is raised in the loop, where it belongs
        yield "trouble", f"{type(error).__name__}: {error}"


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


def _rate(loader: DataLoader[Any], kind: Kind, number: int, batch: int) -> float:
    """Give the samples per second that such workers load."""
    trial = type(loader)(
        loader._prepared,
        batch_size=None if loader.batch_size is None else batch,
        sampler=_Spread(len(loader.dataset)),  # type: ignore[arg-type]
        num_workers=number,
        collate_fn=loader.collate_fn,
        workers=kind,
    )
    batches = iter(trial)
    # What was begun together comes together; counting starts when that is through.
    for _ in range(max(1, 2 * number) if kind == "threads" else 2 * number):
        next(batches)
    started = time.perf_counter()
    given = 0
    while time.perf_counter() - started < _SLICE or given < 2:
        next(batches)
        given += 1
    return given * batch / (time.perf_counter() - started)
