"""An epoch whose batches are on a device ahead of the loop."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from foreload import _native
from foreload._torch import TorchIterator
from foreload.batch.failure import EmptyBatch, stop_error
from foreload.device.ring import HostRing
from foreload.device.stream import CallingThread, DeviceTransform, SideStream
from foreload.epochs.base import Epoch
from foreload.epochs.torch_names import EpochWrapper
from foreload.epochs.turn import Turn
from foreload.nested import move, tensors
from foreload.order.own_state import UntakenState, require_taken
from foreload.record.spans import Stage

if TYPE_CHECKING:
    from foreload.record.recorder import Watch

__all__ = ["LoopPosition", "MovedAhead", "move_ahead"]


class _Moved(NamedTuple):
    batch: Any
    event: Any  # at the end of its copies
    objects: list[Any]  # copies that have record_stream themselves
    state: Any  # of the loader before this batch was requested
    samples: int


class _Failed(NamedTuple):
    error: Exception
    state: Any


class _Source(NamedTuple):
    batch: Any  # neither this nor its tensors may be freed before the copy is over
    tensors: list[torch.Tensor]  # as they were before it, for the `.to` of some objects changes them
    lent: list[torch.Tensor]  # by the ring
    start: Any
    end: Any
    began: int  # in nanoseconds
    samples: int


class LoopPosition:
    """The place of a loop in a loader whose next batches are ahead of it, on a device.

    Attributes:
        state: of the loader, from before the batch was requested that the loop gets next; None: that is its own.
    """

    def __init__(self, state: Any) -> None:
        self.state = state

    def taken(self) -> Any:
        """Return the state; raise RuntimeError if it could not be taken."""
        require_taken({"": self.state})
        return self.state


class _Mover:
    """Moves batches to a device.

    Args:
        stream: the stream to copy on.
        transform: called with each batch that has been moved.
        may_change: whether whoever made a batch may write into its memory when the next one is requested.

    Attributes:
        reads_source: whether what the last batch was copied from has to stay as it is until the copy is over.
    """

    def __init__(self, stream: SideStream, transform: DeviceTransform | None, *, may_change: bool) -> None:
        self.ring = HostRing(stream.page_lock)
        self.reads_source = False
        self._stream = stream
        self._transform = transform
        self._may_change = may_change

    def move(self, source: Any, objects: list[Any]) -> Any:
        """Queue copies and transform of a batch; objects that have ``record_stream`` are added to a list."""
        self.reads_source = False

        def copy(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if self._is_to_be_staged(value):
                    return self._stream.copy(self.ring.stage(value))
                self.reads_source |= self._stream.overlaps
                moved = self._stream.copy(value)
                return self._stream.clone(value) if moved is value and self._may_change else moved
            self.reads_source |= self._stream.overlaps
            moved = self._stream.copy(value)
            if callable(getattr(moved, "record_stream", None)):
                objects.append(moved)
            return moved

        batch = source if isinstance(self._stream, CallingThread) else move(source, copy)
        return batch if self._transform is None else self._transform(batch)

    def _is_to_be_staged(self, tensor: torch.Tensor) -> bool:
        if not self._stream.overlaps or type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
            return False
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.numel() == 0:
            return False
        # A copy for which there are gradients must lead back to the tensor itself.
        return not tensor.requires_grad and not (self._stream.is_page_locked(tensor) and _is_dense(tensor))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no gaps. One that has is copied to a device through ordinary memory without them."""
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()


class MovedAhead(EpochWrapper, Iterator[Any]):
    """An epoch on a device: while the loop has a batch, the next ones are being copied.

    An exception in ``batches``, a copy or ``transform`` is raised in place of its batch; then :func:`next` may be
    called again. No batch is requested after one that failed before the loop knows of it.

    The loop may queue work faster than the device does it, but no further than ``depth`` batches and the one in
    work: each would take memory of the device.

    Args:
        batches: the epoch to copy.
        stream: the stream to copy on.
        state: returns the state of the loader, if it has one.
        depth: the number of batches ahead of the loop; 0: each is moved when the loop asks for it.
        transform: called on ``stream`` with each batch that has been moved; its result is delivered.

    Attributes:
        place: where the loop is in the loader, to be kept by who wants to know it when this is gone.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        stream: SideStream,
        state: Callable[[], Any] | None = None,
        *,
        depth: int = 2,
        transform: DeviceTransform | None = None,
    ) -> None:
        self._batches = self._source = batches
        self._stream = stream
        self._depth = depth
        # Torch's and foreload's batches are their holder's; anything else may fill the same buffers again.
        self._may_change = not isinstance(batches, TorchIterator)
        self._mover = _Mover(stream, transform, may_change=self._may_change)
        self._transforms = transform is not None
        self._turn = Turn()
        self._state_of_loader = state
        self.place = LoopPosition(self._present_state())
        # Waiting is recorded here from now on, since the loop waits for the copy, not for the epoch.
        self._watch: Watch | None = batches.count_at_consumer() if isinstance(batches, Epoch) else None
        self._ahead: deque[_Moved | _Failed] = deque()
        self._marks: deque[Any] = deque()
        self._sources: deque[_Source] = deque()
        self._is_parents = False
        self._finish = weakref.finalize(self, _finish, self._sources, stream)
        _epochs.add(self)

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch, if that is known."""
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        """Return the next batch, after queueing the copies of those after it.

        Raises:
            RuntimeError: the process is a fork of the one that has begun to copy.
        """
        with self._turn.lock:
            self._turn.begin()
            if self._is_parents and self._depth:
                raise RuntimeError(
                    "this epoch's batches are copied ahead by the process that began it; in a forked one, begin "
                    "another epoch: iter(loader)"
                )
            # Not within the time in which the loop waits for data: it waits for the device.
            while len(self._marks) > self._depth:
                self._stream.finish(self._marks.popleft())
            return self._deliver()

    def _deliver(self) -> Any:
        if self._watch is not None:
            self._watch.loop.mark_requested()
        self._fill()
        now = self._ahead.popleft()
        self.place.state = self._ahead[0].state if self._ahead else self._present_state()
        if isinstance(now, _Failed):
            try:
                if isinstance(now.error, StopIteration):
                    self.place.state = None  # nothing is ahead any more: it is the loader's own
                    self._release(wait=True)
                    self._end_watch()
                raise now.error
            finally:
                del now  # its traceback holds this frame
        self._stream.wait(now.event)
        # A transform may return objects of any class; what is not recorded would be overwritten while it is read.
        for value in (*tensors(now.batch, of_any_object=self._transforms), *now.objects):
            self._stream.record(value)
        self._marks.append(self._stream.mark())
        self._release(wait=False)
        if self._watch is not None:
            self._watch.loop.mark_delivered(now.samples)
        return now.batch

    def _present_state(self) -> Any:
        try:
            return None if self._state_of_loader is None else self._state_of_loader()
        except Exception as error:  # for those who ask for it
            return UntakenState(str(error))

    def _fill(self) -> None:
        ahead = self._ahead
        for _ in range(2):  # no more at a time, or the first batch would wait for all of them
            if len(ahead) > self._depth or (ahead and isinstance(ahead[-1], _Failed)):
                return
            while not self._fetch():
                pass

    def _fetch(self) -> bool:
        """Take the next batch, or its error; False if it turned out to be empty."""
        # No variable of a caller may hold the error, whose traceback holds the callers: nothing would free them,
        # and with them the epoch, before the garbage collector runs.
        state = self._present_state()
        if self._may_change and self._mover.reads_source and self._sources:
            self._stream.finish(self._sources[-1].end)
        try:
            source = next(self._batches)
        except StopIteration as over:
            # (Nor does the end itself hold them, if the loop is left before it.)
            self._ahead.append(_Failed(over.with_traceback(None), state))
            return True
        except Exception as error:
            self._ahead.append(_Failed(error, state))
            return True
        samples = 0 if self._watch is None else self._watch.passed()
        sources = list(tensors(source))
        is_there = self._stream.follow(sources)
        began, start = _native.now_ns(), self._stream.event()
        objects: list[Any] = []
        try:
            batch = self._stream.run(partial(self._mover.move, source, objects))
        except EmptyBatch:
            return False
        except Exception as error:
            self._ahead.append(_Failed(stop_error(error) if isinstance(error, StopIteration) else error, state))
            return True
        finally:
            end = self._stream.event()
            lent = self._mover.ring.collect()
            self._sources.append(_Source(source, sources, lent, start, end, began, samples))
            if is_there and self._may_change:
                self._stream.wait(end)  # what the loop's stream does next may write there
        self._ahead.append(_Moved(batch, end, objects, state, samples))
        return True

    def _release(self, *, wait: bool) -> None:
        sources = self._sources
        while sources:
            source = sources[0]
            if wait:
                self._stream.finish(source.end)
            elif not self._stream.is_over(source.end):
                return
            sources.popleft()
            self._mover.ring.give_back(source.lent)
            self._note(source)

    def _note(self, source: _Source) -> None:
        if self._watch is not None:
            took = int(self._stream.seconds(source.start, source.end) * 1e9)
            size = sum(tensor.nbytes for tensor in source.tensors)
            self._watch.lane.native.add(Stage.device, source.began, source.began + took, source.samples, size)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    def leave_to_parent(self) -> Any:
        """Give up the epoch in a forked process; return what must not be freed there."""
        self._is_parents = True
        self._finish.detach()
        kept = (self._ahead, self._sources, self._marks, self._mover)
        self._ahead, self._sources, self._marks = deque(), deque(), deque()
        return kept

    def close(self) -> None:
        """End the epoch early: wait for copies under way, and drop them."""
        self._finish()
        self._ahead.clear()
        self._marks.clear()
        self._end_watch()
        end = getattr(self._batches, "close", None)
        self._batches = iter(())
        if end is not None:
            end()

    def _count_ahead(self) -> int:
        return sum(isinstance(moved, _Moved) for moved in self._ahead)


def move_ahead(
    batches: Iterator[Any],
    stream: SideStream | None,
    state: Callable[[], Any] | None,
    *,
    depth: int,
    transform: DeviceTransform | None,
) -> Iterator[Any]:
    """Return an epoch on the device of ``stream``; None: on the CPU. See :class:`MovedAhead` for the arguments.

    If there is nothing to be done, it is ``batches`` itself.
    """
    if stream is not None:
        return MovedAhead(batches, stream, state, depth=depth, transform=transform)
    return (
        batches if transform is None else MovedAhead(batches, CallingThread(), state, depth=0, transform=transform)
    )


def _finish(sources: deque[_Source], stream: SideStream) -> None:
    while sources:
        stream.finish(sources.popleft().end)


_epochs: weakref.WeakSet[MovedAhead] = weakref.WeakSet()
# What a process has of the epochs of the one that it was forked from, for ever: to free what a device has used, on
# the host too, or wait for it, takes the device, which a forked process has not.
_of_parents: list[Any] = []


def _forked() -> None:
    _of_parents.extend([epoch.leave_to_parent() for epoch in list(_epochs)])


os.register_at_fork(after_in_child=_forked)
