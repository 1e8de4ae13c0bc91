"""Samples in memory: batches gathered without a call for each are what a stock DataLoader makes of the calls."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, StackDataset, Subset, TensorDataset

import foreload as fl
from foreload.batch.collated import Collated
from foreload.datasets.rows import gather_samples, is_in_memory

COUNT = 50


class Held(Dataset[Any]):
    """Holds values of many kinds."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.data = torch.randn(COUNT, 7, generator=generator)
        self.labels = torch.arange(COUNT)
        self.weights = torch.rand(COUNT, 2, 3, generator=generator).to(torch.bfloat16)
        self.array = np.arange(COUNT * 2.0).reshape(COUNT, 2)
        self.words = [f"word {number}" for number in range(COUNT)]

    def __len__(self) -> int:
        return COUNT


class One(Held):
    def __getitem__(self, index: int) -> Any:
        """With a docstring, and types."""
        return self.data[index]


class OneNamed(Held):
    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        x = self.data[i]
        return x  # noqa: RET504


class Two(Held):
    def __getitem__(self, idx: int) -> Any:
        return self.data[idx], self.labels[idx]


class TwoNamed(Held):
    def __getitem__(self, idx: int) -> tuple[Any, Any]:
        sample = self.weights[idx]
        label = self.labels[idx]
        return sample, label


class Three(Held):
    def __getitem__(self, index: int) -> Any:
        return self.weights[index], self.data[index], self.labels[index]


class Plain(Held):
    def __getitem__(self, index: int) -> Any:
        return self.array[index], self.words[index]


def tensors() -> TensorDataset:
    held = Held()
    return TensorDataset(held.data, held.labels, held.weights)


GATHERED: dict[str, Callable[[], Any]] = {
    "one": One,
    "one, named": OneNamed,
    "two": Two,
    "two, named": TwoNamed,
    "three": Three,
    "tensors": tensors,
    "tensor": lambda: Held().data,
    "numbers": lambda: Held().labels,
    "subset": lambda: Subset(tensors(), [3, 1, 4, -1, 5, 1]),
    "subset of a subset": lambda: Subset(Subset(Two(), range(10, 40)), torch.arange(5, 25).tolist()),
    "cached": lambda: fl.CachedDataset((Held().data, Held().labels)),
    "empty rows": lambda: TensorDataset(torch.empty(20, 0), torch.empty(20, 3, 0)),
}


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return torch.equal(ours, theirs) and ours.dtype is theirs.dtype and ours.stride() == theirs.stride()
    if isinstance(theirs, (list, tuple)):
        return isinstance(ours, type(theirs)) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return type(ours) is type(theirs) and np.array_equal(ours, theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", [*GATHERED, "plain"])
def test_batches_are_those_of_the_dataset_itself(kind: str, shuffle: bool) -> None:
    dataset = {**GATHERED, "plain": Plain}[kind]()
    assert is_in_memory(dataset)

    def epochs(dataset: Any, make: Any = TorchDataLoader, **how: Any) -> list[Any]:
        loader = make(dataset, 4, shuffle=shuffle, generator=torch.Generator().manual_seed(3), **how)
        return [*loader, *loader]

    ahead, expected = fl.AsyncPrefetchDataset(dataset), epochs(dataset)
    assert same(epochs(ahead), expected)
    assert same(epochs(ahead, num_workers=1), expected)
    assert same(epochs(ahead, fl.DataLoader), expected)
    for how in ({}, {"num_workers": 0}):
        assert same(epochs(dataset, fl.DataLoader, **how), expected)
    assert same(epochs(ahead, collate_fn=list), epochs(dataset, collate_fn=list))
    assert all(same(ahead[index], dataset[index]) for index in range(len(dataset)))
    assert not any(thread.name.startswith("foreload-prefetch") for thread in threading.enumerate())
    assert isinstance(type(ahead).__getitems__._find(ahead)([2, 0]), Collated) == (kind != "plain")


def test_a_dataset_that_changes_is_seen() -> None:
    two = Two()
    ahead = fl.AsyncPrefetchDataset(two)
    loader = TorchDataLoader(ahead, batch_size=COUNT)
    assert torch.equal(next(iter(loader))[0], two.data)
    two.data += 1
    assert torch.equal(next(iter(loader))[0], two.data)
    two.data = torch.zeros(COUNT, 3, dtype=torch.int16)
    assert torch.equal(next(iter(loader))[0], two.data)
    two.data = two.data.T.contiguous().T  # not contiguous
    assert gather_samples(two, [0, 1]) is None
    assert torch.equal(next(iter(loader))[0], two.data)


def test_a_dataset_that_changes_within_an_epoch_is_seen_by_the_next_batch() -> None:
    def changes(two: Any) -> Iterator[Any]:
        two.data += 1
        yield
        two.data = torch.zeros(COUNT, 3, dtype=torch.int16)
        yield
        two.data.resize_(COUNT, 40).fill_(3)  # in other memory
        yield
        two.data = two.data.double().requires_grad_()
        yield
        two.data = two.data.detach().as_subclass(Tagged)
        yield
        two.data = [torch.tensor(number) for number in range(COUNT)]
        yield
        two.data = two.labels = torch.arange(COUNT)
        yield
        type(two).__getitem__ = lambda self, index: self.labels[index] + 1
        yield

    def batches(loader: Any) -> Iterator[Any]:
        change = changes(loader.dataset)
        for batch in loader:
            yield batch
            next(change, None)

    def fresh() -> Any:
        return type("Own", (Two,), {"__getitem__": Two.__getitem__})()

    ours, theirs = fl.DataLoader(fresh(), 4, num_workers=0), TorchDataLoader(fresh(), 4)
    for batch, wanted in zip(batches(ours), batches(theirs), strict=True):
        assert same(batch, wanted)
        assert type(batch[0]) is type(wanted[0])


@pytest.mark.parametrize("index", [COUNT, -COUNT - 1, "a", None, True, 1.5, slice(0, 2), (0, 1), torch.tensor(3)])
@pytest.mark.parametrize("kind", [One, Two, lambda: Subset(Two(), list(range(COUNT)))])
def test_batches_of_strange_indices_are_as_in_torch(kind: Any, index: Any) -> None:
    def outcome(make: Any, **how: Any) -> Any:
        try:
            return list(make(kind(), batch_sampler=[[0, 1], [1, index], []], **how))
        except Exception as error:
            return type(error), str(error)

    ours, theirs = outcome(fl.DataLoader, num_workers=0), outcome(TorchDataLoader, num_workers=0)
    assert ours == theirs if isinstance(theirs, tuple) else same(ours, theirs)


@pytest.mark.parametrize("kind", ["one", "two", "tensors", "cached"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_made_on_the_cpu_whatever_the_default_device(kind: str, num_workers: int) -> None:
    dataset = GATHERED[kind]()
    expected = list(TorchDataLoader(dataset, 4))
    epoch = iter(fl.DataLoader(dataset, 4, num_workers=num_workers))  # (The base seed is drawn on that device.)
    with torch.device("meta"):
        assert [batch[0].device.type for batch in epoch] == ["cpu"] * len(expected)
    epoch = iter(fl.DataLoader(dataset, 4, num_workers=num_workers))
    with torch.device("meta"):
        batches = list(epoch)
    assert same(batches, expected)


def test_an_index_that_is_not_there_is_named() -> None:
    with pytest.raises(IndexError) as caught:
        list(fl.DataLoader(One(), batch_sampler=[[0, COUNT]], num_workers=0))
    assert any(f"sample {COUNT} (position 1 of its batch)" in note for note in caught.value.__notes__)


def test_errors_are_the_datasets_own() -> None:
    for dataset in (One(), tensors(), Subset(Two(), range(5)), Held().data):
        ahead = fl.AsyncPrefetchDataset(dataset)
        for indices in ([0, COUNT], [0, -COUNT - 1]):
            with pytest.raises(IndexError) as theirs:
                [dataset[index] for index in indices]
            with pytest.raises(IndexError) as ours:
                ahead.__getitems__(indices)
            assert str(ours.value) == str(theirs.value)
        assert same(list(ahead.__getitems__([-1, 2])), [dataset[-1], dataset[2]])
        assert list(ahead.__getitems__([])) == []


class Property(Held):
    @property
    def rows(self) -> Any:
        return self.data + 1

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Descriptor(Held):
    labels = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        return self.labels[index]


class Intercepts(One):
    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return value * 2 if name == "data" else value


class More(Held):
    def __getitem__(self, index: int) -> Any:
        return self.data[index] + 1


class Another(Held):
    def __getitem__(self, index: int) -> Any:
        return self.labels[index], self.data[self.labels[index]]


class Star(Held):
    def __getitem__(self, *index: int) -> Any:
        return self.data[index]


class Twice(Held):
    def __getitem__(self, index: int) -> Any:
        return self.data[index], self.data[index]


class Attribute(Held):
    def __getitem__(self, index: int) -> Any:
        return self.holder[index]

    def __getattr__(self, name: str) -> Any:
        if name == "holder":
            return self.data * 3
        raise AttributeError(name)


def _decorated(function: Any) -> Any:
    @functools.wraps(function)
    def call(self: Any, index: int) -> Any:
        return function(self, index) * 5

    return call


class Decorated(Held):
    @_decorated
    def __getitem__(self, index: int) -> Any:
        return self.data[index]


class Loads(Held):
    """Rows of something that is no list or tensor, and may take its time."""

    class Remote:
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.tensor(index)

    def __init__(self) -> None:
        super().__init__()
        self.data = self.Remote()  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


class Tagged(torch.Tensor):
    pass


def tagged() -> TensorDataset:
    return TensorDataset(Held().data.as_subclass(Tagged))


OTHERS = [Property, Descriptor, Intercepts, More, Another, Star, Twice, Attribute, Decorated, Loads]


@pytest.mark.parametrize("kind", [*OTHERS, tagged])
def test_whatever_does_more_is_called(kind: Any) -> None:
    dataset = kind()
    if kind is Descriptor:
        dataset.__dict__["labels"] = torch.arange(COUNT)
    assert gather_samples(dataset, [0, 1]) is None
    assert is_in_memory(dataset) == (kind is tagged)
    ahead = fl.AsyncPrefetchDataset(dataset)
    assert same(list(TorchDataLoader(ahead, 8)), list(TorchDataLoader(dataset, 8)))
    assert same(list(fl.DataLoader(dataset, 8, num_workers=0)), list(TorchDataLoader(dataset, 8)))
    ahead.close()


@pytest.mark.parametrize(
    "field",
    [
        torch.randn(COUNT, 3, requires_grad=True),
        torch.randn(COUNT, 3, dtype=torch.complex64).conj(),
        torch.randn(3, COUNT).T,
        torch.randn(COUNT, 3).to_sparse(),
        torch.zeros(COUNT, 3, device="meta"),
    ],
    ids=["requires_grad", "conjugate", "transposed", "sparse", "meta"],
)
def test_unusual_tensors_are_indexed(field: torch.Tensor) -> None:
    assert gather_samples(TensorDataset(field), [0, 1]) is None


def test_what_is_made_of_parts_is_called() -> None:
    stacked: Any = StackDataset(Held().data, Held().labels)
    assert gather_samples(stacked, [1]) is None
    ahead = fl.AsyncPrefetchDataset(stacked)
    assert same(list(TorchDataLoader(ahead, 8)), list(TorchDataLoader(stacked, 8)))
    ahead.close()
