"""An epoch by threads whose number, and how far they work ahead, may change while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from foreload import _native
from foreload.epoch import ThreadEpoch
from foreload.observe.tune import Setting, Tuner

if TYPE_CHECKING:
    from foreload.loader import DataLoader
    from foreload.stages.batch import Assembly
    from foreload.state import Order
    from foreload.workers.threads import ThreadPool

__all__ = ["TunedEpoch", "thread_epoch"]


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
        others: as :class:`~foreload.epoch.ThreadEpoch` has them.
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
