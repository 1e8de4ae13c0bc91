"""Epochs whose batches are made by worker threads, with or without tuning."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from foreload import _native
from foreload.batch.samples import SampleAssembly
from foreload.dataset_state.values import EpochValues
from foreload.epochs.base import Epoch, EpochSpec
from foreload.protocol import Assembly, Batch
from foreload.tune.interval import Observed
from foreload.tune.within_epoch import Tuner
from foreload.workers.crew import Crew, PoolOwner
from foreload.workers.threads import ThreadPool, no_job

__all__ = ["ThreadEpoch", "TunedEpoch"]


class ThreadEpoch(Epoch):
    """Keeps ``depth`` batches queued for the threads of a pool, or made by them.

    Args:
        spec: the loader as the epoch sees it.
        assembly: makes batches.
        pool: the threads.
        depth: the number of batches made ahead.
        owner: ends persistent threads; if there is none, they end with the epoch.
    """

    def __init__(
        self, spec: EpochSpec, assembly: Assembly, pool: ThreadPool, *, depth: int, owner: PoolOwner | None
    ) -> None:
        self._completions = _native.Completions()  # which wake() needs
        super().__init__(spec)
        self._assembly = assembly
        self._pool = pool
        self._depth = depth
        self.copies = 2 if isinstance(assembly, SampleAssembly) else 1  # of a batch while it is made
        self._owner = owner
        self._timeout = spec.timeout or 0
        self._in_order = spec.in_order
        self._held = EpochValues(spec.dataset)
        self._making: deque[Batch] = deque()
        self._numbers: dict[_native.Job, tuple[int, int]] = {}  # the number of the batch, and of its samples
        self._finished: set[_native.Job] = set()
        self._exhausted = False
        self._is_torn = False  # while a batch is neither in the queue nor with the loop
        self._is_waiting = False
        # Also runs when the interpreter exits while an epoch is open.
        self._close = weakref.finalize(self, _end, pool, self._completions, owner is None)
        pool.watch(self._completions)
        if spec.draws_at_once:
            try:
                self._fill(self._memory.depth(self._depth, self._store, copies=self.copies))
            except BaseException:  # nobody gets this epoch, and so nobody would end its threads
                self.close()
                raise

    def _deliver(self) -> Any:
        if self._is_torn:
            raise RuntimeError(
                "the loop was interrupted while this epoch drew or delivered a batch, which its iterator has "
                "lost: iterate over the loader again; to go on here, load_state_dict(loader.state_dict()) first"
            )
        try:
            batch = super()._deliver()
        except BaseException as error:  # any other is the batch's own, which the loop gets in its place
            self._is_torn = self._is_torn and isinstance(error, KeyboardInterrupt)
            raise
        self._is_torn = False
        return batch

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        self._is_torn = False  # the batch before may have been left out, as all its samples failed
        depth = self._memory.depth(self._depth, self._store, copies=self.copies)
        self._watch.depth = depth
        self._fill(depth)
        if not self._making:
            self.close()
            # A worker may have failed to start after the last batch was made.
            if self._pool.failure is not None:
                raise self._pool.failure
            raise StopIteration
        batch = self._await()
        self._held.warn()
        # The caller still holds the previous batch, whose memory the last batch ahead could use. But a sampler of
        # the user's may draw from the loop's generators, so it is asked when torch does it.
        is_left = self._spec.draws_at_once and (not self._order.is_array or self._order.is_users_draw)
        self._fill(depth if is_left else max(1, depth - 1), ahead=True)
        return *self._numbers.pop(batch.job), batch.take

    def _fill(self, depth: int, *, ahead: bool = False) -> None:
        while len(self._making) < depth and not self._exhausted:
            is_seen = self._spec.draws_at_once and self._order.is_users_draw
            if (self._making or ahead) and not (is_seen or self._order.may_draw_ahead):
                return
            was_torn, self._is_torn = self._is_torn, True
            self._submit_next()
            self._is_torn = was_torn

    def _submit_next(self) -> None:
        try:
            indices = self._draw()
        except StopIteration:
            self._exhausted = True
            return
        except Exception as error:
            self._exhausted = True
            if self._spec.draws_at_once:
                raise  # early, as torch does
            self._fail(error, self._order.num_drawn)
            return
        samples = self._samples_of(indices)
        number = self._order.num_drawn - 1
        try:
            batch = self._assembly.start(indices)
        except Exception as error:
            self._fail(error, number)
            return
        self._making.append(batch)
        self._numbers[batch.job] = number, samples
        self._pool.submit(batch.job, self._completions, number)

    def _fail(self, error: BaseException, number: int) -> None:
        """Raise the error in place of the batch of this number."""

        def take() -> Any:
            raise error

        batch = Batch(no_job(), take)
        self._making.append(batch)
        self._numbers[batch.job] = number, 0
        self._finished.add(batch.job)

    def _await(self) -> Batch:
        """Wait for the oldest batch, or for any batch if order does not matter."""
        if self._is_waiting:  # until an interrupt, perhaps with what the wait had returned
            self._finished.update(batch.job for batch in self._making if batch.job.is_finished)
            self._is_waiting = False
        while True:
            for batch in [self._making[0]] if self._in_order else self._making:
                if batch.job in self._finished:
                    self._is_torn = True
                    self._making.remove(batch)
                    self._finished.discard(batch.job)
                    return batch
            if self._pool.closed:
                raise self._ended()
            self._is_waiting = True
            try:
                job = self._completions.wait(self._timeout, self._watch.lock)
                self._check_open()
            except Exception:
                self._is_waiting = False
                raise
            if job in self._numbers:  # not so if it was taken after an interrupt, or only wakes this thread
                self._finished.add(job)
            self._is_waiting = False
            if self._pool.failure is not None:
                self.close()
                raise self._pool.failure
            self._pool.is_late = job is None
            if job is None:  # as in torch, the loop may request the same batch again
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds{self._where()}")

    @staticmethod
    def _ended() -> RuntimeError:
        return RuntimeError(
            "this epoch's threads have ended, or belong to the parent of a fork; begin another epoch"
        )

    def _where(self) -> str:
        """Describe which samples the threads are loading, with their stacks."""
        if not isinstance(self._assembly, SampleAssembly):
            return ""
        stacks = self._pool.stacks()
        return "".join(
            f"; sample {indices[position]!r} (position {position} of its batch) is at {stacks[thread]}"
            for thread, (indices, position) in self._assembly.now.items()
            if thread in stacks
        )

    def wake(self) -> None:
        """Let a thread that waits for a batch look again whether the epoch goes on."""
        self._completions.push(no_job())

    def close(self) -> None:
        """End the epoch early; its threads end and its buffers are free."""
        self._is_closed = self._exhausted = True
        self._close()
        self.wake()
        with self._turn.lock:
            self._making.clear()
            self._finished.clear()


class TunedEpoch(ThreadEpoch):
    """An epoch whose number of threads and depth a tuner may change between two batches.

    Args:
        crew: the owner of the threads.
        tuner: proposes and judges changes.
        others: the arguments of :class:`ThreadEpoch`.
    """

    def __init__(self, crew: Crew, tuner: Tuner, *others: Any, **options: Any) -> None:
        # Of this epoch: others of the loader have threads of their own, or may have none.
        self._is_alone = crew.is_alone
        self._interrupted: tuple[Any, int] | None = None  # the batch that the calling thread was making
        super().__init__(*others, **options)
        self._crew = crew
        self._tuner = tuner
        self._due = self._left = tuner.begin()  # batches until the next look; 0: no more looks

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        is_alone = self._is_alone and not self._making
        number, samples, take = self._next_here() if is_alone or self._interrupted else super()._next()
        if self._left:
            self._left -= 1
            if self._left == 0:
                return number, samples, partial(self._look, take)
        return number, samples, take

    def _fill(self, depth: int, *, ahead: bool = False) -> None:
        if not self._is_alone:
            super()._fill(depth, ahead=ahead)

    def _next_here(self) -> tuple[int, int, Callable[[], Any]]:
        """Draw a batch that the calling thread makes."""
        self._watch.depth = 0
        if self._exhausted:
            raise StopIteration
        if self._pool.closed:
            raise self._ended()
        if self._interrupted is None:
            self._is_torn = True
            try:
                indices = self._draw()
            except StopIteration:
                self.close()
                raise
            number = self._order.num_drawn - 1
        else:
            indices, number = self._interrupted
        self._held.warn()
        return number, self._samples_of(indices), partial(self._make, indices, number)

    def _make(self, indices: Any, number: int) -> Any:
        self._interrupted = indices, number
        self._is_torn = False
        try:
            batch = self._assembly.start(indices)
            batch.job.run_in(self._lane, number)
            made = batch.take()
        except Exception:
            self._interrupted = None
            raise
        self._is_torn = True
        self._interrupted = None
        return made

    def _look(self, take: Callable[[], Any]) -> Any:
        self._left = 1  # if this batch fails, the tuner looks at the next one
        batch = take()
        self._left = 0
        observed = Observed(self._crew.recorder, "threads", self._tuner.setting.threads, self._spec.batches.cache)
        self._due = self._left = self._tuner.look(observed, self, batch, self._due)
        return batch

    def resize(self, threads: int, depth: int) -> None:
        """Go on with another number of threads and of batches made ahead."""
        self._depth = depth
        self._is_alone = threads == 0
        if self._is_alone:
            self._crew.set_count(0)  # those that there are make the batches that are queued
            return
        before = self._crew.count
        self._crew.set_count(self._pool.resize(threads))
        if threads < before:
            _native.release_freed()  # memory that samples of the resting threads left

    def most_depth(self) -> int | None:
        """Return the number of batches that the memory budget has room for; None: no limit."""
        return self._memory.most(self._store, copies=self.copies)


def _end(pool: ThreadPool, completions: _native.Completions, owned: bool) -> None:
    pool.forget(completions)
    if owned:
        pool.close()
