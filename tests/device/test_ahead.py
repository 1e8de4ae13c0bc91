"""Batches on a device ahead of the loop: a simulated one, which shows who is too early; and CUDA where it is."""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload._torch import TorchIterator
from foreload.batch.failure import EmptyBatch
from foreload.batch.unfinished import UnfinishedBatch, finisher
from foreload.device import ahead as ahead_module
from tests.fake_device import FakeDevice

Use = Callable[..., FakeDevice]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Put a device in the place of the CPU."""

    def put(device: FakeDevice | None = None) -> FakeDevice:
        device = FakeDevice() if device is None else device
        for module in ("foreload.loader", "foreload.device.prefetch"):
            monkeypatch.setattr(f"{module}.side_stream", lambda where, *, non_blocking=True: device)
        return device

    return put


class OfTorch(TorchIterator):
    """Batches of torch's loader, whose memory nobody writes to while somebody holds them."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._made = batches

    def __next__(self) -> Any:
        return next(self._made)


class Reusing:
    """A loader that takes a batch's memory back when nobody holds the batch, and writes the next one there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = [torch.zeros(3)]
        self.given = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        return OfTorch(self._made())

    def _made(self) -> Iterator[torch.Tensor]:
        for number in range(self.count):
            memory = self.pool.pop() if self.pool else torch.zeros(3)
            memory.fill_(number)
            self.given += 1
            batch = memory[:]
            weakref.finalize(batch, self.pool.append, memory)
            yield batch
            del batch


def numbers(count: int) -> list[torch.Tensor]:
    return [torch.tensor([float(i)]) for i in range(count)]


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


def train(device: FakeDevice, batches: Any, *, switches: bool = False) -> list[list[float]]:
    """Work with each batch on the device without ever waiting for it; what came of it in the end."""
    results: list[torch.Tensor] = []
    for batch in batches:
        step = device.kernel(lambda x: x + 1, batch)
        results.append(device.kernel(lambda x, y: x + y, step, batch))
        del batch, step
        if switches and len(results) % 3 == 2:
            device.switch()
    device.settle()
    return [result.tolist() for result in results]


def wanted(count: int) -> list[list[float]]:
    return [[2.0 * number + 1] * 3 for number in range(count)]


@pytest.mark.sampled(5)
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


def test_transforms_run_on_the_copies_stream(use: Use) -> None:
    for seed in [None, *range(20)]:
        device = use(FakeDevice(seed, page_locked=bool((seed or 0) % 2)))
        double = lambda batch: device.kernel(lambda x: x * 2, batch)
        results = train(device, fl.PrefetchLoader(Reusing(30), "cpu", device_transform=double), switches=True)
        assert results == [[4.0 * number + 1] * 3 for number in range(30)]


class Unrecorded(FakeDevice):
    def record(self, value: Any) -> None: ...


class Unawaited(FakeDevice):
    def wait(self, event: Any) -> None: ...


class Hasty(FakeDevice):
    def is_over(self, event: Any) -> bool:
        return True


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


def test_sources_that_are_on_the_device_are_awaited(use: Use) -> None:
    for seed in [None, *range(20)]:
        device = use(FakeDevice(seed))

        def made() -> Iterator[torch.Tensor]:
            for number in range(20):
                yield device.kernel(lambda x, number=number: torch.full_like(x, number), torch.zeros(3))

        double = lambda batch: device.kernel(lambda x: x * 2, batch)
        results = train(device, fl.PrefetchLoader(made(), "cpu", device_transform=double))
        assert results == [[4.0 * number + 1] * 3 for number in range(20)]


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.bad:
            raise ValueError(f"sample {index}")
        return torch.tensor(float(index))


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("bad", [0, 2, 5])
def test_an_error_comes_up_at_its_batch_and_the_loop_may_go_on(use: Use, bad: int, depth: int) -> None:
    device = use()
    loader = fl.PrefetchLoader(fl.DataLoader(Rows(bad), num_workers=0), "cpu", depth=depth)
    epoch = iter(loader)
    assert [device.read(next(epoch)).item() for _ in range(bad)] == list(range(bad))
    with pytest.raises(ValueError, match=f"sample {bad}"):
        next(epoch)
    assert [device.read(batch).item() for batch in epoch] == list(range(bad + 1, 6))
    with pytest.raises(StopIteration):
        next(epoch)


def test_nothing_is_requested_after_an_error_before_the_loop_knows_of_it(use: Use) -> None:
    device = use()
    requested: list[int] = []

    class Noted(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            requested.append(index)
            return super().__getitem__(index)

    epoch = iter(fl.PrefetchLoader(fl.DataLoader(Noted(1), num_workers=0), "cpu", depth=4))
    assert device.read(next(epoch)).item() == 0
    assert requested == [0, 1]
    with pytest.raises(ValueError, match="sample 1"):
        next(epoch)
    assert requested == [0, 1]
    next(epoch)
    assert requested == [0, 1, 2, 3]


@pytest.mark.parametrize("page_locked", [False, True])
def test_an_error_of_a_copy_or_a_transform_comes_up_at_its_batch(use: Use, page_locked: bool) -> None:
    class Full(FakeDevice):
        def copy(self, value: Any) -> Any:
            if float(value.flatten()[0]) == 102:
                raise torch.OutOfMemoryError("no memory")
            return super().copy(value)

    def transform(batch: Any) -> Any:
        if batch[2] == 3:
            raise StopIteration
        return batch

    device = use(Full(page_locked=page_locked))
    batches = [(torch.full((3,), float(i)), torch.full((3,), 100.0 + i), i) for i in range(6)]
    epoch = iter(fl.PrefetchLoader(batches, "cpu", device_transform=transform))
    found: list[Any] = []
    for _ in range(6):
        try:
            found.append(device.read(next(epoch)[0]).tolist()[0])
        except RuntimeError as error:  # as OutOfMemoryError is
            found.append(type(error))
    assert found == [0, 1, torch.OutOfMemoryError, RuntimeError, 4, 5]
    with pytest.raises(StopIteration):
        next(epoch)


def test_an_epoch_that_is_left_leaves_nothing_and_the_next_is_whole(use: Use) -> None:
    device = use()
    loader = Reusing(5)
    prefetch = fl.PrefetchLoader(loader, "cpu")
    for batch in prefetch:
        assert device.read(batch).tolist() == [0, 0, 0]
        break
    gc.collect()
    assert not device.side.work  # the copy that was under way
    assert loader.given == 2
    del batch
    with pytest.raises(ZeroDivisionError):
        for batch in prefetch:
            1 / 0
    assert [device.read(batch)[0].item() for batch in prefetch] == [0, 1, 2, 3, 4]
    epoch = iter(prefetch)
    next(epoch)
    epoch.close()
    assert list(epoch) == []


def test_an_error_that_nobody_asks_for_does_not_keep_its_epoch(use: Use) -> None:
    for kind in (Rows(1), Rows()):
        use(FakeDevice())
        calls = iter(range(9))
        transform = (lambda batch: batch) if kind.bad == 1 else (lambda batch: 1 / (next(calls) - 1) and batch)
        epoch = iter(fl.PrefetchLoader(fl.DataLoader(kind, num_workers=0), "cpu", device_transform=transform))
        next(epoch)
        assert isinstance(epoch._ahead[-1], ahead_module._Failed)
        left = weakref.ref(epoch)
        del epoch
        gc.collect()
        assert left() is None


def test_two_epochs_of_one_loader_do_not_disturb_each_other(use: Use) -> None:
    for seed in [None, *range(10)]:
        device = use(FakeDevice(seed, page_locked=False))
        loader = fl.PrefetchLoader(numbers(10), "cpu")
        found = []
        for a, b in zip(loader, loader, strict=True):
            found.append(device.kernel(lambda x, y: x + 100 * y, a, b))
        device.settle()
        assert [each.item() for each in found] == [101.0 * number for number in range(10)]


def test_a_fork_begins_an_epoch_of_its_own(use: Use) -> None:
    device = use()
    loader = fl.PrefetchLoader(numbers(5), "cpu")
    epoch = iter(loader)
    next(epoch)
    finished = device.log.count("finish")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="in a forked one, begin another epoch"):
                next(epoch)
            del epoch
            gc.collect()
            assert device.log.count("finish") == finished  # the child cannot wait for the parent's device
            assert any(batches for batches, _, _ in ahead_module._of_parents)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [device.read(batch).item() for batch in epoch] == [1, 2, 3, 4]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_of_the_batch_that_the_loop_has(use: Use, depth: int, workers: int) -> None:
    device = use()
    make = lambda: fl.DataLoader(torch.arange(12.0), batch_size=2, shuffle=True, seed=1, num_workers=workers)
    expected = [batch.tolist() for batch in make()]
    prefetch = fl.PrefetchLoader(make(), "cpu", depth=depth)
    epoch = iter(prefetch)
    for given in range(len(expected) + 1):
        again = fl.PrefetchLoader(make(), "cpu", depth=depth)
        again.load_state_dict(prefetch.state_dict())
        assert [device.read(batch).tolist() for batch in again] == expected[given:] or given == len(expected)
        if given < len(expected):
            assert device.read(next(epoch)).tolist() == expected[given]
    with pytest.raises(StopIteration):
        next(epoch)
    assert prefetch.state_dict()["finished"]
    with pytest.raises(AttributeError):
        fl.PrefetchLoader([1], "cpu").state_dict


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wraps", [False, True])
def test_a_state_is_that_of_the_loop_after_it_was_left_too(use: Use, wraps: bool, workers: int) -> None:
    device = use()

    def make(**more: Any) -> Any:
        return fl.DataLoader(torch.arange(12.0), batch_size=2, shuffle=True, seed=1, num_workers=workers, **more)

    expected = [batch.tolist() for batch in make()]
    for given in range(1, 6):
        loader = fl.PrefetchLoader(make(), "cpu") if wraps else make(device="cpu")
        for number, _ in enumerate(loader, 1):
            if number == given:
                break
        again = fl.PrefetchLoader(make(), "cpu") if wraps else make(device="cpu")
        again.load_state_dict(loader.state_dict())
        assert again.state_dict()["given"] == [[0, 2 * given]]
        assert [device.read(batch).tolist() for batch in again] == expected[given:]
        # What is loaded is what counts, also for a loader that was somewhere else.
        state = make().state_dict()
        loader.load_state_dict(state)
        assert loader.state_dict() == state


def test_a_loop_goes_on_with_an_iterator_where_another_left_it(use: Use) -> None:
    class Counting:
        def __init__(self) -> None:
            self.number = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            return self

        def __next__(self) -> torch.Tensor:
            self.number += 1
            return torch.tensor(float(self.number))

    class Anew(Counting):
        def __iter__(self) -> Iterator[torch.Tensor]:
            self.number = 0
            return self

    device = use()
    endless = (torch.tensor(float(number)) for number in itertools.count(1))
    for source, expected in (
        (endless, [1, 2, 3, 4, 5, 6]),
        (Counting(), [1, 2, 3, 4, 5, 6]),
        (Anew(), [1, 2] * 3),
    ):
        loader = fl.PrefetchLoader(source, "cpu")
        found = [device.read(batch).item() for _ in range(3) for _, batch in zip(range(2), loader, strict=False)]
        assert found == expected


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


@pytest.mark.parametrize("depth", [1, 3])
def test_a_state_at_an_error_is_past_the_batch_that_failed(use: Use, depth: int) -> None:
    device = use()
    loader = fl.PrefetchLoader(fl.DataLoader(Rows(2), num_workers=0, seed=0), "cpu", depth=depth)
    epoch = iter(loader)
    next(epoch), next(epoch)
    before = loader.state_dict()
    with pytest.raises(ValueError, match="sample 2"):
        next(epoch)
    after = loader.state_dict()
    for state, first in ((before, 2), (after, 3)):
        again = fl.PrefetchLoader(fl.DataLoader(Rows(), num_workers=0, seed=0), "cpu")
        again.load_state_dict(state)
        assert [device.read(batch).item() for batch in again] == list(range(first, 6))


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
