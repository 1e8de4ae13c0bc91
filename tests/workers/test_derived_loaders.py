"""Classes derived from torch's loader, as public code has them, do the same when they are derived from ours."""

from __future__ import annotations

import copy
import itertools
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import (
    _InfiniteConstantSampler,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

import foreload as fl

SETTINGS: list[dict[str, Any]] = [{}, {"num_workers": 0}, {"num_workers": 2}]


class Numbers:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_an_epoch_goes_on_when_the_loaders_iterator_is_set_to_none(
    options: dict[str, Any], persistent: bool
) -> None:
    if persistent and not options.get("num_workers"):
        pytest.skip("torch has no persistent workers there")
    loader: Any = fl.DataLoader(Numbers(), 4, persistent_workers=persistent, **options)  # type: ignore[arg-type]
    for _ in range(2):
        seen = []
        for batch in loader:
            seen.append(batch.tolist())
            loader._iterator = None
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    loader.close()


def next_of(loader: Any) -> list[int]:
    if loader._iterator is None:
        loader._iterator = iter(loader)
    try:
        batch = next(loader._iterator)
    except StopIteration:
        loader._iterator = iter(loader)
        batch = next(loader._iterator)
    return list(batch.tolist())


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_an_iterator_that_is_kept_in_the_loader_stays_there(options: dict[str, Any]) -> None:
    def seen(make: Any) -> list[Any]:
        loader = make(Numbers(), 4, **options)
        return [next_of(loader), lists(loader), *(next_of(loader) for _ in range(4))]

    assert seen(fl.DataLoader) == seen(TorchDataLoader)


class Endless:
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


class Both(Endless):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: Any) -> int:
        return -1 if index is None else int(index)


def streams(base: Any) -> Any:
    class Streams(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, sampler=_InfiniteConstantSampler(), **options)
            self._dataset_kind = _DatasetKind.Iterable

    return Streams


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", [Endless, Both])
def test_a_dataset_that_is_marked_as_a_stream_is_read_as_one(kind: Any, options: dict[str, Any]) -> None:
    ours, theirs = streams(fl.DataLoader), streams(TorchDataLoader)
    expected = lists(itertools.islice(theirs(kind(), batch_size=4, **options), 3))
    assert lists(itertools.islice(ours(kind(), batch_size=4, **options), 3)) == expected


class OwnIterators(fl.DataLoader[Any]):
    def _get_iterator(self) -> Any:
        kind: Any = _SingleProcessDataLoaderIter if self.num_workers == 0 else _MultiProcessingDataLoaderIter
        return kind(self)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_iterators_of_torchs_that_a_derived_class_makes(options: dict[str, Any]) -> None:
    assert lists(OwnIterators(Numbers(), 4, **options)) == lists(TorchDataLoader(Numbers(), 4))  # type: ignore[arg-type]


KEPT = ["_num_workers", "_collate_fn", "_auto_collation", "_drop_last", "_dataset_kind", "_pin_memory", "_timeout"]
KEPT += ["_persistent_workers", "_IterableDataset_len_called"]


@pytest.mark.parametrize("options", SETTINGS[1:], ids=str)
def test_iterators_keep_what_torchs_keep_of_their_loader(options: dict[str, Any]) -> None:
    options = {**options, "drop_last": True}
    ours: Any = iter(fl.DataLoader(Numbers(), 5, **options))  # type: ignore[arg-type]
    theirs: Any = iter(TorchDataLoader(Numbers(), 5, **options))  # type: ignore[arg-type]
    assert [getattr(ours, name) for name in KEPT] == [getattr(theirs, name) for name in KEPT]
    assert isinstance(ours._base_seed, int)
    with pytest.raises(AttributeError, match="has no attribute '_nothing'"):
        _ = ours._nothing


class WithoutConstructor(fl.DataLoader[Any]):
    def __init__(self, rows: Any, size: int = 4) -> None:
        self.rows, self.size = rows, size

    def __iter__(self) -> Any:
        return iter(self.rows.split(self.size))


def test_a_class_that_calls_no_constructor() -> None:
    loader = WithoutConstructor(torch.arange(10))
    assert lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert "WithoutConstructor" in repr(loader)
    assert not hasattr(loader, "num_workers")
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert lists(other) == lists(loader)


class OwnCount(fl.DataLoader[Any]):
    num_workers = property(lambda self: 0, lambda self, count: None)  # type: ignore[assignment]


def test_a_number_of_workers_that_is_a_property_of_the_class() -> None:
    assert lists(OwnCount(Numbers(), 4)) == lists(TorchDataLoader(Numbers(), 4))  # type: ignore[arg-type]


class Slow(Numbers):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        time.sleep(0.003)
        return index


class OwnArguments(fl.DataLoader[Any]):
    made = 0

    def __init__(self, data: Any) -> None:
        type(self).made += 1
        super().__init__(data, batch_size=4)


def test_workers_are_chosen_without_another_object_of_the_class() -> None:
    loader = OwnArguments(Slow())
    assert sum(len(batch) for _ in range(2) for batch in loader) == 128
    assert OwnArguments.made == 1
    assert "could not be measured" not in loader.stats()["workers"]["why"]


@pytest.mark.parametrize(
    "name", ["_cursor", "_open", "_turn", "_crew", "_begun", "_moving", "_planner", "_is_pure"]
)
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_a_derived_class_may_use_any_private_name(name: str, options: dict[str, Any]) -> None:
    class Named(fl.DataLoader[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            setattr(self, name, "before")
            super().__init__(*arguments, **options)
            assert getattr(self, name) == "before"
            setattr(self, name, 0)

    loader = Named(Numbers(), 4, **options)
    assert lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert getattr(loader, name) == 0
    assert loader.stats()["batches"] == 3
