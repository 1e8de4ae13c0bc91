"""The keyed order: a permutation for every (seed, epoch), any position of it at once."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.order import KeyedSampler


class Squares(Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, index * index])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000])
def test_the_keyed_order_visits_everything_once(n: int) -> None:
    sampler = KeyedSampler(range(n), seed=n, epoch=3)
    order = list(sampler)
    assert sorted(order) == list(range(n))
    assert order == sampler.positions(0, n).tolist()
    if n > 20:
        assert order != list(range(n))
        assert order[7:19] == sampler.positions(7, 12).tolist()
        assert order != list(KeyedSampler(range(n), seed=n, epoch=4))
        assert order != list(KeyedSampler(range(n), seed=n + 1, epoch=3))


def test_the_keyed_order_is_uniform() -> None:
    # Where each sample lands over many keys; the bounds are those of 99.99% of chi-squares.
    for n, bound in ((5, 45), (8, 94), (40, 1733)):
        keys = 20000
        counts = np.zeros((n, n))
        for key in range(keys):
            counts[np.arange(n), KeyedSampler(range(n), seed=key).positions(0, n)] += 1
        expected = keys / n
        assert ((counts - expected) ** 2 / expected).sum() < bound
    # Neighbours in a long order are as far apart as chance has it: a third of the range on average.
    order = KeyedSampler(range(100_000), seed=1).positions(0, 100_000)
    assert abs(np.abs(np.diff(order)).mean() / 100_000 - 1 / 3) < 0.005
    assert abs(np.corrcoef(np.arange(100_000), order)[0, 1]) < 0.02


def test_a_position_of_a_huge_epoch_costs_nothing() -> None:
    sampler = KeyedSampler(range(2**40), seed=5)
    tail = sampler.positions(2**40 - 3, 3)
    assert len(set(tail.tolist())) == 3
    assert (tail >= 0).all()
    assert (tail < 2**40).all()


@pytest.mark.slow
def test_a_seed_gives_every_epoch_its_own_order() -> None:
    dataset = Squares(100)

    def order(loader: Any) -> list[int]:
        return [int(row[0]) for batch in loader for row in batch]

    loader = fl.DataLoader(dataset, batch_size=8, shuffle=True, seed=1)
    first, second = order(loader), order(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    again = fl.DataLoader(dataset, batch_size=32, shuffle=True, seed=1, num_workers=0)
    again.set_epoch(1)
    assert order(again) == second
    again.set_epoch(0)
    assert order(again) == first
    torch.manual_seed(99)
    assert order(fl.DataLoader(dataset, shuffle=True, seed=1)) == first


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**64, ValueError), ("a", TypeError), (True, TypeError)]
)
def test_a_wrong_seed_is_named(seed: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="seed"):
        fl.DataLoader(Squares(3), seed=seed)


@given(
    n=st.integers(1, 5000),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_any_part_of_any_order_is_that_part_of_the_whole(n: int, seed: int, epoch: int, data: Any) -> None:
    sampler = KeyedSampler(range(n), seed, epoch)
    whole = sampler.positions(0, n)
    assert np.array_equal(np.sort(whole), np.arange(n))
    start = data.draw(st.integers(0, n))
    count = data.draw(st.integers(0, n - start))
    assert np.array_equal(sampler.positions(start, count), whole[start : start + count])


@given(n=st.integers(2**31, 2**62), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_positions_of_huge_epochs_are_distinct_and_in_range(n: int, seed: int, data: Any) -> None:
    start = data.draw(st.integers(0, n - 100))
    some = KeyedSampler(range(n), seed).positions(start, 100)
    assert len(set(some.tolist())) == 100
    assert some.min() >= 0
    assert some.max() < n


def test_pairs_of_neighbours_are_uniform() -> None:
    # A weak permutation may put every sample everywhere equally often and still keep neighbours together.
    n, keys = 7, 30000
    counts = np.zeros((n, n))
    for key in range(keys):
        first, second = KeyedSampler(range(n), seed=11, epoch=key).positions(2, 2)
        counts[first, second] += 1
    assert (np.diag(counts) == 0).all()
    expected = keys / (n * (n - 1))
    off = counts[~np.eye(n, dtype=bool)]
    assert ((off - expected) ** 2 / expected).sum() < 90  # 41 degrees of freedom


@pytest.mark.parametrize(("start", "count"), [(-1, 3), (8, 3), (0, -1), (2**70, 1)])
def test_positions_outside_the_epoch_are_refused(start: int, count: int) -> None:
    with pytest.raises(IndexError):
        KeyedSampler(range(10), seed=1).positions(start, count)


def test_a_seed_may_be_any_kind_of_int() -> None:
    same = [KeyedSampler(range(9), seed) for seed in (3, np.int64(3), np.uint8(3), torch.tensor(3))]
    assert len({tuple(sampler) for sampler in same}) == 1
    loader = fl.DataLoader(Squares(9), shuffle=True, seed=np.int64(3), num_workers=np.int64(1))  # type: ignore[arg-type]
    assert [int(row[0, 0]) for row in loader] == list(same[0])


def test_the_keyed_sampler_serves_torchs_loader_too() -> None:
    sampler = KeyedSampler(range(10), seed=4)
    stock = TorchDataLoader(Squares(10), batch_size=3, sampler=sampler)
    ours = fl.DataLoader(Squares(10), batch_size=3, shuffle=True, seed=4)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert [batch.tolist() for batch in stock] == [batch.tolist() for batch in ours]
    assert len(sampler) == 10


@pytest.mark.parametrize("workers", [0, 2, "auto"])
def test_epochs_that_are_open_at_once_keep_their_own_orders(workers: Any) -> None:
    data = fl.CachedDataset(torch.arange(5000))
    loader = fl.DataLoader(data, batch_size=50, shuffle=True, seed=1, num_workers=workers)
    first, second = (torch.cat(epoch) for epoch in zip(*zip(loader, loader, strict=True), strict=True))
    again = fl.DataLoader(data, batch_size=50, shuffle=True, seed=1, num_workers=0)
    assert torch.equal(first, torch.cat(list(again)))
    assert torch.equal(second, torch.cat(list(again)))


def test_a_keyed_sampler_of_the_users_is_at_the_epoch_that_the_user_chose() -> None:
    sampler = KeyedSampler(range(10), seed=4)
    loader = fl.DataLoader(Squares(10), batch_size=10, sampler=sampler)
    sampler.set_epoch(5)
    assert next(iter(loader))[:, 0].tolist() == list(sampler)
    iterator = iter(sampler)
    expected = list(sampler)
    sampler.set_epoch(6)
    assert list(iterator) == expected


def test_a_loader_that_goes_on_counts_on_where_a_framework_counts_from_0() -> None:
    def loader() -> Any:
        return fl.DataLoader(range(9), 4, shuffle=True, seed=1, num_workers=0)  # type: ignore[arg-type]

    def epoch(again: Any) -> list[int]:
        return [index for batch in again for index in batch.tolist()]

    first = loader()
    orders = [epoch(first) for _ in range(4)]
    first.set_epoch(1)
    list(first)
    again = loader()
    again.load_state_dict(first.state_dict())
    for turn, number in enumerate((0, 1, 1, 0)):
        again.sampler.set_epoch(number)  # as Accelerate does, which counts no epoch that the loop has broken off
        with nullcontext() if turn else pytest.warns(match="set to epoch 0, but .* goes on in epoch 2"):
            assert epoch(again) == orders[2 + number]
    again.set_epoch(2)  # as the user does
    assert epoch(again) == orders[2]
    again.sampler.set_epoch(1)
    assert epoch(again) == orders[1]


class Identified(dict[int, int], Dataset[int]):
    """Samples by numbers that a UUID may have."""


@pytest.mark.parametrize("options", [{"seed": 1, "num_workers": 0}, {"workers": "threads", "num_workers": 2}, {}])
def test_the_key_of_a_sample_may_be_any_number(options: dict[str, Any]) -> None:
    identities = [1 << 127, 5, (1 << 64) + 5, -(1 << 70), -1]
    samples = Identified({identity: place for place, identity in enumerate(identities)})
    loader = fl.DataLoader(samples, batch_size=2, sampler=identities, **options)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    ahead = fl.AsyncPrefetchDataset(samples)
    assert [ahead[identity] for identity in identities] == list(range(5))
