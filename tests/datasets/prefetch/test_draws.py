"""Samples that draw random numbers draw the same when they are loaded ahead."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.datasets.prefetch.read_ahead import places


@pytest.fixture(autouse=True)
def nothing_built_before() -> None:
    """A script begins so; datasets that other tests have built and never asked would be counted."""
    places.begin()


class Drawing(Dataset[Any]):
    """Draws from every generator; a sample in ten takes its time."""

    def __init__(self, wait: threading.Event | None = None) -> None:
        self.wait = wait

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if self.wait is not None and index % 10 == 3:
            self.wait.wait(0.001)
        return index, random.random(), float(np.random.rand()), torch.rand(2)


@pytest.mark.parametrize("shuffle", [False, True])
def test_who_loads_a_sample_does_not_change_what_it_draws(shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def epochs(short: float, wait: threading.Event | None = None) -> tuple[list[Any], bool]:
        monkeypatch.setattr("foreload.datasets.prefetch.read_ahead._SHORT_SECONDS", short)
        torch.manual_seed(5)
        dataset = Drawing(wait)
        with contextlib.closing(fl.AsyncPrefetchDataset(dataset, queue_size=3)) as ahead:
            order = torch.Generator().manual_seed(1)
            loader = TorchDataLoader(ahead, 8, shuffle=shuffle, generator=order, collate_fn=list)
            found = [str(sample) for _ in range(3) for batch in loader for sample in batch]
            first = iter(loader)
            found += map(str, next(first) + next(first) + next(iter(loader)))
            return found, ahead._reader._is_short

    threads, is_short = epochs(0)
    assert not is_short
    assert len(set(threads)) == len(threads) == 3 * 60 + 24
    here, is_short = epochs(1e9)
    assert is_short
    assert here == threads
    assert epochs(5e-5, threading.Event())[0] == threads


class Sharing(Dataset[Any]):
    """Draws from every generator."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(2).tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrap", [lambda ahead: ahead, lambda ahead: Subset(ahead, range(29, -1, -1))])
@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (2, "threads"), (2, "processes")])
def test_loaders_that_share_it_draw_what_each_draws_alone(wrap: Any, workers: int, kind: Any) -> None:
    def loader(dataset: Any, seed: int) -> Any:
        return fl.DataLoader(
            dataset, 4, shuffle=True, seed=seed, num_workers=workers, workers=kind, collate_fn=list
        )

    alone = []
    for seed in (0, 1):
        with contextlib.closing(fl.AsyncPrefetchDataset(Sharing())) as ahead:
            alone.append(list(loader(wrap(ahead), seed)))
    with contextlib.closing(fl.AsyncPrefetchDataset(Sharing(), queue_size=5)) as ahead:
        train, val = loader(wrap(ahead), 0), loader(wrap(ahead), 1)
        found = list(zip(train, val, strict=True))
        assert [batch for batch, _ in found] == alone[0]
        assert [batch for _, batch in found] == alone[1]
    if wrap(ahead) is ahead:
        assert list(loader(Sharing(), 0)) == alone[0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stock_epochs_after_one_of_ours_draw_other_numbers_each_time(num_workers: int) -> None:
    with contextlib.closing(fl.AsyncPrefetchDataset(Sharing(), queue_size=5)) as ahead:
        epochs = [list(fl.DataLoader(ahead, 4, num_workers=0, collate_fn=list))]
        stock = TorchDataLoader(ahead, 4, num_workers=num_workers, collate_fn=list)
        epochs += [list(stock) for _ in range(3)]
    drawn = [sample[1] for epoch in epochs for batch in epoch for sample in batch]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_stock_workers_draw_does_not_follow_from_the_datasets_built_before(start: str) -> None:
    def epoch(ahead: Any) -> list[Any]:
        torch.manual_seed(3)
        return [
            sample
            for batch in TorchDataLoader(ahead, 8, num_workers=1, collate_fn=list, multiprocessing_context=start)
            for sample in batch
        ]

    built = [fl.AsyncPrefetchDataset(Sharing(), queue_size=queue_size) for queue_size in (5, 2)]
    first, second = map(epoch, built)
    assert second == first


@pytest.mark.parametrize("loader", [TorchDataLoader, fl.DataLoader])
def test_wrappers_within_wrappers_draw_other_numbers_each_time(loader: Any) -> None:
    def epochs() -> list[Any]:
        torch.manual_seed(3)
        inner = fl.AsyncPrefetchDataset(Sharing(), queue_size=2)
        with contextlib.closing(inner), contextlib.closing(fl.AsyncPrefetchDataset(inner, queue_size=3)) as outer:
            batches = loader(outer, 4, num_workers=0, collate_fn=list)
            return [sample[1] for _ in range(3) for batch in batches for sample in batch]

    drawn = epochs()
    assert len(set(drawn)) == len(drawn)
    assert drawn == epochs()


class _Drawing(Dataset[float]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return float(torch.rand(()))


class _Pairs(Dataset[Any]):
    """Draws a number itself, and asks one part twice and another once."""

    def __init__(self) -> None:
        self.parts = [fl.AsyncPrefetchDataset(_Drawing()) for _ in range(2)]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        first, other = self.parts
        return (
            float(torch.rand(())),
            first[index],
            first[index],
            other[index],
            *first.__getitems__([index, 3 - index]),
        )


def _concatenated() -> Dataset[float]:
    return ConcatDataset([fl.AsyncPrefetchDataset(_Drawing()) for _ in range(2)])


def _of_subsets() -> Dataset[float]:
    parts = [fl.AsyncPrefetchDataset(_Drawing()) for _ in range(2)]
    return ConcatDataset([Subset(parts[0], [3, 1, 0]), Subset(parts[1], [3, 2])])


def _nested() -> Dataset[float]:
    return fl.AsyncPrefetchDataset(ConcatDataset([_concatenated(), _concatenated()]))


def _stacked() -> Dataset[Any]:
    return StackDataset(*(fl.AsyncPrefetchDataset(_Drawing()) for _ in range(3)))


def _numbers(loader: Any) -> list[float]:
    return [float(number) for batch in loader for number in np.ravel([*map(np.asarray, batch)])]


@pytest.mark.parametrize("make", [_concatenated, _of_subsets, _nested, _stacked, _Pairs])
def test_parts_of_a_dataset_draw_numbers_of_their_own(make: Any) -> None:
    def epochs(**options: Any) -> list[list[float]]:
        loader = fl.DataLoader(make(), batch_size=3, seed=1, **options)
        return [_numbers(loader) for _ in range(2)]

    expected = epochs(num_workers=0)
    first, second = expected
    assert len({*first, *second}) == len(first) + len(second)
    assert epochs(num_workers=2, workers="threads") == expected
    assert sorted(epochs(num_workers=0, shuffle=True)[1]) == sorted(expected[1])
    if make is not _stacked:  # which makes whole batches
        assert sorted(_numbers(fl.DataLoader(make(), batch_size=2, seed=1, num_workers=0))) == sorted(first)
    for kind in (fl.DataLoader, torch.utils.data.DataLoader):
        torch.manual_seed(0)
        drawn = _numbers(kind(make(), batch_size=3, num_workers=0))
        assert len(set(drawn)) == len(drawn)
        torch.manual_seed(0)
        assert _numbers(kind(make(), batch_size=3, num_workers=0)) == drawn
