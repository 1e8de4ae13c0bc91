"""Ranks that share a cache, and ranks that swap samples: real processes of torch.distributed."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import foreload as fl
from foreload.cache import sharing
from foreload.order.ranks import Router
from foreload.order.samplers import KeyedSampler, global_batches
from tests.order.plain import plain_order
from tests.ranks import flat, run_ranks

N, BATCH, EPOCHS = 400, 10, 4


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 7), st.booleans(), st.booleans(), st.integers(0, 3))
def test_swaps_leave_the_global_batches_as_they_are(
    samples: int, ranks: int, batch: int, drop_last: bool, shuffle: bool, seed: int
) -> None:
    router = Router(samples, ranks, seed)
    dealt = [
        DistributedSampler(range(samples), ranks, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)  # type: ignore[arg-type]
        for rank in range(ranks)
    ]
    for sampler in dealt:
        sampler.set_epoch(5)
    order = plain_order(dealt[0], 5)
    assert all(order[rank::ranks].tolist() == list(dealt[rank]) for rank in range(ranks))
    plain = list(global_batches(dealt[0], 5, batch, drop_last))
    routed = list(global_batches(dealt[0], 5, batch, drop_last, router))
    for rank in range(ranks):
        theirs = DataLoader(range(samples), batch, sampler=dealt[rank], drop_last=drop_last)  # type: ignore[arg-type]
        assert [parts[rank].tolist() for parts in plain] == [part.tolist() for part in theirs]
    for before, after in zip(plain, routed, strict=True):
        assert [len(part) for part in before] == [len(part) for part in after]
        assert sorted(np.concatenate(before).tolist()) == sorted(np.concatenate(after).tolist())


@pytest.mark.parametrize(("ranks", "least", "unrouted"), [(4, 0.49, 0.125), (8, 0.93, 0.125)])
def test_most_samples_go_where_they_are_kept(ranks: int, least: float, unrouted: float) -> None:
    samples = 20_000
    router = Router(samples, ranks)
    held = [router.held(rank, samples // 8) for rank in range(ranks)]
    assert [int(flags.sum()) for flags in held] == [samples // 8] * ranks
    sampler: Any = DistributedSampler(range(samples), ranks, 0)  # type: ignore[arg-type]
    for kept, expected in ((router, least), (None, unrouted)):
        hits = [
            held[r][part] for parts in global_batches(sampler, 0, 64, False, kept) for r, part in enumerate(parts)
        ]
        assert np.concatenate(hits).mean() >= expected - 0.01
        assert kept is not None or np.concatenate(hits).mean() < unrouted + 0.01


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((100,), float(index * index)), index


ITEM = 64 + (400 // 64 + 1) * 64 + 256


def train(rank: int, world: int, folder: str, options: dict[str, Any], arguments: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    sampler: Any = DistributedSampler(Squares(), seed=5)
    loader = fl.DataLoader(Squares(), batch_size=BATCH, sampler=sampler, cache=fl.Cache(**options), **arguments)
    epochs, hits = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        epochs.append([])
        for x, y in loader:
            assert torch.equal(x, (y * y)[:, None].float().expand(-1, 100))
            epochs[-1].append(y.tolist())
        dist.barrier()
        counts = loader.stats()["cache"]
        hits.append((counts["hits"], counts["misses"]))
        dist.barrier()
    torch.save((epochs, hits, counts), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def ranks_of(world: int, folder: Path, options: dict[str, Any], **arguments: Any) -> Any:
    mp.start_processes(train, (world, str(folder), options, arguments), nprocs=world, start_method="forkserver")
    got, hits, counts = zip(*(torch.load(folder / f"{rank}.pt") for rank in range(world)), strict=True)
    for epoch in range(EPOCHS):
        plain: Any = [DistributedSampler(range(N), world, rank, seed=5) for rank in range(world)]  # type: ignore[arg-type]
        for sampler in plain:
            sampler.set_epoch(epoch)
        expected = zip(*(DataLoader(range(N), BATCH, sampler=s) for s in plain), strict=True)  # type: ignore[arg-type]
        for parts, batch in zip(
            zip(*(got[rank][epoch] for rank in range(world)), strict=True), expected, strict=True
        ):
            assert [len(part) for part in parts] == [len(part) for part in batch]
            assert sorted(i for part in parts for i in part) == sorted(torch.cat(batch).tolist())
    return hits, counts


def warm_rate(hits: Any) -> float:
    gained, lost = (hits[-1][i] - hits[0][i] for i in (0, 1))
    return float(gained / (gained + lost))


@pytest.mark.parametrize("world", [2, 4])
def test_a_machines_ranks_share_one_cache(world: int, tmp_path: Path) -> None:
    hits, counts = ranks_of(world, tmp_path, {"budget": N // 2 * ITEM}, num_workers=0)
    assert (
        len({tuple(count.items()) for count in ({k: c[k] for k in ("hits", "kept", "used")} for c in counts)}) == 1
    )
    kept = counts[0]["samples"]
    assert N // 2 <= kept <= 0.6 * N
    # Each sample once per epoch, by whichever rank: every epoch after the first hits all that is kept.
    assert hits[0][-1][0] == (EPOCHS - 1) * kept


@pytest.mark.parametrize(
    ("world", "arguments"), [(4, {"num_workers": 0}), (2, {"num_workers": 2, "workers": "threads"})], ids=str
)
def test_ranks_that_swap_keep_more_between_them(world: int, arguments: dict[str, Any], tmp_path: Path) -> None:
    routed, _ = ranks_of(world, tmp_path, {"budget": N // 8 * ITEM, "route": True, "share": False}, **arguments)
    # Each keeps at least N / 8, nearly all of which goes there.
    for hits in routed:
        assert warm_rate(hits) >= world / 8 * 0.95


@pytest.mark.slow
def test_swaps_reach_processes_too(tmp_path: Path) -> None:
    options = {"budget": N // 8 * ITEM, "route": True, "share": False}
    routed, _ = ranks_of(2, tmp_path, options, num_workers=1, workers="processes")
    assert all(warm_rate(hits) >= 0.2 for hits in routed)


def seeded(rank: int, world: int, options: dict[str, Any], arguments: dict[str, Any], machines: int = 1) -> Any:
    """Load epochs in the order of a seed; return the samples of each batch, and the counts after each epoch."""
    names = f"machine {rank // (world // machines)}"
    sharing.machine_name = lambda: names
    loader: Any = fl.DataLoader(
        Squares(), BATCH, shuffle=True, seed=3, num_workers=0, cache=fl.Cache(**options), **arguments
    )
    epochs, hits = [], []
    for _ in range(EPOCHS):
        epochs.append([])
        for _, y in loader:
            epochs[-1].append(y.tolist())
            dist.barrier()  # as every step of a training has one
        counts = loader.stats()["cache"]
        hits.append((counts["hits"], counts["misses"]))
        dist.barrier()
    return epochs, hits


@pytest.fixture(scope="module")
def item() -> int:
    """The bytes that a sample takes in a cache."""
    loader: Any = fl.DataLoader(Squares(), num_workers=0, cache="8MiB")
    assert len(list(loader)) == N
    counts = loader.stats()["cache"]
    return int(counts["used"] // counts["samples"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("machines", "kept", "options"),
    [(4, N // 8, {}), (2, N // 4, {}), (1, N // 2, {}), (1, N // 8, {"share": False})],
    ids=["a rank per machine", "two ranks per machine", "one machine", "a cache per rank"],
)
def test_four_ranks_that_keep_an_eighth_each_hit_half(
    machines: int, kept: int, options: Any, item: int, tmp_path: Path
) -> None:
    got = run_ranks(seeded, 4, tmp_path, {"budget": kept * item, "route": True, **options}, {}, machines)
    alone: Any = fl.DataLoader(Squares(), 4 * BATCH, shuffle=True, seed=3, num_workers=0)
    for epoch in range(EPOCHS):
        expected = [sorted(y.tolist()) for _, y in alone]
        steps = zip(*(epochs[epoch] for epochs, _ in got), strict=True)
        assert [sorted(flat(step)) for step in steps] == expected
    rates = [warm_rate(hits) for _, hits in got]
    print("hits of the ranks:", [f"{rate:.3f}" for rate in rates])
    assert 0.48 <= np.mean(rates) <= 0.5


def test_processes_that_get_the_same_batches_use_what_one_of_them_loads(item: int, tmp_path: Path) -> None:
    arguments = [{"group": (rank // 2, 2)} for rank in range(4)]
    got = run_ranks(twins, 4, tmp_path, {"budget": N // 4 * item}, arguments)
    assert got[0][0] == got[1][0]
    assert got[2][0] == got[3][0]
    print("hits:", f"{warm_rate(got[0][1]):.3f}")
    # Half of the requests are of a sample that the other one has just loaded, and a quarter of the rest is kept.
    assert warm_rate(got[0][1]) > 0.4


def twins(rank: int, world: int, options: dict[str, Any], arguments: list[dict[str, Any]]) -> Any:
    return seeded(rank, world, options, arguments[rank])


def stock_twins(rank: int, world: int) -> Any:
    """The same by a DistributedSampler that counts pairs of processes as ranks."""
    sampler: Any = DistributedSampler(Squares(), world // 2, rank // 2, seed=5)
    loader = fl.DataLoader(Squares(), BATCH, sampler=sampler, num_workers=0, cache=N // 2 * ITEM)
    return [[y.tolist() for _, y in loader] for _ in range(2)]


def test_a_sampler_may_count_fewer_ranks_than_there_are_processes(tmp_path: Path) -> None:
    got = run_ranks(stock_twins, 4, tmp_path)
    assert got[0] == got[1]
    assert got[2] == got[3]
    assert sorted(flat(got[0][0] + got[2][0])) == list(range(N))


class Shard(Dataset[Any]):
    """A dataset of one rank's own."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        return 1000 * self.rank + index


def load_shards(rank: int, world: int, workers: int) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        how: Any = {"num_workers": workers, "workers": "processes" if workers else "auto"}
        loader: Any = fl.DataLoader(Shard(rank), 7, cache="1MiB", **how)
        epochs = []
        for _ in range(3):
            epochs.append(torch.cat(list(loader)).tolist())
            dist.barrier()
        room = loader.stats()["cache"]["room"]
    return epochs, room, [str(warning.message) for warning in caught]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_with_datasets_of_their_own_share_no_samples(workers: int, tmp_path: Path) -> None:
    got = run_ranks(load_shards, 2, tmp_path, workers)
    for rank, (epochs, room, messages) in enumerate(got):
        assert epochs == [[1000 * rank + index for index in range(60)]] * 3
        assert room == (1 << 20) // 2
        assert any("datasets of ranks on this machine differ" in message for message in messages)
        assert any("globals that their code names" in message for message in messages)


def load_in_turn(rank: int, world: int) -> Any:
    """Load two datasets alike in all but content, each rank beginning with another one."""
    found = {}
    for number in (0, 1) if rank == 0 else (1, 0):
        loader: Any = fl.DataLoader(Shard(number), 7, num_workers=0, cache="1MiB")
        found[number] = [torch.cat(list(loader)).tolist() for _ in range(2)]
    return found


def test_ranks_that_begin_with_different_datasets_do_not_mix_them(tmp_path: Path) -> None:
    for found in run_ranks(load_in_turn, 2, tmp_path):
        for number, epochs in found.items():
            assert epochs == [[1000 * number + index for index in range(60)]] * 2


def load_late(rank: int, world: int) -> Any:
    """Rank 1 comes to the first of two caches when rank 0 has closed it, and has another one in its place."""
    found = []
    if rank == 1:
        dist.barrier()
    loaders = []
    for number in (0, 1):
        loader: Any = fl.DataLoader(Shard(7), 7, num_workers=0, cache=f"{number + 1}MiB")
        found.append([torch.cat(list(loader)).tolist() for _ in range(2)])
        loaders.append(loader)
        if number == 0:
            loader.close()
    if rank == 0:
        dist.barrier()
        dist.barrier()
    else:
        dist.barrier()
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this rank uses a cache of its own")
def test_a_cache_that_was_closed_is_not_taken_for_the_one_in_its_place(tmp_path: Path) -> None:
    for found in run_ranks(load_late, 2, tmp_path):
        assert found == [[[7000 + index for index in range(60)]] * 2] * 2


def die(rank: int, world: int) -> Any:
    """The rank that made the cache, and plans for it, is killed in the second epoch; the others go on."""
    loader: Any = fl.DataLoader(Squares(), BATCH, shuffle=True, seed=3, num_workers=0, cache=N // 2 * ITEM)
    epochs = []
    for epoch in range(3):
        epochs.append([])
        for x, y in loader:
            if epoch == 1 and len(epochs[-1]) == 2 and loader.sample_cache._plans:
                os.kill(os.getpid(), signal.SIGKILL)
            assert torch.equal(x, (y * y)[:, None].float().expand(-1, 100))
            epochs[-1].append(y.tolist())
    return epochs, loader.stats()["cache"]["hits"]


def test_the_others_go_on_when_the_rank_that_made_the_cache_is_killed(tmp_path: Path) -> None:
    got = run_ranks(die, 3, tmp_path, deaths=1)
    whole = [list(KeyedSampler(range(N), 3, epoch)) for epoch in range(3)]
    assert [rank is None for rank in got].count(True) == 1
    for rank, found in enumerate(got):
        if found is not None:
            padded = [order + order[: -N % 3] for order in whole]
            assert [flat(epoch) for epoch in found[0]] == [order[rank::3] for order in padded]
            assert found[1] > 0


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("samples", [0, 1, 3])
def test_ranks_that_own_no_sample_load_theirs_all_the_same(
    samples: int, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hashed:
        monkeypatch.setattr("foreload.cache.loader_cache.has_tables", lambda *_, **__: False)
    parts = []
    for rank in range(5):
        cache = fl.Cache("1MiB", route=True)
        loader: Any = fl.DataLoader(range(samples), 2, shuffle=True, seed=1, group=(rank, 5), cache=cache)  # type: ignore[arg-type]
        parts.append([index for _ in range(2) for batch in loader for index in batch.tolist()])
    assert all(len(part) == 2 * min(samples, 1) for part in parts)
    assert {index for part in parts for index in part} == set(range(samples))
