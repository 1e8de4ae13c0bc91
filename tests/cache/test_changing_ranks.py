"""Caches of loaders that outlive their process group: the next one has other ranks, or there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import foreload as fl
from foreload.order.ranks import Router
from foreload.order.samplers import KeyedSampler, global_batches
from tests.ranks import Numbers, flat, run_ranks

N, BATCH = 50, 4

# The group of each epoch: its ranks, by the number of the process. Of one process there is no group.
GROUPS = [[0], [0, 1, 2], [0], [1, 0], [0, 2, 1], [0]]


def load_in_groups(rank: int, world: int, folder: str, route: bool, arguments: dict[str, Any]) -> Any:
    """Load each epoch as a member of its group, and return what came and what was foretold."""
    dist.barrier()
    dist.destroy_process_group()
    loader: Any = fl.DataLoader(
        Numbers(N), BATCH, shuffle=True, seed=1, cache=fl.Cache(1 << 12, route=route), **arguments
    )
    found = []
    for epoch, members in enumerate(GROUPS):
        if len(members) > 1 and rank in members:
            meet(f"{folder}/{epoch}", members.index(rank), len(members))
        loader.set_epoch(epoch)
        batches = [batch.tolist() for batch in loader]
        found.append((batches, [loader.indices(epoch, step) for step in range(len(loader))]))
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    meet(f"{folder}/end", rank, world)
    return found


def meet(place: str, rank: int, ranks: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)


@pytest.mark.parametrize(
    "arguments",
    [{"num_workers": 0}, {"num_workers": 1, "workers": "processes", "persistent_workers": True}],
    ids=["alone", "processes"],
)
@pytest.mark.parametrize("route", [False, True])
def test_a_cache_serves_the_ranks_that_are_there(route: bool, arguments: dict[str, Any], tmp_path: Path) -> None:
    got = run_ranks(load_in_groups, 3, tmp_path / "ranks", str(tmp_path), route, arguments)
    for epoch, members in enumerate(GROUPS):
        for process, found in enumerate(got):
            alone = len(members) == 1 or process not in members
            ranks, rank = (1, 0) if alone else (len(members), members.index(process))
            router = Router(N, ranks) if route and ranks > 1 else None
            sampler = KeyedSampler(range(N), 1, num_replicas=ranks, rank=rank)
            expected = [parts[rank].tolist() for parts in global_batches(sampler, epoch, BATCH, False, router)]
            delivered, foretold = found[epoch]
            assert delivered == foretold == expected, (epoch, process)


@pytest.mark.parametrize("route", [False, True])
def test_a_cache_that_ranks_shared_is_used_by_what_comes_after(route: bool, tmp_path: Path) -> None:
    got = run_ranks(load_and_leave, 2, tmp_path / "ranks", str(tmp_path), route)
    order = [list(KeyedSampler(range(N), 1, epoch)) for epoch in range(4)]
    for epoch in (0, 2):
        together = sorted(flat(found[0][epoch] for found in got))
        assert together == sorted(order[epoch]), epoch
    for epochs, hits in got:
        assert [epochs[1], epochs[3]] == [order[1], order[3]]
        assert np.diff(hits).min() > 0


def load_and_leave(rank: int, world: int, folder: str, route: bool) -> Any:
    """Load with the group of all, without one, with another one, and without one again."""
    loader: Any = fl.DataLoader(
        Numbers(N), BATCH, shuffle=True, seed=1, num_workers=0, cache=fl.Cache(1 << 20, route=route)
    )
    epochs, hits = [], []
    for number in range(2):
        epochs.append(flat(batch.tolist() for batch in loader))
        dist.barrier()
        hits.append(loader.stats()["cache"]["hits"])
        dist.barrier()
        dist.destroy_process_group()
        epochs.append(flat(batch.tolist() for batch in loader))
        meet(f"{folder}/{number}", world - 1 - rank, world)
    hits.append(loader.stats()["cache"]["hits"])
    return epochs, hits
