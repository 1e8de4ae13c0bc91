"""Samples of datasets that are held in memory have the dataset's own type, or are refused."""

from __future__ import annotations

import copy
import pickle
import types
from collections import Counter, OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl


class Point(NamedTuple):
    x: Any
    y: Any


class OwnDict(dict[str, Any]):
    pass


class OwnUserDict(UserDict[str, Any]):
    pass


class OwnTuple(tuple[Any, ...]):
    __slots__ = ()


class OwnList(list[Any]):
    pass


class Samples:
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def numbers(container: Any) -> Any:
    """A sample or batch in plain numbers, with the type of its container."""
    if hasattr(container, "keys"):
        return type(container), [(name, container[name].tolist()) for name in container]
    return type(container), [value.tolist() for value in container]


def row(index: int) -> dict[str, Any]:
    return {"b": torch.full((2,), float(index)), "a": torch.tensor(-index)}


MAKE: dict[str, Callable[[int], Any]] = {
    "dict": row,
    "OrderedDict": lambda i: OrderedDict(row(i)),
    "defaultdict": lambda i: defaultdict(list, row(i)),
    "dict of the user's": lambda i: OwnDict(row(i)),
    "UserDict": lambda i: OwnUserDict(row(i)),
    "tuple": lambda i: tuple(row(i).values()),
    "tuple of the user's": lambda i: OwnTuple(row(i).values()),
    "list": lambda i: list(row(i).values()),
    "list of the user's": lambda i: OwnList(row(i).values()),
    "named tuple": lambda i: Point(*row(i).values()),
}


def same(samples: Any) -> Any:
    return list(samples)


@pytest.mark.parametrize("kind", sorted(MAKE))
def test_samples_and_batches_are_of_the_datasets_own_types(kind: str) -> None:
    make = MAKE[kind]
    dataset: Any = Samples(make)
    data = fl.CachedDataset(dataset)
    for held in (data, pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):
        assert [numbers(held[i]) for i in range(5)] == [numbers(make(i)) for i in range(5)]
    for batch_size in (1, 2):
        expected = [numbers(batch) for batch in TorchDataLoader(dataset, batch_size)]
        for cls, workers in ((TorchDataLoader, 0), (fl.DataLoader, 0), (fl.DataLoader, 2)):
            assert [numbers(batch) for batch in cls(data, batch_size, num_workers=workers)] == expected
    samples = next(iter(TorchDataLoader(data, 5, collate_fn=same)))
    assert [numbers(sample)[1] for sample in samples] == [numbers(make(i))[1] for i in range(5)]
    assert all(isinstance(sample, type(make(0))) for sample in samples)


def test_samples_reach_another_process_as_what_they_are() -> None:
    data = fl.CachedDataset(Samples(MAKE["named tuple"]))
    (samples,) = TorchDataLoader(data, 5, collate_fn=same, num_workers=1)
    assert [type(sample) for sample in samples] == [Point] * 5


def test_tensors_in_an_ordered_dict_have_samples_like_it() -> None:
    whole = OrderedDict(b=torch.arange(4), a=torch.zeros(4))
    assert numbers(fl.CachedDataset(whole)[2]) == (OrderedDict, [("b", 2), ("a", 0.0)])
    other = types.MappingProxyType(whole)
    assert numbers(fl.CachedDataset(other)[2]) == (dict, [("b", 2), ("a", 0.0)])


class Tagged(dict[str, Any]):
    def __init__(self, tag: int, **values: Any) -> None:
        super().__init__(**values)
        self.tag = tag


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda i: {"x": i, "y": 1} if i == 3 else {"x": i},
            ValueError,
            "sample 3 has the key 'y', which sample 0",
        ),
        (lambda i: OrderedDict(x=i) if i == 2 else {"x": i}, TypeError, "sample 2 is a OrderedDict, but sample 0"),
        (
            lambda i: OrderedDict([("x", i), ("y", i)] if i else [("y", i), ("x", i)]),
            ValueError,
            "sample 1 has its keys in another order",
        ),
        (lambda i: defaultdict(int if i else list, x=i), TypeError, "sample 1, a defaultdict, holds more"),
        (lambda i: Tagged(i, x=i), TypeError, r"sample 0, a Tagged, holds more .*dict\(sample\)"),
        (lambda i: Counter(x=i, y=2), TypeError, r"torch makes other values .* Counter; .*dict\(sample\)"),
        (lambda i: {"x": {"y": i}}, TypeError, r"data\['x'\] must be a tensor .* side by side"),
    ],
)
def test_samples_that_would_come_back_as_others_are_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fl.CachedDataset(Samples(make))


class Encoded(UserDict[str, Any]):
    """Has an attribute that is not set, as the texts that tokenizers of transformers make."""

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        self.rest = None


def test_samples_of_other_libraries_are_kept_or_refused_with_the_remedy() -> None:
    dataset = fl.CachedDataset(Samples(lambda index: Encoded(row(index))))
    assert numbers(dataset[2]) == numbers(Encoded(row(2)))
    dataset = fl.CachedDataset(Samples(lambda index: torch.max(torch.tensor([[0.0, index]]), 1)))
    assert type(dataset[2]) is type(torch.max(torch.zeros(1, 2), 1))
    assert [value.tolist() for value in dataset[2]] == [[2.0], [1]]
    with pytest.raises(TypeError, match="give a plain dict or tuple"):
        fl.CachedDataset(Samples(lambda index: torch.Size([index, 3])))
