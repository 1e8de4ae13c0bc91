"""Caches over so many samples that there is bookkeeping only for those that are kept."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler, Subset

import foreload as fl
from foreload.cache import budget as budgets
from foreload.cache import loader_cache
from foreload.cache.serialize import serialize
from foreload.cache.store import SampleStore, block_size
from foreload.order.ranks import Router
from tests.cache.varied import Varied, listed, plain

MANY = 10**9

# More than there are entries for with the budgets below.
SIZE = 3000

# The bytes that one of Rows takes in a cache.
ITEM = block_size(sum(map(len, serialize(torch.zeros(100, dtype=torch.int64)))))


class Rows(Dataset[Any]):
    """More samples than there could be bookkeeping for."""

    thread_safe = True

    def __init__(self, size: int = MANY) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((100,), index)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no bookkeeping for small datasets either."""
    monkeypatch.setattr(budgets, "_MUCH_BYTES", 0)
    monkeypatch.setattr(budgets, "_MUCH_OF_BUDGET", 0)


def resident_bytes() -> int:
    """The memory of this process, with its share of what others have too."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_does_not_grow_with_the_dataset(shuffle: bool, workers: int) -> None:
    list(fl.DataLoader(range(1000), batch_size=64, seed=0, cache="1MiB"))
    before = resident_bytes()
    loader = fl.DataLoader(
        Rows(), batch_size=64, shuffle=shuffle, seed=0, cache="64MiB", num_workers=workers, workers="threads"
    )
    batches = iter(loader)
    for step in range(100):
        rows = next(batches)
        assert rows[:, 0].tolist() == rows[:, -1].tolist() == loader.indices(0, step)
    assert resident_bytes() - before < 64 << 20
    cache = loader.stats()["cache"]
    assert cache is not None
    assert cache["samples"] >= 6400
    assert cache["order"] == "once"
    loader.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("budget", [20_000, 200_000])
@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (2, "threads"), (2, "processes")])
def test_batches_and_hits_are_the_same(
    budget: int, workers: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        loader = fl.DataLoader(
            Rows(SIZE),
            batch_size=50,
            shuffle=True,
            seed=3,
            cache=budget,
            num_workers=workers,
            workers=kind,
            persistent_workers=workers > 0,
        )
        batches = [plain(list(batch)) for _ in range(4) for batch in loader]
        cache = loader.sample_cache
        assert cache is not None
        counts = cache.stats()
        state = pickle.dumps(loader.state_dict())
        assert cache.store.native.is_hashed == (budgets._MUCH_BYTES == 0)
        assert counts["samples"] == cache.store.residents().sum()
        loader.close()
        return batches, (state, {name: counts[name] for name in ("hits", "misses", "used", "room", "samples")})

    batches, (state, counts) = run()
    monkeypatch.setattr(budgets, "_MUCH_BYTES", 0)
    monkeypatch.setattr(budgets, "_MUCH_OF_BUDGET", 0)
    other_batches, (other_state, other_counts) = run()
    assert other_batches == batches
    assert other_state == state
    assert other_counts["misses"] + other_counts["hits"] == counts["misses"] + counts["hits"]
    # The same samples are kept until it is known what all of them take and cost.
    assert other_counts["hits"] >= 3 * 0.9 * min(counts["samples"], other_counts["samples"])


@pytest.mark.slow
@pytest.mark.usefixtures("hashed")
def test_the_same_samples_stay_in_every_epoch() -> None:
    dataset = Varied(SIZE)
    loader = fl.DataLoader(
        dataset, batch_size=4, shuffle=True, seed=1, cache=40_000, collate_fn=listed, num_workers=0
    )
    list(loader)
    cache = loader.sample_cache
    assert cache is not None
    assert cache.store.native.is_hashed
    first = cache.store.residents()
    assert 0 < first.sum() < len(dataset)
    for _ in range(3):
        before = cache.stats()["hits"]
        list(loader)
        assert cache.stats()["hits"] - before >= first.sum()
        assert (cache.store.residents() >= first).all()


@pytest.mark.usefixtures("hashed")
def test_a_subset_is_looked_up_in_the_whole() -> None:
    dataset = Subset(Varied(SIZE), list(range(99, 0, -3)))
    loader = fl.DataLoader(dataset, batch_size=4, seed=1, cache=150_000, collate_fn=listed, num_workers=0)
    first, second = (sorted(repr(plain(sample)) for batch in loader for sample in batch) for _ in range(2))
    assert first == second
    cache = loader.sample_cache
    assert cache is not None
    assert np.flatnonzero(cache.store.residents()).tolist() == list(range(3, 100, 3))
    assert cache.stats()["hits"] == len(dataset)


@pytest.mark.slow
@pytest.mark.usefixtures("hashed")
def test_orders_with_repeats_and_folders_keep_the_bookkeeping_of_all(tmp_path: Path) -> None:
    for arguments in (
        {"sampler": repeating(Varied(SIZE)), "cache": 50_000},
        {"cache": fl.Cache(50_000, spill=str(tmp_path / "spill"))},
        {"cache": fl.Cache(50_000, policy="lfu")},
    ):
        loader = fl.DataLoader(Varied(SIZE), batch_size=4, collate_fn=listed, num_workers=0, **arguments)
        list(loader)
        assert loader.sample_cache is not None
        assert not loader.sample_cache.store.native.is_hashed


def repeating(dataset: Any) -> RandomSampler:
    """A sampler whose order is known for several epochs, with samples that come again in each."""
    return RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.usefixtures("hashed")
def test_tables_that_do_not_fit_are_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(budgets, "available_memory", lambda: 100_000)
    dataset = Varied(SIZE)
    with pytest.warns(UserWarning, match=r"tables of 3,000 samples .* come first are kept, without a plan"):
        loader = fl.DataLoader(
            dataset, 4, sampler=repeating(dataset), cache=50_000, collate_fn=listed, num_workers=0
        )
        found = [plain(sample) for batch in loader for sample in batch]
    assert found == [plain(dataset[index]) for index in repeating(dataset)]
    assert loader.sample_cache is not None
    assert loader.sample_cache.store.native.is_hashed
    assert loader.sample_cache.stats()["hits"] > 0
    spilled: Any = fl.DataLoader(dataset, num_workers=0, cache=fl.Cache(50_000, spill=str(tmp_path / "spill")))
    with pytest.raises(ValueError, match="available; leave out spill="):
        iter(spilled)


def cached(rank: int, ranks: int, **options: Any) -> tuple[list[Any], list[int], Any]:
    """Load four epochs as one of several ranks; return the batches, the hits of each epoch, and the loader."""
    cache: Any = fl.Cache(**options)
    loader: Any = fl.DataLoader(
        Rows(8000), 16, shuffle=True, seed=3, group=(rank, ranks), num_workers=0, cache=cache
    )
    batches, hits = [], []
    for _ in range(4):
        batches += [batch[:, 0].tolist() for batch in loader]
        hits.append(loader.sample_cache.stats()["hits"])
    return batches, np.diff(hits).tolist(), loader


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options", [{"policy": "lru"}, {"policy": "opt"}, {"policy": "fixed"}, {"route": True}], ids=str
)
def test_ranks_get_the_same_batches_and_hits_without_tables(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # As for many samples, of which one epoch is looked ahead.
    monkeypatch.setattr(loader_cache, "_MAX_ACCESSES_AHEAD", 1)
    budget = 300 * ITEM
    found = [cached(rank, 4, budget=budget, **options) for rank in (0, 3)]
    monkeypatch.setattr(budgets, "_MUCH_BYTES", 0)
    without = [cached(rank, 4, budget=budget, **options) for rank in (0, 3)]
    for (batches, hits, loader), (others, other_hits, other) in zip(found, without, strict=True):
        assert others == batches
        assert other.sample_cache.store.native.is_hashed
        assert not loader.sample_cache.store.native.is_hashed
        if "route" in options:
            # The same samples: those of lowest position that the rank owns.
            assert (other.sample_cache.store.residents() == loader.sample_cache.store.residents()).all()
            assert other_hits == hits
    # Which samples are kept differs, so hits differ by chance. A plan of one epoch for a fixed set is worse.
    planned, by_rule = (np.mean([hits for _, hits, _ in each]) for each in (found, without))
    assert by_rule >= 0.8 * planned
    assert options.get("policy") == "fixed" or by_rule <= 1.2 * planned


@pytest.mark.slow
@pytest.mark.usefixtures("hashed")
def test_samples_of_other_sizes_than_the_first_leave_no_room_unused() -> None:
    loader: Any = fl.DataLoader(
        Varied(SIZE), 16, shuffle=True, seed=3, group=(1, 4), num_workers=0, collate_fn=listed,
        cache=fl.Cache(60_000, route=True),
    )  # fmt: skip
    for _ in range(6):
        samples = [plain(sample) for batch in loader for sample in batch]
    counts = loader.sample_cache.stats()
    assert len(samples) == SIZE // 4
    assert counts["used"] > 0.8 * counts["room"]
    owned = Router(SIZE, 4).owned_by(1)
    assert set(np.flatnonzero(loader.sample_cache.store.residents())) <= set(owned.tolist())


def test_ranks_that_swap_samples_take_no_memory_for_all_of_them() -> None:
    list(fl.DataLoader(range(1000), batch_size=64, seed=0, cache="1MiB"))
    before = resident_bytes()
    loader: Any = fl.DataLoader(
        Rows(), 64, shuffle=True, seed=0, group=(3, 8), num_workers=0, cache=fl.Cache("64MiB", route=True)
    )
    batches = iter(loader)
    for step in range(20):
        assert next(batches)[:, 0].tolist() == loader.indices(0, step)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert next(iter(loader))[:, 0].tolist() == loader.indices(0, 20)
    unshuffled = iter(fl.DataLoader(Rows(), 64, seed=0, group=(3, 8), num_workers=0, cache="64MiB"))
    assert next(unshuffled)[:, 0].tolist() == list(range(3, 512, 8))
    assert resident_bytes() - before < 64 << 20


def test_a_hashed_store_follows_no_plan() -> None:
    store = SampleStore(MANY, 1 << 20, hashed=True)
    assert store.native.is_hashed
    assert store.load(MANY - 1, lambda index: [index]) == [MANY - 1]
    assert store.load(MANY - 1, lambda _: None) == [MANY - 1]
    with pytest.raises(IndexError, match=str(MANY)):
        store.native.request(MANY)
    few = SampleStore(100, 1 << 20, hashed=True)  # no more entries than there would be otherwise
    assert not few.native.is_hashed
    small = SampleStore(10**6, 64, hashed=True)
    with pytest.raises(ValueError, match="rules only"):
        small.native.follow_members(np.zeros(10**6, np.uint8))
