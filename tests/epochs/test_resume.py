"""Epochs that are interrupted and go on, in another loader: exactly what was still to come."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, Sampler

import foreload as fl
from foreload.order.resume import BatchBounds, Given, Start
from tests.epochs.orders import ORDERS, SIZE, WORKERS, Numbers, Stream, cases, make, plain, saved
from tests.pairwise import pairwise


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("order", "workers", "stop"), pairwise(ORDERS, WORKERS, ["as early as can be", 1, 3, "end"])
)
def test_what_was_still_to_come_comes(order: str, workers: str, stop: int | str) -> None:
    seed_all(1)
    expected = plain(make(order, workers))
    # Before its first batch, an order that comes from the global generator is not drawn yet.
    early = 0 if order in ("seed", "dealt", "sequential", "list") else 2
    seen = {"as early as can be": early, "end": len(expected)}[stop] if isinstance(stop, str) else stop
    seed_all(1)
    loader = make(order, workers)
    iterator = iter(loader)
    first = plain(next(iterator) for _ in range(seen))
    assert first == expected[:seen]
    state = saved(loader.state_dict())
    del iterator, loader
    seed_all(99)  # another process
    again = make(order, "threads" if workers == "here" else workers)
    again.load_state_dict(state)
    assert plain(again) == expected[seen:]


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


@pytest.mark.parametrize("seed", [1, None])
def test_another_epoch_may_be_chosen_than_that_of_the_state(seed: int | None) -> None:
    def loader() -> Any:
        sampler: Any = DistributedSampler(range(20), 2, 0) if seed is None else None  # type: ignore[arg-type]
        return fl.DataLoader(range(20), 4, not sampler, sampler, seed=seed, num_workers=0)  # type: ignore[arg-type]

    def plain(batches: Any) -> list[list[int]]:
        return [batch.tolist() for batch in batches]

    first = loader()
    first.set_epoch(3)
    batches = iter(first)
    next(batches)
    state, rest = first.state_dict(), plain(batches)
    again = loader()
    again.load_state_dict(state)
    again.set_epoch(3)
    assert plain(again) == rest
    again.load_state_dict(state)
    with pytest.warns(UserWarning, match="middle of epoch 3, whose rest is left out"):
        again.set_epoch(5)
    whole = plain(again)
    first.set_epoch(5)
    assert whole == plain(first)


@pytest.mark.parametrize("chosen", [3, 4])
def test_a_distributed_sampler_may_be_set_to_another_epoch_than_that_of_the_state(chosen: int) -> None:
    def loader() -> Any:
        return fl.DataLoader(range(40), 2, sampler=DistributedSampler(range(40), 2, 0))  # type: ignore[arg-type]

    def plain(batches: Any) -> list[list[int]]:
        return [batch.tolist() for batch in batches]

    first = loader()
    first.sampler.set_epoch(3)
    batches = iter(first)
    next(batches)
    state, rest = first.state_dict(), plain(batches)
    again = loader()
    again.load_state_dict(state)
    again.sampler.set_epoch(chosen)
    if chosen == 3:
        assert plain(again) == rest
        return
    with pytest.warns(UserWarning, match="middle of epoch 3, whose rest is left out"):
        given = plain(again)
    first.sampler.set_epoch(4)
    assert given == plain(first)


def test_an_empty_state_begins_a_new_epoch() -> None:
    loader = fl.DataLoader(list(range(8)), batch_size=4)
    next(iter(loader))
    loader.load_state_dict({})
    again = fl.DataLoader(list(range(8)), batch_size=4)
    again.load_state_dict(loader.state_dict())
    assert len(list(again)) == len(list(loader)) == 2


def test_states_of_something_else_are_refused() -> None:
    loader = make("seed", "here")
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    for wrong in ([], None, {"epoch": 3}):
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


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sets(st.integers(0, 8), max_size=6)), min_size=1, max_size=5),
    st.integers(1, 3),
)
def test_positions_are_those_of_a_list(rounds: list[tuple[int, set[int]]], each: int) -> None:
    given_before = Start()
    left = list(range(700))  # as many as five rounds can take, and more
    taken: Counter[int] = Counter()
    for size, batches in rounds:
        account = Given(given_before, BatchBounds(size), each)
        gone = set()
        for batch in batches:
            account.add(batch)
            gone |= set(left[batch * size * each : (batch + 1) * size * each])
        taken.update(gone)
        left = [position for position in left if position not in gone]
        given_before = Start(account.ranges())
        covered = {p for begin, end in given_before.given for p in range(begin, end)}
        assert covered == set(range(700)) - set(left)


class Unsized(Sampler[int]):
    """A sampler without a length, as torch allows."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_order_whose_length_nobody_knows_goes_on(workers: int) -> None:
    def make() -> fl.DataLoader[Any]:
        return fl.DataLoader(Numbers(SIZE), 4, sampler=Unsized(), num_workers=workers)

    loader = make()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = saved(loader.state_dict())
    expected = plain(iterator)
    again = make()
    again.load_state_dict(state)
    assert plain(again) == expected
