"""The workers of a loader: their kind, their number, their pool and its lifetime."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import torch
from torch.utils.data import IterableDataset, Sampler

from foreload.batch.buffers import Buffers
from foreload.batch.spec import BatchSpec
from foreload.cache.budget import MemoryBudget
from foreload.cache.view import is_remote
from foreload.datasets.native import native_assembly
from foreload.protocol import Assembly
from foreload.record.recorder import Recorder
from foreload.record.stats import WorkersStats
from foreload.tune.between_epochs import Retuner
from foreload.tune.choose import Choice, choose_workers, remote_threads
from foreload.tune.costs import WorkerKind
from foreload.tune.interval import Observed
from foreload.tune.measure import Workload
from foreload.tune.within_epoch import Setting, Tuner
from foreload.workers.copies import own_copy
from foreload.workers.processes import ProcessPool
from foreload.workers.threads import ThreadPool
from foreload.workers.worker import WorkerTask
from foreload.workers.worker_info import WorkerIdentity

__all__ = ["Crew", "CrewSpec", "PoolOwner", "Workers", "check_workers"]

Workers = Literal["auto", "threads", "processes"]


def check_workers(workers: Any, num_workers: Any) -> Workers:
    """Return ``workers``; raise ValueError or TypeError if it or ``num_workers`` makes no sense."""
    if workers not in get_args(Workers):
        raise ValueError(f"workers must be 'auto', 'threads' or 'processes', got {workers!r}")
    if isinstance(num_workers, str):
        if num_workers != "auto":
            raise ValueError(f"num_workers must be an int or 'auto', got {num_workers!r}")
    elif isinstance(num_workers, bool) or not hasattr(num_workers, "__index__"):
        raise TypeError(f"num_workers must be an int or 'auto', got {num_workers!r}")
    kind: Workers = workers
    return kind


class Pool(Protocol):
    """A pool of workers of either kind."""

    def close(self) -> None:
        """End the workers."""


class PoolOwner:
    """Ends persistent workers once neither the loader nor an epoch holds it any more.

    >>> class Workers:
    ...     def close(self): print("ended")
    >>> loader = PoolOwner(Workers()); epoch = loader
    >>> del loader
    >>> del epoch
    ended
    """

    def __init__(self, pool: Pool) -> None:
        # Also runs when the interpreter exits.
        self.close = weakref.finalize(self, pool.close)


@dataclass(frozen=True)
class CrewSpec:
    """The workers that a loader needs for an epoch.

    Attributes:
        dataset: the user's dataset.
        view: the dataset as workers see it: through the cache, with the loader's transform.
        batches: how batches are made.
        workers: the kind that the user requested.
        count: the number of workers.
        is_auto: whether their number is left to the loader.
        persistent: whether they outlive an epoch.
        init: ``worker_init_fn``.
        context: the context of ``multiprocessing``; None: torch's.
        prefetch_factor: batches made ahead per worker.
        prefetch_given: whether the user chose ``prefetch_factor``.
        deepens: whether tuning may make more batches ahead.
        reuses_memory: whether memory that samples free is kept for later samples.
        memory: the budget of the cache and the batches made ahead.
    """

    dataset: Any
    view: Any
    batches: BatchSpec
    workers: Workers
    count: int
    is_auto: bool
    persistent: bool
    init: Callable[[int], object] | None
    context: Any
    prefetch_factor: int | None
    prefetch_given: bool
    deepens: bool
    reuses_memory: bool
    memory: MemoryBudget

    @property
    def is_stream(self) -> bool:
        """Whether the dataset is iterable."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def is_tuned(self) -> bool:
        """Whether the number of workers may change: it is left to the loader, and does not change samples."""
        return self.is_auto and self.init is None and not self.is_stream and not is_remote(self.dataset)


class Crew:
    """The workers of one loader.

    Args:
        recorder: the loader's recorder.
        resized: called with the number of workers when it changes.

    Attributes:
        recorder: the loader's recorder.
        choice: the workers that were chosen by measuring; None if there is nothing to choose, or not yet.
        count: the number of workers of the present epoch.
        changes: the changes that tuning made and their reasons, in words.
        tuner: tunes the threads within an epoch.
        pool: the persistent workers, if there are any.
    """

    def __init__(self, recorder: Recorder, resized: Callable[[int], None]) -> None:
        self.recorder = recorder
        self.choice: Choice | None = None
        self.count = 0
        self.changes: list[str] = []
        self.tuner: Tuner | None = None
        self._resized = resized
        self._retuner = Retuner(self.changes)
        self.pool: ThreadPool | ProcessPool | None = None
        self._owner: PoolOwner | None = None
        self._copies: list[Any] | None = None  # of an iterable dataset, for persistent threads

    def kind(self, asked: Workers, count: int) -> WorkerKind:
        """Return the kind of ``count`` workers if the user requested ``asked``."""
        kind = asked if self.choice is None else self.choice.kind
        return "processes" if kind == "processes" and count > 0 else "threads"

    def set_count(self, count: int) -> None:
        """Change the number of workers, here and in the loader."""
        self.count = count
        self._resized(count)

    def choose(self, spec: CrewSpec, batches: Callable[[WorkerKind, int, int | None, Sampler[int]], Any]) -> None:
        """Choose the workers once, before they are first needed, if the choice is left to the loader.

        Args:
            spec: the loader's needs.
            batches: begins to load with trial workers; see :class:`~foreload.tune.measure.Workload`.
        """
        dataset = spec.dataset
        if spec.workers == "processes" or self.choice is not None or spec.count == 0:
            return
        if not isinstance(dataset, Sized) or spec.is_stream:
            return
        batch_size = spec.batches.batch_size
        if is_remote(dataset):
            count = remote_threads(batch_size) if spec.is_auto else spec.count
            self.choice = Choice("threads", count, "samples come from a server, and waiting takes no core")
            self.set_count(count)
            return
        if spec.workers == "threads" or native_assembly(spec.batches, dataset, (0, 0), Buffers()) is not None:
            return
        size = batch_size if spec.batches.auto_collation else None
        work = Workload(spec.view, size, spec.prefetch_factor, spec.memory.limit, batches)
        self.choice = choose_workers(work, None if spec.is_auto else spec.count)
        if spec.is_auto:
            self.set_count(self.choice.count)

    def retune(self, spec: CrewSpec) -> None:
        """Change the number of workers or the cache's budget between epochs, if past epochs say that it pays."""
        if spec.is_tuned and not spec.persistent:
            kind = self.kind(spec.workers, spec.count)
            observed = Observed(self.recorder, kind, spec.count, spec.batches.cache)
            count = self._retuner.begin(observed, spec.memory, spec.prefetch_factor)
            if count != spec.count:
                self.set_count(count)

    def tune(self, spec: CrewSpec, assembly: Assembly) -> int:
        """Return the number of batches that threads make ahead; prepare tuning if that is left to the loader."""
        # Per thread; None: the assembly says how many in all.
        each = (spec.prefetch_factor or 0) if assembly.depth is None or spec.prefetch_given else None
        depth = (assembly.depth or 1) if each is None else max(1, each * spec.count)
        if not spec.is_tuned:
            self.tuner = None
        elif self.tuner is None:
            setting = Setting(spec.count, depth)
            self.tuner = Tuner(setting, each, self.changes, deeper=spec.deepens)
        return depth if self.tuner is None else self.tuner.setting.depth

    def thread_pool(self, spec: CrewSpec, seed: int) -> tuple[ThreadPool, PoolOwner | None]:
        """Return the threads for an epoch, new or persistent, and the owner that ends persistent ones."""
        if not isinstance(self.pool, ThreadPool) or self.pool.closed:
            identity = WorkerIdentity(spec.count, seed, spec.dataset, spec.init)
            self._keep(spec, pool := ThreadPool(spec.count, identity, self.recorder.spans))
            return pool, self._owner
        return self.pool, self._owner

    def process_pool(self, spec: CrewSpec, seed: int) -> tuple[ProcessPool, PoolOwner | None]:
        """Return the processes for an epoch, new or persistent, and the owner that ends persistent ones."""
        if not isinstance(self.pool, ProcessPool) or self.pool.closed:
            # This process pins memory, and the view has the cache in it already.
            batches = replace(spec.batches, errors=[], pin_device=None, cache=None, lookahead=False)
            task = WorkerTask(batches, spec.view, spec.init, spec.count, seed, reuses=spec.reuses_memory)
            pool = ProcessPool(task, spec.context or torch.multiprocessing, self.recorder.spans)
            self._keep(spec, pool)
            return pool, self._owner
        return self.pool, self._owner

    def _keep(self, spec: CrewSpec, pool: ThreadPool | ProcessPool) -> None:
        self.pool, self._owner = (pool, PoolOwner(pool)) if spec.persistent else (None, None)

    def copies(self, spec: CrewSpec) -> list[Any]:
        """Return the iterable dataset for each thread that reads it.

        Each thread has a copy, as worker processes do. If the number of workers is left to the loader, one thread
        reads the dataset itself, as torch does without workers: changes to it stay.
        """
        copies = self._copies or [
            spec.dataset if spec.is_auto else own_copy(spec.dataset) for _ in range(spec.count)
        ]
        if spec.persistent:
            self._copies = copies
        return copies

    def stats(self, workers: Workers, count: int, *, is_auto: bool, is_stream: bool) -> WorkersStats:
        """Return which workers load, and why; the arguments are what the user requested."""
        last, choice = self.recorder.last, self.choice
        return {
            "kind": self.kind(workers, count),
            "count": count,
            "why": self._why(workers, count, is_auto, is_stream) if choice is None else choice.why,
            "samples_per_second": {} if choice is None else choice.rates,
            "choosing_seconds": 0.0 if choice is None else choice.seconds,
            "depth": 0 if last is None else int(last.depth),
            "tuning": list(self.changes),
        }

    def _why(self, workers: Workers, count: int, is_auto: bool, is_stream: bool) -> str:
        """Return the reason for the kind and number of workers, if nothing was measured."""
        if count == 0 or not (is_auto or workers == "auto"):
            return "as requested"
        if is_stream:
            by_threads = is_auto and self.kind(workers, count) == "threads"
            return "one stream, read ahead" if by_threads else "as requested"
        if workers == "auto" and self.recorder.last is None:
            return "to be chosen when an epoch begins"
        why = ["native code needs no processes"] if workers == "auto" else []
        return ", ".join([*why, "one per core before any tuning"] if is_auto else why)

    def close(self) -> None:
        """End persistent workers."""
        if self._owner is not None:
            self._owner.close()
        self.pool = self._owner = self._copies = None
