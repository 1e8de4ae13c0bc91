"""Batches ahead of the loop when a batch fails, and when an epoch is left, forked or resumed."""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.device import ahead as ahead_module
from tests.device.loops import Reusing, Use, numbers
from tests.fake_device import FakeDevice


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


class Counted(FakeDevice):
    """Knows the page-locked memory that is left."""

    def __init__(self) -> None:
        super().__init__(page_locked=False)
        self.host: list[weakref.ref[torch.Tensor]] = []

    def page_lock(self, size: int) -> torch.Tensor:
        memory = super().page_lock(size)
        self.host.append(weakref.ref(memory))
        return memory


def test_a_fork_begins_an_epoch_of_its_own(use: Use) -> None:
    device: Any = use(Counted())
    loader = fl.PrefetchLoader(numbers(5), "cpu")
    epoch = iter(loader)
    next(epoch)
    device.settle()
    next(epoch)
    assert any(epoch._mover.ring._free.values())
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
            assert any(batches for batches, *_ in ahead_module._of_parents)
            assert all(memory() is not None for memory in device.host)  # to free it takes the device, too
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert [device.read(batch).item() for batch in epoch] == [2, 3, 4]


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
