"""Streams of work for a device, beside the stream of the loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import torch

__all__ = ["CallingThread", "DeviceTransform", "SideStream", "check_device", "check_transform", "side_stream"]

T = TypeVar("T")

DeviceTransform = Callable[[Any], Any]


class SideStream(Protocol):
    """Work for a device that is queued, in order, beside the work of the loop."""

    @property
    def overlaps(self) -> bool:
        """Whether copies from page-locked memory, and only those, go on while the caller does something else."""
        ...

    def page_lock(self, size: int) -> torch.Tensor:
        """Allocate ``size`` bytes of page-locked memory."""
        ...

    def is_page_locked(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory of a tensor on the CPU is page-locked."""
        ...

    def run(self, work: Callable[[], T]) -> T:
        """Return ``work()``; what that does on the device is queued here."""
        ...

    def copy(self, value: Any) -> Any:
        """Queue the copy of a tensor, or of an object with ``.to``, to the device; return the copy at once.

        To be called by what :meth:`run` calls.
        """
        ...

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """Queue the copy of a tensor that is on the device already, like :meth:`copy`."""
        ...

    def follow(self, sources: Iterable[torch.Tensor]) -> bool:
        """Let the work queued here from now on wait for what the loop has queued, if a source is on a device.

        Returns whether one is.
        """
        ...

    def event(self) -> Any:
        """Return an event at the end of the work queued here so far."""
        ...

    def mark(self) -> Any:
        """Return an event at the end of the work that the loop has queued so far."""
        ...

    def wait(self, event: Any) -> None:
        """Let the work that the loop queues from now on wait for ``event``; the caller does not wait."""
        ...

    def record(self, value: Any) -> None:
        """Keep the memory of a tensor from reuse until the work is over that the loop queues before freeing it.

        Also of an object that has ``record_stream`` itself.
        """
        ...

    def is_over(self, event: Any) -> bool:
        """Return whether ``event`` has been reached."""
        ...

    def finish(self, event: Any) -> None:
        """Wait until ``event`` has been reached."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two events that :meth:`event` returned and that have been reached."""
        ...


class _Cuda:
    """A stream beside the current one of a CUDA device."""

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        # "cuda" is the device that is current now, even if another one is when a batch is copied.
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = _stream_of(index)
        self.overlaps = non_blocking

    def page_lock(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_page_locked(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def run(self, work: Callable[[], T]) -> T:
        with torch.cuda.stream(self._stream):
            return work()

    def copy(self, value: Any) -> Any:
        return _to(value, self._device, non_blocking=self.overlaps)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def follow(self, sources: Iterable[torch.Tensor]) -> bool:
        devices = {source.device for source in sources if source.is_cuda}
        for device in devices:
            self._stream.wait_stream(torch.cuda.current_stream(device))
        return len(devices) > 0

    def event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        return self._stream.record_event(event)

    def mark(self) -> Any:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        return torch.cuda.current_stream(self._device).record_event(event)

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def record(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            value.record_stream(torch.cuda.current_stream(self._device))
        elif value.is_cuda:
            value.record_stream(torch.cuda.current_stream(value.device))

    def is_over(self, event: Any) -> bool:
        return bool(event.query())

    def finish(self, event: Any) -> None:
        event.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1e-3


# By process and device. Memory that torch has allocated for a stream is used again for that stream only, so a
# stream for each epoch would leave the memory of all of them behind.
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}


def _stream_of(index: int) -> torch.cuda.Stream:
    key = os.getpid(), index
    if key not in _streams:
        # Before the loop's kernels, which would hold up the few short ones of a device_transform.
        _streams[key] = torch.cuda.Stream(index, priority=-1)  # type: ignore[no-untyped-call]
    return _streams[key]


class _Synchronous:
    """A device without usable streams: copies are made at once."""

    overlaps = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def page_lock(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def is_page_locked(self, tensor: torch.Tensor) -> bool:
        return False

    def run(self, work: Callable[[], T]) -> T:
        return work()

    def copy(self, value: Any) -> Any:
        return _to(value, self._device, non_blocking=False)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def follow(self, sources: Iterable[torch.Tensor]) -> bool:
        return False

    def event(self) -> float:
        return time.perf_counter()

    def mark(self) -> None: ...

    def wait(self, event: float) -> None: ...

    def record(self, value: Any) -> None: ...

    def is_over(self, event: float) -> bool:
        return True

    def finish(self, event: Any) -> None: ...

    def seconds(self, start: float, end: float) -> float:
        return end - start


class CallingThread(_Synchronous):
    """The CPU as a device: nothing is copied."""

    def __init__(self) -> None:
        """Take no device."""
        super().__init__(torch.device("cpu"))

    def copy(self, value: Any) -> Any:
        """Return the value itself."""
        return value


def _to(value: Any, device: torch.device, *, non_blocking: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=non_blocking)
    try:
        return value.to(device, non_blocking=non_blocking)
    except TypeError:  # its `to` has no such argument
        return value.to(device)


def side_stream(device: torch.device, *, non_blocking: bool = True) -> SideStream | None:
    """Return a stream of work for ``device``; None for the CPU, which needs no copies.

    Raises:
        RuntimeError: there is no such device.
    """
    check_device(device)
    if device.type == "cpu":
        return None
    return _Cuda(device, non_blocking) if device.type == "cuda" else _Synchronous(device)


def check_device(device: torch.device | str | int, name: str = "device") -> torch.device:
    """Return a device by its name.

    Args:
        device: its name, or itself.
        name: the argument's name, for the error.

    Raises:
        TypeError: it is not the name of a device.
        ValueError: its number is out of range.
        RuntimeError: it is no device that torch knows, or a GPU that does not exist.
    """
    try:
        device = torch.device(device)
    except (RuntimeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else RuntimeError
        raise kind(f"{name} must be one such as 'cuda' or 'cpu', got {device!r:.80}: {error}") from None
    except TypeError:
        raise TypeError(f"{name} must be a str such as 'cuda', or a torch.device, got {device!r:.80}") from None
    if device.type != "cuda":
        try:
            is_usable = _is_usable(device)
        except Exception as error:  # of the several that torch has for this
            raise RuntimeError(_unusable(device, name)) from error
        if not is_usable:
            raise RuntimeError(_unusable(device, name))
        return device
    if not torch.cuda.is_available():
        raise RuntimeError(f"{name} {str(device)!r} is asked for, but torch finds no CUDA; pass {name}='cpu'")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise RuntimeError(
            f"{name} {str(device)!r} is asked for, but torch finds {torch.cuda.device_count()} CUDA devices; "
            "give a lower number"
        )
    return device


def _is_usable(device: torch.device) -> bool:
    """Whether this torch can use a device; one whose module says so is not begun to be used.

    After that, a forked process could not use it: a loader may be made before a program forks.
    """
    if device.type in ("cpu", "meta"):
        return True
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "is_available") and hasattr(module, "device_count"):
        return bool(module.is_available()) and (device.index or 0) < module.device_count()
    torch.empty(0, device=device)
    return True


def _unusable(device: torch.device, name: str) -> str:
    return f"{name} {str(device)!r} is asked for, but this torch cannot use it; pass {name}='cpu'"


def check_transform(transform: Any, device: Any) -> DeviceTransform | None:
    """Return ``device_transform``.

    Raises:
        TypeError: it is neither None nor callable.
        ValueError: there is one, but no device.
    """
    if transform is not None and device is None:
        raise ValueError("device_transform needs a device=, such as 'cuda' or 'cpu'")
    if transform is not None and not callable(transform):
        raise TypeError(f"device_transform must be callable, got {transform!r}")
    checked: DeviceTransform | None = transform
    return checked
