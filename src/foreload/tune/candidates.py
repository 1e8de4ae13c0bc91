"""The workers that are tried for a loader, and those that cannot pay."""

from __future__ import annotations

from foreload.cache.serialize import flatten
from foreload.options import WorkerKind
from foreload.tune.workload import Workload

__all__ = ["MAX_THREADS", "Candidate", "candidates_of", "never_pays", "seconds_by_processes"]

# The kind and number of workers; none: the thread of the loop.
Candidate = tuple[WorkerKind, int]

# Threads that only wait take no core, so there may be many of them.
MAX_THREADS = 32

_PROCESSES_PER_CORE = 4  # at most, for samples that wait

# What handing a sample over takes of a core.
_HANDOVER_SECONDS, _HANDOVER_SECONDS_PER_BYTE = 2e-6, 1.5e-10


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


def never_pays(work: Workload, cores: int, seconds: float, busy: float) -> bool:
    """Whether processes take longer for a sample than the calling thread, however long the epoch."""
    if "threads" in work.kinds or "processes" not in work.kinds:
        return False
    return seconds_by_processes(work, cores, seconds, busy)[-1] >= seconds


def seconds_by_processes(
    work: Workload, cores: int, seconds: float, busy: float
) -> tuple[Candidate, float, float]:
    """Return which processes would load, the bytes of a sample, and an estimate of the seconds that one takes."""
    sample = float(sum(map(len, flatten(work.view[0]))))
    handover = _HANDOVER_SECONDS + sample * _HANDOVER_SECONDS_PER_BYTE
    candidate = candidates_of(work, cores, seconds, busy)[-1]
    return candidate, sample, max((seconds + handover) / candidate[1], (busy + handover) / cores)
