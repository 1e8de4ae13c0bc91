"""The stream of a CUDA device, over a ``torch.cuda`` whose streams are simulated queues."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.device import stream as stream_module
from foreload.device.stream import check_device, side_stream
from tests.device.loops import Reusing, train, wanted
from tests.fake_device import FakeDevice, Queue


class OnDevice(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    cuda: FakeCuda

    is_cuda = True  # type: ignore[assignment]
    device = torch.device("cuda", 0)  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        self.cuda.record(self, stream)


class Stream:
    def __init__(self, cuda: FakeCuda, queue: Queue, priority: int = 0) -> None:
        self.cuda, self.queue, self.priority = cuda, queue, priority

    def record_event(self, event: Any = None) -> Any:
        event.event = self.queue.event()
        self.cuda.memory._get_on()
        return event

    def wait_event(self, event: Any) -> None:
        self.queue.work.append(("wait", event.event))

    def wait_stream(self, other: Stream) -> None:
        self.queue.work.append(("wait", other.queue.event()))


class Event:
    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.has_time = enable_timing
        self.event: Any = None

    def query(self) -> bool:
        reached: bool = self.event.is_reached
        return reached

    def synchronize(self) -> None:
        self.event.queue.run_to(self.event)

    def elapsed_time(self, end: Event) -> float:
        assert self.has_time
        assert end.has_time
        assert self.query()
        assert end.query()
        return 250.0


class FakeCuda:
    """``torch.cuda`` over the memory and the queues of a :class:`FakeDevice`."""

    device = torch.device("cuda", 0)

    def __init__(self, seed: int | None) -> None:
        self.memory = FakeDevice(seed)
        self.made: list[Stream] = []
        self.index = 0
        self.loop = self.now = Stream(self, self.memory.current)

    def Stream(self, device: int, priority: int = 0) -> Stream:
        assert device == 0
        self.made.append(Stream(self, self.memory.side, priority))
        return self.made[-1]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.current_stream(self.device), stream
        self.memory._working = stream.queue
        yield
        self.now = before
        self.memory._working = before.queue

    def current_stream(self, device: torch.device) -> Stream:
        assert device == self.device, "the device that was current when the epoch began"
        if self.now is self.loop and self.loop.queue is not self.memory.current:  # it has switched
            self.loop = self.now = Stream(self, self.memory.current)
        return self.now

    def current_device(self) -> int:
        return self.index

    def copy(self, value: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        assert (device, non_blocking) == (torch.device("cuda", 0), True)
        assert self.now.queue is self.memory.side, "on the stream of the copies"
        return value if isinstance(value, OnDevice) else self.memory.copy(value).as_subclass(OnDevice)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self.now.queue is self.memory.side, "on the stream of the copies"
        return self.memory.copy(tensor.as_subclass(torch.Tensor)).as_subclass(OnDevice)

    def record(self, tensor: torch.Tensor, stream: Stream) -> None:
        for block in self.memory.blocks:
            if 0 <= tensor.data_ptr() - block.bytes.data_ptr() < block.bytes.numel():
                block.recorded.add(stream.queue)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(seed: int | None, *, pinned: bool) -> FakeCuda:
        cuda = FakeCuda(seed)
        for name in ("Stream", "stream", "current_stream", "current_device"):
            monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: pinned)
        monkeypatch.setattr(stream_module._Cuda, "page_lock", lambda self, size: cuda.memory.page_lock(size))
        monkeypatch.setattr(stream_module, "_to", cuda.copy)
        monkeypatch.setattr(stream_module._Cuda, "clone", lambda self, tensor: cuda.clone(tensor))
        monkeypatch.setattr(stream_module, "_streams", {})
        monkeypatch.setattr(OnDevice, "cuda", cuda, raising=False)
        return cuda

    return put


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("switches", [False, True])
def test_numbers_are_right_whatever_cuda_does_first(make: Any, pinned: bool, switches: bool) -> None:
    for seed in [None, *range(15)]:
        cuda = make(seed, pinned=pinned)
        loader = fl.PrefetchLoader(Reusing(30), "cuda")
        assert train(cuda.memory, loader, switches=switches) == wanted(30)
        assert len([block for block in cuda.memory.blocks if block.queue is cuda.memory.side]) <= 7
        assert cuda.memory.page_locks <= (0 if pinned else 8)
        double = lambda batch, cuda=cuda: cuda.memory.kernel(lambda x: x * 2, batch).as_subclass(OnDevice)
        loader = fl.PrefetchLoader(Reusing(30), "cuda", device_transform=double)
        assert train(cuda.memory, loader, switches=switches) == [[4.0 * i + 1] * 3 for i in range(30)]
        # All epochs use one stream, whose memory torch can use again.
        assert [stream.priority for stream in cuda.made] == [-1]


@pytest.mark.slow
def test_batches_that_are_on_the_device_already_are_awaited(make: Any) -> None:
    for seed in [None, *range(15)]:
        cuda = make(seed, pinned=True)
        own = cuda.memory

        def made(own: FakeDevice = own) -> Iterator[torch.Tensor]:
            for number in range(20):
                value = lambda x, number=number: torch.full_like(x, number)
                yield own.kernel(value, torch.zeros(3)).as_subclass(OnDevice)

        double = lambda batch, own=own: own.kernel(lambda x: x * 2, batch).as_subclass(OnDevice)
        results = train(own, fl.PrefetchLoader(made(), "cuda", device_transform=double))
        assert results == [[4.0 * i + 1] * 3 for i in range(20)]


def test_memory_of_the_device_may_be_filled_again(make: Any) -> None:
    for seed in [None, *range(15)]:
        cuda = make(seed, pinned=True)
        own = cuda.memory

        def made(own: FakeDevice = own) -> Iterator[torch.Tensor]:
            buffer = own.empty_like(torch.zeros(3))
            memory = own.memory(buffer)
            for number in range(20):
                own.current.work.append(("do", lambda number=number: memory.fill_(number)))
                yield buffer.as_subclass(OnDevice)

        assert train(own, fl.PrefetchLoader(made(), "cuda")) == wanted(20)


def test_the_device_is_the_one_that_was_current_when_the_epoch_began(make: Any) -> None:
    cuda = make(None, pinned=True)
    epoch = iter(fl.PrefetchLoader(Reusing(3), "cuda"))
    cuda.index = 1
    assert cuda.memory.read(next(epoch)).tolist() == [0, 0, 0]


def test_streams_are_those_of_the_process(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = make(None, pinned=True)
    for _ in range(3):
        side_stream(torch.device("cuda:0"))
    assert len(cuda.made) == 1
    monkeypatch.setattr(os, "getpid", lambda: -1)
    side_stream(torch.device("cuda:0"))
    assert len(cuda.made) == 2


def test_page_locked_memory_is_the_hosts_whatever_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def pinned(size: int, *, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        assert pin_memory
        return empty(size, **options)

    monkeypatch.setattr(torch, "empty", pinned)
    stream = stream_module._Cuda.__new__(stream_module._Cuda)
    with torch.device("meta"):
        assert stream.page_lock(8).device.type == "cpu"


def test_copies_are_timed_by_events(make: Any) -> None:
    make(None, pinned=True)
    loader = fl.DataLoader(torch.arange(12.0), batch_size=4, num_workers=0)
    for _ in fl.PrefetchLoader(loader, "cuda"):
        pass
    copied = loader.stats()["stages"]["device"]
    assert (copied["count"], copied["samples"], copied["bytes"]) == (3, 12, 48)
    assert copied["seconds"] == pytest.approx(0.75)


def test_a_device_that_is_not_there_is_named(make: Any) -> None:
    make(None, pinned=True)
    assert check_device("cuda") == torch.device("cuda")
    with pytest.raises(RuntimeError, match="device 'cuda:3' is asked for, but torch finds 1 CUDA devices"):
        fl.PrefetchLoader([], "cuda:3")


@pytest.mark.parametrize("device", ["xpu", "hpu:0", "privateuseone"])
def test_a_device_of_another_kind_that_torch_cannot_use_is_named(device: str) -> None:
    with pytest.raises(RuntimeError, match=f"device '{device}' is asked for, but this torch cannot use it; pass"):
        fl.PrefetchLoader([], device)


def test_a_device_is_not_begun_to_be_used_when_a_loader_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is forked after that could not use it."""
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "empty", None)
    assert check_device("xpu") == torch.device("xpu")
    assert check_device("xpu:1") == torch.device("xpu:1")
    with pytest.raises(RuntimeError, match="device 'xpu:2' is asked for, but this torch cannot use it"):
        check_device("xpu:2")
