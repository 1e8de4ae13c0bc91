"""Batches on a device ahead of the loop: a simulated one, which shows who is too early; and CUDA where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.batch.failure import EmptyBatch
from foreload.batch.unfinished import UnfinishedBatch, finisher
from foreload.device import ahead as ahead_module
from tests.device.loops import Reusing, Use, numbers, train, wanted
from tests.fake_device import FakeDevice


def test_the_next_copy_is_asked_for_before_a_batch_is_given(use: Use) -> None:
    device = use(FakeDevice(page_locked=False))
    epoch = iter(fl.PrefetchLoader(numbers(3), "cpu", depth=1))
    assert device.read(next(epoch)).item() == 0
    assert device.log == ["copy 0.0", "copy 1.0", "wait", "record"]
    assert [device.read(batch).item() for batch in epoch] == [1, 2]
    assert device.log[4:6] == ["copy 2.0", "wait"]


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_depth_is_the_number_of_batches_ahead_of_the_loop(use: Use, depth: int) -> None:
    device = use()
    epoch = iter(fl.PrefetchLoader(numbers(20), "cpu", depth=depth))
    copied = []
    for _ in range(10):
        next(epoch)
        copied.append(sum(line.startswith("copy") for line in device.log))
    # The first batch waits for one other at most, however many are to be ahead.
    assert copied == [min(2 * number, number + depth) for number in range(1, 11)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("switches", [False, True])
@pytest.mark.parametrize("page_locked", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_numbers_are_right_whatever_the_device_does_first(
    use: Use, depth: int, page_locked: bool, switches: bool
) -> None:
    for seed in [None, *range(20)]:
        device = use(FakeDevice(seed, page_locked=page_locked))
        loader = Reusing(30)
        epoch = fl.PrefetchLoader(loader, "cpu", depth=depth)
        assert train(device, epoch, switches=switches) == wanted(30)
        assert len(loader.pool) <= 2 * depth + 4  # most were used again
        assert device.page_locks <= (0 if page_locked else 2 * depth + 4)
        # The loop never is more than depth batches ahead of the device, so that they need little memory.
        own = [block for block in device.blocks if block.queue is device.side]
        assert len(own) <= 2 * depth + 3


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", [None, *range(20)])
def test_transforms_run_on_the_copies_stream(use: Use, seed: int | None) -> None:
    device = use(FakeDevice(seed, page_locked=bool((seed or 0) % 2)))
    double = lambda batch: device.kernel(lambda x: x * 2, batch)
    results = train(device, fl.PrefetchLoader(Reusing(30), "cpu", device_transform=double), switches=True)
    assert results == [[4.0 * number + 1] * 3 for number in range(30)]


def test_tensors_with_gaps_are_staged_for_torch_would_copy_them_to_ordinary_memory(use: Use) -> None:
    rows = torch.arange(24.0).view(4, 6)
    dense = [rows, rows.t(), rows[1:], rows.view(1, 2, 3, 4).to(memory_format=torch.channels_last)]
    for tensors, staged in ((dense, 0), ([rows[:, :5], rows[::2], rows[:1].expand(4, 6)], 3)):
        device = use(FakeDevice(page_locked=True))
        (batch,) = fl.PrefetchLoader([tensors], "cpu")
        device.settle()
        assert all(map(torch.equal, batch, tensors))
        assert device.page_locks == staged


class Unrecorded(FakeDevice):
    def record(self, value: Any) -> None: ...


class Unawaited(FakeDevice):
    def wait(self, event: Any) -> None: ...


class Hasty(FakeDevice):
    def is_over(self, event: Any) -> bool:
        return True


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Unrecorded, Unawaited, Hasty])
@pytest.mark.parametrize("page_locked", [False, True])
def test_the_simulated_device_would_notice(use: Use, kind: type[FakeDevice], page_locked: bool) -> None:
    wrong = 0
    for seed in [None, *range(10)]:
        device = use(kind(seed, page_locked=page_locked))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device, "seconds", lambda start, end: 0.25)
            wrong += train(device, fl.PrefetchLoader(Reusing(30), "cpu")) != wanted(30)
    assert wrong > 0


@pytest.mark.slow
def test_sources_that_are_on_the_device_are_awaited(use: Use) -> None:
    for seed in [None, *range(20)]:
        device = use(FakeDevice(seed))

        def made() -> Iterator[torch.Tensor]:
            for number in range(20):
                yield device.kernel(lambda x, number=number: torch.full_like(x, number), torch.zeros(3))

        double = lambda batch: device.kernel(lambda x: x * 2, batch)
        results = train(device, fl.PrefetchLoader(made(), "cpu", device_transform=double))
        assert results == [[4.0 * number + 1] * 3 for number in range(20)]


@pytest.mark.parametrize("page_locked", [False, True])
def test_a_loader_may_fill_the_same_buffers_again(use: Use, page_locked: bool) -> None:
    tensor, array, names, rows = torch.zeros(3), np.zeros(2), ["", 0], bytearray(1)

    def made() -> Iterator[Any]:
        for number in range(20):
            tensor.fill_(number)
            array[:] = rows[0] = number
            names[:] = [str(number), number]
            yield {"x": tensor, "array": array, "names": names, "rows": rows}

    for seed in [None, *range(5)]:
        device = use(FakeDevice(seed, page_locked=page_locked))
        batches = list(fl.PrefetchLoader(made(), "cpu", depth=3))
        assert [device.read(batch["x"]).tolist() for batch in batches] == [[float(i)] * 3 for i in range(20)]
        assert [batch["array"].tolist() for batch in batches] == [[i, i] for i in range(20)]
        assert [batch["names"] for batch in batches] == [[str(i), i] for i in range(20)]
        assert [batch["rows"] for batch in batches] == [bytes([i]) for i in range(20)]


class Staying(FakeDevice):
    """Copies as ``.to`` does, which returns what is on the device already."""

    def copy(self, value: Any) -> Any:
        return value if self._is_own(value) else super().copy(value)

    def clone(self, value: torch.Tensor) -> torch.Tensor:
        return super().copy(value)


def test_a_loader_may_fill_the_same_memory_of_the_device_again(use: Use) -> None:
    for seed in [None, *range(20)]:
        device = use(Staying(seed))

        def made(device: FakeDevice = device) -> Iterator[torch.Tensor]:
            buffer = device.empty_like(torch.zeros(3))
            memory = device.memory(buffer)
            for number in range(20):
                device.current.work.append(("do", lambda number=number: memory.fill_(number)))
                yield buffer

        results = train(device, fl.PrefetchLoader(made(), "cpu"))
        assert results == wanted(20)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_loader_delivers_to_a_device_itself(use: Use, depth: int) -> None:
    device = use()
    make = lambda **more: fl.DataLoader(torch.arange(12.0), batch_size=2, shuffle=True, seed=1, **more)
    expected = [batch.tolist() for batch in make()]
    loader = make(device="cpu", device_depth=depth, num_workers=2, workers="threads", persistent_workers=True)
    for _ in range(2):
        loader.set_epoch(0)
        epoch = iter(loader)
        for given in range(len(expected)):
            again = make()
            again.load_state_dict(loader.state_dict())
            assert [batch.tolist() for batch in again] == expected[given:]
            assert device.read(next(epoch)).tolist() == expected[given]
        with pytest.raises(StopIteration):
            next(epoch)
        assert loader.state_dict()["finished"]
    assert device.log[:4] == ["copy " + str(expected[0][0]), "copy " + str(expected[1][0]), "wait", "record"]
    loader.close()
    with pytest.raises(RuntimeError, match="torch finds no CUDA"):
        make(device="cuda") if not torch.cuda.is_available() else pytest.skip("there is CUDA")


class Numbered(UnfinishedBatch):
    """A batch of which the device adds to its numbers what lies in ordinary memory; empty if its number is odd."""

    def __init__(self, device: FakeDevice, numbers: torch.Tensor, more: np.ndarray) -> None:
        self.device, self.numbers, self.more = device, numbers, more

    def to(self, *_: Any, **__: Any) -> Numbered:
        return Numbered(self.device, self.device.copy(self.numbers), self.more)

    def finish(self, on_error: Any, errors: list[Any]) -> Any:
        errors.append(int(self.more[0]))
        if self.more[0] % 2:
            raise EmptyBatch
        more = self.more
        return self.device.kernel(
            lambda numbers: numbers + float(more[0]) if numbers.device.type == "cpu" else numbers, self.numbers
        )


@pytest.mark.parametrize("seed", [None, *range(5)])
@pytest.mark.parametrize("depth", [1, 3])
def test_batches_are_finished_on_the_stream_of_the_copies(depth: int, seed: int | None) -> None:
    device = FakeDevice(seed)
    errors: list[Any] = []

    def batches() -> Iterator[Numbered]:
        for number in range(8):
            yield Numbered(device, torch.full((3,), 10.0 * number), np.array([number]))

    moving = ahead_module.MovedAhead(
        batches(),
        device,
        depth=depth,
        transform=finisher("skip", errors, lambda batch: device.kernel(torch.neg, batch)),
    )
    assert [device.read(batch).tolist() for batch in moving] == [[-11.0 * n] * 3 for n in (0, 2, 4, 6)]
    assert errors == list(range(8))


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


def test_transforms_run_on_the_cpu_too() -> None:
    make = lambda **more: fl.DataLoader(
        torch.arange(6.0), batch_size=2, seed=0, num_workers=0, device="cpu", device_transform=torch.neg, **more
    )
    loader = make()
    epoch = iter(loader)
    assert next(epoch).tolist() == [0, -1]
    again = make()
    again.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in again] == [[-2, -3], [-4, -5]]
    given: list[int] = []
    batches = ((given.append(number), torch.tensor(number))[1] for number in range(3))
    for number, batch in enumerate(fl.PrefetchLoader(batches, "cpu", device_transform=torch.neg)):
        assert (batch.item(), len(given)) == (-number, number + 1)  # nothing is requested ahead


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(TypeError, match="loader must be something to iterate over, got int"):
        fl.PrefetchLoader(3, "cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="depth must be 1 or more, got 0"):
        fl.PrefetchLoader([], "cpu", depth=0)
    with pytest.raises(TypeError, match="device_transform must be callable, got 3"):
        fl.PrefetchLoader([], "cpu", device_transform=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device_depth must be 1 or more, got 0"):
        fl.DataLoader([], device="cpu", device_depth=0)
    with pytest.raises(ValueError, match="device_transform needs a device=, such as 'cuda'"):
        fl.DataLoader([], device_transform=torch.neg)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="torch finds no CUDA"):
            fl.PrefetchLoader([], "cuda")


@pytest.mark.parametrize("wrong", [1, "no", None])
def test_non_blocking_is_true_or_false(wrong: Any) -> None:
    with pytest.raises(TypeError, match="non_blocking must be True or False, got "):
        fl.PrefetchLoader([], "cpu", wrong)
