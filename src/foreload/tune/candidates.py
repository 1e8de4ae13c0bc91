"""The workers that are tried for a loader, what that gave, and those that cannot pay."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from foreload.cache.serialize import flatten
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.probes.fills import Fills
from foreload.options import WorkerKind
from foreload.tune.workload import Workload

__all__ = [
    "MAX_THREADS",
    "MEMORY_SHARE",
    "TINY_SAMPLE_SECONDS",
    "Candidate",
    "Measurement",
    "Rates",
    "candidates_of",
    "estimated_rate",
    "never_pays",
    "probe_seconds",
]

# The kind and number of workers; none: the thread of the loop.
Candidate = tuple[WorkerKind, int]

# Samples per second of each.
Rates = dict[Candidate, float]

# The part of the memory that unfinished batches may take, and that all candidates may take together.
MEMORY_SHARE = 0.25

# A sample that takes less may cost less to load than to hand over.
TINY_SAMPLE_SECONDS = 2e-5

# Threads that only wait take no core, so there may be many of them.
MAX_THREADS = 32

_PROCESSES_PER_CORE = 4  # at most, for samples that wait

# What handing a sample over takes of a core. A byte takes nearly nothing if it comes out of a cache, as a worker
# collates into memory of the loop's in place of its own, and as much as this if memory is what all wait for.
_HANDOVER_SECONDS, _HANDOVER_SECONDS_PER_BYTE = 2e-6, 1.5e-10

# What a process, and the loop, take of a core to hand a batch over, waking up included.
_BATCH_SECONDS = 2e-4

# An estimate of the time until forked processes have begun.
_START_SECONDS = 0.04


@dataclass(frozen=True)
class Measurement:
    """The measured rates of a workload, one for each candidate.

    Attributes:
        rates: samples per second.
        missing: the candidates that were to be measured, and were not.
        sample_bytes: the size of a sample; 0: not measured.
        trouble: why something is missing.
        state: why copies of the dataset might load other samples; "": they do not.
        is_estimated: whether rates but that of the calling thread are estimates.
        is_pure: whether loading was seen to change nothing in the dataset.
        fills: hashes of what loading makes in it where nothing was, whichever sample is the first.
        common: hashes of some samples, if loading opens what they may be read on from.
    """

    rates: Rates
    missing: list[Candidate]
    sample_bytes: float
    trouble: str
    state: str = ""
    is_estimated: bool = False
    is_pure: bool = False
    fills: Fills = field(default_factory=dict)
    common: list[bytes] = field(default_factory=list)


def candidates_of(work: Workload, cores: int, seconds: float, busy: float) -> list[Candidate]:
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


def probe_seconds(work: Workload) -> float:
    """Return what it takes for each sample to probe, before each batch, whether the loop has changed the dataset.

    The loop does so where processes load from copies of that, and each process, whether loading has.
    """
    if not work.watched:
        return 0.0
    held, probes = CopiedState(*work.watched), []
    for _ in range(3):
        began = time.perf_counter()
        held.changed()
        probes.append(time.perf_counter() - began)
    return min(probes) / (work.batch_size or 1)


def never_pays(work: Workload, cores: int, seconds: float, busy: float) -> bool:
    """Whether processes take longer for a sample than the calling thread, however long the epoch."""
    if "threads" in work.kinds or "processes" not in work.kinds:
        return False
    return _seconds_by_processes(work, cores, seconds, busy, per_byte=0.0)[-1] >= seconds


def _seconds_by_processes(
    work: Workload, cores: int, seconds: float, busy: float, per_byte: float = _HANDOVER_SECONDS_PER_BYTE
) -> tuple[Candidate, float, float]:
    """Return which processes would load, the bytes of a sample, and an estimate of the seconds that one takes."""
    sample = float(sum(map(len, flatten(work.view[0]))))
    by_bytes = _HANDOVER_SECONDS + sample * per_byte, 0.0
    handover, taking = by_bytes if work.sending is None else (work.sending.sent, work.sending.taken)
    candidate = candidates_of(work, cores, seconds, busy)[-1]
    each = _BATCH_SECONDS / (work.batch_size or 1)
    probe = probe_seconds(work)
    loop, handover = each + taking + probe, handover + each + probe
    at_least = max((seconds + handover) / candidate[1], loop)
    return candidate, sample, max(at_least, (busy + handover + loop) / cores)


def estimated_rate(
    work: Workload, cores: int, seconds: float, busy: float, share: float
) -> tuple[Candidate, float, float] | None:
    """Return the processes that make an epoch as short as a share of the calling thread's time, with estimates.

    The estimates are the bytes of a sample, and the samples per second. None: there are no such processes.
    """
    size = len(work.view)
    if "threads" in work.kinds or "processes" not in work.kinds or size * seconds * share < _START_SECONDS:
        return None
    candidate, sample, by_processes = _seconds_by_processes(work, cores, seconds, busy)
    epoch = _START_SECONDS + size * by_processes
    return (candidate, sample, size / epoch) if epoch < share * size * seconds else None
