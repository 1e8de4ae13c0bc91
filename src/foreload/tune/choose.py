"""Choice between threads and processes, and of their number, by a short measurement.

Whether threads pay depends on how long a sample holds the interpreter's lock, which cannot be seen from outside.
So the candidates load some samples of the dataset itself; see :mod:`foreload.tune.measure`.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass, field, replace

from foreload.machine import granted_cores, granted_memory
from foreload.record.units import workers
from foreload.tune.costs import WorkerKind
from foreload.tune.measure import (
    MAX_THREADS,
    MEMORY_SHARE,
    TINY_SAMPLE_SECONDS,
    Candidate,
    Rates,
    Workload,
    measure_workers,
)

__all__ = ["Choice", "choose_workers", "remote_threads"]

# Datasets with fewer samples are not measured.
_MIN_SAMPLES = 256

# Of two kinds that are as good, threads: they share the dataset and start at once.
_KIND_WEIGHTS = {"threads": 1.1, "processes": 1.0}

# Workers leave the loop free for other work, so loading without any must be better by this.
_MIN_GAIN_WITHOUT_WORKERS = 1.1

# Samples that are requested from a server at a time, and the fewest threads that request them.
_SAMPLES_IN_FLIGHT, _MIN_REMOTE_THREADS = 768, 2


def remote_threads(batch_size: int | None) -> int:
    """Return the number of threads for samples on a server, each of which requests one batch at a time.

    >>> remote_threads(64), remote_threads(1), remote_threads(1024)
    (12, 32, 2)
    """
    wanted = -(-_SAMPLES_IN_FLIGHT // max(1, batch_size or 1))
    return max(_MIN_REMOTE_THREADS, min(MAX_THREADS, wanted))


@dataclass(frozen=True)
class Choice:
    """The workers that load the samples.

    Attributes:
        kind: threads or processes.
        count: their number; 0: the calling thread loads.
        why: the reason, in words.
        rates: samples per second that were measured.
        seconds: the time that measuring took.
    """

    kind: WorkerKind
    count: int
    why: str
    rates: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def choose_workers(work: Workload, count: int | None) -> Choice:
    """Choose the workers for a map-style dataset that Python loads.

    Args:
        work: what they load.
        count: the number of workers that the user wants; None: the best number.
    """
    cores = granted_cores()
    threads = Choice("threads", cores if count is None else count, "threads are the rule")
    size = len(work.view)
    if size < _MIN_SAMPLES:
        return replace(threads, why=f"only {size} samples")
    if "fork" not in multiprocessing.get_all_start_methods():
        return replace(threads, why="this system cannot fork, which measuring needs")
    began = time.monotonic()
    measured = measure_workers(work, count, cores)
    took = time.monotonic() - began
    if ("threads", 0) not in measured.rates:
        return replace(threads, why=f"the samples could not be measured ({measured.trouble})", seconds=took)
    best = _best(measured.rates, count, cores, size, measured.missing, measured.trouble)
    batches = max(1, work.prefetch_factor or 1) * measured.sample_bytes * (work.batch_size or 1)
    room = int(MEMORY_SHARE * granted_memory() / batches) if batches else best.count
    if count is None and best.count > max(1, room):
        why = f"{best.why}, but {batches / (1 << 20):,.0f} MiB each are too much for more than {max(1, room)}"
        best = replace(best, count=max(1, room), why=why)
    return replace(best, seconds=took)


def _best(
    measured: Rates, count: int | None, cores: int, size: int, missing: list[Candidate], trouble: str
) -> Choice:
    rates = {f"{number} {kind}" if number else "none": rate for (kind, number), rate in measured.items()}
    alone = measured["threads", 0]
    others = {choice: rate for choice, rate in measured.items() if choice[1] > 0}
    if not others:
        why = f"an epoch takes {size / alone:.2g} s in one thread"
        if trouble:
            why = f"the samples could not be measured ({trouble})"
        return Choice("threads", cores if count is None else count, why, rates)
    best = max(others, key=lambda choice: (others[choice] * _KIND_WEIGHTS[choice[0]], -choice[1]))
    if missing:
        # One that was not measured may be better than all of them.
        unmeasured = " and ".join(workers(number, kind) for kind, number in missing)
        why = f"{unmeasured} could not be measured ({trouble})"
        return Choice(best[0], best[1], why, rates)
    if count is None and alone > _MIN_GAIN_WITHOUT_WORKERS * others[best]:
        times = f"{alone / others[best]:.2g} times"
        why = f"the loop's own thread loads {times} what {workers(best[1], best[0])} do"
        if 1 / alone < TINY_SAMPLE_SECONDS:
            why = f"a sample takes {1e6 / alone:.2g} us, less than handing it from a worker to the loop"
        return Choice("threads", 0, why, rates)
    why = f"{workers(best[1], best[0])} load {others[best] / alone:.2g} times what one thread does"
    return Choice(best[0], best[1], why, rates)
