"""A device that is simulated: work is done as late as may be, and memory used again as soon as may be.

What is read before it was written is ``NOTHING``, or the batch that had the memory before.
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

NOTHING = 99


class Event:
    """The end of the work that was queued before it."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.is_reached = False


class Queue:
    """Work in order: functions, events to reach, and events of other queues to wait for."""

    def __init__(self) -> None:
        self.work: deque[Any] = deque()

    def step(self) -> None:
        """Do one thing."""
        kind, what = self.work[0]
        if kind == "wait":
            what.queue.run_to(what)
        self.work.popleft()
        if kind == "do":
            what()
        elif kind == "reach":
            what.is_reached = True

    def event(self) -> Event:
        event = Event(self)
        self.work.append(("reach", event))
        return event

    def run_to(self, event: Event) -> None:
        while not event.is_reached:
            self.step()


class Block:
    """Memory of the device."""

    def __init__(self, size: int, queue: Queue) -> None:
        self.bytes = torch.full((size,), NOTHING, dtype=torch.uint8)
        self.queue = queue  # that it was allocated for, and whose work may always use it again
        self.recorded: set[Queue] = set()
        self.in_use_until: list[Event] = []  # since it was freed


class Lease:
    """Frees a block when the last tensor over it is gone."""

    def __init__(self, device: FakeDevice, block: Block) -> None:
        self._device, self._block = device, block
        self.__array_interface__ = block.bytes.numpy().__array_interface__

    def __del__(self) -> None:
        self._device.free(self._block)


class FakeDevice:
    """A :class:`foreload.device.stream.SideStream` to a device that is simulated.

    Args:
        seed: how its queues get on: None: only where they must; otherwise a little at any call, at random.
        page_locked: whether all memory of the CPU is taken for page-locked.

    Attributes:
        log: the calls.
        current: the queue of the loop.
        recorded: the tensors (and objects) that were recorded.
        blocks: the memory that was ever allocated.
        page_locks: how often memory was page-locked.
    """

    overlaps = True

    def __init__(self, seed: int | None = None, *, page_locked: bool = True) -> None:
        self.log: list[str] = []
        self.recorded: list[weakref.ref[Any]] = []
        self.side, self.current = Queue(), Queue()
        self.queues = [self.side, self.current]
        self.blocks: list[Block] = []
        self.freed: list[Block] = []
        self.page_locks = 0
        self._random = None if seed is None else random.Random(seed)
        self._page_locked = page_locked
        self._working = self.current  # the queue that kernels go to

    # The memory of the device.

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(tensor, device="meta")
        block = self._block(max(1, like.nbytes), self._working)
        data = torch.from_numpy(np.asarray(Lease(self, block)))
        return data[: like.nbytes].view(like.dtype).as_strided(like.shape, like.stride())

    def _block(self, size: int, queue: Queue) -> Block:
        for block in self.freed:
            if block.bytes.numel() == size and block.queue is queue and self._is_free(block):
                self.freed.remove(block)
                block.recorded.clear()
                return block
        self.blocks.append(Block(size, queue))
        return self.blocks[-1]

    def _is_free(self, block: Block) -> bool:
        return all(event.is_reached for event in block.in_use_until)

    def free(self, block: Block) -> None:
        block.in_use_until = [queue.event() for queue in block.recorded]
        self.freed.append(block)

    def memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """The memory of a tensor, which does not keep it in use."""
        for block in self.blocks:
            offset = tensor.data_ptr() - block.bytes.data_ptr()
            if 0 <= offset < block.bytes.numel():
                span = block.bytes[: block.bytes.numel() // tensor.element_size() * tensor.element_size()]
                assert offset % tensor.element_size() == 0
                whole = span.view(tensor.dtype)
                return whole.as_strided(tensor.shape, tensor.stride(), offset // tensor.element_size())
        return tensor.detach()[...]

    def kernel(self, function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        """Queue ``function(*inputs)`` on the current queue, and return its result at once."""
        with torch.device("meta"):
            shape = function(*(torch.empty_like(each, device="meta") for each in inputs))
        out = self.empty_like(shape)
        to, sources = self.memory(out), [self.memory(each) for each in inputs]
        self._working.work.append(("do", lambda: to.copy_(function(*sources))))
        self._get_on()
        return out

    def _get_on(self) -> None:
        if self._random is not None:
            for _ in range(self._random.randrange(4)):
                queue = self._random.choice(self.queues)
                for _ in range(min(len(queue.work), self._random.randrange(4))):
                    queue.step()

    def switch(self) -> None:
        """Let the loop go on with a stream of its own, after what it has queued so far."""
        event = self.current.event()
        self.current = self._working = Queue()
        self.queues.append(self.current)
        self.current.work.append(("wait", event))

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor's values, for which the loop waits, as ``tensor.cpu()`` does."""
        self.current.run_to(self.current.event())
        return tensor.clone()

    def settle(self) -> None:
        """Do all that is queued."""
        for queue in self.queues:
            while queue.work:
                queue.step()

    # What the loader calls.

    def page_lock(self, size: int) -> torch.Tensor:
        self.page_locks += 1
        return torch.full((size,), NOTHING, dtype=torch.uint8)

    def is_page_locked(self, tensor: torch.Tensor) -> bool:
        return self._page_locked

    def run(self, work: Callable[[], Any]) -> Any:
        self._working = self.side
        try:
            return work()
        finally:
            self._working = self.current

    def copy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value.to("cpu")
        is_plain = type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested
        if not is_plain or value.requires_grad or value.numel() == 0:
            return value.clone()
        self.log.append(f"copy {float(value.flatten()[0])}")
        out = self.empty_like(value)
        to, source = self.memory(out), self.memory(value)
        self.side.work.append(("do", lambda: to.copy_(source)))
        self._get_on()
        return out

    def follow(self, sources: Iterable[torch.Tensor]) -> bool:
        is_there = any(map(self._is_own, sources))
        if is_there:
            self.side.work.append(("wait", self.current.event()))
        return is_there

    def _is_own(self, tensor: torch.Tensor) -> bool:
        starts = ((block.bytes.data_ptr(), block.bytes.numel()) for block in self.blocks)
        return any(0 <= tensor.data_ptr() - start < size for start, size in starts)

    def event(self) -> Event:
        self._get_on()
        return self.side.event()

    def mark(self) -> Event:
        return self.current.event()

    def wait(self, event: Event) -> None:
        self.log.append("wait")
        self.current.work.append(("wait", event))
        self._get_on()

    def record(self, value: Any) -> None:
        self.log.append("record")
        self.recorded.append(weakref.ref(value))
        if isinstance(value, torch.Tensor):
            for block in self.blocks:
                if 0 <= value.data_ptr() - block.bytes.data_ptr() < block.bytes.numel():
                    block.recorded.add(self.current)
        self._get_on()

    def is_over(self, event: Event) -> bool:
        return event.is_reached

    def finish(self, event: Event) -> None:
        self.log.append("finish")
        event.queue.run_to(event)

    def seconds(self, start: Event, end: Event) -> float:
        assert start.is_reached
        assert end.is_reached
        return 0.25
