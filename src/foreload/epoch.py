"""One pass over a loader: asks for batches in order, keeps enough of them in the making, hands them on."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from foreload import _native
from foreload.stages.batch import Assembly, Batch, SampleAssembly
from foreload.stages.failure import NothingLeft
from foreload.stages.order import ArrayBatches, batches
from foreload.stages.resume import BEGINNING, Given, Start
from foreload.stages.transform import draw_seed
from foreload.workers.threads import ThreadPool, no_job

if TYPE_CHECKING:
    from foreload.datasets.tensors import TensorAssembly
    from foreload.loader import DataLoader

__all__ = ["Epoch", "GatherEpoch", "InlineEpoch", "Order", "ThreadEpoch"]


class Order(Iterator[Any]):
    """The indices of an epoch's batches, and the seed of its randomness, drawn as torch draws them.

    Args:
        loader: whose order.
        epoch: the number of the epoch.
        state: of an epoch that was interrupted, from :meth:`state`, to go on with.

    Attributes:
        finished: whether the epoch is over.
        streams: of an iterable dataset: for each worker, how many batches it has given and its state after them.
        turn: the worker that gives the next one.
    """

    def __init__(self, loader: DataLoader[Any], epoch: int, state: dict[str, Any] | None = None) -> None:
        self.epoch = epoch
        self.finished = False
        self.streams: dict[int, tuple[int, Any]] = {}
        self.turn = 0
        self._sampler = loader._index_sampler
        self._sampler_epoch = getattr(getattr(self._sampler, "sampler", self._sampler), "epoch", None)
        start = BEGINNING
        if state is not None:
            # (A stream has no positions, only its own state.)
            is_stream = isinstance(loader.dataset, IterableDataset)
            start = (
                BEGINNING
                if is_stream
                else Start([(begin, end) for begin, end in state["given"]], state["drawn"], state["drew"])
            )
            self.streams = {worker: (given, own) for worker, given, own in state["streams"]}
            self.turn = state["turn"]
            if loader.generator is not None and state["generator"] is not None:
                loader.generator.set_state(state["generator"])
        self._generator_state = None if loader.generator is None else loader.generator.get_state()
        router = None if loader._cache is None else loader._cache.router
        self._indices = batches(loader, router, start)
        self._given = Given(start, self._indices.size, getattr(self._indices, "each", 1))
        # Torch's persistent workers keep the seed that they were started with.
        kept = loader._base_seed
        if state is not None and loader.generator is None:
            self.base_seed = state["base_seed"]
        else:
            self.base_seed = draw_seed(loader.generator) if kept is None else kept
        if loader.persistent_workers:
            loader._base_seed = self.base_seed
        seed, number = (
            (self.base_seed, 0 if kept is None else epoch) if loader.seed is None else (loader.seed, epoch)
        )
        self.key = (seed, number & 0xFFFFFFFF) if state is None else tuple(state["key"])
        self._drew = kept is None and loader.generator is None
        self._errors, self._max_errors = loader.errors, loader.max_errors
        self._most_errors = len(self._errors) + self._max_errors
        self._asked = 0

    def __next__(self) -> Any:
        """Give the indices of the next batch."""
        indices = next(self._indices)
        self._asked += 1
        return indices

    @property
    def asked(self) -> int:
        """Count the batches that were asked for."""
        return self._asked

    def gave(self, batch: int) -> None:
        """Note that a batch, the how-manieth that was asked for from 0, is with the loop."""
        self._given.add(batch)

    def check_errors(self) -> None:
        """Raise RuntimeError where too many samples of this epoch failed."""
        if len(self._errors) > self._most_errors:
            raise RuntimeError(
                f"{self._max_errors + 1} samples failed in this epoch, more than max_errors = {self._max_errors}; "
                f"the last was {self._errors[-1]}\n{self._errors[-1].traceback}"
            )

    def state(self) -> dict[str, Any]:
        """Give what another order needs to go on after the batches that are with the loop."""
        return {
            "epoch": self.epoch,
            "sampler_epoch": self._sampler_epoch,
            "finished": self.finished,
            "given": [list(span) for span in self._given.ranges()],
            "drawn": self._indices.state(self._given.first),
            "drew": self._drew,
            "base_seed": self.base_seed,
            "key": list(self.key),
            "generator": self._generator_state,
            "streams": [[worker, given, own] for worker, (given, own) in self.streams.items()],
            "turn": self.turn,
        }

    @property
    def known(self) -> bool:
        """Whether the indices come as arrays that foreload made, not from code of the user's."""
        return isinstance(self._indices, ArrayBatches)

    @property
    def ready(self) -> int:
        """How many batches can be asked for ahead of use with no effect that anyone could notice."""
        return self._indices.ready if isinstance(self._indices, ArrayBatches) else 0

    @property
    def patient(self) -> bool:
        """Whether to ask ahead of use for what is ``ready`` only.

        A generator of the user's is then, also after a loop that was left early, where torch leaves it without
        workers, however many there are.
        """
        return isinstance(self._indices, ArrayBatches) and self._indices.shared

    def __len__(self) -> int:
        """Count the batches, where the sampler knows."""
        return len(self._sampler)


class Epoch(Iterator[Any]):
    """What ``iter(loader)`` gives."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __len__(self) -> int:
        """Count the batches of the whole epoch."""
        return len(self._order)

    def __next__(self) -> Any:
        """Give the next batch.

        Raises:
            RuntimeError: it did not come within the timeout, or too many workers were killed.
        """
        while True:
            try:
                number, take = self._next()
            except StopIteration:
                self._order.finished = True
                raise
            self._order.gave(number)
            try:
                batch = take()
            except NothingLeft:
                self._order.check_errors()
                continue
            self._order.check_errors()
            return batch

    def _next(self) -> tuple[int, Callable[[], Any]]:
        """Wait for a batch: the how-manieth that was asked for, and what gives it, or raises what it failed by."""
        raise NotImplementedError

    def close(self) -> None:
        """End the epoch early; its threads end and its buffers are free."""


class InlineEpoch(Epoch):
    """Makes each batch in the calling thread, when it is asked for."""

    def __init__(self, order: Order, assembly: Assembly) -> None:
        super().__init__(order)
        self._assembly = assembly

    def _next(self) -> tuple[int, Callable[[], Any]]:
        indices = next(self._order)

        def make() -> Any:
            batch = self._assembly.start(indices)
            batch.job.run_here()
            return batch.take()

        return self._order.asked - 1, make


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

    def _next(self) -> tuple[int, Callable[[], Any]]:
        if not self._ready and not self._asked:
            together = self._indices()
            try:
                self._ready = list(self._assembly.gather(together))
                self._ready.reverse()
            except IndexError:
                # Only one of them has an index that is not there.
                self._asked.extend(together)
        self._number += 1
        if self._ready:
            return self._number, self._ready.pop
        indices = self._asked.popleft()
        return self._number, lambda: self._alone(indices)

    def _alone(self, indices: Any) -> Any:
        (batch,) = self._assembly.gather([indices])
        return batch

    def _indices(self) -> list[Any]:
        first = next(self._order)
        if not self._order.ready:
            return [first]
        size = max(1, len(first) * self._assembly.sample_bytes)
        more = min(self._MOST - 1, self._BYTES // size - 1, self._order.ready)
        return [first, *islice(self._order, max(0, more))]


class ThreadEpoch(Epoch):
    """Keeps ``depth`` batches in the making by the threads of a pool.

    Args:
        pool: the threads.
        owned: end them with the epoch.
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
        owned: bool,
        timeout: float,
        in_order: bool,
    ) -> None:
        super().__init__(order)
        self._assembly = assembly
        self._pool = pool
        self._depth = depth
        self._owned = owned
        self._timeout = timeout
        self._in_order = in_order
        self._completions = _native.Completions()
        self._making: deque[Batch] = deque()
        self._numbers: dict[_native.Job, int] = {}
        self._finished: set[_native.Job] = set()
        self._exhausted = False
        # Also runs when the interpreter exits while an epoch is open.
        self._close = weakref.finalize(self, _end, pool, self._completions, owned)
        pool.watch(self._completions)

    def _next(self) -> tuple[int, Callable[[], Any]]:
        self._fill(self._depth)
        if not self._making:
            self.close()
            # It may have come too late for any batch.
            if self._pool.failure is not None:
                raise self._pool.failure
            raise StopIteration
        batch = self._await()
        # The caller still holds the batch before this one, whose memory the last in the making could use.
        self._fill(max(1, self._depth - 1), ahead=True)
        return self._numbers.pop(batch.job), batch.take

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
            try:
                batch = self._assembly.start(indices)
            except Exception as error:
                self._fail(error)
                continue
            self._making.append(batch)
            self._numbers[batch.job] = self._order.asked - 1
            self._pool.submit(batch.job, self._completions)

    def _fail(self, error: BaseException) -> None:
        """Let the error come up when its batch would."""

        def take() -> Any:
            raise error

        batch = Batch(no_job(), take)
        self._making.append(batch)
        self._numbers[batch.job] = self._order.asked - 1
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
            job = self._completions.wait(self._timeout)
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
