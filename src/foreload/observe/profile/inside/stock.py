"""torch's DataLoader, measured: its iterators, which loops wait for, and its fetchers, wherever they run."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from .lanes import Here, Lane
from .timed import hide, time_attribute, timed

__all__ = ["Session", "patch_loaders", "where_of"]

# The last waits, from which the times between batches are known.
_WAITS = 1 << 14


class Session:
    """Where the processes of a script write what they count.

    Args:
        folder: one file per thread, and two per loader.
        spans: kept per thread.
        mark: see :class:`Lane`.
    """

    def __init__(self, folder: str, spans: int, mark: Any = None) -> None:
        self.folder = folder
        self.spans = spans
        self.mark = mark
        self.here = Here()
        self.loaders: list[Loader] = []
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.here.forget()
        self.loaders = []

    def own_lane(self) -> Lane:
        """Give the lane of this thread."""
        lane = self.here.own
        if lane is None:
            name = f"{os.getpid()}-{threading.get_native_id()}-{time.monotonic_ns()}.lane"
            lane = self.here.own = Lane(os.path.join(self.folder, name), self.spans, self.mark)
        return lane

    def loader(self, loader: Any) -> Loader:
        """Give what is counted of a loader; one that is made anew for each epoch goes on with what is there."""
        where = where_of(2)
        key = (where, type(loader).__name__, type(loader.dataset).__name__, loader.batch_size, loader.num_workers)
        for known in self.loaders:
            if known.loader() is loader:
                return known
        for known in self.loaders:
            if known.key == key and known.loader() is None:
                known.loader = weakref.ref(loader)
                return known
        self.loaders.append(Loader(self, loader, key, len(self.loaders)))
        return self.loaders[-1]


class Loader:
    """What is counted of a loader in one process."""

    def __init__(self, session: Session, loader: Any, key: tuple[Any, ...], number: int) -> None:
        self.loader = weakref.ref(loader)
        self.key = key
        self._about = os.path.join(session.folder, f"{os.getpid()}-{number}.loader")
        self.lane = Lane(f"{self._about}.lane", _WAITS, session.mark)
        self.epochs = 0
        self.is_stream = not hasattr(loader.dataset, "__getitem__")
        torch = sys.modules["torch"]
        self._write(
            {
                "pid": os.getpid(),
                "where": key[0],
                "class": key[1],
                "dataset": key[2],
                "batch_size": getattr(loader.batch_sampler, "batch_size", loader.batch_size),
                "workers": loader.num_workers,
                "pin_memory": bool(loader.pin_memory),
                "start": _start_method(loader),
                "depth": max(1, (loader.prefetch_factor or 0) * loader.num_workers),
                "cuda": bool(torch.cuda.is_available()),
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        with open(self._about, "a") as file:
            file.write(json.dumps(line) + "\n")

    def claim(self, iterator: Any) -> None:
        """Note who works for this loader: processes, and the thread that pins."""
        ids = [worker.pid for worker in getattr(iterator, "_workers", ())]
        pinning = getattr(iterator, "_pin_memory_thread", None)
        if pinning is not None:
            ids.append(pinning.native_id)
        if ids:
            self._write({"ids": ids})


def _start_method(loader: Any) -> str | None:
    if not loader.num_workers:
        return None
    method = getattr(loader.multiprocessing_context, "get_start_method", None)
    return str(method() if method is not None else sys.modules["multiprocessing"].get_start_method())


def where_of(above: int) -> str:
    """Say where the user's code asks for a loader: the first frame above that is in no installed package."""
    frame = sys._getframe(above)
    first = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and os.path.dirname(__file__) not in name:
            first = first or frame
            if "site-packages" not in name and "dist-packages" not in name and not name.startswith(_LIBRARY):
                break
        frame = frame.f_back  # type: ignore[assignment]
    frame = frame or first  # type: ignore[assignment]
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


_LIBRARY = os.path.dirname(os.__file__)


def _rows(batch: Any, most: int) -> int:
    """Count the samples of a batch, as far as that can be seen; at most so many."""
    if hasattr(batch, "shape"):
        return min(most, int(batch.shape[0])) if len(batch.shape) else 1
    if isinstance(batch, dict):
        return min((_rows(field, most) for field in batch.values()), default=most)
    if isinstance(batch, (list, tuple)) and batch and hasattr(batch[0], "shape"):
        return _rows(batch[0], most)
    return min(most, len(batch)) if isinstance(batch, list) else most


class _Loop:
    """One iterator: what its loop waits for, and does in between."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.lengths: deque[int] = deque()
        self.begin()

    def begin(self) -> None:
        """Begin an epoch."""
        self.began = self._given = time.monotonic_ns()
        self.given = 0
        self.loader.lane.batch = 0
        self._cpu = 0
        self.lengths.clear()

    def ask(self) -> None:
        """Take note that the loop wants a batch."""
        self._asked_cpu, self._asked = time.thread_time_ns(), time.monotonic_ns()

    def give(self, batch: Any) -> None:
        """Take note that the loop is given this batch."""
        lane, loader = self.loader.lane, self.loader
        now, cpu = time.monotonic_ns(), time.thread_time_ns()
        if self.given:
            lane.add("loop", self._asked - self._given)
            lane.add("loop_cpu", max(0, self._asked_cpu - self._cpu))
            waited = self._asked
        else:
            loader.epochs += 1
            lane.add("epochs", 1)
            lane.set("first", now - self.began)
            waited = self.began
        lane.add("seconds", now - self._given)
        samples = self.lengths.popleft() if self.lengths else 1
        if loader.is_stream:
            samples = _rows(batch, samples)  # the last batch of a stream may be smaller than was asked for
        lane.add("batches", 1)
        lane.add("samples", samples)
        lane.count("wait", now - waited, cpu - self._asked_cpu, samples)
        lane.keep("wait", waited, now, samples)
        lane.epoch(loader.epochs - 1, self.began, now)
        self.given += 1
        lane.batch = self.given
        self._given, self._cpu = now, cpu


def patch_loaders(session: Session, module: Any) -> None:
    """Measure ``torch.utils.data.dataloader``."""
    _patch_iterator(session, module._BaseDataLoaderIter)
    fetchers = module._utils.fetch
    for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        _patch_fetcher(session, fetcher)
    _patch_pinning(session, module._utils.pin_memory)


def _patch_iterator(session: Session, kind: Any) -> None:
    here = session.here

    def inside(method: Callable[..., Any]) -> Callable[..., Any]:
        """While the method runs, this thread works for the loader."""

        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            before, here.lane = here.lane, self._profiled.loader.lane
            try:
                return method(self, *args, **options)
            except BaseException as error:
                hide(error)
                raise
            finally:
                here.lane = before

        return call

    init, reset, following, index = kind.__init__, kind._reset, kind.__next__, timed(here, "order", kind._next_index)

    @functools.wraps(init)
    def __init__(self: Any, loader: Any, *args: Any, **options: Any) -> None:
        self._profiled = _Loop(session.loader(loader))
        _patch_copies(session)
        try:
            init(self, loader, *args, **options)
        except BaseException as error:
            hide(error)
            raise

    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **options: Any) -> Any:
        if not first_iter:
            self._profiled.begin()
        return reset(self, loader, first_iter, *args, **options)

    @functools.wraps(index)
    def _next_index(self: Any) -> Any:
        # In the constructor of the iterator, too, where the first batches are asked for.
        before, here.lane = here.lane, self._profiled.loader.lane
        try:
            found = index(self)
        except BaseException as error:
            hide(error)
            raise
        finally:
            here.lane = before
        self._profiled.lengths.append(len(found) if isinstance(found, (list, tuple)) else 1)
        return found

    advance = inside(following)

    @functools.wraps(following)
    def __next__(self: Any) -> Any:
        loop = self._profiled
        if not loop.given:
            loop.loader.claim(self)
        loop.ask()
        try:
            batch = advance(self)
        except BaseException as error:
            hide(error)
            raise
        loop.give(batch)
        here.last = loop.loader.lane
        return batch

    kind.__init__, kind._reset, kind._next_index, kind.__next__ = __init__, _reset, _next_index, __next__


def _patch_fetcher(session: Session, kind: Any) -> None:
    here = session.here
    init, fetch = kind.__init__, kind.fetch

    @functools.wraps(init)
    def __init__(self: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any) -> None:
        try:
            init(self, dataset, auto_collation, timed(here, "batch", collate_fn), drop_last)
        except BaseException as error:
            hide(error)
            raise
        self._profiled_end = self._profiled_batches = 0
        worker = sys.modules["torch.utils.data"].get_worker_info()
        self._profiled_worker = (0, 1) if worker is None else (worker.id, worker.num_workers)

    @functools.wraps(fetch)
    def timed_fetch(self: Any, possibly_batched_index: Any) -> Any:
        before = here.lane
        lane = here.lane = before or session.own_lane()
        if before is None:
            first, step = self._profiled_worker
            lane.batch = first + step * self._profiled_batches
            self._profiled_batches += 1
            if self._profiled_end:
                lane.add("between", max(0, time.thread_time_ns() - self._profiled_end))
        lane.look()
        lane.begin("sample")
        samples = 0
        try:
            data = fetch(self, possibly_batched_index)
            samples = len(possibly_batched_index) if isinstance(possibly_batched_index, (list, tuple)) else 1
            return data
        except BaseException as error:
            hide(error)
            raise
        finally:
            lane.looked(*lane.end(samples))
            here.lane = before
            if before is None:
                self._profiled_end = time.thread_time_ns()

    kind.__init__, kind.fetch = __init__, timed_fetch


def _patch_pinning(session: Session, module: Any) -> None:
    here, pin = session.here, module.pin_memory

    @functools.wraps(pin)
    def pin_memory(data: Any, device: Any = None) -> Any:
        before = here.lane
        lane = here.lane = before or session.own_lane()
        if lane.within("batch"):
            return pin(data, device)
        lane.begin("batch")
        try:
            return pin(data, device)
        except BaseException as error:
            hide(error)
            raise
        finally:
            lane.end()
            here.lane = before

    module.pin_memory = pin_memory


def _patch_copies(session: Session) -> None:
    """Measure what tensors take to reach a device, where there is one."""
    torch = sys.modules["torch"]
    if getattr(torch.Tensor.to, "__wrapped__", None) is not None or not torch.accelerator.is_available():
        return
    here = session.here

    def copying(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            lane = here.last
            if lane is None or here.lane is not None or self.device.type != "cpu":
                return method(self, *args, **options)
            began, cpu = time.monotonic_ns(), time.thread_time_ns()
            moved = method(self, *args, **options)
            if moved.device.type != "cpu":
                now = time.monotonic_ns()
                lane.count("device", now - began, time.thread_time_ns() - cpu, 0, self.nbytes)
                lane.keep("device", began, now, 0, self.nbytes)
                if not self.is_pinned():
                    lane.add("pageable", self.nbytes)
            return moved

        return call

    torch.Tensor.to = copying(torch.Tensor.to)
    torch.Tensor.cuda = copying(torch.Tensor.cuda)
