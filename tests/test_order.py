"""Order: torch's own, bit for bit; and the keyed one."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

warnings.filterwarnings("ignore", message="This DataLoader will create")


class Squares(Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return torch.tensor([index, index * index])


def epochs(cls: Any, make: Any, seed: int, count: int = 2, stop: int | None = None) -> Any:
    """What a loader gives in some epochs, and the state of the random numbers afterwards."""
    torch.manual_seed(seed)
    dataset, arguments, generator = make()
    loader = cls(dataset, **arguments)
    out = [[batch.clone() for batch in itertools.islice(loader, stop)] for _ in range(count)]
    return out, torch.get_rng_state(), None if generator is None else generator.get_state()


def assert_same(make: Any, seed: int, workers: Any, *, stop: int | None = None) -> None:
    theirs, their_rng, their_generator = epochs(TorchDataLoader, make, seed, stop=stop)

    def with_workers() -> Any:
        dataset, arguments, generator = make()
        return dataset, {**arguments, "num_workers": workers}, generator

    ours, our_rng, our_generator = epochs(fl.DataLoader, with_workers, seed, stop=stop)
    assert [len(epoch) for epoch in ours] == [len(epoch) for epoch in theirs]
    for ours_epoch, theirs_epoch in zip(ours, theirs, strict=True):
        for a, b in zip(ours_epoch, theirs_epoch, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
    assert torch.equal(our_rng, their_rng)
    if our_generator is not None and stop is None:
        assert torch.equal(our_generator, their_generator)


@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    own_generator=st.booleans(),
    seed=st.integers(0, 2**31),
    workers=st.sampled_from([0, 1, 2, "auto"]),
    stop=st.sampled_from([None, 2]),
)
def test_batches_are_torchs(
    size: int,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    own_generator: bool,
    seed: int,
    workers: Any,
    stop: int | None,
) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(seed + 1) if own_generator else None
        arguments = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "generator": generator,
        }
        return Squares(size), arguments, generator

    assert_same(make, seed, workers, stop=stop)


SAMPLERS = {
    "random": lambda n, g: RandomSampler(range(n), generator=g),
    "fewer": lambda n, g: RandomSampler(range(n), num_samples=max(1, n // 2), generator=g),
    "more": lambda n, g: RandomSampler(range(n), num_samples=2 * n + 3, generator=g),
    "replacement": lambda n, g: RandomSampler(range(n), replacement=True, num_samples=n + 37, generator=g),
    "sequential": lambda n, g: SequentialSampler(range(n)),
    "subset": lambda n, g: SubsetRandomSampler(range(0, n, 2), generator=g),
    "weighted": lambda n, g: WeightedRandomSampler(torch.arange(1.0, n + 1).tolist(), n, generator=g),
    "list": lambda n, g: [n - 1, 0, 0],
}


@given(
    kind=st.sampled_from(sorted(SAMPLERS)),
    size=st.integers(1, 70),
    own_generator=st.booleans(),
    batched=st.booleans(),
    workers=st.sampled_from([0, 2]),
    seed=st.integers(0, 1000),
)
def test_any_sampler_is_read_as_torch_reads_it(
    kind: str, size: int, own_generator: bool, batched: bool, workers: int, seed: int
) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(seed) if own_generator else None
        sampler = SAMPLERS[kind](size, generator)
        if batched:
            return Squares(size), {"batch_sampler": BatchSampler(sampler, 7, False)}, generator
        return Squares(size), {"batch_size": 5, "sampler": sampler}, generator

    assert_same(make, seed, workers)


def test_a_batch_sampler_may_yield_anything() -> None:
    class Named(Dataset[int]):
        def __getitem__(self, key: tuple[str, int]) -> int:
            return len(key[0]) + key[1]

    batches = [[("a", 1), ("bb", 2)], [("ccc", 3)]]
    for workers in (0, 2):
        got = list(fl.DataLoader(Named(), batch_sampler=batches, num_workers=workers))
        assert [batch.tolist() for batch in got] == [[2, 4], [6]]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000])
def test_the_keyed_order_visits_everything_once(n: int) -> None:
    sampler = fl.KeyedSampler(range(n), seed=n, epoch=3)
    order = list(sampler)
    assert sorted(order) == list(range(n))
    assert order == sampler.positions(0, n).tolist()
    if n > 20:
        assert order != list(range(n))
        assert order[7:19] == sampler.positions(7, 12).tolist()
        assert order != list(fl.KeyedSampler(range(n), seed=n, epoch=4))
        assert order != list(fl.KeyedSampler(range(n), seed=n + 1, epoch=3))


def test_the_keyed_order_is_uniform() -> None:
    # Where each sample lands over many keys; the bounds are those of 99.99 % of chi-squares.
    for n, bound in ((5, 45), (8, 94), (40, 1733)):
        keys = 20000
        counts = np.zeros((n, n))
        for key in range(keys):
            counts[np.arange(n), fl.KeyedSampler(range(n), seed=key).positions(0, n)] += 1
        expected = keys / n
        assert ((counts - expected) ** 2 / expected).sum() < bound
    # Neighbours in a long order are as far apart as chance has it: a third of the range on average.
    order = fl.KeyedSampler(range(100_000), seed=1).positions(0, 100_000)
    assert abs(np.abs(np.diff(order)).mean() / 100_000 - 1 / 3) < 0.005
    assert abs(np.corrcoef(np.arange(100_000), order)[0, 1]) < 0.02


def test_a_position_of_a_huge_epoch_costs_nothing() -> None:
    sampler = fl.KeyedSampler(range(2**40), seed=5)
    tail = sampler.positions(2**40 - 3, 3)
    assert len(set(tail.tolist())) == 3
    assert (tail >= 0).all()
    assert (tail < 2**40).all()


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


def test_set_epoch_reaches_the_users_sampler() -> None:
    sampler = torch.utils.data.DistributedSampler(Squares(10), num_replicas=2, rank=0, seed=3)
    loader = fl.DataLoader(Squares(10), batch_size=5, sampler=sampler)
    loader.set_epoch(7)
    assert sampler.epoch == 7
    sampler.set_epoch(7)
    assert torch.cat(list(loader))[:, 0].tolist() == list(sampler)
