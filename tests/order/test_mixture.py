"""Mixtures: exact proportions at every position, for every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, Subset

import foreload as fl
from foreload.order import MixtureSampler
from foreload.order.ranks import assign_ranks
from tests.order.mixed import Part, flat, mixture, worst


class Together(Part):
    """Loads a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.loaded.append(-len(indices))
        return [self.first + index for index in indices]


shares = st.lists(st.integers(1, 300) | st.integers(1, 9), min_size=1, max_size=7)


@pytest.mark.slow
@given(shares=shares, seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**33))
def test_every_prefix_has_its_proportions(shares: list[int], seed: int, epoch: int) -> None:
    mixed = fl.Mixture([range(3 + i) for i in range(len(shares))], shares, num_samples=1500)
    order = list(MixtureSampler(mixed, seed, epoch=epoch))
    assert len(order) == 1500
    assert worst(mixed, order, dict(enumerate(shares))) < 1


@given(shares=shares, ranks=st.integers(2, 9), samples=st.integers(1, 1500), drop_last=st.booleans())
def test_so_has_every_rank(shares: list[int], ranks: int, samples: int, drop_last: bool) -> None:
    mixed = fl.Mixture([range(40 + i) for i in range(len(shares))], shares, num_samples=samples)
    parts = [
        list(MixtureSampler(mixed, 1, num_replicas=ranks, rank=rank, drop_last=drop_last)) for rank in range(ranks)
    ]
    each = samples // ranks if drop_last else -(-samples // ranks)
    assert [len(part) for part in parts] == [each] * ranks
    assert all(worst(mixed, part) < 1 for part in parts)
    # Each round of the ranks is that of the order, whoever is given what.
    mixed.num_samples = max(1, each * ranks)
    order = list(MixtureSampler(mixed, 1))[: each * ranks]
    assert [sorted(row) for row in zip(*parts, strict=True)] == [
        sorted(order[at : at + ranks]) for at in range(0, len(order), ranks)
    ]


@pytest.mark.slow
def test_ranks_keep_their_proportions_in_a_long_epoch() -> None:
    mixed = fl.Mixture([range(1000), range(10)], [0.7, 0.3], num_samples=200_000)
    sampler = MixtureSampler(mixed, 1, num_replicas=2, rank=1)
    assert worst(mixed, list(sampler)) < 1
    assert sampler.positions(99_000, 10).tolist() == list(sampler)[99_000:99_010]


@pytest.mark.slow
@given(weights=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5))
def test_weights_may_be_any_positive_numbers(weights: list[float]) -> None:
    mixed = fl.Mixture([range(9)] * len(weights), weights, num_samples=2000)
    assert worst(mixed, list(MixtureSampler(mixed, 0)), dict(enumerate(weights))) < 1 + 1e-9


@given(kinds=st.lists(st.integers(0, 4), max_size=300), ranks=st.integers(1, 8))
def test_dealing_gives_each_rank_one_of_each_round_and_the_same_of_each_kind(kinds: list[int], ranks: int) -> None:
    kinds = kinds[: len(kinds) // ranks * ranks]
    dealt = assign_ranks(np.array(kinds, np.int64), ranks).reshape(-1, ranks)
    assert (np.sort(dealt, axis=1) == np.arange(ranks)).all()
    for kind in set(kinds):
        given = (np.array(kinds).reshape(-1, ranks) == kind)[:, :, None] & (dealt[:, :, None] == np.arange(ranks))
        counts = given.sum(1).cumsum(0)
        assert (counts.max(1) - counts.min(1) <= 1).all()


def test_a_dataset_is_gone_through_before_any_of_its_samples_comes_again() -> None:
    mixed = mixture(num_samples=400)
    order = [mixed.where(index) for index in MixtureSampler(mixed, 3)]
    for name, size in zip(mixed.names, mixed.sizes, strict=True):
        own = [inner for whose, inner in order if whose == name]
        passes = [own[at : at + size] for at in range(0, len(own), size)]
        assert all(len(set(one)) == len(one) for one in passes)
        assert all(sorted(one) == list(range(size)) for one in passes[:-1])
        assert len(set(map(tuple, passes))) == len(passes)


def test_by_default_an_epoch_is_every_sample_once_in_an_order_of_its_own() -> None:
    mixed = mixture(None)
    sampler = MixtureSampler(mixed, 5)
    assert mixed.weights == {"a": 50 / 77, "b": 7 / 77, "c": 20 / 77}
    epochs = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    assert all(sorted(order) == list(range(77)) for order in epochs)
    assert len(set(map(tuple, epochs))) == 4
    assert list(MixtureSampler(mixed, 5, epoch=2)) == epochs[2] != list(MixtureSampler(mixed, 6, epoch=2))


def test_equal_weights_do_not_take_turns() -> None:
    mixed = fl.Mixture([range(1000), range(1000)])
    order = np.array(list(MixtureSampler(mixed, 0))) // 1000
    assert 300 < (order[1:] == order[:-1]).sum() < 700  # by turns it would be 0; of coins, in pairs, 500


@given(begin=st.integers(0, 700), count=st.integers(0, 300), ranks=st.integers(1, 3))
def test_any_part_of_the_order_is_that_part_of_the_whole(begin: int, count: int, ranks: int) -> None:
    for weights in ((5, 3, 2), (0.123456, 0.2, 0.3)):
        sampler = MixtureSampler(mixture(weights, num_samples=1000 * ranks), 2, num_replicas=ranks, rank=ranks - 1)
        assert sampler.positions(begin, count).tolist() == list(sampler)[begin : begin + count]


def test_a_part_far_ahead_does_not_need_what_lies_before_it() -> None:
    mixed = fl.Mixture([range(10**9), range(3)], [0.9, 0.1], num_samples=10**15)
    some = MixtureSampler(mixed, 0).positions(10**15 - 1000, 1000)
    assert worst(mixed, some.tolist()) < 1


def test_the_loader_takes_the_order_and_so_can_torchs() -> None:
    mixed = mixture(num_samples=100)
    sampler = MixtureSampler(mixed, 4)
    stock = TorchDataLoader(mixed, batch_size=8, sampler=sampler)
    for workers in (0, 2):
        loader = fl.DataLoader(mixed, batch_size=8, shuffle=True, seed=4, num_workers=workers, workers="threads")
        assert len(loader) == len(stock) == 13
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert flat(loader) == list(sampler) == flat(stock)
    processes = fl.DataLoader(mixed, batch_size=8, shuffle=True, seed=4, num_workers=2, workers="processes")
    assert flat(processes) == list(MixtureSampler(mixed, 4))
    assert sorted(flat(fl.DataLoader(mixed, batch_size=8))) == list(range(77))


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"weights": [3, 1]}, "weights"),
        ({"num_samples": 12}, "num_samples"),
        ({"weights": [3, 1], "num_samples": 12}, "weights and num_samples"),
    ],
)
def test_a_loader_that_follows_no_weights_says_so(options: dict[str, Any], ignored: str) -> None:
    mixed = fl.Mixture([range(10), range(5)], **options)
    for arguments in ({}, {"seed": 0}, {"shuffle": True}):
        with pytest.warns(UserWarning, match=f"does not follow the mixture's {ignored}, since"):
            assert len(flat(fl.DataLoader(mixed, batch_size=4, **arguments))) == 15
    with pytest.warns(UserWarning, match="does not follow"):
        fl.EfficientDataLoader(mixed, fl.DataLoaderConfig(generator_seed=0))


@pytest.mark.filterwarnings("error")
def test_a_loader_that_follows_the_mixture_warns_of_nothing() -> None:
    mixed = fl.Mixture([range(10), range(5)], [3, 1], num_samples=12)
    assert len(flat(fl.DataLoader(mixed, batch_size=4, shuffle=True, seed=0))) == 12
    assert len(flat(fl.DataLoader(mixed, batch_size=4, sampler=MixtureSampler(mixed, 0)))) == 12
    for shuffle in (False, True):
        assert len(flat(fl.DataLoader(fl.Mixture([range(10), range(5)]), batch_size=4, shuffle=shuffle))) == 15


def test_a_sample_is_that_of_its_dataset() -> None:
    mixed = fl.Mixture([["x", "y"], [{"z": 1}]])
    assert [mixed[i] for i in range(-3, 3)] == ["x", "y", {"z": 1}] * 2
    assert [mixed.where(i) for i in (0, 1, 2, -1, np.int64(1))] == [(0, 0), (0, 1), (1, 0), (1, 0), (0, 1)]
    assert mixed.__getitems__ is None
    assert len(mixed) == 3


def test_parts_load_their_samples_of_a_batch_together() -> None:
    parts = [Together(10), Part(10, 10), Together(10, 20)]
    mixed = fl.Mixture(parts)
    batch = [25, 3, 11, 20, 4, 10]
    assert mixed.__getitems__(batch) == batch
    assert [part.loaded for part in parts] == [[-2], [1, 0], [-2]]
    assert Subset(mixed, batch).__getitems__([0, 1]) == [25, 3]
    with pytest.raises(IndexError, match="index 30 is out of range for a mixture of 30 samples"):
        mixed.__getitems__([0, 30])


def test_tensors_are_collated_whether_a_batch_is_of_one_part_or_of_several() -> None:
    rows = torch.arange(40.0).view(20, 2)
    parts = [
        fl.CachedDataset((rows[:10], torch.arange(10))),
        torch.utils.data.TensorDataset(rows[10:], torch.arange(10, 20)),
    ]
    loader = fl.DataLoader(fl.Mixture(parts), batch_sampler=[[1, 2], [11, 3, 19], [5, 12], [15, 16]])
    for batch, wanted in zip(loader, loader.batch_sampler, strict=True):
        assert torch.equal(batch[0], rows[wanted])
        assert batch[1].tolist() == wanted


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x, x + 1), lambda x: {"x": x, "y": x + 1}])
def test_batches_that_parts_have_assembled_are_joined(form: Any) -> None:
    parts = [fl.CachedDataset(form(torch.arange(at, at + 6.0).view(3, 2))) for at in (0, 6, 12)]
    mixed = fl.Mixture(parts)
    wanted = [7, 0, 3, 8, 1, 1]
    joined = mixed.__getitems__(wanted)
    expected = torch.utils.data.default_collate([mixed[i] for i in wanted])
    torch.testing.assert_close(torch.utils.data.default_collate(joined), expected)
    torch.testing.assert_close(list(joined), [mixed[i] for i in wanted])


def test_batches_that_are_not_alike_are_given_as_samples() -> None:
    rows = torch.arange(3)
    for other in ({"x": rows}, rows.float(), (rows,)):
        mixed = fl.Mixture([fl.CachedDataset(rows), fl.CachedDataset(other)])
        samples = list(mixed.__getitems__([4, 0]))
        assert samples[1] == 0
        torch.testing.assert_close(samples[0], mixed[4])


class Broken(Part):
    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise OSError("damaged")
        return super().__getitem__(index)


def test_a_batch_that_fails_together_names_its_dataset() -> None:
    class Failing(Together):
        def __getitems__(self, indices: Sequence[int]) -> Any:
            raise OSError("sample 2 is damaged")

    mixed = fl.Mixture({"web": Together(5), "books": Failing(5)})
    with pytest.raises(OSError, match="sample 2 is damaged") as caught:
        next(iter(fl.DataLoader(mixed, batch_size=10, num_workers=0)))
    assert "foreload: in dataset 'books' of the mixture" in caught.value.__notes__


@pytest.mark.parametrize("other", [Part, Together])
def test_a_sample_that_fails_is_named_and_can_be_left_out(other: Any) -> None:
    mixed = fl.Mixture([other(5), Broken(5, 5)])
    with pytest.raises(OSError, match="damaged") as caught:
        flat(fl.DataLoader(mixed, batch_size=10, num_workers=0))
    assert any("sample 7" in note for note in caught.value.__notes__)
    loader = fl.DataLoader(mixed, batch_size=10, on_error="skip", num_workers=0)
    assert flat(loader) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [error.index for error in loader.errors] == [7]


@pytest.mark.parametrize("weights", [None, (1, 1, 8)])
@pytest.mark.parametrize("budget", ["1KiB", "1MiB"])
def test_the_cache_knows_the_order(weights: Any, budget: str) -> None:
    mixed = fl.Mixture([Part(50), Part(7, 50), Part(20, 57)], weights, num_samples=77)
    loader = fl.DataLoader(mixed, 7, shuffle=True, seed=2, cache=budget, num_workers=0)
    for epoch in range(3):
        assert flat(loader) == list(MixtureSampler(mixed, 2, epoch=epoch))
    stats = loader.stats()["cache"]
    assert stats["order"] == ("once" if weights is None else "known")
    if budget == "1MiB":
        assert sum(len(part.loaded) for part in mixed.datasets) <= 78  # of each, one try to learn its size
    loader.close()


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: fl.Mixture([]), ValueError, "datasets is empty"),
        (lambda: fl.Mixture(Part(3)), TypeError, "datasets must be a list or a dict of datasets, got Part"),  # type: ignore[arg-type]
        (lambda: fl.Mixture({"x": []}), ValueError, r"datasets\['x'\] has no samples"),
        (lambda: fl.Mixture([Endless()]), TypeError, r"datasets\[0\] must be a map-style dataset .* got Endless"),
        (lambda: mixture([1, 2]), ValueError, "weights has 2 entries for 3 datasets"),
        (lambda: mixture({"a": 1, "b": 2}), ValueError, r"weights are for \['a', 'b'\]"),
        (lambda: mixture([1, 0, 1]), ValueError, r"weights\['b'\] must be positive, got 0"),
        (lambda: mixture([1, float("nan"), 1]), ValueError, r"weights\['b'\] must be positive"),
        (lambda: mixture(["1", 1, 1]), TypeError, r"weights\['a'\] must be a number, got '1'"),
        (lambda: mixture("123"), TypeError, "weights must be a list or a dict"),
        (lambda: mixture(num_samples=0), ValueError, "num_samples must be 1 or more"),
        (lambda: mixture(num_samples=1.5), TypeError, "num_samples must be an int"),
        (lambda: mixture()[77], IndexError, "index 77 is out of range for a mixture of 77 samples"),
        (lambda: mixture().where("a"), TypeError, "index of a mixture must be an int"),  # type: ignore[arg-type]
        (lambda: MixtureSampler(Part(3), 0), TypeError, "mixture must be a foreload.Mixture"),  # type: ignore[arg-type]
        (lambda: MixtureSampler(mixture(), -1), ValueError, "seed"),
        (lambda: MixtureSampler(mixture(), 0, num_replicas=0), ValueError, "num_replicas must be 1 or more"),
        (lambda: MixtureSampler(mixture(), 0, num_replicas=2, rank=2), ValueError, "rank must be from 0 to 1"),
        (lambda: MixtureSampler(mixture(), 0).positions(70, 8), IndexError, "70 to 78"),
    ],
)
def test_what_makes_no_sense_is_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
