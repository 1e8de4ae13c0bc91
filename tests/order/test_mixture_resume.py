"""Mixtures go on exactly after every interruption, with other ranks and new weights too."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl
from foreload.order import MixtureSampler
from tests.order.mixed import Part, flat, mixture, worst


@given(data=st.data(), size=st.integers(1, 9), other=st.integers(1, 9), cut=st.integers(0, 12))
def test_an_epoch_goes_on_exactly_in_another_loader(data: Any, size: int, other: int, cut: int) -> None:
    weights = data.draw(st.sampled_from([(5, 3, 2), (0.31, 0.2, 0.5), None]))
    whole = flat(fl.DataLoader(mixture(weights, num_samples=120), size, shuffle=True, seed=1, num_workers=0))
    loader = fl.DataLoader(mixture(weights, num_samples=120), size, shuffle=True, seed=1, num_workers=0)
    batches = iter(loader)
    first = [int(number) for _, batch in zip(range(cut), batches, strict=False) for number in batch]
    state = json.loads(json.dumps(loader.state_dict()))
    workers = data.draw(st.sampled_from([0, 2]))
    mixed = mixture(weights, num_samples=120)
    again = fl.DataLoader(mixed, other, shuffle=True, seed=1, num_workers=workers, workers="threads")
    again.load_state_dict(state)
    assert first + flat(again) == whole
    assert sum(len(part.loaded) for part in mixed.datasets) == 120 - len(first)
    assert flat(again) == flat(loader)  # the next epoch


def ranks_of(mixed: fl.Mixture, ranks: int, size: int | None) -> list[fl.DataLoader[Any]]:
    samplers = [MixtureSampler(mixed, 7, num_replicas=ranks, rank=rank) for rank in range(ranks)]
    return [fl.DataLoader(mixed, size, sampler=sampler, seed=7, num_workers=0) for sampler in samplers]


@pytest.mark.parametrize(("before", "after"), [(3, 3), (4, 2), (2, 5), (1, 3), (3, 1)])
def test_an_epoch_goes_on_with_another_number_of_ranks(before: int, after: int) -> None:
    mixed = mixture(num_samples=120)
    loaders = ranks_of(mixed, before, 3)
    epochs = [iter(loader) for loader in loaders]
    given = [[int(n) for _ in range(4) for n in next(epoch)] for epoch in epochs]
    states = [loader.state_dict() for loader in loaders]
    later = ranks_of(mixed, after, 2)
    for rank, loader in enumerate(later):
        loader.load_state_dict(states[min(rank, before - 1)])
    rest = [flat(loader) for loader in later]
    order = list(MixtureSampler(mixed, 7))
    left = Counter(order)
    left.subtract(chain(*given))
    surplus = Counter(chain(*rest))
    surplus.subtract(left)
    assert all(count >= 0 for count in surplus.values())
    assert surplus.total() == -(120 - 12 * before) % after  # what fills the last round
    assert all(worst(mixed, part) < 1 for part in given)
    if before == after:
        whole = ranks_of(mixed, after, 5)
        assert [one + other for one, other in zip(given, rest, strict=True)] == [flat(loader) for loader in whole]


@pytest.mark.parametrize("size", [None, 1])
def test_what_other_ranks_had_to_its_last_sample_is_over(size: int | None) -> None:
    """Of 8 samples, 4 ranks load one each; 3 ranks load the other 4, with two more that fill their last round."""
    mixed, loaded = mixture(num_samples=8), list[int]()
    state: dict[str, Any] = {}
    for ranks, steps in [(4, 1), (3, 2), (3, 0)]:
        loaders = ranks_of(mixed, ranks, size)
        for loader in loaders:
            loader.load_state_dict(state)
        epochs = [iter(loader) for loader in loaders]
        loaded += [int(next(batches)) for batches in epochs for _ in range(steps)]
        state = json.loads(json.dumps(loaders[0].state_dict()))
    assert [list(batches) for batches in epochs] == [[], [], []]
    order = list(MixtureSampler(mixed, 7))
    assert not Counter(order) - Counter(loaded)
    assert len(loaded) == 10


def test_a_second_interruption_and_another_count_of_ranks() -> None:
    mixed = mixture(num_samples=120)
    (one,) = ranks_of(mixed, 1, 5)
    epoch = iter(one)
    given = [int(n) for _ in range(3) for n in next(epoch)]
    state = one.state_dict()
    for size in (2, 4):
        two = ranks_of(mixed, 2, size)
        states = []
        for loader in two:
            loader.load_state_dict(state)
            epoch = iter(loader)
            given += [int(n) for _ in range(2) for n in next(epoch)]
            states.append(loader.state_dict())
        state = states[0]
        assert states[0]["given"] == states[1]["given"]
        assert states[0]["drawn"]["dealt"] == [15, 2]
    last = ranks_of(mixed, 2, 9)
    for loader in last:
        loader.load_state_dict(state)
        given += flat(loader)
    left = Counter(given)
    left.subtract(list(MixtureSampler(mixed, 7)))
    assert left.total() == 1  # 105 samples for two
    assert min(left.values()) == 0


def test_weights_change_with_the_next_epoch_and_are_kept_in_the_state() -> None:
    def load(mixed: fl.Mixture) -> fl.DataLoader[Any]:
        return fl.DataLoader(mixed, 10, shuffle=True, seed=1, num_workers=0)

    mixed = mixture(num_samples=100)
    loader = load(mixed)
    batches = iter(loader)
    first = next(batches).tolist()
    mixed.set_weights({"c": 1, "b": 1, "a": 2})
    state = loader.state_dict()
    rest = [int(n) for batch in batches for n in batch]
    assert first + rest == list(MixtureSampler(mixture(num_samples=100), 1))
    after = flat(loader)
    assert after == list(MixtureSampler(mixture((2, 1, 1), num_samples=100), 1, epoch=1))
    other = mixture((1, 1, 1), num_samples=100)
    again = load(other)
    again.load_state_dict(state)
    assert flat(again) == rest
    assert other.weights == {"a": 0.5, "b": 0.25, "c": 0.25}
    assert flat(again) == after
    again.load_state_dict(state)
    other.set_weights([1, 1, 8])
    assert flat(again) == rest
    assert worst(other, flat(again), {"a": 1, "b": 1, "c": 8}) < 1


def test_an_open_epoch_keeps_its_weights_and_number() -> None:
    mixed = mixture()
    sampler = MixtureSampler(mixed, 1)
    expected, iterator = list(sampler), iter(sampler)
    mixed.set_weights([1, 1, 1])
    sampler.set_epoch(3)
    assert list(iterator) == expected != list(sampler)


def test_a_state_of_another_mixture_is_refused() -> None:
    loader = fl.DataLoader(mixture(), 4, shuffle=True, seed=1, num_workers=0)
    next(iter(loader))
    other = fl.Mixture([range(51), range(6), range(20)])
    with pytest.raises(ValueError, match=r"\[50, 7, 20\] samples, but these have \[51, 6, 20\]"):
        fl.DataLoader(other, 4, shuffle=True, seed=1, num_workers=0).load_state_dict(loader.state_dict())
    plain = fl.DataLoader(Part(77), 4, shuffle=True, seed=1, num_workers=0)
    next(iter(plain))
    with pytest.raises(ValueError, match="was not a MixtureSampler"):
        loader.load_state_dict(plain.state_dict())
