"""Ranks that share what ``seed=`` orders: against DistributedSampler, and under torch.distributed."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler, TensorDataset

import foreload as fl
from foreload.epochs.loader import order as loader_order
from foreload.order.ranks import Router, first_claim, own_process
from foreload.order.samplers import KeyedSampler, global_batches
from tests.order.plain import plain_order

Ranks = Callable[[int, int], None]


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    """A function that makes this process one rank of several."""

    def become(rank: int, ranks: int) -> None:
        monkeypatch.setattr(loader_order, "present_rank", lambda: (rank, ranks))

    return become


def dealt(order: list[int], ranks: int, rank: int, drop_last: bool) -> list[int]:
    """Return what torch assigns to a rank of an order."""
    places: Any = DistributedSampler(order, ranks, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
    return [order[place] for place in places]


shapes = (st.integers(0, 40), st.integers(1, 7), st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 3))


@given(*shapes)
def test_keyed_shares_are_those_of_torch(samples: int, ranks: int, drop_last: bool, seed: int, epoch: int) -> None:
    order = list(KeyedSampler(range(samples), seed, epoch))
    for rank in range(ranks):
        share = KeyedSampler(range(samples), seed, epoch, num_replicas=ranks, rank=rank, drop_last=drop_last)
        expected = dealt(order, ranks, rank, drop_last) if samples else []
        assert list(share) == expected == share.positions(0, len(share)).tolist()
        for start in range(len(share)):
            assert share.positions(start, len(share) - start).tolist() == expected[start:]


def test_long_shares_come_in_several_blocks() -> None:
    whole = KeyedSampler(range(300_001), 7)
    order = whole.positions(0, 300_001)
    padded = np.concatenate([order, order[:2]])
    for rank in range(3):
        share = KeyedSampler(range(300_001), 7, num_replicas=3, rank=rank)
        assert list(share) == padded[rank::3].tolist()


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 7), st.booleans(), st.integers(0, 3))
def test_swaps_leave_keyed_global_batches_as_they_are(
    samples: int, ranks: int, batch: int, drop_last: bool, seed: int
) -> None:
    sampler = KeyedSampler(range(samples), seed, num_replicas=ranks, drop_last=drop_last)
    order = plain_order(sampler, 2)
    sampler.set_epoch(2)
    assert order[::ranks].tolist() == list(sampler)
    plain = list(global_batches(sampler, 2, batch, drop_last))
    routed = list(global_batches(sampler, 2, batch, drop_last, Router(samples, ranks, seed)))
    for before, after in zip(plain, routed, strict=True):
        assert sorted(np.concatenate(before).tolist()) == sorted(np.concatenate(after).tolist())


def test_the_order_of_many_samples_takes_no_memory(as_rank: Ranks) -> None:
    as_rank(3, 8)
    data: Any = range(1_000_000_000)
    loader: Any = fl.DataLoader(data, 64, shuffle=True, seed=1, num_workers=0)
    before = Path("/proc/self/statm").read_text().split()[1]
    batches = iter(loader)
    first = [next(batches).tolist() for _ in range(20)]
    again: Any = fl.DataLoader(data, 64, shuffle=True, seed=1, num_workers=0, skip=fl.Skip(samples=[5]))
    state = loader.state_dict()
    state["given"] = [[0, 999_000_000 // 512 * 512]]
    again.load_state_dict(state)
    assert len(next(iter(again))) == 64
    after = Path("/proc/self/statm").read_text().split()[1]
    assert first[7] == loader.indices(0, 7)
    assert (int(after) - int(before)) * 4096 < 100 << 20


@pytest.mark.parametrize("arguments", [{"num_replicas": 0}, {"num_replicas": 2, "rank": 2}, {"rank": -1}])
def test_ranks_that_cannot_be_are_refused(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"num_replicas|rank"):
        KeyedSampler(range(3), 0, **arguments)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_seeded_loader_loads_its_ranks_part(
    as_rank: Ranks, ranks: int, batch_size: Any, shuffle: bool, drop_last: bool
) -> None:
    drop_last = drop_last and batch_size is not None
    arguments: Any = {"batch_size": batch_size, "shuffle": shuffle, "seed": 3, "drop_last": drop_last}
    alone = fl.DataLoader(range(50), **{**arguments, "drop_last": False})  # type: ignore[arg-type]
    for epoch in range(2):
        alone.set_epoch(epoch)
        order = [int(index) for batch in alone for index in np.atleast_1d(batch)]
        lengths = set()
        for rank in range(ranks):
            as_rank(rank, ranks)
            loader: Any = fl.DataLoader(range(50), **arguments)  # type: ignore[arg-type]
            loader.set_epoch(epoch)
            share = dealt(order, ranks, rank, drop_last)
            if batch_size is None:
                assert list(loader) == share
            else:
                cut = [share[at : at + 4] for at in range(0, len(share), 4)]
                expected = [batch for batch in cut if len(batch) == 4 or not drop_last]
                assert [batch.tolist() for batch in loader] == expected
            lengths.add(len(loader))
            as_rank(0, 1)
        assert len(lengths) == 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_are_left_out_of_the_same_epoch_on_any_number_of_ranks(as_rank: Ranks, shuffle: bool) -> None:
    for rank in range(2):
        as_rank(rank, 2)
        loader: Any = fl.DataLoader(range(8), 2, shuffle, seed=0, skip=fl.Skip(samples=range(4), epoch=1))  # type: ignore[arg-type]
        for epoch in range(3):
            share = [batch.tolist() for batch in loader]
            assert share == [loader.indices(epoch, step) for step in range(len(share))]
            assert len(share) == (1 if epoch == 1 else 2)


def test_ranks_are_found_when_an_epoch_begins(as_rank: Ranks) -> None:
    loader: Any = fl.DataLoader(range(10), batch_size=5, shuffle=True, seed=0)  # type: ignore[arg-type]
    assert len(loader) == 2
    as_rank(1, 2)
    assert len(loader) == 1
    assert sum(len(batch) for batch in loader) == 5


def test_frameworks_see_the_order_of_all_ranks(as_rank: Ranks) -> None:
    as_rank(1, 2)
    loader: Any = fl.DataLoader(range(10), batch_size=5, shuffle=True, seed=0)  # type: ignore[arg-type]
    assert sorted(loader.sampler) == list(range(10))
    assert sorted(index for batch in loader.batch_sampler for index in batch) == list(range(10))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1), (1, 4)])
def test_other_ranks_go_on_with_what_is_left(as_rank: Ranks, before: int, after: int, workers: Any) -> None:
    arguments: Any = {"batch_size": 2, "shuffle": True, "seed": 9, "num_workers": 1, "workers": workers}
    data: Any = range(48)
    given_before, states = [], []
    for rank in range(before):
        as_rank(rank, before)
        loader = fl.DataLoader(data, **arguments)
        batches = iter(loader)
        given_before += [next(batches).tolist() for _ in range(3)]
        states.append(loader.state_dict())
        batches.close()  # type: ignore[attr-defined]
    rest = []
    for rank in range(after):
        as_rank(rank, after)
        loader = fl.DataLoader(data, **arguments)
        loader.load_state_dict(states[0])
        rest += [batch.tolist() for batch in loader]
    seen = sorted(index for batch in [*given_before, *rest] for index in batch)
    assert set(seen) == set(data)
    assert len(seen) - 48 < after  # no more than fills the last round


def test_a_mixture_is_shared_as_its_sampler_shares_it(as_rank: Ranks) -> None:
    mixture = fl.Mixture({"a": range(60), "b": range(20)}, weights=[3, 1])
    parts = []
    for rank in range(2):
        as_rank(rank, 2)
        loader: Any = fl.DataLoader(mixture, batch_size=8, shuffle=True, seed=1)
        parts.append([index for batch in loader._index_sampler for index in batch])
    assert len(parts[0]) == len(parts[1]) == 40
    assert sorted(parts[0] + parts[1]) == list(range(80))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(4)


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        (range(9), {"shuffle": True, "seed": 1, "distributed": False}),
        (range(9), {"shuffle": True, "distributed": False}),
        (range(9), {}),
        (range(9), {"sampler": RandomSampler(range(9)), "seed": 1}),
        (range(9), {"sampler": KeyedSampler(range(9), 1), "seed": 1}),
        (range(9), {"batch_sampler": [[0, 1], [2]], "seed": 1}),
        (Stream(), {"seed": 1}),
    ],
)
def test_nothing_else_is_shared_or_warned_of(as_rank: Ranks, data: Any, arguments: Any) -> None:
    as_rank(0, 1)
    alone = [batch.tolist() for batch in fl.DataLoader(data, generator=torch.Generator(), **arguments)]
    as_rank(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared = [batch.tolist() for batch in fl.DataLoader(data, generator=torch.Generator(), **arguments)]
    assert len(shared) == len(alone)
    if not isinstance(arguments.get("sampler"), RandomSampler):
        assert shared == alone


def test_ranks_that_all_shuffle_the_same_samples_are_warned_once(as_rank: Ranks) -> None:
    as_rank(0, 4)
    loader: Any = fl.DataLoader(range(6), batch_size=2, shuffle=True)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="each of the 4 ranks of torch.distributed loads all samples.*seed="):
        assert len(list(loader)) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_distributed_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="distributed must be True or False, got 'no'"):
        fl.DataLoader(range(3), distributed="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_each_rank_has_its_share_in_each_epoch(workers: Any) -> None:
    data = TensorDataset(torch.arange(50))
    shares = []
    for rank in range(4):
        sampler: Any = DistributedSampler(data, 4, rank, seed=5)
        loader: Any = fl.DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, workers=workers)
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            epochs.append(torch.cat([batch[0] for batch in loader]).tolist())
            assert epochs[-1] == list(sampler)
        shares.append(epochs)
    for epoch in range(2):
        assert {index for share in shares for index in share[epoch]} == set(range(50))


def _load(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    data: Any = list(range(103))
    epochs, lengths, hits = [], [], []
    for drop_last in (False, True):
        loader: Any = fl.DataLoader(
            data, 8, shuffle=True, seed=5, drop_last=drop_last, cache="1MiB", num_workers=1
        )
        for _ in range(3):
            epochs.append([batch.tolist() for batch in loader])
            lengths.append(len(loader))
            hits.append(loader.stats()["cache"]["hits"])
        loader.close()
    torch.save((epochs, lengths, hits), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_of_torch_distributed_get_equal_parts(tmp_path: Path) -> None:
    mp.start_processes(_load, (2, str(tmp_path)), nprocs=2, start_method="forkserver")
    (first, first_lengths, hits), (second, second_lengths, _) = (torch.load(tmp_path / f"{r}.pt") for r in (0, 1))
    assert first_lengths == second_lengths == [7] * 3 + [6] * 3
    for epoch, (mine, theirs) in enumerate(zip(first, second, strict=True)):
        order = list(KeyedSampler(range(103), 5, epoch % 3))
        whole, drops = (order + order[:1], False) if epoch < 3 else (order[:102], True)
        for share, got in ((whole[0::2], mine), (whole[1::2], theirs)):
            cut = [share[at : at + 8] for at in range(0, len(share), 8)]
            assert got == [batch for batch in cut if len(batch) == 8 or not drops]
    assert hits[2] > 0


def test_claims_of_processes_that_have_ended_do_not_count() -> None:
    store = dist.HashStore()
    assert first_claim(store, "a", "mine") == (own_process(), "mine")
    assert first_claim(store, "a", "mine") == (own_process(), "mine")
    for process in (f"{os.getpid()}:1", "4194305:1"):  # of the same number, or a number that cannot be
        store.set("b", f"{process} theirs")
        assert first_claim(store, "b", "mine") == (own_process(), "mine")
    parent = f"{os.getppid()}:{Path(f'/proc/{os.getppid()}/stat').read_text().rpartition(')')[2].split()[19]}"
    store.set("c", f"{parent} theirs")
    assert first_claim(store, "c", "mine") == (parent, "theirs")
    assert first_claim(store, "c", "mine", gone={parent}) == (own_process(), "mine")


def grouped(data: Any = range(9), **arguments: Any) -> Any:
    return fl.DataLoader(data, **{"batch_size": 2, "shuffle": True, "seed": 1, "group": (1, 3), **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"seed": None}, ValueError, "group needs seed="),
        ({"distributed": False}, ValueError, "group= and distributed=False contradict each other"),
        ({"in_order": False, "num_workers": 1}, ValueError, "group= needs in_order=True"),
        ({"sampler": range(9), "shuffle": None}, ValueError, "leave group= out"),
        ({"data": Stream(), "shuffle": None}, ValueError, "leave group= out"),
        ({"group": (3, 3)}, ValueError, "group: rank must be from 0 to 2, got 3"),
        ({"group": (-1, 3)}, ValueError, "group: rank must be 0 or more"),
        ({"group": (0, 0)}, ValueError, "group: number of ranks must be 1 or more"),
        ({"group": (1, 2, 3)}, ValueError, "group must be a pair"),
        ({"group": ("1", 2)}, TypeError, "group: rank must be an int"),
        ({"group": "dp"}, ValueError, "torch.distributed is not initialized"),
    ],
)
def test_groups_that_cannot_be_are_refused(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        grouped(**arguments)


def test_a_group_is_of_the_loader_and_of_its_copies(as_rank: Ranks) -> None:
    as_rank(7, 8)  # which does not count
    order = list(KeyedSampler(range(9), 1))
    for loader in (grouped(), copy.copy(grouped()), pickle.loads(pickle.dumps(grouped()))):
        assert [batch.tolist() for batch in loader] == [order[1::3][:2], order[1::3][2:]]
        assert loader.group == (1, 3)
        assert loader.indices(0, 0) == order[1::3][:2]
    assert "group=(1, 3)" in repr(grouped())
    whole = grouped(group=(0, 1), cache=fl.Cache("1MiB", route=True))  # one rank swaps with none
    assert [index for batch in whole for index in batch.tolist()] == order
    assert whole.indices(0, 1) == order[2:4]


def test_old_states_of_loaders_without_batches_are_refused_by_several_ranks(as_rank: Ranks) -> None:
    loader: Any = fl.DataLoader(range(9), None, shuffle=True, seed=1)  # type: ignore[arg-type]
    state = loader.state_dict() | {"drawn": {"generators": {"iter": None, "next": None, "drew": False}}}
    as_rank(1, 2)
    with pytest.raises(ValueError, match="'drawn' must be None"):
        fl.DataLoader(range(9), None, shuffle=True, seed=1).load_state_dict(state)  # type: ignore[arg-type]
