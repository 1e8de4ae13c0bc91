"""Epochs whose batches are made by worker processes."""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from foreload.batch.assembly import count, listed, shown
from foreload.epochs.base import EpochSpec
from foreload.epochs.depth import Idleness
from foreload.epochs.pooled import PooledEpoch
from foreload.epochs.progress import warn_of_length
from foreload.errors import warn_user
from foreload.order.own_state import has_state
from foreload.tune.within_epoch import most_ahead
from foreload.workers.crew import PoolOwner
from foreload.workers.dataset_states import DatasetStates
from foreload.workers.messages import Begin, Result
from foreload.workers.pool import W, WorkerPool

if TYPE_CHECKING:
    from foreload.workers.worker import WorkerTask

__all__ = ["ProcessEpoch"]

# Shorter waits of the loop for a batch cost less than finding out whether workers had nothing to do.
_LONG_WAIT_SECONDS = 1e-3


class ProcessEpoch(PooledEpoch[W]):
    """Assigns batches to worker processes in turn, ``prefetch_factor`` each, as torch does.

    A batch that takes long holds up the loop, since batches come in order, and then all other workers, once they
    have made theirs. If the depth is left to the loader, more are assigned when that costs much of their time.

    Args:
        spec: the loader as the epoch sees it.
        pool: the workers, processes of this machine or actors on a Ray cluster.
        owner: ends persistent workers; if there is none, they end with the epoch.
        task: what the workers were started with, which the pool needs for others in their place.
        deepens: whether more batches may be made ahead than ``prefetch_factor`` for each worker.
    """

    def __init__(
        self,
        spec: EpochSpec,
        pool: WorkerPool[W],
        *,
        owner: PoolOwner | None,
        task: WorkerTask | None = None,
        deepens: bool = False,
    ) -> None:
        super().__init__(spec, pool, owner)
        self._task = task
        cursor = spec.cursor
        self._mark_delivered = cursor.mark_come
        self._is_stream = isinstance(spec.dataset, IterableDataset)
        self._num_delivered = 0
        self._restarts_left = self._max_restarts
        self._draws_at_once = spec.draws_at_once or self._is_stream
        turn = cursor.turn % len(pool.workers)  # there may have been more workers
        self._turns = cycle([*range(turn, len(pool.workers)), *range(turn)])
        self._active = [True] * len(pool.workers)
        self._asked: OrderedDict[int, int] = OrderedDict()  # jobs, and their workers
        self._answers: dict[int, Result] = {}
        self._sizes: dict[int, int] = {}  # of jobs, in samples
        self._indices: dict[int, Any] = {}  # of jobs, if the dataset has a state
        ahead = self._memory.depth((spec.prefetch_factor or 1) * len(pool.workers))
        self._depth = self._watch.depth = max(len(pool.workers), ahead)
        self._in_order = spec.in_order
        self._has_warned = False  # of what workers lack
        self._num_dropped = 0  # jobs of this epoch that were no batches of it
        self._idleness = Idleness(len(pool.workers)) if deepens and spec.in_order else None
        # Whether workers tell the state of their copy of the dataset.
        self._tells = self._is_stream or has_state(spec.dataset)
        snapshots = spec.snapshot_every if self._tells else None
        self._begin = Begin(
            *(cursor.key, self._order.is_array, self._first),
            again=cursor.again,
            snapshots=snapshots,
            batch_size=spec.batches.batch_size,
        )
        self._states: DatasetStates | None = None
        self._begin_workers()
        self._sampler_error: Exception | None = None
        if self._draws_at_once:
            self._ask_ahead(self._depth)
        if self._states is not None:
            cursor.settle, cursor.unheard = weakref.WeakMethod(self._hear), self._states.unheard

    def _begin_workers(self) -> None:
        pool = self._pool
        for worker in pool.workers:
            worker.leave_jobs(self._first, skip=self._skips)
        if self._tells:
            left = {worker.number: [listed(each) for each in worker.left] for worker in pool.workers}
            streams = self._cursor.streams
            self._states = DatasetStates(self._begin, len(pool.workers), streams, pool.states, left)
        pool.states = self._states
        for worker in pool.workers:
            worker.left.clear()
            self._tell_begin(worker, is_new=pool.is_successor)
        pool.is_successor = False

    def _tell_begin(self, worker: W, *, is_new: bool) -> None:
        states = self._states
        for begin in [self._begin] if states is None else states.begins(worker.number, is_new=is_new):
            worker.tell(begin)

    @property
    def _unheard(self) -> set[int]:
        """The workers that have not told the state of their dataset at the beginning of the epoch."""
        return set() if self._states is None else self._states.unheard

    def _hear(self) -> None:
        """Wait until each worker has told the state of its dataset at the beginning of the epoch."""
        if not self._unheard:
            return
        with self._turn.lock:  # or another thread might get what this one waits for
            while self._unheard and self._is_current:
                wanted = [worker for worker in self._pool.workers if worker.number in self._unheard]
                if not self._receive(wanted):
                    raise RuntimeError(self._note_late(wanted))

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        if self._unheard and not self._is_closed:
            self._hear()
            self._check_open()
        while self._asked:
            number = self._next_answered()
            if number is None:
                continue
            result = self._answers[number]
            owner = self._asked.pop(number)  # first: after an interrupt, nothing waits for an answer that is gone
            del self._answers[number]
            samples = self._sizes.pop(number, result.samples)
            indices = self._indices.pop(number, None)
            turn = next(iter(self._asked.values()), owner)
            if result.is_end:
                self._active[owner] = False
                self._cursor.mark_end(owner, result.state)
                self._dismiss(self._pool.workers[owner])
                self._ask()
                continue
            self._ask_ahead(1)
            self._num_delivered += 1
            place = self._num_delivered - 1 if self._is_stream else self._place(number)
            if self._tells:
                self._cursor.expect(place, owner, result.state, turn, indices)
            else:
                self._cursor.turn = turn
            if self._is_stream:
                warn_of_length(
                    self._spec.dataset, self._spec.expected_length, self._num_delivered, len(self._pool.workers)
                )
            return place, samples, partial(self._take, result)
        if self._sampler_error is not None:
            error, self._sampler_error = self._sampler_error, None
            raise error
        raise self._finish()

    def _place(self, number: int) -> int:
        """Return the place of a job's batch in the order."""
        return number - self._first - self._num_dropped

    def _ask_ahead(self, count: int) -> None:
        """Assign up to ``count`` batches that the loop has not requested yet."""
        for _ in range(count):
            self._ask()

    def _ask(self) -> None:
        """Assign the next batch to the worker whose turn it is."""
        with self._pool.assigning:
            if not self._may_assign:
                return
            try:
                indices = None if self._is_stream else self._draw()
            except StopIteration:
                for worker in self._pool.workers:
                    self._dismiss(worker)
            except Exception as error:
                if self._draws_at_once:
                    raise  # early, as torch does
                self._sampler_error = error
            else:
                self._assign(indices)

    @property
    def _may_assign(self) -> bool:
        return self._is_current and any(self._active)

    def _assign(self, indices: Any) -> int:
        """Assign a batch, and return the number of the job; call it with the pool's ``assigning``."""
        share = -(-self._depth // sum(self._active))  # rounded up: one of them has less
        for turn in self._turns:
            worker = self._pool.workers[turn]
            # If order does not matter, a slow worker gets no more than its share.
            if self._active[turn] and (self._in_order or len(worker.asked) < share):
                break
        number = self._pool.next_number
        self._pool.next_number += 1
        self._asked[number] = worker.number
        if not self._is_stream:
            self._sizes[number] = count(indices)
            if self._tells:
                indices = list(indices) if isinstance(indices, Iterator) else indices
                self._indices[number] = listed(indices)
        self._give(worker, number, indices)
        return number

    def _give(self, worker: W, number: int, indices: Any) -> None:
        # A long job waits for a worker that is stuck in the one before.
        if not worker.ask(number, indices, self._spec.timeout):
            raise self._fail(self._note_late([worker]))  # the job is lost

    def _dismiss(self, worker: W) -> None:
        """Let a worker end when it has answered, while the loop is still busy with the last batches."""
        if self._owner is None and not worker.is_last:
            worker.tell(None)

    def _next_answered(self) -> int | None:
        """Wait for the next job's answer, or any answer if order does not matter; None: call it again."""
        number = next(iter(self._asked))
        if self._in_order and not self._active[self._asked[number]] and number not in self._answers:
            # The stream ended with an earlier job of this worker.
            del self._asked[number]
            return None
        if number in self._answers:
            return number
        if not self._in_order and self._answers:
            any_answer = next((each for each in self._answers if each in self._asked), None)
            if any_answer is not None:  # (of an interrupt, there may be others)
                return any_answer
        self._check_open()  # the thread that has closed it may have woken another one
        self._check_pool()
        wanted = [self._pool.workers[self._asked[number]]] if self._in_order else self._pool.workers
        began = time.monotonic()
        has_come = self._receive(wanted)
        self._check_open()
        if not has_come:
            raise RuntimeError(self._note_late(wanted))
        waited = time.monotonic() - began
        if self._idleness is not None and number in self._answers and waited > _LONG_WAIT_SECONDS:
            self._deepen(self._idleness, self._answers[number], waited)
        return number if number in self._answers else None

    def _deepen(self, idleness: Idleness, result: Result, waited: float) -> None:
        """Assign one batch more to each worker if some had nothing to do while the loop waited for this result."""
        self._receive([worker for worker in self._pool.workers if worker.asked], 0)
        self._check_open()
        idle = [min(waited, worker.idle_seconds()) for worker in self._pool.workers]
        made = self._num_delivered + len(self._answers)
        if not any(idle) or not idleness.is_much(idle, made, self._depth):
            return
        batch = sum(memoryview(part).nbytes for part in result.parts or ())
        if self._depth + len(self._pool.workers) <= most_ahead(batch, self._memory.most(self._store)):
            asked = len(self._asked)
            self._ask_ahead(len(self._pool.workers))
            self._depth += len(self._asked) - asked  # none once all have been drawn
            self._watch.depth = self._depth

    def _wait(self, wanted: list[W], timeout: float | None) -> bool | None:
        return self._pool.wait(wanted, timeout, self._first)

    def _receive(self, wanted: list[W], timeout: float | None = None) -> bool:
        """Wait for messages of these workers; return whether any came in time."""
        timeout = self._spec.timeout if timeout is None else timeout
        is_found = self._wait(wanted, timeout)
        if not is_found:
            return is_found is not None
        found = self._pool.found
        with self._pool.assigning:  # so that no other epoch begins meanwhile
            while found and self._is_current:
                self._pool.is_late = False
                message = found[0]
                self._take_in(*message)
                # Only now, so that after an interrupt it is taken in again. A signal's handler may have done this.
                if found and found[0] is message:
                    found.popleft()
        return True

    def _take_in(self, worker: W, result: Result | None) -> None:
        """Take a message of a worker; None: it has ended."""
        name = worker.number
        if self._pool.workers[name] is not worker:
            return  # an epoch that is over has replaced it
        if result is not None and result.begun is None:
            worker.asked.pop(result.number, None)  # again, as an interrupt may have come before
        if result is None:
            self._replace(worker)
        elif result.begun is not None:
            if self._states is not None:
                self._states.note(name, result)
        elif result.number in self._asked and result.number not in self._answers:
            if result.unfit and self._task is not None and self._task.program is not None:
                self._warn_of_lack(result.unfit)
            if self._states is not None:
                self._states.advance(name, result.number, result.state, self._indices.get(result.number))
            self._answers[result.number] = result

    def _warn_of_lack(self, lack: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_user(
                f"{lack}, and workers load all the same, because worker_init_fn is for them; set it where modules "
                "are imported, in the dataset or in worker_init_fn (torch's workers lack it too: num_workers=N "
                "says that it is meant)"
            )

    def _replace(self, worker: W) -> None:
        worker.end()
        if self._restarts_left == 0 or worker.has_failed_to_start:
            message = worker.death()
            if self._max_restarts and not worker.has_failed_to_start:
                asked = list(worker.asked.values())
                died = f"{self._max_restarts + 1} workers died in this epoch (max_restarts={self._max_restarts})."
                message = f"{message.rstrip()} {died}"
                if asked and not self._is_stream:
                    message += f" This one was loading the batch of samples {shown(asked[0])}."
            raise self._fail(message)
        self._restarts_left -= 1
        try:
            other = self._restart(worker, worker.asked.values())
            for number, indices in worker.asked.items():
                self._give(other, number, indices)
            if worker.is_last:
                other.tell(None)
        except BaseException:  # an interrupt, or a warning that is an error
            other = self._pool.workers[worker.number]
            if other is not worker:  # it lacks jobs, and is replaced in its turn
                other.asked.update(worker.asked)
                self._pool.found.append((other, None))
            raise

    def _forget_jobs(self) -> None:
        self._asked.clear()
        self._answers.clear()
