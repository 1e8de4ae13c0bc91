"""Choice between threads, processes and the calling thread, by a short measurement.

Which is fastest depends on how long a sample holds the interpreter's lock, which cannot be seen from outside. So
the candidates load some samples of the dataset itself; see :mod:`foreload.tune.measure`. Candidates are those only
that load the same samples: threads if they may share the dataset, processes if copies of it are as good.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace

from foreload.machine import granted_cores, granted_memory
from foreload.record.units import workers
from foreload.tune.candidates import MAX_THREADS, MEMORY_SHARE, TINY_SAMPLE_SECONDS, Measurement
from foreload.tune.choice import Choice
from foreload.tune.measure import TOO_LONG, measure_workers
from foreload.tune.workload import Workload

__all__ = ["choose_workers", "remote_threads"]

# Datasets with fewer samples are not measured.
_MIN_SAMPLES = 32

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


def choose_workers(work: Workload) -> Choice:
    """Choose the kind and number of workers for a map-style dataset that Python loads.

    Args:
        work: what they load, and the kinds of workers that may load it.
    """
    cores = granted_cores()
    threads = "threads" in work.kinds
    unmeasured = Choice("threads", cores if threads else 0, "")
    size = len(work.view)
    if not work.kinds:
        return unmeasured
    if size < _MIN_SAMPLES:
        return replace(unmeasured, why=f"only {size} samples")
    if "fork" not in multiprocessing.get_all_start_methods():
        return replace(unmeasured, why="this system cannot fork, which measuring needs")
    began = time.monotonic()
    measured = measure_workers(work, cores)
    took = time.monotonic() - began
    if measured.state and not (threads and measured.rates):
        is_pure = bool(work.watched) and measured.is_pure
        return replace(unmeasured, why=measured.state, seconds=took, is_pure=is_pure)
    if ("threads", 0) not in measured.rates:
        why = f"the samples could not be measured ({measured.trouble})"
        return replace(unmeasured, why=why, seconds=took)
    best = _best(measured, unmeasured, size)
    batches = max(1, work.prefetch_factor or 1) * measured.sample_bytes * (work.batch_size or 1)
    room = int(MEMORY_SHARE * granted_memory() / batches) if batches else best.count
    if best.count > max(1, room):
        why = f"{best.why}, but {batches / (1 << 20):,.0f} MiB each are too much for more than {max(1, room)}"
        best = replace(best, count=max(1, room), why=why)
    is_pure = bool(work.watched) and measured.is_pure
    return replace(best, seconds=took, is_pure=is_pure, fills=measured.fills)


def _best(measured: Measurement, unmeasured: Choice, size: int) -> Choice:
    rates = {f"{number} {kind}" if number else "none": rate for (kind, number), rate in measured.rates.items()}
    alone = measured.rates["threads", 0]
    others = {
        choice: rate
        for choice, rate in measured.rates.items()
        if choice[1] > 0 and (choice[0] == "processes" or unmeasured.count > 0)
    }
    if not others:
        if 1 / alone < TINY_SAMPLE_SECONDS:
            return Choice("threads", 0, _too_tiny(alone), rates)
        why = f"an epoch takes {size / alone:.2g} s in one thread"
        if measured.trouble in ("", TOO_LONG) and measured.missing:
            kind, number = measured.missing[0]
            return Choice(
                kind, number, f"a sample takes {1 / alone:.2g} s, too long to try several settings", rates
            )
        if measured.trouble:
            why = f"the samples could not be measured ({measured.trouble})"
        return replace(unmeasured, why=why, rates=rates)
    best = max(others, key=lambda choice: (others[choice] * _KIND_WEIGHTS[choice[0]], -choice[1]))
    if measured.missing:
        # One that was not measured may be better than all of them.
        names = " and ".join(workers(number, kind) for kind, number in measured.missing)
        return Choice(best[0], best[1], f"{names} could not be measured ({measured.trouble})", rates)
    if alone > _MIN_GAIN_WITHOUT_WORKERS * others[best]:
        times = f"{alone / others[best]:.2g} times"
        why = f"the loop's own thread loads {times} what {workers(best[1], best[0])} do"
        if 1 / alone < TINY_SAMPLE_SECONDS:
            why = _too_tiny(alone)
        return Choice("threads", 0, why, rates)
    load = "should load" if measured.is_estimated else "load"
    why = f"{workers(best[1], best[0])} {load} {others[best] / alone:.2g} times what one thread does"
    return Choice(best[0], best[1], why, rates)


def _too_tiny(rate: float) -> str:
    return f"a sample takes {1e6 / rate:.2g} us, less than handing it from a worker to the loop"
