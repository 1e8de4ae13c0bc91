"""Caches of datasets in which the script sets attributes between epochs."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl


class Scale:
    def __init__(self) -> None:
        self.factor = 1

    def __call__(self, value: int) -> int:
        return self.factor * value


class Last(Dataset[Any]):
    def _keep(self, index: int) -> None:
        self.last = index


def _note(dataset: Any, index: int) -> None:
    dataset.noted = index


class Numbers(Last):
    """It counts and logs what is loaded, and opens a file when it is first needed."""

    def __init__(self) -> None:
        self.epoch, self.steps, self.offset = 0, [Scale()], None
        self.loads, self.log, self.seen, self.file = 0, [], Counter(), None
        self.size, self.names, self.limit = (224, 224), ["a", "b" * 2_000], float("nan")
        self.path, self.mean, self.best_loss = Path("x"), np.arange(3), 1.0
        self.tree, self.counts = {"a": [[1, 2], {3, 4}], "b": {"c": (5,)}}, SimpleNamespace(loads=0, last=None)
        self.shards = [np.zeros(100)]

    def __len__(self) -> int:
        return 24

    @cached_property
    def table(self) -> list[int]:
        return list(range(24))

    def _open(self) -> None:
        if self.file is None:
            self.file = Path(__file__).open("rb")  # noqa: SIM115

    def __getitem__(self, index: int) -> Any:
        self._open()
        self.loads += 1
        self._keep(index)
        self.log.append(index)
        self.seen[index] += 1
        _note(self, index)
        assert (self.size, self.names[0], self.limit == self.limit) == ((224, 224), "a", False)
        assert (str(self.path), int(self.mean[2]), self.tree["b"]["c"]) == ("x", 2, (5,))
        self.counts.loads += 1
        self.counts.last = index
        value = self.table[index] + 100 * self.epoch + (self.offset or 0) + int(self.shards[0][index])
        for step in self.steps:
            value = step(value)
        return torch.tensor(value)


def set_epoch(dataset: Numbers, epoch: int) -> None:
    dataset.epoch = epoch


def set_step(dataset: Numbers, epoch: int) -> None:
    dataset.steps[0].factor = epoch + 1


def set_offset(dataset: Numbers, epoch: int) -> None:
    dataset.offset = None if epoch % 2 else 7


def set_shards(dataset: Numbers, epoch: int) -> None:
    dataset.shards = [np.full(100, epoch)]
    KEPT.append(dataset.shards)


def set_tree(dataset: Numbers, epoch: int) -> None:
    dataset.tree = {**dataset.tree, "offset": 10 * epoch}
    dataset.offset = dataset.tree["offset"]


KEPT: list[Any] = []


def start_counting_anew(dataset: Numbers, epoch: int) -> None:
    dataset.loads, dataset.log, dataset.seen = 0, [], Counter()


def set_equal_values(dataset: Numbers, epoch: int) -> None:
    dataset.size, dataset.names, dataset.limit = (224, 224), ["a", "b" * 2_000], float("nan")
    dataset.path, dataset.mean, dataset.offset = Path("x"), np.arange(3), None
    dataset.tree = {"a": [[1, 2], {3, 4}], "b": {"c": (5,)}}


def note_what_no_sample_reads(dataset: Numbers, epoch: int) -> None:
    dataset.best_loss = 1.0 / (epoch + 1)


def clear_counts(dataset: Numbers, epoch: int) -> None:
    dataset.loads = 0
    dataset.log.clear()
    dataset.seen.clear()


HOW: dict[str, dict[str, Any]] = {
    "auto": {},
    "alone": {"num_workers": 0},
    "seeded": {"seed": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2},
}


def epochs(loader: Any, dataset: Numbers, change: Any) -> list[list[int]]:
    found = []
    for epoch in range(3):
        change(dataset, epoch)
        found.append(sorted(torch.cat(list(loader)).tolist()))
    return found


@pytest.mark.parametrize("change", [set_epoch, set_step, set_offset, set_shards, set_tree])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_samples_are_what_the_dataset_gives_now(how: str, change: Any) -> None:
    wanted = epochs(TorchDataLoader(data := Numbers(), 8), data, change)
    data = Numbers()
    loader = fl.DataLoader(data, 8, cache="1MiB", **HOW[how])
    with pytest.warns(UserWarning, match="the dataset reads, was set since its last epoch, so the cache drops"):
        assert epochs(loader, data, change) == wanted


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dataset_within_a_subset_is_looked_at() -> None:
    data = Numbers()
    loader = fl.DataLoader(Subset(data, range(5, 13)), 8, cache="1MiB")
    with pytest.warns(UserWarning, match="'epoch', which the dataset reads"):
        assert epochs(loader, data, set_epoch) == [[100 * epoch + i for i in range(5, 13)] for epoch in range(3)]


@pytest.mark.parametrize(
    "change", [start_counting_anew, clear_counts, set_equal_values, note_what_no_sample_reads]
)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_loading_sets_is_no_change(how: str, change: Any) -> None:
    data = Numbers()
    loader = fl.DataLoader(data, 8, cache="1MiB", **HOW[how])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert epochs(loader, data, change) == [list(range(24))] * 3
    assert loader.stats()["cache"]["hits"] == 48


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_workers_that_keep_their_copies_keep_the_cache() -> None:
    """As in torch, what is set in the dataset does not reach persistent workers."""
    data = Numbers()
    loader = fl.DataLoader(data, 8, num_workers=2, persistent_workers=True, cache="1MiB")
    assert epochs(loader, data, set_epoch) == [list(range(24))] * 3
    assert loader.stats()["cache"]["hits"] == 48
    loader.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_spill_folder_is_not_used_for_another_dataset(tmp_path: Path) -> None:
    data = Numbers()
    loader = fl.DataLoader(data, 8, num_workers=0, cache=fl.Cache("1KiB", spill=str(tmp_path / "spill")))
    with pytest.warns(UserWarning, match="dataset") as told:
        assert epochs(loader, data, set_epoch) == [[100 * epoch + i for i in range(24)] for epoch in range(3)]
    assert all("'epoch', which the dataset reads" in str(warning.message) for warning in told)
    assert list((tmp_path / "spill").glob("*.spill"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_parts_of_joined_datasets_and_composed_transforms_are_looked_at() -> None:
    class Shift(torch.nn.Module):
        by = 0

        def forward(self, value: int) -> int:
            return value + self.by

    parts = [Numbers(), Numbers()]
    parts[1].steps = [Scale(), Scale(), torch.nn.Sequential(Shift())]
    loader = fl.DataLoader(ConcatDataset(parts), 48, cache="1MiB", num_workers=0)

    def second() -> list[int]:
        (batch,) = loader
        return batch[24:].tolist()

    assert second() == list(range(24))
    for owner, name, value in (
        (parts[1], "epoch", 1),
        (parts[1].steps[0], "factor", 2),
        (parts[1].steps[2][0], "by", 1000),
    ):
        setattr(owner, name, value)
        with pytest.warns(UserWarning, match=f"'{name}', which the dataset reads"):
            found = second()
        assert found == [torch.tensor(0).item() + parts[1][i].item() for i in range(24)]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_warning_that_is_an_error_does_not_keep_the_samples() -> None:
    data = Numbers()
    loader = fl.DataLoader(data, 8, cache="1MiB", num_workers=0)
    list(loader)
    data.epoch = 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match="'epoch', which the dataset reads"):
            list(loader)
    assert torch.cat(list(loader)).tolist() == list(range(300, 324))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_workers_that_are_started_anew_have_what_was_set() -> None:
    data = Numbers()
    loader = fl.DataLoader(data, 8, num_workers=2, persistent_workers=True, cache="1MiB")
    list(loader)
    state = loader.state_dict()
    data.epoch = 1
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="'epoch', which the dataset reads"):
        assert torch.cat(list(loader)).tolist() == list(range(100, 124))
    loader.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_an_epoch_that_was_left_has_logged_is_no_change() -> None:
    data = Numbers()
    loader = fl.DataLoader(data, 8, cache="1MiB", num_workers=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(3):
            data.log = []
            next(iter(loader))
    assert loader.stats()["cache"]["hits"] >= 16


class Proxy:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("working outside of its context")


class Remote(list[int]):
    def __iter__(self) -> Any:
        raise OSError("not there now")


def test_objects_that_cannot_be_looked_at_are_passed_over() -> None:
    class Unhashable(type):
        def __eq__(cls, other: object) -> bool:
            return cls is other

        __hash__ = None  # type: ignore[assignment]

    class Odd(metaclass=Unhashable):
        def __init__(self) -> None:
            self.value = 1

    class Holds(Dataset[Any]):
        def __init__(self) -> None:
            self.proxy, self.remote, self.odd = Proxy(), Remote([1]), Odd()
            self.__dict__.update({3: 4})

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            assert self.remote is not self.proxy is not self.odd
            return torch.tensor(index)

    loader = fl.DataLoader(Holds(), 4, cache="1MiB", num_workers=0)
    for _ in range(3):
        assert torch.cat(list(loader)).tolist() == list(range(8))
    assert loader.stats()["cache"]["hits"] == 16


class Wraps(Dataset[Any]):
    """It loads by what it holds: a function, and another dataset."""

    def __init__(self) -> None:
        self.dataset, self.scale = Numbers(), 1
        self.load = self._scaled
        self.settings = SimpleNamespace(shift=0)
        self.shift: Any = lambda value: value + self.settings.shift

    def _scaled(self, index: int) -> Any:
        return self.scale * self.dataset[index]

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return self.shift(self.load(index))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*which the dataset reads, was set")
def test_what_held_functions_and_wrapped_datasets_read_counts() -> None:
    data = Wraps()
    loader = fl.DataLoader(
        ConcatDataset([Subset(Subset(data, range(24)), range(24))]), 24, cache="1MiB", num_workers=0
    )
    list(loader)
    for owner, name, value in ((data, "scale", 2), (data.dataset, "epoch", 1), (data.settings, "shift", 1000)):
        setattr(owner, name, value)
        (batch,) = loader
        assert batch.tolist() == [data[i].item() for i in range(24)]
    (batch,) = loader
    assert loader.stats()["cache"]["hits"] == 24


class Slow(Numbers):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return super().__getitem__(index)


@pytest.mark.parametrize("how", ["auto", "threads", "processes"])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*which the dataset reads, was set")
def test_an_epoch_that_is_still_held_keeps_nothing_for_the_next(how: str) -> None:
    data = Slow()
    loader = fl.DataLoader(data, 4, cache="1MiB", **HOW[how])
    batches = iter(loader)
    for epoch in range(4):
        next(batches)
        data.epoch = epoch
        batches = iter(loader)
        assert next(batches).tolist() == [100 * epoch + i for i in range(4)]
    assert [batch.tolist()[0] for batch in batches] == [300 + i for i in range(4, 24, 4)]
