"""Batches copied to a GPU on a separate stream, one ahead of the loop."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from foreload import _native
from foreload._torch import TorchIterator
from foreload.epochs.base import Epoch
from foreload.epochs.turn import Turn
from foreload.nested import move, tensors
from foreload.record.spans import Stage

if TYPE_CHECKING:
    from foreload.record.recorder import Watch


__all__ = ["MovedAhead", "PrefetchLoader", "SideStream", "check_device", "side_stream"]


class SideStream(Protocol):
    """Copies to a device that are queued, in order, beside the work of the loop."""

    def copy(self, value: Any) -> Any:
        """Queue the copy of a tensor, or of an object with ``.to``, to the device; return the copy at once."""
        ...

    def event(self) -> Any:
        """Return an event at the end of the work queued so far."""
        ...

    def start(self) -> Any:
        """Return an event at the beginning of copies that are to be timed."""
        ...

    def seconds(self, start: Any, event: Any) -> float:
        """Return the seconds from a ``start`` to an ``event`` that has been reached."""
        ...

    def wait(self, event: Any) -> None:
        """Make the loop's further work on the device wait for ``event``; the caller does not wait."""
        ...

    def record(self, tensor: torch.Tensor) -> None:
        """Keep the tensor's memory from reuse until the work that the loop queues before freeing it is done."""
        ...

    def is_over(self, event: Any) -> bool:
        """Return whether ``event`` has been reached."""
        ...

    def finish(self, event: Any) -> None:
        """Wait until ``event`` has been reached."""
        ...


class _Cuda:
    """A stream beside the current one of a CUDA device."""

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self._device = device
        self._non_blocking = non_blocking
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, value: Any) -> Any:
        with torch.cuda.stream(self._stream):
            return _to(value, self._device, self._non_blocking)

    def event(self) -> Any:
        return self._stream.record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]

    def start(self) -> Any:
        return self.event()

    def seconds(self, start: Any, event: Any) -> float:
        return float(start.elapsed_time(event)) * 1e-3

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def record(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "cuda":
            tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def is_over(self, event: Any) -> bool:
        return bool(event.query())

    def finish(self, event: Any) -> None:
        event.synchronize()


class _Synchronous:
    """A device without usable streams: copies are made at once."""

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self._device = device
        self._non_blocking = non_blocking

    def copy(self, value: Any) -> Any:
        return _to(value, self._device, self._non_blocking)

    def event(self) -> float:
        return time.perf_counter()

    def start(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, event: float) -> float:
        return event - start

    def wait(self, event: float) -> None: ...

    def record(self, tensor: torch.Tensor) -> None: ...

    def is_over(self, event: float) -> bool:
        return True

    def finish(self, event: float) -> None: ...


def _to(value: Any, device: torch.device, non_blocking: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    try:
        return value.to(device, non_blocking=non_blocking)
    except TypeError:  # its `to` has no such argument
        return value.to(device)


def side_stream(device: torch.device, *, non_blocking: bool = True) -> SideStream | None:
    """Return a stream of copies to ``device``; None for the CPU, which needs no copies.

    Raises:
        RuntimeError: there is no such device.
    """
    check_device(device)
    if device.type == "cpu":
        return None
    return (_Cuda if device.type == "cuda" else _Synchronous)(device, non_blocking)


def check_device(device: torch.device) -> None:
    """Raise RuntimeError if ``device`` is a GPU that does not exist."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"device {str(device)!r} is asked for, but torch finds no CUDA; say device='cpu'")


class _Moved(NamedTuple):
    batch: Any
    event: Any
    state: Any  # of the loader before this batch was requested
    samples: int


class _Source(NamedTuple):
    batch: Any  # must not be freed before the copy is done
    start: Any
    event: Any
    began: int  # in nanoseconds
    samples: int


class MovedAhead(TorchIterator, Iterator[Any]):
    """An epoch copied to a device: while the loop has a batch, the next one is being copied.

    An exception in ``batches`` is raised in place of its batch; then :func:`next` may be called again.

    Args:
        batches: the epoch to copy.
        stream: the stream to copy on.
        state: returns the state of the loader, if it has one.

    Attributes:
        state: the result of ``state`` from before the batch that is copied ahead was requested.
    """

    def __init__(self, batches: Iterator[Any], stream: SideStream, state: Callable[[], Any] | None = None) -> None:
        self._batches = batches
        self._stream = stream
        self._turn = Turn()
        self._state_of_loader = state
        self.state: Any = None if state is None else state()
        self._ahead: _Moved | Exception | None = None
        # Waiting is recorded here from now on, since the loop waits for the copy, not for the epoch.
        self._watch: Watch | None = batches.count_at_consumer() if isinstance(batches, Epoch) else None
        self._sources: deque[_Source] = deque()
        self._finish = weakref.finalize(self, _finish, self._sources, stream)

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch, if that is known."""
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        """Return the next batch, after queueing the copy of the one after it."""
        with self._turn.lock:
            self._turn.begin()
            return self._deliver()

    def _deliver(self) -> Any:
        if self._watch is not None:
            self._watch.loop.mark_requested()
        now = self._fetch() if self._ahead is None else self._ahead
        self._ahead = None
        if isinstance(now, Exception):
            try:
                self.state = None if self._state_of_loader is None else self._state_of_loader()
                if isinstance(now, StopIteration):
                    self._release(wait=True)
                    self._end_watch()
                raise now
            finally:
                del now  # its traceback holds this frame
        self._ahead = self._fetch()
        self._stream.wait(now.event)
        for tensor in tensors(now.batch):
            self._stream.record(tensor)
        self._release(wait=False)
        if self._watch is not None:
            self._watch.loop.mark_delivered(now.samples)
        return now.batch

    def _fetch(self) -> _Moved | Exception:
        state = self.state = None if self._state_of_loader is None else self._state_of_loader()
        try:
            source = next(self._batches)
            samples = 0 if self._watch is None else self._watch.passed()
            began, start = _native.now_ns(), self._stream.start()
            batch = move(source, self._stream.copy)
        except Exception as error:
            return error
        event = self._stream.event()
        self._sources.append(_Source(source, start, event, began, samples))
        return _Moved(batch, event, state, samples)

    def _release(self, *, wait: bool) -> None:
        while self._sources:
            source = self._sources[0]
            if wait:
                self._stream.finish(source.event)
            elif not self._stream.is_over(source.event):
                return
            self._sources.popleft()
            self._note(source)

    def _note(self, source: _Source) -> None:
        if self._watch is not None:
            took = int(self._stream.seconds(source.start, source.event) * 1e9)
            size = sum(tensor.nbytes for tensor in tensors(source.batch))
            self._watch.lane.native.add(Stage.device, source.began, source.began + took, source.samples, size)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def close(self) -> None:
        """End the epoch early: wait for copies under way, and drop them."""
        self._finish()
        self._ahead = None
        self._end_watch()
        end = getattr(self._batches, "close", None)
        self._batches = iter(())
        if end is not None:
            end()


def _finish(sources: deque[_Source], stream: SideStream) -> None:
    while sources:
        stream.finish(sources.popleft().event)


class PrefetchLoader:
    """Delivers the batches of any loader on a device, copied one ahead on a separate CUDA stream.

    A batch is copied while the loop works on the one before it. Tensors may be nested in tuples, lists, dicts,
    named tuples, dataclasses and objects that have ``.to``; anything else stays as it is. Copies run beside the
    loop only if they come from page-locked memory (``pin_memory=True``). On the CPU, batches are passed on
    unchanged. The wrapped loader's attributes (``dataset``, ``set_epoch``, ...) are available here too;
    ``state_dict()`` refers to the batch that the loop has, not to the one that is copied ahead.

    Args:
        loader: anything that can be iterated: foreload's DataLoader, torch's, a generator, a list.
        device: the device to copy to, such as ``"cuda"`` or ``"cuda:1"``.
        non_blocking: False makes the caller wait for each copy.

    Raises:
        TypeError: ``loader`` cannot be iterated.
        RuntimeError: there is no such device.

    >>> loader = PrefetchLoader([{"x": torch.ones(2)}], "cpu")
    >>> len(loader), list(loader)
    (1, [{'x': tensor([1., 1.])}])
    """

    def __init__(self, loader: Iterable[Any], device: torch.device | str | int, non_blocking: bool = True) -> None:
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"loader must be something to iterate over, got {type(loader).__name__}")
        self.loader = loader
        self.device = torch.device(device)
        self.non_blocking = non_blocking
        check_device(self.device)
        self._moving: weakref.ref[MovedAhead] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        self._moving = None
        stream = side_stream(self.device, non_blocking=self.non_blocking)
        if stream is None:
            return iter(self.loader)
        state = getattr(self.loader, "state_dict", None)
        moving = MovedAhead(iter(self.loader), stream, state if callable(state) else None)
        self._moving = weakref.ref(moving)
        return moving

    def __repr__(self) -> str:
        """Name the wrapped loader and the device."""
        # The repr of a list of batches would show all of them.
        loader = repr(self.loader) if hasattr(self.loader, "dataset") else type(self.loader).__name__
        return f"{type(self).__name__}({loader}, device={str(self.device)!r})"

    def __len__(self) -> int:
        """Count the batches, if the wrapped loader has a length."""
        return len(self.loader)  # type: ignore[arg-type]

    @property
    def state_dict(self) -> Callable[[], Any]:
        """The wrapped loader's ``state_dict``, as of the batch that was delivered last."""
        own: Callable[[], Any] = self.loader.state_dict  # type: ignore[attr-defined]
        moving = None if self._moving is None else self._moving()
        return own if moving is None else lambda: moving.state

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped loader."""
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the loader and the device, without the epoch under way."""
        return {**self.__dict__, "_moving": None}
