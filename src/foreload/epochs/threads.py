"""An epoch whose batches are made by worker threads."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from foreload import _native
from foreload.batch.assembly import Assembly, Batch
from foreload.batch.samples import SampleAssembly
from foreload.epochs.base import Epoch
from foreload.epochs.cursor import Order
from foreload.tune.within_epoch import Setting, Tuner
from foreload.workers.crew import PoolOwner
from foreload.workers.threads import ThreadPool, no_job

if TYPE_CHECKING:
    from foreload.batch.assembly import Assembly
    from foreload.epochs.cursor import Order
    from foreload.loader import DataLoader
    from foreload.workers.threads import ThreadPool


__all__ = ["ThreadEpoch", "TunedEpoch", "thread_epoch"]


class ThreadEpoch(Epoch):
    """Keeps ``depth`` batches in the making by the threads of a pool.

    Args:
        pool: the threads.
        keeper: who ends them; if nobody does, they end with the epoch.
        timeout: seconds to wait for a batch, 0 for ever.
        in_order: give batches in the order of their indices, not of their completion.
    """

    def __init__(
        self,
        order: Order,
        assembly: Assembly,
        pool: ThreadPool,
        *,
        depth: int,
        keeper: PoolOwner | None,
        timeout: float,
        in_order: bool,
    ) -> None:
        super().__init__(order)
        self._assembly = assembly
        self._pool = pool
        self._depth = depth
        self.copies = 2 if isinstance(assembly, SampleAssembly) else 1  # of a batch in the making
        self._keeper = keeper
        self._timeout = timeout
        self._in_order = in_order
        self._completions = _native.Completions()
        self._making: deque[Batch] = deque()
        self._numbers: dict[_native.Job, tuple[int, int]] = {}  # of the batch, and its samples
        self._finished: set[_native.Job] = set()
        self._exhausted = False
        # Also runs when the interpreter exits while an epoch is open.
        self._close = weakref.finalize(self, _end, pool, self._completions, keeper is None)
        pool.watch(self._completions)

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        depth = self._order.memory.depth(self._depth, self._order.store, copies=self.copies)
        self._watch.depth = depth
        self._fill(depth)
        if not self._making:
            self.close()
            # It may have come too late for any batch.
            if self._pool.failure is not None:
                raise self._pool.failure
            raise StopIteration
        batch = self._await()
        # The caller still holds the batch before this one, whose memory the last in the making could use.
        self._fill(max(1, depth - 1), ahead=True)
        return *self._numbers.pop(batch.job), batch.take

    def _fill(self, depth: int, *, ahead: bool = False) -> None:
        while len(self._making) < depth and not self._exhausted:
            if (self._making or ahead) and self._order.draw_only_ready and not self._order.ready:
                return
            try:
                indices = next(self._order)
            except StopIteration:
                self._exhausted = True
                return
            except Exception as error:
                self._exhausted = True
                self._fail(error)
                return
            samples = self._samples_of(indices)
            try:
                batch = self._assembly.start(indices)
            except Exception as error:
                self._fail(error)
                continue
            number = self._order.num_drawn - 1
            self._making.append(batch)
            self._numbers[batch.job] = number, samples
            self._pool.submit(batch.job, self._completions, number)

    def _fail(self, error: BaseException) -> None:
        """Let the error come up when its batch would."""

        def take() -> Any:
            raise error

        batch = Batch(no_job(), take)
        self._making.append(batch)
        self._numbers[batch.job] = self._order.num_drawn - 1, 0
        self._finished.add(batch.job)

    def _await(self) -> Batch:
        """Wait for the oldest batch, or for any where order does not matter."""
        while True:
            for batch in [self._making[0]] if self._in_order else self._making:
                if batch.job in self._finished:
                    self._making.remove(batch)
                    self._finished.discard(batch.job)
                    return batch
            if self._pool.closed:
                raise RuntimeError(
                    "this epoch's threads have ended, or stayed behind in a fork; begin another epoch"
                )
            job = self._completions.wait(self._timeout, self._watch.lock)
            if self._pool.failure is not None:
                self.close()
                raise self._pool.failure
            if job is None:
                raise self._give_up()
            self._finished.add(job)

    def _give_up(self) -> RuntimeError:
        where = self._where()
        self._close.detach()
        self._pool.forget(self._completions)
        # A thread that is stuck in a sample cannot be waited for.
        self._pool.close(wait=False)
        self._exhausted = True
        self._making.clear()
        return RuntimeError(f"DataLoader timed out after {self._timeout} seconds{where}")

    def _where(self) -> str:
        """Say which samples the threads were at last, and where the threads are."""
        if not isinstance(self._assembly, SampleAssembly):
            return ""
        stacks = self._pool.stacks()
        return "".join(
            f"; sample {indices[position]!r} (position {position} of its batch) is at {stacks[thread]}"
            for thread, (indices, position) in self._assembly.now.items()
            if thread in stacks
        )

    def close(self) -> None:
        """End the epoch early; its threads end and its buffers are free."""
        self._exhausted = True
        self._making.clear()
        self._finished.clear()
        self._close()


def _end(pool: ThreadPool, completions: _native.Completions, owned: bool) -> None:
    pool.forget(completions)
    if owned:
        pool.close()


def thread_epoch(loader: DataLoader[Any], order: Order, assembly: Assembly, pool: ThreadPool) -> ThreadEpoch:
    """Begin an epoch by threads; what the user left open of their number is tuned."""
    # Batches made ahead: so many for each thread, or as many as the assembly says.
    each = (loader.prefetch_factor or 0) if assembly.depth is None or loader._prefetch_given else None
    depth = (assembly.depth or 1) if each is None else max(1, each * loader.num_workers)
    make: Callable[..., ThreadEpoch] = ThreadEpoch
    if loader._tunes:
        if loader._tuner is None:
            loader._tuner = Tuner(Setting(loader.num_workers, depth), each, loader._tuning, deeper=loader._deepens)
        depth = loader._tuner.setting.depth
        make = partial(TunedEpoch, loader, loader._tuner)
    return make(
        order,
        assembly,
        pool,
        depth=depth,
        keeper=loader._keeper,
        timeout=loader.timeout,
        in_order=loader.in_order,
    )


class TunedEpoch(ThreadEpoch):
    """Lets a tuner look at it now and then, between two batches.

    Args:
        loader: whose epoch it is.
        tuner: who looks.
        others: as :class:`~foreload.epochs.threads.ThreadEpoch` has them.
    """

    def __init__(self, loader: DataLoader[Any], tuner: Tuner, *others: Any, **options: Any) -> None:
        super().__init__(*others, **options)
        self._loader = weakref.ref(loader)
        self._tuner = tuner
        self._due = self._left = tuner.begin()  # batches until the next look; 0: there is none

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        number, samples, take = super()._next()
        if self._left:
            self._left -= 1
            if self._left == 0:
                return number, samples, partial(self._look, take)
        return number, samples, take

    def _look(self, take: Callable[[], Any]) -> Any:
        self._left = 1  # where this batch turns out to be an error, the next one is looked at
        batch = take()
        loader = self._loader()
        self._left = 0
        if loader is not None:
            self._due = self._left = self._tuner.look(loader, self, batch, self._due)
        return batch

    def resize(self, threads: int, depth: int) -> int:
        """Go on with so many threads and batches in the making; give the threads that there are."""
        self._depth = depth
        loader = self._loader()
        fewer = loader is not None and threads < loader.num_workers
        count = self._pool.resize(threads)
        if fewer:
            _native.release_freed()  # what samples of those who rest left behind
        return count

    def most_depth(self) -> int | None:
        """Give how many batches the memory budget has room for; None: nobody limits them."""
        return self._order.memory.most(self._order.store, copies=self.copies)
