"""Batches copied ahead: by a device that is simulated, which shows who is too early; and by CUDA where it is."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import device

NOTHING = -1.0


class Simulated:
    """A device whose copies are done as late as they may be: when somebody waits for their event.

    What is used before that is ``NOTHING``; memory of the source that is written to before that is copied as it is
    then.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.queued: list[Any] = []
        self.recorded: list[torch.Tensor] = []

    def copy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value.to("cpu")
        made = torch.full_like(value, NOTHING)
        address = value.detach()[...].numpy()  # the memory, as the hardware sees it
        self.log.append(f"copy {float(value.flatten()[0])}")
        self.queued.append((made, address))
        return made

    def event(self) -> int:
        self.queued.append(len(self.log))
        return len(self.log)

    def start(self) -> None: ...

    def seconds(self, start: None, event: int) -> float:
        assert self.is_over(event)
        return 0.25

    def wait(self, event: int) -> None:
        self.log.append("wait")
        self.run(event)

    def run(self, event: int) -> None:
        if event not in [mark for mark in self.queued if isinstance(mark, int)]:
            return
        while (item := self.queued.pop(0)) != event:
            if not isinstance(item, int):
                item[0].copy_(torch.from_numpy(item[1]))

    def record(self, tensor: torch.Tensor) -> None:
        self.recorded.append(tensor)
        self.log.append("record")

    def is_over(self, event: int) -> bool:
        return event not in self.queued

    def finish(self, event: int) -> None:
        self.log.append("finish")
        self.run(event)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    stream = Simulated()
    monkeypatch.setattr(device, "side_stream", lambda where, *, non_blocking=True: stream)
    return stream


class Reusing:
    """A loader that takes a batch's memory back when nobody holds the batch, and writes the next one there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = [torch.zeros(3)]
        self.given = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.count):
            memory = self.pool.pop() if self.pool else torch.zeros(3)
            memory.fill_(number)
            self.given += 1
            batch = memory[:]
            weakref.finalize(batch, self.pool.append, memory)
            yield batch
            del batch


def test_the_next_copy_is_asked_for_before_a_batch_is_given(simulated: Simulated) -> None:
    epoch = iter(fl.PrefetchLoader([torch.tensor([float(i)]) for i in range(3)], "cpu"))
    assert next(epoch).item() == 0
    assert simulated.log == ["copy 0.0", "copy 1.0", "wait", "record"]
    assert [batch.item() for batch in epoch] == [1, 2]
    assert simulated.log[4:] == ["copy 2.0", "wait", "record", "wait", "record"]


def test_memory_is_not_used_again_before_its_copy_is_done(simulated: Simulated) -> None:
    loader = Reusing(20)
    values = [(batch, batch.clone()) for batch in fl.PrefetchLoader(loader, "cpu")]
    assert [copy.tolist() for _, copy in values] == [[float(i)] * 3 for i in range(20)]
    assert len(simulated.recorded) == 20
    assert len(loader.pool) < 6  # most were used again


@dataclasses.dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str


Point = namedtuple("Point", "x y")


class Movable:
    def __init__(self) -> None:
        self.x = torch.ones(2)
        self.at = None

    def to(self, where: str) -> Movable:
        self.at = where  # itself, as some do
        return self


def test_everything_that_holds_tensors_is_moved_and_keeps_its_type(simulated: Simulated) -> None:
    x = torch.ones(2)
    movable = Movable()
    batch = {
        "list": [x, (x, 3)],
        "named": Point(x, "text"),
        "data": Sample(x, "cat"),
        "ordered": OrderedDict(a=x),
        "user": UserDict(a=x),
        "packed": pack_sequence([torch.ones(3), torch.ones(1)]),
        "movable": movable,
        "none": None,
        "type": torch.Tensor,
    }
    (moved,) = fl.PrefetchLoader([batch], "cpu")
    assert isinstance(moved["list"][1], tuple)
    assert moved["list"][0] is moved["list"][1][0] is moved["named"].x is moved["data"].x
    assert moved["list"][0] is not x
    assert type(moved["named"]) is Point
    assert type(moved["data"]) is Sample
    assert moved["data"].name == "cat"
    assert type(moved["ordered"]) is OrderedDict
    assert moved["user"]["a"] is moved["ordered"]["a"]
    assert batch["user"]["a"] is x
    assert isinstance(moved["packed"], PackedSequence)
    assert moved["movable"].at == "cpu"
    assert movable.at is None
    assert moved["none"] is None
    assert moved["type"] is torch.Tensor
    # The tensors inside objects are recorded too, and each once.
    assert {id(tensor) for tensor in simulated.recorded} >= {id(moved["movable"].x), id(moved["packed"].data)}
    assert len({id(tensor) for tensor in simulated.recorded}) == len(simulated.recorded)


def test_an_error_comes_up_at_its_batch_and_the_loop_may_go_on(simulated: Simulated) -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 2:
                raise ValueError("sample 2")
            return torch.tensor(float(index))

    loader = fl.PrefetchLoader(fl.DataLoader(Rows(), num_workers=0), "cpu")
    epoch = iter(loader)
    assert [next(epoch).item(), next(epoch).item()] == [0, 1]
    with pytest.raises(ValueError, match="sample 2"):
        next(epoch)
    assert [batch.item() for batch in epoch] == [3]
    with pytest.raises(StopIteration):
        next(epoch)


def test_an_epoch_that_is_left_leaves_nothing_and_the_next_is_whole(simulated: Simulated) -> None:
    loader = Reusing(5)
    prefetch = fl.PrefetchLoader(loader, "cpu")
    for batch in prefetch:
        assert batch.tolist() == [0, 0, 0]
        break
    gc.collect()
    assert "finish" in simulated.log  # the copy that was under way
    assert loader.given == 2
    assert [batch[0].item() for batch in prefetch] == [0, 1, 2, 3, 4]
    epoch = iter(prefetch)
    next(epoch)
    epoch.close()
    assert list(epoch) == []


def test_a_state_is_of_the_batch_that_the_loop_has(simulated: Simulated) -> None:
    make = lambda: fl.DataLoader(torch.arange(12.0), batch_size=2, shuffle=True, seed=1, num_workers=0)
    expected = [batch.tolist() for batch in make()]
    prefetch = fl.PrefetchLoader(make(), "cpu")
    epoch = iter(prefetch)
    for given in range(len(expected) + 1):
        again = fl.PrefetchLoader(make(), "cpu")
        again.load_state_dict(prefetch.state_dict())
        assert [batch.tolist() for batch in again] == expected[given:] or given == len(expected)
        if given < len(expected):
            assert next(epoch).tolist() == expected[given]
    with pytest.raises(StopIteration):
        next(epoch)
    assert prefetch.state_dict()["finished"]
    with pytest.raises(AttributeError):
        fl.PrefetchLoader([1], "cpu").state_dict


def test_the_loader_delivers_to_a_device_itself(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreload.loader.side_stream", lambda device: simulated)
    make = lambda **more: fl.DataLoader(torch.arange(12.0), batch_size=2, shuffle=True, seed=1, **more)
    expected = [batch.tolist() for batch in make()]
    loader = make(device="cpu", num_workers=2, workers="threads", persistent_workers=True)
    for _ in range(2):
        loader.set_epoch(0)
        epoch = iter(loader)
        for given in range(len(expected)):
            again = make()
            again.load_state_dict(loader.state_dict())
            assert [batch.tolist() for batch in again] == expected[given:]
            assert next(epoch).tolist() == expected[given]
        with pytest.raises(StopIteration):
            next(epoch)
        assert loader.state_dict()["finished"]
    assert simulated.log[:4] == ["copy " + str(expected[0][0]), "copy " + str(expected[1][0]), "wait", "record"]
    loader.close()
    with pytest.raises(RuntimeError, match="torch finds no CUDA"):
        make(device="cuda") if not torch.cuda.is_available() else pytest.skip("there is CUDA")


def test_on_the_cpu_it_is_the_loader_itself() -> None:
    batches = [torch.zeros(2), {"x": torch.ones(1)}]
    prefetch = fl.PrefetchLoader(batches, torch.device("cpu"))
    assert all(a is b for a, b in zip(prefetch, batches, strict=True))
    sampler = torch.utils.data.DistributedSampler(range(8), 2, 0)
    stock = TorchDataLoader(range(8), batch_size=2, sampler=sampler)
    prefetch = fl.PrefetchLoader(stock, "cpu")
    assert len(prefetch) == 2
    assert prefetch.sampler is sampler
    assert prefetch.batch_size == 2
    assert [b.tolist() for b in prefetch] == [b.tolist() for b in stock]
    ours = fl.PrefetchLoader(fl.DataLoader(range(8), shuffle=True, seed=0, num_workers=0), "cpu")
    first = list(ours)
    ours.set_epoch(0)
    assert list(ours) == first
    assert list(fl.PrefetchLoader((i for i in range(3)), "cpu")) == [0, 1, 2]
    with pytest.raises(TypeError):
        len(fl.PrefetchLoader((i for i in range(3)), "cpu"))


def test_a_device_without_streams_is_copied_to_as_well() -> None:
    (batch,) = fl.PrefetchLoader([(torch.zeros(2), pack_sequence([torch.ones(3)]))], "meta")
    assert batch[0].device.type == batch[1].data.device.type == "meta"


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(TypeError, match="loader must be something to iterate over, got int"):
        fl.PrefetchLoader(3, "cpu")  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="torch finds no CUDA"):
            fl.PrefetchLoader([], "cuda")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pin", [False, True])
def test_cuda_gives_the_same_numbers_while_the_loop_computes(pin: bool) -> None:
    rows = torch.arange(64 * 100_000, dtype=torch.float32).view(64, -1)
    loader = fl.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=4, pin_memory=pin, num_workers=2)
    for _ in range(3):
        sums = []
        for (batch,) in fl.PrefetchLoader(loader, "cuda"):
            assert batch.device.type == "cuda"
            slow = batch
            for _ in range(50):
                slow = slow.sin() + batch
            sums.append((batch.clone(), slow))
            del batch, slow
        assert torch.equal(torch.cat([copy for copy, _ in sums]).cpu(), rows)
