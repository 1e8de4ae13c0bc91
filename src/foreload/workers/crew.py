"""The workers of a loader: their kind, their number, their pool and its lifetime."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from foreload.batch.failure import EpochErrors
from foreload.options import Cache, WorkerKind
from foreload.protocol import Assembly
from foreload.record.recorder import Recorder
from foreload.threads import are_over
from foreload.tune.choice import Choice
from foreload.workers.comparison import Comparison
from foreload.workers.copies import own_copy
from foreload.workers.selection import TrialLoading, is_outdated, is_selected, select_workers, sent_parts
from foreload.workers.spec import CopyWatch, CrewSpec, Workers
from foreload.workers.start.method import start_method
from foreload.workers.threads import ThreadPool
from foreload.workers.worker_info import WorkerIdentity

if TYPE_CHECKING:
    from foreload.cache.loader_cache import CacheSpec, LoaderCache
    from foreload.record.stats import WorkersStats
    from foreload.tune.between_epochs import Retuner
    from foreload.tune.within_epoch import Tuner
    from foreload.workers.pool import WorkerPool
    from foreload.workers.processes.pool import ProcessPool
    from foreload.workers.ray.pool import RayPool
    from foreload.workers.worker import WorkerTask

__all__ = ["Crew", "PoolOwner"]


class Pool(Protocol):
    """A pool of workers of any kind."""

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


class Crew:
    """The workers of one loader.

    Args:
        recorder: the loader's recorder.
        resized: called with the number of workers when it changes, while the loader is there.

    Attributes:
        recorder: the loader's recorder.
        choice: the workers that were chosen by measuring; None if there is nothing to choose, or not yet.
        comparison: of its processes with the calling thread, which was measured too; None: it was not.
        count: the number of workers of the present epoch.
        changes: the changes that tuning made and their reasons, in words.
        tuner: tunes the threads within an epoch.
        pool: the persistent workers, if there are any.
        held: what their copies of the dataset are compared with, if it matters that they are copies.
        firsts: the indices of the first batch that the loop got from them.
    """

    def __init__(self, recorder: Recorder, resized: weakref.WeakMethod[Callable[[int], None]]) -> None:
        self.recorder = recorder
        self.choice: Choice | None = None
        self._chosen_in = os.getpid()
        self.comparison: Comparison | None = None
        self.count = 0
        self.changes: list[str] = []
        self.tuner: Tuner | None = None
        self._resized = resized
        self._retuner: Retuner | None = None
        self.pool: ThreadPool | WorkerPool[Any] | None = None
        self._owner: PoolOwner | None = None
        self._pool_task: WorkerTask | None = None
        self._copies: list[Any] | None = None  # of an iterable dataset, for persistent threads
        self.held: Any = None
        self.firsts: list[Any] = []
        self._stood_down: tuple[Choice, int] | None = None  # the choice that counts again after some epochs

    def kind(self, asked: Workers, count: int) -> WorkerKind:
        """Return the kind of ``count`` workers if the user requested ``asked``."""
        kind = asked if self.choice is None else self.choice.kind
        return kind if kind in ("processes", "ray") and count > 0 else "threads"

    @property
    def has_pool(self) -> bool:
        """Whether there are persistent workers."""
        return self.pool is not None and not self.pool.closed

    @property
    def is_open(self) -> bool:
        """Whether other workers might be chosen for the same dataset, at another time or place."""
        return self.choice is not None and self.choice.is_open

    def new_cache(self, asked: Workers, spec: CacheSpec, options: Cache) -> LoaderCache:
        """Return a cache for the loader: in this process' memory, or on the nodes of a Ray cluster."""
        if self.kind(asked, spec.num_workers) != "ray":
            from foreload.cache.loader_cache import LoaderCache

            return LoaderCache(spec, options)
        from foreload.workers.ray.caches import NodeCaches

        return NodeCaches(spec, options)

    def set_count(self, count: int) -> None:
        """Change the number of workers, here and in the loader."""
        self.count = count
        if (resized := self._resized()) is not None:
            resized(count)

    def choose(self, spec: CrewSpec, trial: TrialLoading, *, may_measure: bool = True) -> None:
        """Choose the workers once, before they are first needed, if the choice is left to the loader.

        Args:
            spec: the loader's needs.
            trial: loading with trial workers.
            may_measure: whether loading can be measured now.
        """
        if spec.workers == "ray" and spec.is_auto and not self.count:
            from foreload.workers.ray.cluster import count_cpus

            self.set_count(count_cpus())
        if not is_selected(spec):
            return
        # Another process may not be one that can start workers.
        is_own = self._chosen_in == os.getpid()
        if self.choice is not None and is_own and not is_outdated(spec, self.choice):
            return
        self._chosen_in = os.getpid()
        self.choice = select_workers(spec, trial, may_measure=may_measure)
        alone = self.choice.rates.get("none")
        self.comparison = None if alone is None else Comparison(alone, self.recorder.spans)
        if self.choice.count != spec.count:
            self.set_count(self.choice.count)

    def stand_down(self, why: str, epochs: int | None) -> None:
        """Let the calling thread load instead of the workers that were chosen.

        Args:
            why: the reason, for the loader's report.
            epochs: the number of coming epochs for which it does; None: all.
        """
        if self.choice is None:
            return
        self._stood_down = None if epochs is None else (replace(self.choice, count=self.count), epochs)
        self.choice = replace(self.choice, kind="threads", count=0, why=why, is_pure=False, made_of={})
        self.changes.append(why)
        self.close()
        self.set_count(0)

    def start_over(self) -> None:
        """Forget what was chosen and tuned, since the user has set another number of workers."""
        self.leave_pool()  # an epoch that is under way goes on with them
        self.choice = self.tuner = self._retuner = self._stood_down = None

    def begin(self) -> None:
        """Begin an epoch: let workers that stood down for a while load again."""
        if self._stood_down is None:
            return
        choice, epochs = self._stood_down
        if epochs:
            self._stood_down = choice, epochs - 1
        else:
            self._stood_down, self.choice = None, choice
            self.set_count(choice.count)

    def retune(self, spec: CrewSpec) -> None:
        """Change the number of workers or the cache's budget between epochs, if past epochs say that it pays."""
        kind = self.kind(spec.workers, spec.count)
        # The calling thread loads what threads may not share, or has been found the fastest within an epoch.
        is_fixed = kind == "threads" and spec.count == 0 and spec.workers == "auto"
        if not (is_fixed or spec.persistent) and spec.is_tuned:
            from foreload.tune.between_epochs import Retuner
            from foreload.tune.interval import Observed

            self._retuner = self._retuner or Retuner(self.changes)
            observed = Observed(self.recorder, kind, spec.count, spec.batches.cache)
            count = self._retuner.begin(observed, spec.memory, spec.prefetch_factor)
            if count != spec.count:
                self.set_count(count)

    @property
    def is_alone(self) -> bool:
        """Whether tuning has found that the calling thread makes batches faster than threads do."""
        return self.tuner is not None and self.tuner.setting.threads == self.count == 0

    def tune(self, spec: CrewSpec, assembly: Assembly, *, alone: bool) -> int:
        """Return the number of batches that threads make ahead; prepare tuning if that is left to the loader.

        Args:
            spec: the loader's needs.
            assembly: makes the batches.
            alone: whether the calling thread may make batches, too.
        """
        # Per thread; None: the assembly says how many in all.
        each = (spec.prefetch_factor or 0) if assembly.depth is None or spec.prefetch_given else None
        depth = (assembly.depth or 1) if each is None else max(1, each * spec.count)
        if not spec.is_tuned:
            self.tuner = None
        elif self.tuner is None:
            from foreload.tune.within_epoch import Setting, Tuner

            setting = Setting(spec.count, depth)
            self.tuner = Tuner(setting, each, self.changes, deeper=spec.deepens)
        if self.tuner is not None:
            self.tuner.may_be_alone = alone
        return depth if self.tuner is None else self.tuner.setting.depth

    def thread_pool(self, spec: CrewSpec, seed: int) -> tuple[ThreadPool, PoolOwner | None]:
        """Return the threads for an epoch, new or persistent, and the owner that ends persistent ones."""
        if not isinstance(self.pool, ThreadPool) or self.pool.closed or self._is_stuck(self.pool):
            identity = WorkerIdentity(spec.count, seed, spec.dataset, spec.init)
            self._keep(spec, pool := ThreadPool(spec.count, identity, self.recorder.spans))
            return pool, self._owner
        return self.pool, self._owner

    def process_pool(
        self, spec: CrewSpec, seed: int, held: CopyWatch | None = None
    ) -> tuple[ProcessPool, PoolOwner | None, WorkerTask | None]:
        """Return the processes for an epoch, the owner that ends them if they persist, and their task.

        Args:
            spec: the loader's needs.
            seed: the base seed.
            held: notices what loading changes in a worker's copy of the dataset, if nothing may.
        """
        from foreload.workers.processes.pool import ProcessPool

        last = self.pool
        if not isinstance(last, ProcessPool) or last.closed or self._is_stuck(last):
            task = replace(_task(spec, seed), held=held)
            pool = ProcessPool(task, spec.context or torch.multiprocessing.get_context(), self.recorder.spans)
            if held is not None and start_method(spec.context) != "fork":
                held.sent()
            pool.succeed(last)
            self._keep(spec, pool)
            self._pool_task = None if self._owner is None else task
            return pool, self._owner, task
        return last, self._owner, self._pool_task

    def ray_pool(self, spec: CrewSpec, seed: int) -> tuple[RayPool, PoolOwner | None]:
        """Return the actors for an epoch, new or persistent, and the owner that ends persistent ones."""
        from foreload.workers.ray.caches import NodeCaches
        from foreload.workers.ray.pool import RayPool

        last = self.pool
        if not isinstance(last, RayPool) or last.closed or self._is_stuck(last):
            cache = spec.batches.cache
            caches = cache if isinstance(cache, NodeCaches) else None
            self._keep(spec, pool := RayPool(_task(spec, seed), self.recorder.spans, caches))
            pool.succeed(last)
            return pool, self._owner
        return last, self._owner

    def _keep(self, spec: CrewSpec, pool: ThreadPool | WorkerPool[Any]) -> None:
        is_kept = spec.persistent and not are_over()  # or nothing would end it
        self.pool, self._owner = (pool, PoolOwner(pool)) if is_kept else (None, None)

    def _is_stuck(self, pool: ThreadPool | ProcessPool | RayPool) -> bool:
        """Whether a persistent worker is late since the epoch before; if so, end them all."""
        if pool.is_late:
            self.close()
        return pool.is_late

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

    def stats(self, workers: Workers, count: int, *, is_auto: bool) -> WorkersStats:
        """Return which workers load, and why; the arguments are what the user requested."""
        last, choice = self.recorder.last, self.choice
        why = self._why(workers, count, is_auto) if choice is None else choice.why
        is_alone = self.is_alone and count == 0
        if is_alone:
            why = "the calling thread makes batches faster than threads hand them over"
        return {
            "kind": self.kind(workers, count),
            "count": count,
            "why": why,
            "samples_per_second": {} if choice is None else choice.rates,
            "choosing_seconds": 0.0 if choice is None else choice.seconds,
            "depth": 0 if last is None else int(last.depth),
            "tuning": list(self.changes),
            "alone": is_alone,
        }

    def _why(self, workers: Workers, count: int, is_auto: bool) -> str:
        """Return the reason for the kind and number of workers, if they were not chosen."""
        if count == 0 or not (is_auto or workers == "auto"):
            return "as requested"
        return "to be chosen when an epoch begins" if workers == "auto" else "one per core before any tuning"

    def close(self) -> None:
        """End persistent workers."""
        if self._owner is not None:
            self._owner.close()
        self.leave_pool()

    def leave_pool(self) -> None:
        """Leave persistent workers to the epochs that have them, and start others for the next one."""
        self.pool = self._owner = self._pool_task = self._copies = self.held = None


def _task(spec: CrewSpec, seed: int) -> WorkerTask:
    """Return what a worker in another process is started with."""
    from foreload.workers.worker import WorkerTask

    # The loop's process pins memory, and the view has the cache in it already.
    batches = replace(spec.batches, errors=EpochErrors(), pin_device=None, cache=None, lookahead=False)
    is_chosen = spec.workers == "auto" and spec.is_auto
    is_hidden = is_chosen and spec.init is None and not spec.is_stream
    task = WorkerTask(batches, spec.view, spec.init, spec.count, seed, spec.reuses_memory, is_chosen, is_hidden)
    if not is_chosen or start_method(spec.context) == "fork":
        return task
    from foreload.dataset_state.program.settings import LoopSettings
    from foreload.dataset_state.program.state import ProgramState

    # (Without worker_init_fn, the calling thread loads in the place of workers that lack something.)
    program = None if spec.init is None else ProgramState(*sent_parts(spec))
    return replace(task, settings=LoopSettings(), program=program)
