"""Records of the torch loaders in a process, and of the loops over them."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any

from .lanes import Here, ThreadLane

__all__ = ["LoaderCounts", "LoopCounts", "Session", "rows", "where_of"]

# Waits kept per loader; they give the times between batches.
_MAX_WAITS = 1 << 14


class Session:
    """The records of a process.

    Args:
        folder: folder for the files: one per thread, and two per loader.
        spans: spans kept per thread.
        mark: see :class:`ThreadLane`.
    """

    def __init__(self, folder: str, spans: int, mark: Any = None) -> None:
        self.folder = folder
        self.spans = spans
        self.mark = mark
        self.here = Here()
        self.loaders: list[LoaderCounts] = []
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.here.forget()
        self.loaders = []

    def own_lane(self) -> ThreadLane:
        """Return the lane of this thread."""
        lane = self.here.own
        if lane is None:
            name = f"{os.getpid()}-{threading.get_native_id()}-{time.monotonic_ns()}.lane"
            lane = self.here.own = ThreadLane(os.path.join(self.folder, name), self.spans, self.mark)
        return lane

    def loader(self, loader: Any, about: dict[str, Any]) -> LoaderCounts:
        """Return the records of a loader; a loader made anew for each epoch continues those of the last.

        Args:
            loader: the loader, or an iterator over batches.
            about: its class, dataset, batch size, number of workers, and what else is to be written down.
        """
        where = where_of(2)
        key = (where, about["class"], about["dataset"], about["batch_size"], about["workers"])
        for known in self.loaders:
            if known.loader() is loader:
                return known
        for known in self.loaders:
            if known.key == key and known.loader() is None:
                known.loader = weakref.ref(loader)
                return known
        self.loaders.append(LoaderCounts(self, loader, key, {"where": where, **about}))
        return self.loaders[-1]


class LoaderCounts:
    """Records of a loader in one process."""

    def __init__(self, session: Session, loader: Any, key: tuple[Any, ...], about: dict[str, Any]) -> None:
        self.loader = weakref.ref(loader)
        self.key = key
        self._about = os.path.join(session.folder, f"{os.getpid()}-{len(session.loaders)}.loader")
        self.lane = ThreadLane(f"{self._about}.lane", _MAX_WAITS, session.mark)
        self.epochs = 0
        self.is_stream = bool(about["iterable"])
        self._write({"pid": os.getpid(), **about})

    def _write(self, line: dict[str, Any]) -> None:
        with open(self._about, "a") as file:
            file.write(json.dumps(line) + "\n")

    def claim(self, ids: list[int]) -> None:
        """Record which worker processes and threads work for this loader."""
        if ids:
            self._write({"ids": ids})


def where_of(above: int) -> str:
    """Return file and line of the user's code: the first frame above that is in no installed package."""
    frame = sys._getframe(above)
    first = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith("<") and os.path.dirname(__file__) not in name:
            first = first or frame
            if "site-packages" not in name and "dist-packages" not in name and not name.startswith(_LIBRARY):
                break
        frame = frame.f_back  # type: ignore[assignment]
    frame = frame or first
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


_LIBRARY = os.path.dirname(os.__file__)


def rows(batch: Any, most: int) -> int:
    """Count the samples of a batch by its shape, at most ``most``, also if they cannot be counted."""
    try:
        return _rows(batch, most)
    except Exception:  # whatever the user's objects raise, and nested tensors, which have no shape
        return most


def _rows(batch: Any, most: int) -> int:
    if hasattr(batch, "shape"):
        return min(most, int(batch.shape[0])) if len(batch.shape) else 1
    if isinstance(batch, dict):
        return min((_rows(field, most) for field in batch.values()), default=most)
    if isinstance(batch, (list, tuple)) and batch and hasattr(batch[0], "shape"):
        return _rows(batch[0], most)
    return min(most, len(batch)) if isinstance(batch, list) else most


def _size(batch: Any) -> tuple[int, int]:
    """Return the number of tensors of a batch, and their bytes; 0 if that cannot be known."""
    try:
        tensors = _tensors(batch)
        return len(tensors), sum(int(tensor.nbytes) for tensor in tensors)
    except Exception:  # as above, and sparse tensors, which have no number of bytes
        return 0, 0


def _tensors(batch: Any) -> list[Any]:
    if hasattr(batch, "untyped_storage"):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for part in parts if not isinstance(part, (str, int, float)) for tensor in _tensors(part)]


class LoopCounts:
    """Records of one iterator: the waits of its loop, and the work in between."""

    def __init__(self, loader: LoaderCounts) -> None:
        self.loader = loader
        self.lengths: deque[int] = deque()
        self.begin()

    def begin(self) -> None:
        """Begin an epoch."""
        self.began = self._received = time.monotonic_ns()
        self.received = 0
        self.loader.lane.batch = 0
        self._cpu = 0
        self.lengths.clear()

    def request(self) -> None:
        """Record that the loop requests a batch."""
        self._requested_cpu, self._requested = time.thread_time_ns(), time.monotonic_ns()

    def end(self) -> None:
        """Record that the loop was told that there is no other batch."""
        self.loader.lane.add("ending", time.monotonic_ns() - self._requested)

    def receive(self, batch: Any) -> None:
        """Record that the loop receives this batch."""
        lane, loader = self.loader.lane, self.loader
        now, cpu = time.monotonic_ns(), time.thread_time_ns()
        if self.received:
            lane.add("loop", self._requested - self._received)
            lane.add("loop_cpu", max(0, self._requested_cpu - self._cpu))
            waited = self._requested
        else:
            loader.epochs += 1
            lane.add("epochs", 1)
            lane.set("first", now - self.began)
            tensors, size = _size(batch)
            lane.set("tensors", tensors)
            lane.set("batch_bytes", size)
            waited = self.began
        lane.add("seconds", now - self._received)
        samples = self.lengths.popleft() if self.lengths else 1
        if loader.is_stream:
            samples = rows(batch, samples)  # the last batch of a stream may be smaller
        lane.add("batches", 1)
        lane.add("samples", samples)
        lane.count("wait", now - waited, cpu - self._requested_cpu, samples)
        lane.keep("wait", waited, now, samples)
        lane.epoch(loader.epochs - 1, self.began, now)
        self.received += 1
        lane.batch = self.received
        self._received, self._cpu = now, cpu
