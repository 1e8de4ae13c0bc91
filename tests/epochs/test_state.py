"""States of datasets, iterators and samplers of a user's own, at every moment, against an uninterrupted run."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler

import foreload as fl
from tests.epochs.stateful import DATA, ORDERS, SIZE, WORKERS, Counting, Numbers, Passes, as_it_is, make, take
from tests.pairwise import pairwise

pytestmark = pytest.mark.filterwarnings("ignore:.*has no state_dict")


MOMENTS = ["before", 0, 1, 3, "end", "after"]  # of an epoch: a number is that of batches
SLOW = ("persistent", "pickled")
EVERY_KIND = [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in WORKERS]


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    ("kind", "workers", "moment"),
    # Datasets with states, and orders with states: for each of the two, any kind of workers at any moment.
    [*pairwise(DATA, EVERY_KIND, MOMENTS), *pairwise(ORDERS, EVERY_KIND, MOMENTS)],
)
def test_a_state_is_exact(kind: str, workers: str, moment: Any) -> None:
    loader = make(kind, workers)
    iterator: Any = None
    if moment == "end":  # all batches have been seen, but not that there is no more
        for _ in loader:
            state = json.loads(json.dumps(loader.state_dict()))
        expected: list[Any] = []
    else:
        if moment == "after":
            list(loader)
        elif moment != "before":
            iterator = iter(loader)
            take(iterator, moment)
        state = json.loads(json.dumps(loader.state_dict()))
        assert json.loads(json.dumps(loader.state_dict())) == state, "taken twice"
        if iterator is not None and kind != "drawing":
            torch.rand(3)  # the loop's own draws are none of its business
        expected = list(loader if iterator is None else iterator)
        assert expected
    again = make(kind, workers)
    if iterator is None:
        take(iter(again), 2)  # which leaves no trace
    again.load_state_dict(state)
    assert again.state_dict() == state, "saved again"
    assert list(again) == expected


@pytest.mark.parametrize("order", [name for name in ORDERS if name not in ("sequential", "batches")])
def test_taking_states_changes_nothing(order: str) -> None:
    def run(*, saves: bool) -> Any:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        loader = make(order, "here")
        seen: list[Any] = []
        for _ in range(2):
            for batch in loader:
                if saves:
                    loader.state_dict()
                seen.append((batch, float(torch.rand(()))))
            if saves:
                loader.state_dict()
        return seen, random.random(), np.random.rand(), torch.rand(1).tolist()

    assert run(saves=True) == run(saves=False)


def test_orders_are_torchs_own_after_a_state_before_the_first_epoch() -> None:
    for order in ("shuffled", "generator", "eager", "lazy", "weighted"):
        data, arguments = ORDERS[order]()
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        stock = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=as_it_is, **arguments)
        expected = list(stock)
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        loader = make(order, "here")
        loader.state_dict()
        assert list(loader) == expected, order


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("kind", "workers", "every"), pairwise(DATA, EVERY_KIND, [0, 3, 7]))
def test_states_are_exact_between_snapshots(kind: str, workers: str, every: int) -> None:
    loader = make(kind, workers, snapshot_every_n_steps=every)
    iterator = iter(loader)
    take(iterator, 5)
    state = loader.state_dict()
    expected = list(iterator)
    again = make(kind, workers, snapshot_every_n_steps=every)
    again.load_state_dict(state)
    iterator = iter(again)
    first = take(iterator, 2)
    state = again.state_dict()
    assert first + list(iterator) == expected
    again = make(kind, workers, snapshot_every_n_steps=1)
    again.load_state_dict(state)
    assert list(again) == expected[2:]


def test_a_dataset_is_asked_once_per_snapshot() -> None:
    loader = make("counting", "here")
    Counting.asked = 0
    iterator = iter(loader)
    take(iterator, 4)
    assert Counting.asked == 0
    loader.state_dict()
    assert Counting.asked == 1


class Asked(Counting):
    """Counts in its state how often it was asked for it."""

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.times = 0

    def state_dict(self) -> dict[str, int]:
        self.times += 1
        return {"loaded": self.loaded, "times": self.times}


@pytest.mark.parametrize(("every", "most"), [(1, 4), (3, 3), (0, 1)])
def test_workers_are_asked_once_per_snapshot(every: int, most: int) -> None:
    loader: Any = fl.DataLoader(
        Asked(), 4, num_workers=2, workers="processes", collate_fn=as_it_is, snapshot_every_n_steps=every
    )
    iterator = iter(loader)
    take(iterator, 6)  # three of each worker
    streams = loader.state_dict()["streams"]
    assert [own["dataset"]["times"] for _, _, own, _ in streams] == [most, most]


def test_an_earlier_state_does_not_change_as_the_epoch_goes_on() -> None:
    loader = make("live", "here")
    iterator = iter(loader)
    take(iterator, 2)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    take(iterator, 3)
    assert state == kept
    again = make("live", "here")
    again.load_state_dict(state)
    list(again)
    assert state == kept


def test_a_worker_that_was_killed_goes_on_with_its_state() -> None:
    import os
    import signal

    expected = list(make("counting", "processes", shuffle=False))
    for every in (1, 4):
        iterator = iter(make("counting", "processes", shuffle=False, snapshot_every_n_steps=every))
        got = take(iterator, 3)
        os.kill(iterator._workers[1].pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match="is replaced"):
            got += list(iterator)
        assert got == expected


class Slow(Numbers):
    def __getitem__(self, index: int) -> list[int]:
        if index == 0:
            import time

            time.sleep(0.3)
        return super().__getitem__(index)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("sampler", [None, "turning", "lazy"])
def test_out_of_order_each_sample_comes_once(workers: str, sampler: str | None) -> None:
    def loader() -> Any:
        own = {} if sampler is None else ORDERS[sampler]()[1]
        return fl.DataLoader(Slow(), 1, in_order=False, collate_fn=as_it_is, **WORKERS[workers], **own)

    first = loader()
    iterator = iter(first)
    seen = take(iterator, 6)
    again = loader()
    again.load_state_dict(first.state_dict())
    iterator = iter(again)
    seen += take(iterator, 5)
    last = loader()
    last.load_state_dict(again.state_dict())
    seen += list(last)
    assert sorted(index for batch in seen for index, _ in batch) == list(range(SIZE))


@pytest.mark.parametrize("rank", [0, 1])
def test_out_of_order_ranks_do_not_mix(rank: int) -> None:
    def loader() -> Any:
        sampler: Any = DistributedSampler(range(SIZE), 2, rank, shuffle=False)  # type: ignore[arg-type]
        options: Any = {"in_order": False, "collate_fn": as_it_is, "sampler": sampler}
        return fl.DataLoader(Slow(), 2, num_workers=2, workers="threads", prefetch_factor=4, **options)

    first = loader()
    iterator = iter(first)
    seen = take(iterator, 3)
    again = loader()
    again.load_state_dict(first.state_dict())
    seen += list(again)
    own = list(DistributedSampler(range(SIZE), 2, rank, shuffle=False))  # type: ignore[arg-type]
    assert sorted(index for batch in seen for index, _ in batch) == sorted(own)


class Interrupting(Numbers):
    def __init__(self, at: int, error: type[BaseException]) -> None:
        super().__init__()
        self.at: int | None = at
        self.error = error

    def __getitem__(self, index: int) -> list[int]:
        if index == self.at:
            self.at = None
            raise self.error("stop")
        return super().__getitem__(index)


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_batch_that_was_interrupted_is_still_to_come(goes_on: bool) -> None:
    loader: Any = fl.DataLoader(Interrupting(9, KeyboardInterrupt), 4, num_workers=0, collate_fn=as_it_is)
    iterator = iter(loader)
    seen = take(iterator, 2)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    if goes_on:
        seen += take(iterator, 2)
    again: Any = fl.DataLoader(Numbers(), 4, num_workers=0, collate_fn=as_it_is)
    again.load_state_dict(loader.state_dict())
    seen += list(again)
    assert sorted(index for batch in seen for index, _ in batch) == list(range(SIZE))


def test_a_batch_that_failed_was_delivered_as_its_error() -> None:
    loader: Any = fl.DataLoader(Interrupting(9, ValueError), 4, num_workers=0, collate_fn=as_it_is)
    iterator = iter(loader)
    take(iterator, 2)
    with pytest.raises(ValueError, match="stop"):
        next(iterator)
    again: Any = fl.DataLoader(Numbers(), 4, num_workers=0, collate_fn=as_it_is)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again))[0] == [12, 0]


def test_beginning_twice_counts_the_later_epoch() -> None:
    loader = make("seed", "here")
    first, second = iter(loader), iter(loader)
    take(first, 3)
    state = loader.state_dict()
    again = make("seed", "here")
    again.load_state_dict(state)
    assert list(again) == list(second)


def test_a_state_asked_for_early_begins_the_epoch_once() -> None:
    data = Passes()
    loader: Any = fl.DataLoader(data, 4, num_workers=0, collate_fn=as_it_is)
    state = loader.state_dict()
    assert [loader.state_dict()["epoch"] for _ in range(2)] == [0, 0]
    assert len(list(loader)) == 11
    assert data.passes == 1
    assert loader.state_dict()["epoch"] == 0
    assert state["begun"]


@pytest.mark.parametrize("given", [None, 0, 2])  # None: before the loader is asked for an iterator
@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("kind", [RandomSampler, SubsetRandomSampler])
def test_a_generator_that_seeds_workers_too_is_where_it_would_be(
    kind: Any, batch_size: int | None, given: int | None
) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(3)
        sampler = kind(range(6), generator=generator)
        return fl.DataLoader(range(6), batch_size, sampler=sampler, generator=generator, num_workers=0)

    loader = make()
    whole = [np.atleast_1d(batch).tolist() for _ in range(2) for batch in loader]
    loader = make()
    epoch = None if given is None else iter(loader)
    for _ in range(given or 0):
        next(epoch)  # type: ignore[arg-type]
    state = loader.state_dict()
    torch.rand(1)
    loader = make()
    loader.load_state_dict(state)
    assert [np.atleast_1d(batch).tolist() for _ in range(2) for batch in loader] == whole[given or 0 :]


class OwnBatches(BatchSampler):
    """A batch sampler of a framework's or a user's: a BatchSampler by class, with none of its attributes."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class CountedBatches(OwnBatches):
    def __len__(self) -> int:
        return len(self.batches)


@pytest.mark.parametrize("kind", [OwnBatches, CountedBatches])
def test_a_batch_sampler_without_a_sampler_is_resumed(kind: type[OwnBatches]) -> None:
    def make() -> fl.DataLoader[Any]:
        return fl.DataLoader(list(range(6)), batch_sampler=kind([[4, 1], [3], [0, 5, 2]]), num_workers=0)

    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[3], [0, 5, 2]]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [(kind, workers) for kind in ("passes", "seed") for workers in ("threads", "processes")]
    + [("counting", "processes")],
)
def test_an_epoch_that_was_closed_is_not_over(kind: str, workers: str) -> None:
    """Also if the loop, which may be in another thread, asks for more."""
    expected = list(make(kind, workers, shuffle=False))
    loader: Any = make(kind, workers, shuffle=False)
    iterator = iter(loader)
    got = take(iterator, 2)
    iterator.close()
    got += list(iterator)
    again: Any = make(kind, workers, shuffle=False)
    again.load_state_dict(loader.state_dict())
    assert got + list(again) == expected
