"""Measuring of torch's DataLoader: its iterators, which loops wait for, and its fetchers, wherever they run.

It reads and patches private parts of torch, and is the only file of this package that does: ``inside`` is loaded
without ``foreload``, so it cannot use ``foreload._torch``.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from .lanes import Here
from .session import LoopCounts, Session
from .timed import hide, timed, unseen

__all__ = ["mark_range", "patch_loaders"]


def patch_loaders(session: Session, module: Any) -> None:
    """Measure ``torch.utils.data.dataloader``."""
    _patch_iterator(session, module._BaseDataLoaderIter)
    fetchers = module._utils.fetch
    for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        _patch_fetcher(session, fetcher)
    _patch_pinning(session, module._utils.pin_memory)


def mark_range(stage: str | None) -> None:
    """Begin an NVTX range, or end the innermost one with None, unless this torch has no CUDA."""
    ranges = getattr(sys.modules["torch"]._C, "_nvtx", None)
    if ranges is None:
        return
    if stage is None:
        ranges.rangePop()
    else:
        ranges.rangePushA(stage)


def _describe(loader: Any) -> dict[str, Any]:
    """Return the settings of a loader."""
    torch = sys.modules["torch"]
    size = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    return {
        "class": type(loader).__name__,
        "dataset": type(loader.dataset).__name__,
        "is_rows": _is_rows(loader),
        "batch_size": int(size) if hasattr(size, "__index__") else None,
        "iterable": isinstance(loader.dataset, torch.utils.data.IterableDataset),
        "workers": int(loader.num_workers),
        "pin_memory": bool(loader.pin_memory),
        "start": _start_method(loader),
        "depth": max(1, int((loader.prefetch_factor or 0) * loader.num_workers)),
        "cuda": bool(torch.cuda.is_available()),
    }


def _is_rows(loader: Any) -> bool:
    """Whether its batches are rows of tensors in memory, which foreload gathers natively."""
    torch = sys.modules["torch"]
    utils, samples = torch.utils.data, loader.dataset
    if type(samples) is not utils.TensorDataset or "__getitems__" in vars(samples):
        return False
    return bool(
        loader.batch_size
        and loader.collate_fn is utils.default_collate
        and all(_is_gathered(torch, tensor) for tensor in samples.tensors)
    )


def _is_gathered(torch: Any, tensor: Any) -> bool:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return bool(tensor.dim() and tensor.is_contiguous()) and not (tensor.requires_grad or tensor.is_quantized)


def _start_method(loader: Any) -> str | None:
    if not loader.num_workers:
        return None
    method = getattr(loader.multiprocessing_context, "get_start_method", None)
    return str(method() if method is not None else sys.modules["multiprocessing"].get_start_method())


def _worker_ids(iterator: Any) -> list[int]:
    """Return the ids of the worker processes and of the thread that pins memory."""
    ids = [worker.pid for worker in getattr(iterator, "_workers", ())]
    pinning = getattr(iterator, "_pin_memory_thread", None)
    return ids if pinning is None else [*ids, pinning.native_id]


def _patch_iterator(session: Session, kind: Any) -> None:
    """Measure what loops over an iterator wait for, and the drawing of indices."""
    init, reset = _measured_init(session, kind.__init__), _measured_reset(kind._reset)
    index, following = _measured_index(session.here, kind._next_index), _measured_next(session, kind.__next__)
    kind.__init__, kind._reset, kind._next_index, kind.__next__ = init, reset, index, following


def _as_loader(here: Here, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method during which this thread records to the loop's lane."""

    @unseen
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


def _measured_init(session: Session, init: Callable[..., None]) -> Callable[..., None]:
    @unseen
    @functools.wraps(init)
    def __init__(self: Any, loader: Any, *args: Any, **options: Any) -> None:
        self._profiled = LoopCounts(session.loader(loader, _describe(loader)))
        _patch_copies(session)
        before = time.thread_time_ns()
        try:
            init(self, loader, *args, **options)
        except BaseException as error:
            hide(error)
            raise
        if loader.num_workers:
            self._profiled.loader.lane.add("started", time.thread_time_ns() - before)

    return __init__


def _measured_reset(reset: Callable[..., Any]) -> Callable[..., Any]:
    @unseen
    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **options: Any) -> Any:
        if not first_iter:  # the workers persist
            self._profiled.begin()
        try:
            return reset(self, loader, first_iter, *args, **options)
        except BaseException as error:
            hide(error)
            raise

    return _reset


def _count(indices: Any, *, is_batch: bool) -> int:
    """Count the samples of what a sampler yields, which may be an array."""
    is_list = isinstance(indices, (list, tuple)) or (is_batch and hasattr(indices, "__len__"))
    return len(indices) if is_list else 1


def _measured_index(here: Here, index: Callable[..., Any]) -> Callable[..., Any]:
    draw = _as_loader(here, timed(here, "order", index))

    @unseen
    @functools.wraps(index)
    def _next_index(self: Any) -> Any:
        # The constructor requests the first batches already.
        try:
            found = draw(self)
        except BaseException as error:
            hide(error)
            raise
        self._profiled.lengths.append(_count(found, is_batch=self._auto_collation))
        return found

    return _next_index


def _measured_next(session: Session, following: Callable[..., Any]) -> Callable[..., Any]:
    here, advance = session.here, _as_loader(session.here, following)

    @unseen
    @functools.wraps(following)
    def __next__(self: Any) -> Any:
        loop = self._profiled
        if not loop.received:
            loop.loader.claim(_worker_ids(self))
        loop.request()
        if session.mark is not None:
            session.mark("wait")
        try:
            batch = advance(self)
        except BaseException as error:
            if isinstance(error, StopIteration):
                loop.end()
            hide(error)
            raise
        finally:
            if session.mark is not None:
                session.mark(None)
        loop.receive(batch)
        here.last = loop.loader.lane
        return batch

    return __next__


def _patch_fetcher(session: Session, kind: Any) -> None:
    here = session.here
    init, fetch = kind.__init__, kind.fetch

    @unseen
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
        if worker is not None and not session.own_lane().total("started"):  # persistent workers start once
            session.own_lane().add("started", time.process_time_ns())

    @unseen
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
            samples = _count(possibly_batched_index, is_batch=self.auto_collation)
            return data
        except BaseException as error:
            hide(error)
            raise
        finally:
            wall, cpu = lane.end(samples)
            lane.looked(wall, cpu)
            here.lane = before
            if before is None:
                self._profiled_end = time.thread_time_ns()
                if not lane.total("first_cpu"):
                    lane.add("first_cpu", cpu)

    kind.__init__, kind.fetch = __init__, timed_fetch


def _patch_pinning(session: Session, module: Any) -> None:
    here, pin = session.here, module.pin_memory

    @unseen
    @functools.wraps(pin)
    def pin_memory(data: Any, device: Any = None) -> Any:
        before = here.lane
        lane = here.lane = before or session.own_lane()
        if lane.within("batch"):
            return pin(data, device)
        lane.look()
        lane.begin("batch")
        try:
            return pin(data, device)
        except BaseException as error:
            hide(error)
            raise
        finally:
            lane.looked(*lane.end())
            here.lane = before

    module.pin_memory = pin_memory


def _patch_copies(session: Session) -> None:
    """Measure copies of tensors to a device, if there is one."""
    torch = sys.modules["torch"]
    if getattr(torch.Tensor.to, "__wrapped__", None) is not None or not torch.accelerator.is_available():
        return
    here = session.here

    def copying(method: Callable[..., Any]) -> Callable[..., Any]:
        @unseen
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
