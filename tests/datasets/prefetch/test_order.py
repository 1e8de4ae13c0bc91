"""Samples are loaded ahead in the order in which they will be asked for, each of them once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset, TensorDataset

import foreload as fl
from tests.datasets.prefetch.squares import Squares, settle


@pytest.mark.parametrize("indices", [range(40), range(60, 20, -2), range(5, 100, 7)])
def test_equal_steps_are_followed_no_further_than_the_queue_is_long(indices: range) -> None:
    squares = Squares()
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=4)
    for place, index in enumerate(indices):
        assert ahead[index] == index**2
        settle(ahead)
        expected = indices[place + 1 : place + 5]
        if place >= 2:
            assert set(expected) <= set(squares.loaded)
            assert len(set(squares.loaded) - set(indices[: place + 1])) <= 4 + 4  # a first guess may be wrong
    assert len(squares.loaded) == len(set(squares.loaded))


@given(
    order=st.lists(st.integers(0, 30), max_size=60),
    told=st.lists(st.integers(0, 30), max_size=60) | st.none(),
    size=st.integers(1, 8),
)
def test_any_order_gives_the_samples_that_were_asked_for(order: list[int], told: Any, size: int) -> None:
    ahead = fl.AsyncPrefetchDataset(Squares(31), queue_size=size)
    if told is not None:
        ahead.ahead(told)
    assert [ahead[index] for index in order] == [index**2 for index in order]
    assert ahead.__getitems__(order) == [index**2 for index in order]


@pytest.mark.parametrize("as_what", [list, np.asarray, iter, torch.tensor])
def test_the_order_that_was_told_is_loaded_ahead_each_sample_once(as_what: Any) -> None:
    squares = Squares()
    order = random.Random(0).sample(range(100), 100)
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=7, num_workers=3)
    ahead.ahead(as_what(order))
    assert squares.loaded == []
    for place, index in enumerate(order):
        assert ahead[index] == index**2
        settle(ahead)
        assert set(squares.loaded) == set(order[: place + 8])
    assert sorted(squares.loaded) == list(range(100))
    assert squares.helped >= set(order[1:])


def test_an_order_that_is_not_kept_costs_little_and_is_given_up() -> None:
    squares = Squares(1000)
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=5)
    ahead.ahead(range(500))
    assert [ahead[index] for index in range(998, 501, -2)] == [index**2 for index in range(998, 501, -2)]
    settle(ahead)
    assert len(squares.loaded) <= 249 + 5 + 5
    # From the middle of an order it goes on there.
    squares.loaded.clear()
    ahead.ahead(range(500))
    assert ahead[250] == 250**2
    settle(ahead)
    assert sorted(squares.loaded) == list(range(250, 256))


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("seed", [None, 5])
def test_our_loader_tells_its_order(workers: int, seed: int | None) -> None:
    squares = Squares()
    make = lambda dataset: fl.DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=workers, seed=seed, workers="threads"
    )
    ahead = fl.AsyncPrefetchDataset(squares)
    torch.manual_seed(1)
    expected = [[batch.tolist() for batch in loader] for loader in [make(Squares())] for _ in range(2)]
    torch.manual_seed(1)
    loader = make(ahead)
    for epoch in range(2):
        squares.loaded.clear()
        assert [batch.tolist() for batch in loader] == expected[epoch]
        assert sorted(squares.loaded) == list(range(100))  # each once: nothing was guessed
    if workers == 0:
        squares.loaded.clear()
        epoch = iter(loader)
        next(epoch)
        settle(ahead)
        foreseen = set(squares.loaded)
        assert len(foreseen) == 8 + 10  # the batch, and the queue
        assert set(torch.cat([next(epoch), next(epoch)[:2]]).sqrt().tolist()) <= foreseen
    part = fl.DataLoader(Subset(ahead, [3, 1, 2]), batch_size=3, num_workers=workers)
    assert [batch.tolist() for batch in part] == [[9, 1, 4]]


def test_a_stock_loader_has_the_rest_of_a_batch_loaded_ahead() -> None:
    squares = Squares()
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=4)
    generators = [torch.Generator().manual_seed(2) for _ in range(2)]
    theirs, ours = (
        [b.tolist() for b in TorchDataLoader(d, batch_size=8, shuffle=True, generator=g)]
        for d, g in zip((Squares(), ahead), generators, strict=True)
    )
    assert ours == theirs
    assert sorted(squares.loaded) == list(range(100))


class OwnBatches(TensorDataset):
    """Loads whole batches in another way than single samples."""

    def __getitems__(self, indices: Any) -> Any:
        return [(2 * self.tensors[0][index],) for index in indices]


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(6))])
def test_batches_are_the_datasets_own(wrap: Any) -> None:
    dataset = wrap(OwnBatches(torch.arange(8)))
    expected = [batch[0].tolist() for batch in TorchDataLoader(dataset, 2)]
    for loader in (TorchDataLoader, fl.DataLoader):
        assert [batch[0].tolist() for batch in loader(fl.AsyncPrefetchDataset(dataset), 2)] == expected


class Modes(Dataset[Any]):
    """Samples that depend on an attribute."""

    train = True

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return index, self.train


def test_a_dataset_may_change_between_epochs() -> None:
    dataset = Modes()
    ahead = fl.AsyncPrefetchDataset(dataset)
    for _ in range(2):
        for order in ([4, 5, 6, 7], [8, 9, 10, 11], [12, 3, 13, 14]):
            loaded = list(fl.DataLoader(ahead, 2, sampler=order))
            assert [mode.tolist() for _, mode in loaded] == [[dataset.train] * 2] * 2
            time.sleep(0.02)
            dataset.train = not dataset.train
    ahead.close()


@pytest.mark.parametrize("kind", [torch.utils.data.SubsetRandomSampler, torch.utils.data.DistributedSampler])
@pytest.mark.parametrize("batch_size", [3, None])
def test_an_epoch_that_goes_on_gives_the_rest_and_no_more(kind: Any, batch_size: int | None) -> None:
    with contextlib.closing(fl.AsyncPrefetchDataset(Squares(12), queue_size=4, num_workers=1)) as ahead:

        def loader() -> fl.DataLoader[Any]:
            of = range(12)
            sampler = kind(of) if kind is torch.utils.data.SubsetRandomSampler else kind(ahead, 1, 0)
            return fl.DataLoader(ahead, batch_size=batch_size, sampler=sampler, num_workers=0)

        first = loader()
        epoch = iter(first)
        given = [next(epoch), next(epoch)]
        again = loader()
        again.load_state_dict(first.state_dict())
        rest = list(again)
    found = [int(sample) for batch in [*given, *rest] for sample in np.atleast_1d(batch)]
    assert sorted(found) == [index**2 for index in range(12)]


def test_a_batch_of_short_samples_ends_loading_ahead_until_one_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreload.datasets.prefetch.read_ahead._SHORT_SECONDS", 0.05)
    slow = threading.Event()
    gate = threading.Event()

    class Gated(Squares):
        def __getitem__(self, index: int) -> int:
            if slow.is_set():
                gate.wait(0.1)
            return super().__getitem__(index)

    squares = Gated(400)
    with contextlib.closing(fl.AsyncPrefetchDataset(squares, queue_size=4)) as ahead:
        batches = iter(TorchDataLoader(ahead, batch_size=10))
        for _ in range(4):
            next(batches)
        settle(ahead)
        squares.helped.clear()
        for _ in range(3):
            next(batches)
        assert not squares.helped
        assert sorted(squares.loaded)[-1] == 69
        slow.set()
        next(batches)
        settle(ahead)
        assert squares.helped & set(range(72, 80))
        assert sorted(squares.loaded)[-1] >= 80


def test_another_dataset_and_other_attributes_are_followed() -> None:
    ahead = fl.AsyncPrefetchDataset(Modes(), queue_size=6)
    assert [ahead[index] for index in range(3)] == [(0, True), (1, True), (2, True)]
    ahead.train = False
    assert ahead.dataset.train is False
    assert [ahead[index] for index in range(3, 6)] == [(3, False), (4, False), (5, False)]
    ahead.dataset = Squares()
    assert [ahead[index] for index in range(6, 9)] == [36, 49, 64]
    ahead.own = 1
    assert ahead.own == 1
    assert not hasattr(ahead.dataset, "own")
    ahead.close()


def test_attributes_of_a_subclass_are_its_own() -> None:
    class Negated(fl.AsyncPrefetchDataset):
        def __init__(self, dataset: Any, size: int) -> None:
            super().__init__(dataset)
            self.size = size

        def __len__(self) -> int:
            return self.size

    squares = Squares(50)
    some = Negated(fl.AsyncPrefetchDataset(squares), 5)
    assert (len(some), len(some.dataset), squares.size) == (5, 50, 50)
    assert (some.queue_size, some.dataset.queue_size) == (10, 10)
