"""Ranks that share a cache, and ranks that swap samples: real processes of torch.distributed."""

from __future__ import annotations

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
from foreload.order.ranks import Router
from foreload.order.samplers import global_batches, global_order

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
    order = global_order(dealt[0], 5)
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
