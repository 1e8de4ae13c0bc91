"""Measurement of loading by threads and by processes, in a fork that is thrown away.

A dataset that was used (an open HDF5 file, a database) must not be forked afterwards, and measuring should change
nothing that the user can see: no random number is drawn, no handle opened. So all of it happens in a fork.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from foreload.cache.serialize import flatten
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.digest import StateWatch
from foreload.dataset_state.probes.fills import opens
from foreload.dataset_state.shared import why_not_measured
from foreload.forks.descriptors import Positions, cut_connections
from foreload.forks.fork import forked
from foreload.forks.read_only import CHANGES_FILE, ReadOnlyFiles
from foreload.forks.unshare import unshare
from foreload.machine import granted_memory
from foreload.record.units import workers
from foreload.tune.candidates import (
    MEMORY_SHARE,
    TINY_SAMPLE_SECONDS,
    Candidate,
    Measurement,
    Rates,
    candidates_of,
    estimated_rate,
    never_pays,
    probe_seconds,
)
from foreload.tune.sample_cost import (
    MIN_EPOCH_SECONDS,
    SLOW_SECONDS,
    common_samples,
    made_by_others,
    note_questions,
    sample_cost,
    why_changed,
    why_not_copied,
)
from foreload.tune.workload import NotWanted, Turns, Workload

__all__ = ["TOO_LONG", "measure_workers"]

# The trouble if time was up.
TOO_LONG = "they took too long"

# What the fork sends besides rates.
_SAMPLE_BYTES, _CANDIDATES, _TROUBLE, _STATE = "sample bytes", "candidates", "trouble", "state"
_IS_ESTIMATED, _IS_PURE, _FILLS, _COMMON = "is estimated", "is pure", "fills", "common samples"

# Why copies of a dataset might load other samples.
_MADE = "loading sets {!r} when it is first needed: {}"
_SLOW = "samples take too long to load some of them again and compare them"
_OTHERS, _READS_ON = "it differs with the sample that is the first", "samples may depend on those before, then"

# In epochs shorter than this, only what is not clear is tried.
_LONG_EPOCH_SECONDS = 4.0

# In epochs from this length on, some batches are made to see what a sample takes in them.
_MIN_GLANCED_SECONDS = 0.1

# If a sample takes longer, none are loaded again where loading opens something, to see whether they are the same.
_MAX_COMMON_SECONDS = 0.25

# The part of the calling thread's time that an epoch takes for processes to be chosen, and for that to be clear.
_MAX_SHARE, _CLEAR_SHARE = 0.85, 0.7

# The time after which no other round of turns begins, and after which the parent goes on.
_ROUNDS_SECONDS, _TIMEOUT_SECONDS = 0.6, 3.0

# Candidates take turns, of which the best counts: what else the machine does makes none of them faster.
_NUM_ROUNDS = 3

# The work in a measured batch: many small batches make the count exact.
_BATCH_SECONDS = 0.005

# Two unfinished batches, and the samples of both.
_BATCHES_PER_WORKER = 4

# Measures something in a fork: yields names and values.
_Measure = Callable[[Workload], Iterator[tuple[Any, Any]]]


def measure_workers(work: Workload, cores: int) -> Measurement:
    """Measure the candidates, which may use these cores, in a fork."""
    measured = _in_fork(work, partial(_measure, cores=cores))
    if measured.state or not measured.fills:
        return measured
    # What the first fork has made there, it cannot make again. (Nor could another, where samples took too long.)
    is_late = measured.trouble == TOO_LONG
    other = measured if is_late else _in_fork(work, partial(_make, common=len(measured.common)))
    fills = {name: made for name, made in measured.fills.items() if made in (b"", other.fills.get(name))}
    differing = min(other.fills.keys() & measured.fills.keys() - fills.keys(), default=None)
    is_same = measured.common == other.common
    if differing is None and is_same and not other.trouble:
        return replace(measured, fills=fills)
    name = (differing or min(measured.fills)).name
    why = _MADE.format(name, other.trouble or (_OTHERS if is_same else _READS_ON))
    rates = {candidate: rate for candidate, rate in measured.rates.items() if candidate[0] == "threads"}
    return replace(measured, fills={}, rates=rates, state=why, is_pure=False)


def _in_fork(work: Workload, measure: _Measure) -> Measurement:
    try:
        with forked(lambda into: _in_thread(into, work, measure)) as fork:
            work.meanwhile()
            return _answers(fork.pipe)
    except OSError as error:
        return Measurement({}, [], 0.0, f"{type(error).__name__}: {error}")


def _in_thread(into: int, work: Workload, measure: _Measure) -> None:
    # The threads that torch computes with did not survive the fork, and the forked thread would wait for them. A
    # new thread starts new ones (OpenMP runtimes keep a team for each thread).
    cut_connections(into)
    measuring = threading.Thread(target=_report, args=(into, work, measure))
    measuring.start()
    measuring.join()


def _report(into: int, work: Workload, measure: _Measure) -> None:
    poll = select.poll()
    poll.register(into, 0)  # an error: nobody reads from it any more
    work = replace(work, is_over=lambda: bool(poll.poll(0)))
    files = ReadOnlyFiles()
    files.begin()
    with open(into, "wb", buffering=0) as file, suppress(BrokenPipeError, NotWanted):
        try:
            for measured in measure(work):
                file.write(pickle.dumps(measured))
                if files.refused is not None:  # before forks of this one leave more
                    break
            trouble = ""
        except Exception as error:  # whatever the dataset raises, the loop will raise it again, where it belongs
            trouble = f"{type(error).__name__}: {error}"
        finally:
            files.end(keeps=False)
        if files.refused is not None:  # which the dataset may have caught
            trouble = CHANGES_FILE.format(files.refused)
            file.write(pickle.dumps((_STATE, trouble)))
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
    return Measurement(
        rates,
        missing,
        size,
        trouble,
        state,
        is_estimated=_IS_ESTIMATED in found,
        is_pure=bool(found.get(_IS_PURE, not state)),
        fills=found.get(_FILLS, {}),
        common=found.get(_COMMON, []),
    )


def _measure(work: Workload, cores: int) -> Iterator[tuple[Any, Any]]:
    """Measure the candidates, in the fork; yield names and values, the rate of a candidate after each turn."""
    began = time.monotonic()
    size = len(work.view)
    left = unshare(with_locks=True)
    if state := next((why for part in work.watched if (why := why_not_measured(part, left))), ""):
        yield _STATE, state
        return
    watch, positions = StateWatch(*work.watched), Positions()
    held = CopiedState(*work.watched)
    state = why_not_copied(work.watched, held)
    if state and "threads" not in work.kinds:
        yield _STATE, state
        return
    asked = note_questions() if work.watched else []
    unsent: list[str] = []
    seconds, busy, sending = sample_cost(work, size, watch, unsent)
    work = replace(work, sending=sending)
    state = (yield from _made(work, held, seconds)) or state or why_changed(watch, asked, positions)
    if unsent and not state:
        state = unsent[0]
        yield _IS_PURE, True
    if state and "threads" not in work.kinds:
        yield _STATE, state
        return
    yield ("threads", 0), 1 / seconds
    if seconds > SLOW_SECONDS:  # trying any setting would take too long
        yield _CANDIDATES, candidates_of(work, cores, seconds, busy)
        return
    if size * seconds < _MIN_GLANCED_SECONDS:
        yield from _estimated(work, cores, seconds, busy, _MAX_SHARE)
        return

    def changed() -> str:
        watch.compare()
        return state or why_changed(watch, asked, positions)

    yield from _compared(work, cores, (seconds, busy), changed, began)


def _compared(
    work: Workload, cores: int, cost: tuple[float, float], changed: Callable[[], str], began: float
) -> Iterator[tuple[Any, Any]]:
    """Yield the rates of candidates, or estimates in short epochs; a sample costs seconds, busy ones among them.

    ``changed`` returns why processes might load other samples than the calling thread, once it has loaded some.
    """
    size, (seconds, busy) = len(work.view), cost
    batch = 1 if work.batch_size is None else max(1, min(work.batch_size, int(_BATCH_SECONDS / seconds)))
    alone = Turns(work, "threads", 0, batch)
    if size * seconds < MIN_EPOCH_SECONDS or seconds < TINY_SAMPLE_SECONDS:
        # Samples that are kept, and then collated, may take far longer than those that are dropped at once.
        longer = max(0.0, 1 / alone.glance() - seconds)
        seconds, busy = seconds + longer, busy + longer
        if size * seconds < MIN_EPOCH_SECONDS or never_pays(work, cores, seconds, busy):
            yield ("threads", 0), 1 / seconds
            yield from _estimated(work, cores, seconds, busy, _MAX_SHARE)
            return
    yield ("threads", 0), alone.rate()
    if state := changed():
        yield _STATE, state
        if "threads" not in work.kinds:
            return
        work = replace(work, kinds=("threads",))
    shorter = min(1.0, 1 / (alone.best * seconds))
    seconds, busy = seconds * shorter, busy * shorter
    if size * seconds < _LONG_EPOCH_SECONDS:
        is_short = size * seconds < MIN_EPOCH_SECONDS
        estimated = list(_estimated(work, cores, seconds, busy, _MAX_SHARE if is_short else _CLEAR_SHARE))
        yield from estimated
        if estimated or is_short:
            return
    probe = probe_seconds(work)
    checked = 0.0 if work.sending is None else work.sending.checked
    for name, value in _in_turns(work, candidates_of(work, cores, seconds, busy), batch, alone, began):
        by_processes = isinstance(name, tuple) and name[0] == "processes"
        # No trial worker looks at its copy of the dataset or at its batches, nor does the loop at the dataset.
        yield name, 1 / max(1 / value + (2 * probe + checked) / cores, probe) if by_processes else value


def _made(work: Workload, held: CopiedState, seconds: float) -> Generator[tuple[Any, Any], None, str]:
    """Yield what loading has made; return why copies of the dataset might go on from it in other ways, or "".

    Args:
        work: what is loaded.
        held: what it was made in.
        seconds: what a sample takes.
    """
    made = held.made()
    yield _FILLS, made
    if not opens(made):
        return ""
    if seconds > _MAX_COMMON_SECONDS:
        return _MADE.format(min(made).name, _SLOW)
    common = common_samples(work)
    yield _COMMON, common
    return "" if common_samples(work, len(common)) == common else _MADE.format(min(made).name, _READS_ON)


def _make(work: Workload, common: int = 0) -> Iterator[tuple[Any, Any]]:
    unshare(with_locks=True)
    fills, hashes = made_by_others(work, common)
    yield _FILLS, fills
    yield _COMMON, hashes


def _in_turns(
    work: Workload, candidates: list[Candidate], batch: int, alone: Turns, began: float
) -> Iterator[tuple[Any, Any]]:
    """Measure candidates in turns; ``alone`` is the calling thread, and all of it began at ``began``."""
    yield _CANDIDATES, candidates
    sample = float(sum(map(len, flatten(work.view[0]))))
    yield _SAMPLE_BYTES, sample
    room = MEMORY_SHARE * (granted_memory() if work.memory_limit is None else work.memory_limit)
    room = room / max(1.0, sample) / _BATCHES_PER_WORKER  # in samples
    if room < sum(number for _, number in candidates):
        yield from _one_by_one(work, candidates, batch, room, sample)
        return
    batch = min(batch, int(room / sum(number for _, number in candidates)))
    with ExitStack() as open_trials:
        trials = {
            candidate: open_trials.enter_context(closing(Turns(work, *candidate, batch)))
            for candidate in candidates
        }
        trials["threads", 0] = last = alone
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
            with closing(Turns(work, "threads", number, batch)) as trial:
                yield ("threads", number), trial.rate()


def _estimated(work: Workload, cores: int, seconds: float, busy: float, share: float) -> Iterator[tuple[Any, Any]]:
    """Estimate what processes load, if they make an epoch as short as this share of what one thread takes."""
    if (estimate := estimated_rate(work, cores, seconds, busy, share)) is not None:
        candidate, sample, rate = estimate
        yield from ((_SAMPLE_BYTES, sample), (_IS_ESTIMATED, True), (candidate, rate))


def _one_by_one(
    work: Workload, candidates: list[Candidate], batch: int, room: float, sample_bytes: float
) -> Iterator[tuple[Any, Any]]:
    """Measure candidates of which memory has no room for all together; ``room`` is in samples."""
    for candidate in candidates:
        kind, number = candidate
        if room < number:
            too_large = f"{workers(number, kind)} with samples of {sample_bytes / (1 << 20):,.0f} MiB each"
            raise MemoryError(f"no room to try {too_large}")
        with closing(Turns(work, kind, number, min(batch, int(room / number)))) as trial:
            yield candidate, trial.rate()
