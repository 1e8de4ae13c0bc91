"""The workers that are tried for a loader, and those that cannot pay."""

from __future__ import annotations

import time

from foreload.cache.serialize import flatten
from foreload.dataset_state.copied import CopiedState
from foreload.options import WorkerKind
from foreload.tune.workload import Workload

__all__ = ["MAX_THREADS", "Candidate", "candidates_of", "look_seconds", "never_pays", "seconds_by_processes"]

# The kind and number of workers; none: the thread of the loop.
Candidate = tuple[WorkerKind, int]

# Threads that only wait take no core, so there may be many of them.
MAX_THREADS = 32

_PROCESSES_PER_CORE = 4  # at most, for samples that wait

# What handing a sample over takes of a core.
_HANDOVER_SECONDS, _HANDOVER_SECONDS_PER_BYTE = 2e-6, 1.5e-10

# What a process, and the loop, take of a core to hand a batch over, waking up included.
_BATCH_SECONDS = 2e-4


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


def look_seconds(work: Workload) -> float:
    """Return what it takes for each sample to look, before each batch, whether the loop has changed the dataset.

    The loop does so where processes load from copies of that, and each process, whether loading has.
    """
    if not work.watched:
        return 0.0
    held, looks = CopiedState(*work.watched), []
    for _ in range(3):
        began = time.perf_counter()
        held.changed()
        looks.append(time.perf_counter() - began)
    return min(looks) / (work.batch_size or 1)


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
    by_bytes = _HANDOVER_SECONDS + sample * _HANDOVER_SECONDS_PER_BYTE, 0.0
    handover, taking = by_bytes if work.sending is None else (work.sending.sent, work.sending.taken)
    candidate = candidates_of(work, cores, seconds, busy)[-1]
    each = _BATCH_SECONDS / (work.batch_size or 1)
    look = look_seconds(work)
    loop, handover = each + taking + look, handover + each + look
    at_least = max((seconds + handover) / candidate[1], loop)
    return candidate, sample, max(at_least, (busy + handover + loop) / cores)
