"""Epochs by worker processes that load ahead of the loop, which gets what the calling thread would load for it."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from foreload.batch.assembly import count
from foreload.batch.failure import EmptyBatch
from foreload.cache.view import CachedView
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.probes.fills import Fills, opens
from foreload.epochs.base import EpochSpec
from foreload.epochs.following.foretold import Foretold
from foreload.epochs.processes import ProcessEpoch
from foreload.protocol import Assembly
from foreload.workers.comparison import Comparison
from foreload.workers.pool import W, WorkerPool

__all__ = ["FollowingEpoch"]


class _TakenOver(Exception):
    """The calling thread loads the next batch."""


class FollowingEpoch(ProcessEpoch[W]):
    """Assigns batches ahead of the loop such that it cannot tell that from the calling thread's loading.

    The order of a user's sampler is drawn a batch at a time, when the loop requests it. Ahead of that, workers
    load what is foretold; if the sampler then yields something else, that is thrown away. So it is if the loop
    has changed the dataset, of which workers have a copy, or if loading a batch has changed a worker's copy, or
    failed there: the calling thread loads then.

    Args:
        spec: the loader as the epoch sees it.
        pool: the workers.
        held: the dataset as the workers have it; None: nobody expects that they see changes.
        inline: returns what makes batches in the calling thread.
        alone: the same, without a cache.
        comparison: of the workers with the calling thread; None: there is nothing to compare.
        stand_down: called with the reason if no workers are to load in later epochs, and the number of these
            epochs; None: all.
        firsts: the indices of the first batch that the loop has got from the workers; this epoch adds them.
        how: as for :class:`ProcessEpoch`.
    """

    def __init__(
        self,
        spec: EpochSpec,
        pool: WorkerPool[W],
        *,
        held: CopiedState | None,
        inline: Callable[[], Assembly],
        alone: Callable[[], Assembly],
        comparison: Comparison | None,
        stand_down: Callable[[str, int | None], None],
        firsts: list[Any],
        **how: Any,
    ) -> None:
        self._held = held
        self._inline, self._alone = inline, alone
        self._seen: tuple[int, int] | None = None  # samples, and nanoseconds that the loop has waited for them
        self._is_first = True
        fills: Fills = {} if held is None else held.fills
        # What loading makes when it is first needed: values, files. To load here would open files here, too, which
        # later copies of the dataset would share.
        self._makes, self._opens = any(fills.values()), opens(fills)
        self._is_lacking = held is not None and self._makes and not self._opens and held.lacks()
        self._comparison = comparison if held is not None and not self._opens else None
        self._stand_down = stand_down
        self._firsts = firsts
        self._here: Assembly | None = None  # makes batches in the calling thread
        self._foretold = Foretold(spec.cursor.order) if spec.cursor.order.may_follow else None
        self._ahead: deque[int] = deque()  # jobs that are foretold, but not requested yet
        # Of jobs: their indices, and the places of those samples that were not in the cache.
        self._assigned: dict[int, tuple[Any, list[int]]] = {}
        # By the place of a batch that the loop is about to get: its indices, and whether it makes what is lacking.
        self._taken: dict[int, tuple[Any, bool]] = {}
        self._pending: deque[tuple[int, Any]] = deque()  # drawn, for the calling thread
        super().__init__(spec, pool, **how)
        if self._foretold is not None:
            self._in_order = True  # a batch that is only foretold must not come before one that was drawn

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        if self._comparison is not None:
            self._compare(self._comparison)
        if self._here is None:
            self._request()
        if self._here is None and self._held is not None and (name := self._held.changed()) is not None:
            why = f"{name!r} of the dataset was set while worker processes loaded from copies of it"
            self._take_over(f"the calling thread loads, because {why}", 1)
        if self._here is None:
            with suppress(_TakenOver):
                number, samples, take = super()._next()
                return number, samples, take if self._held is None else partial(self._take_or_make, take, number)
        assert self._here is not None
        return self._next_here(self._here)

    def _compare(self, comparison: Comparison) -> None:
        """Count the batch before, and let whoever is faster load the next ones."""
        is_here = self._here is not None
        _, _, samples, waited, *_ = self._loop.sums
        if self._seen is not None:
            before, until = self._seen
            comparison.add(samples - before, (waited - until) * 1e-9, here=is_here)
        self._seen, self._is_first = None if self._is_first else (samples, waited), False
        if is_here:
            decision = comparison.decide()
            if decision is not None and decision[0]:
                self._stand_down(f"the calling thread loads: {decision[1]}", None)
        elif comparison.wants_trial(worker.process.pid for worker in self._pool.workers):
            self._take_over("the calling thread loads the rest of the epoch, to be compared with processes", 0)
            self._seen = None

    def _next_answered(self) -> int | None:
        number = super()._next_answered()
        if number is not None and self._held is not None and (why := self._answers[number].unfit):
            self._take_over(f"the calling thread loads, because {why}", 1)
            raise _TakenOver
        if number is not None and self._held is not None:
            indices = self._assigned[number][0]
            self._taken[self._place(number)] = indices, self._is_lacking and self._answers[number].makes
            if not self._firsts:
                self._firsts.append(copy.copy(indices))
        return number

    def _take_or_make(self, take: Callable[[], Any], number: int) -> Any:
        """Take a batch from a worker, or make it here if it makes what is lacking, or cannot be unpickled."""
        failures = len(self.errors)
        indices, makes = self._taken.pop(number)
        if makes:
            with suppress(Exception):
                take()  # its memory is given back
            self.errors.forget(failures)
            return self._make_what_lacks(indices)
        try:
            return take()
        except EmptyBatch:
            raise
        except Exception as error:
            why = f"its samples cannot be sent between processes ({type(error).__name__}: {error})"
        self.errors.forget(failures)
        if self._here is None:
            self._take_over(f"the calling thread loads, because {why}", 1)
        assert self._here is not None
        return self._make(self._here, indices, number)

    def _make_what_lacks(self, indices: Any) -> Any:
        """Make a batch here, and with it what the dataset makes when it is first needed, as a copy of it has."""
        assert self._held is not None
        batch = self._alone().start(indices)
        try:
            batch.job.run_here()  # (The worker's has been counted.)
            return batch.take()
        finally:
            name = self._held.settled() or self._held.untold
            if name is not None and self._here is None:
                self._take_over(f"the calling thread loads, because loading a batch changes {name!r}", 1)
            self._is_lacking = self._held.lacks()

    def _request(self) -> None:
        """Draw the batch that the loop requests, and assign what may be loaded ahead."""
        if self._foretold is None:
            if not self._asked and self._sampler_error is None:
                self._ask()
        elif len(self._asked) == len(self._ahead) and self._sampler_error is None:
            self._foretold.begin()
            self._confirm(self._foretold)
        if self._here is None:
            self._ask_ahead(self._depth - len(self._asked))

    def _confirm(self, foretold: Foretold) -> None:
        with self._pool.assigning:
            if not self._may_assign:
                return
            try:
                indices = self._draw()
            except StopIteration:
                self._drop_ahead()
                for worker in self._pool.workers:
                    self._dismiss(worker)
                return
            except Exception as error:
                self._drop_ahead()
                self._sampler_error = error
                return
            if self._ahead and foretold.agrees_with(indices):
                self._ahead.popleft()
                return
            if self._ahead or not foretold.agrees_with(indices):
                self._drop_ahead()
            self._assign(indices)
        if foretold.is_wrong:
            self._follow_sampler()

    def _follow_sampler(self) -> None:
        name = type(self._order.item_sampler).__name__
        why = f"the calling thread loads, because what {name} yields depends on what the loop does meanwhile"
        if self._held is not None:
            self._take_over(why, None)

    def _ask_ahead(self, count: int) -> None:
        if self._foretold is None:
            for _ in range(count):
                if self._sampler_error is None and self._order.may_draw_ahead:
                    self._ask()
            return
        with self._pool.assigning:
            for _ in range(count):
                if not self._may_assign or (indices := self._foretold.next()) is None:
                    return
                self._ahead.append(self._assign(indices))

    def _assign(self, indices: Any) -> int:
        view, missing = self._spec.view, []
        if self._held is not None and isinstance(view, CachedView):
            is_batch = self._spec.batches.auto_collation
            missing = view.missing(copy.copy(indices) if is_batch else [indices])  # not those of an iterator
        number = super()._assign(indices)
        if self._held is not None:
            self._assigned = {job: assigned for job, assigned in self._assigned.items() if job in self._asked}
            self._assigned[number] = indices, missing
        return number

    def _drop_ahead(self) -> None:
        """Throw away what is foretold; nothing else is being loaded."""
        assert self._foretold is not None
        self._foretold.close()
        if self._ahead:
            for worker in self._pool.workers:
                worker.skip_to(self._pool.next_number)
            for number in self._ahead:
                del self._asked[number]
                self._answers.pop(number, None)
                self._sizes.pop(number, None)
            self._num_dropped += len(self._ahead)
            self._ahead.clear()

    def _wait(self, wanted: list[W], timeout: float | None) -> bool | None:
        pipe = None if self._foretold is None or len(self._asked) >= self._depth else self._foretold.pipe
        if pipe is None:
            return super()._wait(wanted, timeout)
        pool: Any = self._pool  # of processes: on Ray, no order is foretold
        is_found: bool | None = pool.wait(wanted, timeout, self._first, pipe)
        if not is_found:
            self._ask_ahead(self._depth - len(self._asked))
        return is_found

    def _take_over(self, why: str, epochs: int | None) -> None:
        """Let the calling thread load from now on; all that workers have loaded is thrown away."""
        ahead = set(self._ahead)
        drawn = [number for number in self._asked if number not in ahead]
        self._pending.extend((self._place(number), self._assigned[number][0]) for number in drawn)
        early = [place for number in self._asked for place in self._assigned[number][1]]
        if self._foretold is not None:
            self._drop_ahead()
        self._asked.clear()
        self._answers.clear()
        self._close()
        self._stand_down(why, epochs)
        if isinstance(self._spec.view, CachedView):
            self._spec.view.drop(early)  # as they were before the loop requested them
        self._here = self._inline()
        if self._makes and self._opens and self._firsts:
            # What the dataset makes when it is first needed is made by the first batch, as if it had loaded all.
            failures = len(self.errors)
            with suppress(Exception):  # which the loop has got
                self._make(self._here, copy.copy(self._firsts[0]), 0)
            self.errors.forget(failures)

    def _next_here(self, assembly: Assembly) -> tuple[int, int, Callable[[], Any]]:
        if self._pending:
            number, indices = self._pending.popleft()
        elif self._sampler_error is not None:
            error, self._sampler_error = self._sampler_error, None
            raise error
        else:
            indices = self._draw()
            number = self._order.num_drawn - 1
        return number, count(indices), partial(self._make, assembly, indices, number)

    def _make(self, assembly: Assembly, indices: Any, number: int) -> Any:
        batch = assembly.start(indices)
        batch.job.run_in(self._lane, number)
        return batch.take()

    def close(self) -> None:
        """End the epoch early; its workers end, unless they persist."""
        if self._foretold is not None:
            self._foretold.close()
        super().close()
