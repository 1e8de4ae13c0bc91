"""One pass over a loader: asks for batches in order, keeps enough of them in the making, hands them on."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from foreload import _native
from foreload.observe.monitors import count_samples
from foreload.observe.record import Watch, aside
from foreload.stages.batch import Assembly, Batch, SampleAssembly, count
from foreload.stages.failure import NothingLeft
from foreload.state import Order
from foreload.workers.keeper import Keeper
from foreload.workers.threads import ThreadPool, no_job

if TYPE_CHECKING:
    from foreload.datasets.tensors import TensorAssembly

__all__ = ["Epoch", "GatherEpoch", "InlineEpoch", "ThreadEpoch"]


class Epoch(Iterator[Any]):
    """What ``iter(loader)`` gives."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._watch = order.watch
        self._loop = order.watch.loop
        self._lane = order.watch.lane.native
        self._together = 1  # batches that are given at once
        self._samples_of: Callable[[Any], int] = len if order.known else count
        self._watched = order.store is not None or order.memory.limit is not None

    def __len__(self) -> int:
        """Count the batches of the whole epoch."""
        return len(self._order)

    def __next__(self) -> Any:
        """Give the next batch.

        Raises:
            RuntimeError: it did not come within the timeout, or too many workers were killed.
        """
        order = self._order
        self._loop.asked()
        while True:
            try:
                number, samples, take = self._next()
            except StopIteration:
                order.finished = True
                self._loop = order.loop = aside()
                self._watch.end()
                raise
            order.gave(number)
            failed = order.failed if order.skips else 0
            try:
                batch = take()
            except NothingLeft:
                order.check_errors()
                continue
            order.check_errors()
            if self._watched:
                order.memory.saw(batch, order.store)
            if order.skips:
                samples -= order.failed - failed
            self._loop.gave(samples, self._together)
            return batch

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        """Wait for a batch.

        Returns:
            the how-manieth that was asked for; the samples of it, or of all that are given together with it; what
            gives it, or raises what it failed by.
        """
        raise NotImplementedError

    def pass_on(self) -> Watch:
        """Let somebody else tell the watch what the loop does, who is between the loop and this epoch."""
        self._loop = self._watch.pass_on()
        return self._watch

    def close(self) -> None:
        """End the epoch early; its threads end and its buffers are free."""


class InlineEpoch(Epoch):
    """Makes each batch in the calling thread, when it is asked for."""

    def __init__(self, order: Order, assembly: Assembly) -> None:
        super().__init__(order)
        self._assembly = assembly

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        indices = next(self._order)
        number = self._order.asked - 1

        def make() -> Any:
            batch = self._assembly.start(indices)
            batch.job.run_in(self._lane, number)
            return batch.take()

        return number, self._samples_of(indices), make


class GatherEpoch(Epoch):
    """Gathers several small batches of rows in one native call, in the calling thread."""

    _BYTES = 256 << 10
    _MOST = 32

    def __init__(self, order: Order, assembly: TensorAssembly) -> None:
        super().__init__(order)
        self._assembly = assembly
        self._ready: list[Any] = []
        self._asked: deque[Any] = deque()
        self._number = -1

    def __next__(self) -> Any:
        """Give the next batch."""
        # A small batch takes about as long as the calls that it would go through otherwise.
        if not self._ready or self._watched:
            return super().__next__()
        self._number += 1
        self._order.gave(self._number)
        return self._ready.pop()

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        samples, self._together = 0, 1
        if not self._ready and not self._asked:
            together = self._indices()
            try:
                samples = self._gather(together)
            except IndexError:
                # Only one of them has an index that is not there.
                self._asked.extend(together)
        self._number += 1
        if self._ready:
            return self._number, samples or count_samples(self._ready[-1]), self._ready.pop
        indices = self._asked.popleft()
        return self._number, len(indices), lambda: self._alone(indices)

    def _gather(self, together: list[Any]) -> int:
        """Gather batches; give how many samples are in those that are given together, as far as the clock goes."""
        batches = len(together)
        samples = (batches - 1) * len(together[0]) + len(together[-1])
        self._ready = list(self._assembly.gather(together))
        self._loop.gathered(samples, samples * self._assembly.sample_bytes, batches)
        self._ready.reverse()
        if self._watched:
            return 0
        self._together = batches
        self._watch.make_ready(self._ready, batches)
        return samples

    def pass_on(self) -> Watch:
        """See :meth:`Epoch.pass_on`."""
        self._watched = True  # one by one
        return super().pass_on()

    def _alone(self, indices: Any) -> Any:
        (batch,) = self._assembly.gather([indices])
        return batch

    def _indices(self) -> list[Any]:
        first = next(self._order)
        if not isinstance(first, np.ndarray) and isinstance(first, Iterator):
            first = list(first)
        if not self._order.ready:
            return [first]
        size = max(1, len(first) * self._assembly.sample_bytes)
        most = min(self._loop.pays_together, self._MOST, self._BYTES // size, self._order.ready + 1)
        return [first, *islice(self._order, max(0, most - 1))]


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
        keeper: Keeper | None,
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
            if (self._making or ahead) and self._order.patient and not self._order.ready:
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
            number = self._order.asked - 1
            self._making.append(batch)
            self._numbers[batch.job] = number, samples
            self._pool.submit(batch.job, self._completions, number)

    def _fail(self, error: BaseException) -> None:
        """Let the error come up when its batch would."""

        def take() -> Any:
            raise error

        batch = Batch(no_job(), take)
        self._making.append(batch)
        self._numbers[batch.job] = self._order.asked - 1, 0
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
