"""Epochs that are interrupted and go on, in another loader: exactly what was still to come."""

from __future__ import annotations

import io
import json
import pickle
import random
import warnings
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import foreload as fl
from foreload.order.resume import Given, Start

SIZE = 53


class Numbers(Dataset[int]):
    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.loaded.append(int(index))
        return int(index)


class Remembering(Sampler[int]):
    """Of a user's own, with a state."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.size:
            self.at += 1
            yield (self.at * 7) % self.size
        self.at = 0

    def __len__(self) -> int:
        return self.size

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Forgetful(Sampler[int]):
    """Of a user's own, without a state, drawing from all that there is."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.size).tolist()
        random.shuffle(order)
        np.random.shuffle(order)
        yield from order

    def __len__(self) -> int:
        return self.size


class OwnBatches(Sampler[list[int]]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.size).tolist()
        while order:
            count = 1 + order[0] % 5
            yield order[:count]
            del order[:count]


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ORDERS: dict[str, Any] = {
    "sequential": lambda data: {"batch_size": 4},
    "shuffled": lambda data: {"batch_size": 4, "shuffle": True},
    "drop_last": lambda data: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "one by one": lambda data: {"batch_size": None, "shuffle": True},
    "seed": lambda data: {"batch_size": 4, "shuffle": True, "seed": 3},
    "generator": lambda data: {"batch_size": 4, "shuffle": True, "generator": generator()},
    "replacement": lambda data: {"batch_size": 4, "sampler": RandomSampler(data, True, 100, generator())},
    "more": lambda data: {"batch_size": 4, "sampler": RandomSampler(data, num_samples=150)},
    "weighted": lambda data: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * SIZE, 60)},
    "subset": lambda data: {"batch_size": 4, "sampler": SubsetRandomSampler(range(3, 50), generator())},
    "dealt": lambda data: {"batch_size": 4, "sampler": DistributedSampler(data, 3, 1, seed=2)},
    "remembering": lambda data: {"batch_size": 4, "sampler": Remembering(SIZE)},
    "forgetful": lambda data: {"batch_size": 4, "sampler": Forgetful(SIZE)},
    "own batches": lambda data: {"batch_sampler": OwnBatches(SIZE)},
    "torch's batches": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(data), 6, False)},
    "list": lambda data: {"batch_size": 4, "sampler": [5, 1, 2, 50, 5, 5, 3, 8, 9]},
}
WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}


def make(order: str, workers: str, **arguments: Any) -> fl.DataLoader[Any]:
    data = Numbers()
    return fl.DataLoader(data, **{**ORDERS[order](data), **WORKERS[workers], **arguments})


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file, as a checkpoint is."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.mark.filterwarnings("ignore:.*has no state_dict")
def cases(firsts: Iterable[Any], fast: Container[Any]) -> list[Any]:
    """Each of ``firsts`` with every kind of worker; with processes, only those in ``fast`` are fast tests."""
    return [
        pytest.param(first, workers, marks=pytest.mark.slow)
        if workers == "processes" and first not in fast
        else (first, workers)
        for first in firsts
        for workers in WORKERS
    ]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("order", "workers"), cases(ORDERS, ("seed", "generator")))
def test_what_was_still_to_come_comes(order: str, workers: str) -> None:
    seed_all(1)
    expected = plain(make(order, workers))
    # Before its first batch, an order that comes from the global generator is not drawn yet.
    for stop in (0 if order in ("seed", "dealt", "sequential", "list") else 2, 1, 3, len(expected)):
        seed_all(1)
        loader = make(order, workers)
        iterator = iter(loader)
        first = plain(next(iterator) for _ in range(stop))
        assert first == expected[:stop]
        state = saved(loader.state_dict())
        del iterator, loader
        seed_all(99)  # another process
        again = make(order, "threads" if workers == "here" else workers)
        again.load_state_dict(state)
        assert plain(again) == expected[stop:], stop


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("order", "workers"), cases(["seed", "generator", "dealt", "sequential"], ("generator",)))
def test_later_epochs_are_those_that_would_have_come(order: str, workers: str) -> None:
    loader = make(order, workers)
    expected = [plain(loader) for _ in range(4)]
    loader = make(order, workers)
    for epoch in range(2):
        assert plain(loader) == expected[epoch]
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = saved(loader.state_dict())
    del iterator
    again = make(order, workers)
    again.load_state_dict(state)
    assert [plain(again) for _ in range(2)] == [expected[2][3:], expected[3]]


def test_an_epoch_that_is_over_is_followed_by_the_next() -> None:
    loader = make("seed", "threads")
    expected = [plain(loader) for _ in range(3)]
    loader = make("seed", "threads")
    list(loader)
    again = make("seed", "threads")
    again.load_state_dict(saved(loader.state_dict()))
    assert [plain(again), plain(again)] == expected[1:]


def test_it_is_called_as_torchdatas_loader_is() -> None:
    loader: Any = fl.DataLoader(Numbers(), batch_size=4, num_workers=2, snapshot_every_n_steps=10)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    again: Any = fl.DataLoader(Numbers(), batch_size=4, num_workers=2, snapshot_every_n_steps=10)
    again.load_state_dict(loader.state_dict())
    assert next(iter(again)).tolist() == [12, 13, 14, 15]


def test_a_state_can_be_taken_again_before_and_after_going_on() -> None:
    expected = plain(make("seed", "threads"))
    loader = make("seed", "threads")
    got = []
    for _ in range(5):
        state = saved(loader.state_dict())
        loader = make("seed", "threads")
        loader.load_state_dict(state)
        assert saved(loader.state_dict()) == state
        iterator = iter(loader)
        got += plain(next(iterator) for _ in range(2))
    assert got == expected[:10]


@pytest.mark.slow
@settings(max_examples=30)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 6), st.sampled_from(["none", "one", "three", "processes"])),
        min_size=1,
        max_size=5,
    ),
    order=st.sampled_from(["seed", "shuffled", "generator", "sequential"]),
)
def test_each_sample_once_whatever_batch_sizes_and_workers(sizes: list[tuple[int, int, str]], order: str) -> None:
    counts = {"none": 0, "one": 1, "three": 3, "processes": 2}
    state = None
    seen: list[int] = []
    for size, stop, workers in [*sizes, (4, 1000, "three")]:
        data = Numbers()
        kind = "processes" if workers == "processes" else "threads"
        arguments = {**ORDERS[order](data), "batch_size": size, "num_workers": counts[workers], "workers": kind}
        loader: Any = fl.DataLoader(data, **arguments)
        if state is not None:
            loader.load_state_dict(state)
        for number, batch in enumerate(loader):
            seen += batch.tolist()
            if number + 1 == stop:
                break
        state = saved(loader.state_dict())
        if state["finished"]:
            break
    assert sorted(seen) == list(range(SIZE))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_each_sample_once_whatever_the_number_of_ranks(shuffle: bool, drop_last: bool) -> None:
    data = Numbers(60)
    states: list[Any] = [None]
    seen: list[int] = []
    for ranks, stop in ((4, 3), (2, 5), (3, 2), (1, 1000)):
        loaders: list[Any] = []
        for rank in range(ranks):
            sampler: Any = DistributedSampler(data, ranks, rank, shuffle, seed=4, drop_last=drop_last)
            more: Any = {"num_workers": rank % 2, "workers": "threads"}
            loaders.append(fl.DataLoader(data, batch_size=2, sampler=sampler, **more))
            if states[0] is not None:
                loaders[-1].load_state_dict(states[rank % len(states)])
        iterators = [iter(loader) for loader in loaders]
        for iterator in iterators:
            for _ in range(stop):
                batch = next(iterator, None)
                seen += [] if batch is None else batch.tolist()
        states = [saved(loader.state_dict()) for loader in loaders]
        assert all(state["given"] == states[0]["given"] for state in states)
    assert sorted(seen) == list(range(60))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_batches_that_came_out_of_order_do_not_come_again(workers: str) -> None:
    import time

    class Uneven(Numbers):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.05 if index == 0 else 0)
            return index

    arguments: dict[str, Any] = {"batch_size": 2, "in_order": False, "prefetch_factor": 4, **WORKERS[workers]}
    loader: Any = fl.DataLoader(Uneven(), **arguments)
    iterator = iter(loader)
    seen = [index for _ in range(4) for index in next(iterator).tolist()]
    state = saved(loader.state_dict())
    again: Any = fl.DataLoader(Uneven(), **{**arguments, "batch_size": 3})
    again.load_state_dict(state)
    seen += [index for batch in again for index in batch.tolist()]
    assert sorted(seen) == list(range(SIZE))


def test_no_earlier_sample_is_loaded_and_the_state_is_small() -> None:
    data = Numbers(100_000)
    loader: Any = fl.DataLoader(data, batch_size=10, shuffle=True, seed=1, num_workers=0)
    iterator = iter(loader)
    for _ in range(5000):
        next(iterator)
    state = loader.state_dict()
    assert len(pickle.dumps(state)) < 1024
    assert len(json.dumps(state)) < 1024
    other = Numbers(100_000)
    again: Any = fl.DataLoader(other, batch_size=10, shuffle=True, seed=1, num_workers=0)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert next(iter(again)).tolist() == next(iterator).tolist()
    assert len(other.loaded) == 10


def test_augmentation_goes_on_as_it_would_have(photos: Any) -> None:
    def loader() -> Any:
        data = fl.ImageDataset(photos, transform=fl.transforms.train(24))
        return fl.DataLoader(data, batch_size=6, shuffle=True)

    torch.manual_seed(3)
    expected = list(loader())
    torch.manual_seed(3)
    first = loader()
    iterator = iter(first)
    next(iterator)
    again = loader()
    again.load_state_dict(saved(first.state_dict()))
    for ours, theirs in zip(again, expected[1:], strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


# Streams.


class Stream(IterableDataset[int]):
    read = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 50 - 11 * first, step):
            Stream.read += 1
            yield number


class StatefulStream(Stream):
    """Tells its own state."""

    def __init__(self) -> None:
        self.at: int | None = None

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        self.at = first if self.at is None else self.at
        while self.at < 50 - 11 * first:
            Stream.read += 1
            self.at += step
            yield self.at - step
        self.at = None

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class StatefulIterator(Iterator[int]):
    def __init__(self) -> None:
        info = get_worker_info()
        self.first, self.step = (0, 1) if info is None else (info.id, info.num_workers)
        self.at = self.first

    def __next__(self) -> int:
        if self.at >= 50 - 11 * self.first:
            raise StopIteration
        self.at += self.step
        return self.at - self.step

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class StreamOfIterators(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.*has no state_dict")
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        *cases([Stream, StatefulStream, StreamOfIterators], (StatefulStream,)),
        (StatefulStream, "three"),
        *(pytest.param(kind, "three", marks=pytest.mark.slow) for kind in (Stream, StreamOfIterators)),
    ],
)
@pytest.mark.parametrize("batch_size", [3, None])
def test_streams_go_on(kind: Any, workers: str, batch_size: int | None) -> None:
    arguments: dict[str, Any] = {"batch_size": batch_size, **WORKERS.get(workers, {"num_workers": 3})}
    expected = plain(fl.DataLoader(kind(), **arguments))
    for stop in (0, 1, 2, 5, 8, len(expected)):
        loader: Any = fl.DataLoader(kind(), **arguments)
        iterator = iter(loader)
        assert plain(next(iterator) for _ in range(stop)) == expected[:stop]
        state = saved(loader.state_dict())
        del iterator
        again: Any = fl.DataLoader(kind(), **arguments)
        again.load_state_dict(state)
        assert plain(again) == expected[stop:], stop


def test_a_stream_with_a_state_is_not_read_again_and_one_without_says_so() -> None:
    for kind, reads in ((StatefulStream, 20), (Stream, 50)):
        loader: Any = fl.DataLoader(kind(), batch_size=5, num_workers=0)
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        again: Any = fl.DataLoader(kind(), batch_size=5, num_workers=0)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            again.load_state_dict(loader.state_dict())
        assert any("read again" in str(warning.message) for warning in warned) == (kind is Stream)
        Stream.read = 0
        assert [i for batch in again for i in batch.tolist()] == list(range(30, 50))
        assert Stream.read == reads


@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_a_stream_with_a_state_survives_a_killed_worker() -> None:
    import os
    import signal

    arguments: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "workers": "processes"}
    expected = plain(fl.DataLoader(StatefulStream(), **arguments))
    iterator = iter(fl.DataLoader(StatefulStream(), **arguments))
    got = plain(next(iterator) for _ in range(5))
    os.kill(iterator._workers[1].pid, signal.SIGKILL)
    assert got + plain(iterator) == expected


# What is wrong.


def test_states_of_something_else_are_refused() -> None:
    loader = make("seed", "here")
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    for wrong in ({}, [], None, {"epoch": 3}):
        with pytest.raises(ValueError, match=r"must come from foreload.DataLoader.state_dict\(\)"):
            loader.load_state_dict(wrong)  # type: ignore[arg-type]
    other: Any = fl.DataLoader(Numbers(), batch_size=4, shuffle=True, seed=4)
    with pytest.raises(ValueError, match="seed = 3, but this one has 4"):
        other.load_state_dict(state)
    shorter: Any = fl.DataLoader(Numbers(52), batch_size=4, shuffle=True, seed=3)
    with pytest.raises(ValueError, match="samples = 53, but this one has 52"):
        shorter.load_state_dict(state)
    streams: Any = fl.DataLoader(Stream(), num_workers=2)
    next(iter(streams))
    with pytest.raises(ValueError, match="workers = 2, but this one has 3"):
        fl.DataLoader(Stream(), num_workers=3).load_state_dict(streams.state_dict())


# The account of positions.


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sets(st.integers(0, 8), max_size=6)), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_positions_are_those_of_a_list(rounds: list[tuple[int, set[int]]], each: int) -> None:
    given_before = Start()
    left = list(range(200))
    taken: Counter[int] = Counter()
    for size, batches in rounds:
        account = Given(given_before, size, each)
        gone = set()
        for batch in batches:
            account.add(batch)
            gone |= set(left[batch * size * each : (batch + 1) * size * each])
        taken.update(gone)
        left = [position for position in left if position not in gone]
        given_before = Start(account.ranges())
        covered = {p for begin, end in given_before.given for p in range(begin, end)}
        assert covered == set(range(200)) - set(left)
