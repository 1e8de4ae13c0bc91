"""Measuring of iterators over batches that are not torch's: how long loops wait for them, and no more."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .session import LoopCounts, Session, rows
from .timed import hide, unseen

__all__ = ["ITERATORS", "patch_iterators"]

# Modules, and their classes whose ``__next__`` returns a batch.
ITERATORS = (
    ("nvidia.dali.plugin.pytorch", ("DALIGenericIterator", "DALIRaggedIterator")),
    ("nvidia.dali.plugin.paddle", ("DALIGenericIterator",)),
    ("nvidia.dali.plugin.jax.iterator", ("DALIGenericIterator",)),
    ("ffcv.loader.epoch_iterator", ("EpochIterator",)),
)


def patch_iterators(session: Session, classes: tuple[str, ...], module: Any) -> None:
    """Measure loops over the iterators of some classes of a module, as far as it has them."""
    for name in classes:
        kind = getattr(module, name, None)
        if kind is not None and "__next__" in vars(kind):
            kind._profiled, kind._profiled_busy = None, False
            kind.__init__ = _measured_init(kind.__init__)
            kind.__next__ = _measured_next(session, kind.__next__)


def _measured_init(init: Callable[..., None]) -> Callable[..., None]:
    @unseen
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        self._profiled_busy = True  # DALI makes its first batch here already, which no loop waits for
        try:
            init(self, *args, **options)
        except BaseException as error:
            hide(error)
            raise
        self._profiled_busy = False

    return __init__


def _measured_next(session: Session, following: Callable[..., Any]) -> Callable[..., Any]:
    @unseen
    @functools.wraps(following)
    def __next__(self: Any) -> Any:
        if self._profiled_busy:  # it calls itself
            return following(self)
        loop = self._profiled
        if loop is None:
            loop = self._profiled = LoopCounts(session.loader(self, _describe(self)))
        loop.request()
        self._profiled_busy = True
        if session.mark is not None:
            session.mark("wait")
        try:
            batch = following(self)
        except BaseException as error:
            self._profiled = None  # the epoch is over
            hide(error)
            raise
        finally:
            self._profiled_busy = False
            if session.mark is not None:
                session.mark(None)
        loop.lengths.append(_count(batch))
        loop.receive(batch)
        session.here.last = loop.loader.lane
        return batch

    return __next__


def _describe(iterator: Any) -> dict[str, Any]:
    """Return what is known of an iterator."""
    torch = sys.modules.get("torch")
    size: Any = getattr(iterator, "batch_size", None)
    return {
        "class": type(iterator).__name__,
        "dataset": None,
        "is_rows": False,
        "batch_size": int(size) if hasattr(size, "__index__") else None,
        "iterable": False,
        "workers": None,
        "foreign": type(iterator).__module__.partition(".")[0],
        "cuda": torch is not None and bool(torch.cuda.is_available()),
    }


def _count(batch: Any) -> int:
    """Count the samples of a batch, which may be a list with a part for each GPU."""
    if isinstance(batch, list) and batch and isinstance(batch[0], dict):
        return sum(rows(part, sys.maxsize) for part in batch if part)
    count = rows(batch, sys.maxsize)
    return 0 if count == sys.maxsize else count
