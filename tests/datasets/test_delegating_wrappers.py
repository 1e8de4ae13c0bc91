"""Wrappers that hand on to a dataset what they lack have their own samples, in torch's loader too."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset, TensorDataset

import foreload as fl
from tests.datasets.every_dataset import COUNT, DATASETS, Make, write

pytestmark = pytest.mark.filterwarnings("ignore:the cache keeps samples as")

ROWS = TensorDataset(torch.arange(2.0 * COUNT).reshape(COUNT, 2), torch.arange(COUNT))


class Wrapper(Dataset[Any]):
    """Marks each sample; all else is the dataset's."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return "marked", self.dataset[index]


class ByLambda(Wrapper):
    __getattr__ = lambda self, name: getattr(self.__dict__["dataset"], name)


class ByHelper(Wrapper):
    def __getattr__(self, name: str) -> Any:
        return self._find(name)

    def _find(self, name: str) -> Any:
        return next(getattr(part, name) for part in (self.__dict__["dataset"],))


class Lazy(Wrapper):
    """Computes an attribute of batches, when it is first looked at."""

    def __getattr__(self, name: str) -> Any:
        if name == "first":
            return self.__dict__["dataset"].__getitems__([0, 1])
        return Wrapper.__getattr__(self, name)


class Tolerant(fl.TextDataset):
    """Looks at its attributes by code of its own."""

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class ByDecorated(Wrapper):
    @functools.wraps(Wrapper.__getattr__)
    def __getattr__(self, *name: str) -> Any:
        return Wrapper.__getattr__(self, *name)


@pytest.mark.parametrize("kind", [Wrapper, ByLambda, ByHelper, ByDecorated])
def test_wrappers_of_any_form_are_not_passed_over(kind: Any) -> None:
    wrapper = kind(fl.CachedDataset(ROWS))
    for loader in (TorchDataLoader(wrapper, batch_size=4), fl.DataLoader(wrapper, batch_size=4)):
        (marks, _) = next(iter(loader))
        assert list(marks) == ["marked"] * 4


def test_an_attribute_may_be_computed_of_batches() -> None:
    assert [int(number) for _, number in Lazy(fl.CachedDataset(ROWS)).first] == [0, 1]


def test_a_subclass_may_look_at_its_attributes_itself(folder: Path) -> None:
    expected = next(iter(TorchDataLoader(fl.TextDataset(folder / "data.txt"), batch_size=4)))
    for make in (TorchDataLoader, fl.DataLoader):
        found = next(iter(make(Tolerant(folder / "data.txt"), batch_size=4)))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_method_may_be_called_as_that_of_the_class() -> None:
    dataset = fl.CachedDataset(ROWS)
    samples: Any = fl.CachedDataset.__getitems__
    assert [int(number) for _, number in samples(dataset, [3, 5])] == [3, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("every")
    write(path)
    return path


ALL: dict[str, tuple[Any, Make]] = {
    **DATASETS,
    "cached": (fl.CachedDataset, lambda kind, folder: kind(ROWS)),
    "prefetch": (fl.AsyncPrefetchDataset, lambda kind, folder: kind(ROWS)),
    "mixture": (fl.Mixture, lambda kind, folder: kind([fl.CachedDataset(ROWS), ROWS])),
    "packed": (fl.packing, lambda kind, folder: kind.pack_sequences([[1, 2, 3]] * COUNT, 4)),
}


@pytest.mark.parametrize("name", ALL)
def test_a_wrapper_is_not_passed_over(name: str, folder: Path) -> None:
    kind, make = ALL[name]
    dataset = make(kind, folder)
    for wrapper in (Wrapper(dataset), Wrapper(Wrapper(dataset)), Subset(Wrapper(dataset), range(len(dataset)))):
        for loader in (
            TorchDataLoader(wrapper, batch_size=4),
            fl.DataLoader(wrapper, batch_size=4),
            fl.DataLoader(wrapper, batch_size=4, num_workers=0, cache="1MiB"),
        ):
            batch = next(iter(loader))
            assert batch[0] == ["marked"] * 4 or batch[0] == ("marked",) * 4
