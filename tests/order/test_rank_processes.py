"""Ranks that share an order, as real processes: the batches of all of them against those of a single one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import BatchSampler, DistributedSampler

import foreload as fl
from foreload.order.samplers import KeyedSampler
from tests.ranks import Numbers, flat, run_ranks

SIZE, BATCH, EPOCHS = 103, 5, 2

MANY = pytest.param(8, marks=pytest.mark.slow)


def plain(batches: Iterable[Any]) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


LOADERS: dict[str, dict[str, Any]] = {
    "plain": {"num_workers": 0},
    "auto": {},
    "in order": {"num_workers": 0, "shuffle": False},
    "drop_last": {"num_workers": 0, "drop_last": True},
    "in order, drop_last": {"num_workers": 0, "drop_last": True, "shuffle": False},
    "one by one": {"num_workers": 0, "batch_size": None},
    "one by one, in order": {"num_workers": 0, "batch_size": None, "shuffle": False},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "processes, one by one": {"num_workers": 2, "workers": "processes", "batch_size": None},
    "persistent": {"num_workers": 2, "workers": "processes", "persistent_workers": True, "drop_last": True},
    "cache": {"num_workers": 0, "cache": "4KiB"},
    "cache, threads": {"num_workers": 2, "workers": "threads", "cache": "1MiB"},
    "routed": {"num_workers": 0, "cache": fl.Cache("4KiB", route=True)},
    "routed, own": {"num_workers": 0, "cache": fl.Cache("4KiB", route=True, share=False), "drop_last": True},
    "routed, processes": {"num_workers": 1, "workers": "processes", "cache": fl.Cache("8KiB", route=True)},
}


def make(**arguments: Any) -> Any:
    return fl.DataLoader(Numbers(SIZE), **{"batch_size": BATCH, "shuffle": True, "seed": 7, **arguments})


def batch_samplers(rank: int, world: int) -> dict[str, Any]:
    keyed: Any = KeyedSampler(Numbers(SIZE), 7, num_replicas=world, rank=rank)
    stock: Any = DistributedSampler(Numbers(SIZE), world, rank, seed=7)
    return {
        "batch_sampler, keyed": BatchSampler(keyed, BATCH, drop_last=False),
        "batch_sampler, DistributedSampler": BatchSampler(stock, BATCH, drop_last=True),
        "sampler, one by one": stock,
    }


def load_all(rank: int, world: int) -> dict[str, Any]:
    epochs: dict[str, Any] = {}
    for name, arguments in LOADERS.items():
        with make(**arguments) as loader:
            epochs[name] = [plain(loader) for _ in range(EPOCHS)]
            assert {len(loader)} == {len(epoch) for epoch in epochs[name]}
    for name, sampler in batch_samplers(rank, world).items():
        how: Any = {"sampler": sampler, "batch_size": None} if "one" in name else {"batch_sampler": sampler}
        loader = fl.DataLoader(Numbers(SIZE), num_workers=0, seed=7, **how)
        epochs[name] = []
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            epochs[name].append(plain(loader))
    return epochs


def shared(order: list[int], world: int, batch: int, drop_last: bool) -> list[list[list[int]]]:
    """Return what each rank loads in each step, as torch's sampler and batch sampler have it."""
    parts: list[Any] = [
        DistributedSampler(order, world, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
        for rank in range(world)
    ]
    steps = zip(*(BatchSampler(part, batch, drop_last) for part in parts), strict=True)
    return [[[order[place] for place in part] for part in step] for step in steps]


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow), MANY])
def test_all_ranks_together_load_what_one_would(world: int, tmp_path: Path) -> None:
    got = run_ranks(load_all, world, tmp_path)
    for name, arguments in {**{name: {} for name in batch_samplers(0, world)}, **LOADERS}.items():
        drop_last = arguments.get("drop_last", "DistributedSampler" in name)
        batch = 1 if "one" in name else BATCH
        for epoch in range(EPOCHS):
            if "DistributedSampler" in name or name.startswith("sampler"):
                generator = torch.Generator().manual_seed(7 + epoch)
                order = torch.randperm(SIZE, generator=generator).tolist()
            else:
                alone = make(num_workers=0, batch_size=None, shuffle=arguments.get("shuffle", True))
                alone.set_epoch(epoch)
                order = list(alone)
            steps = list(zip(*(rank[name][epoch] for rank in got), strict=True))
            steps = [[[part] if batch == 1 else part for part in step] for step in steps]
            if "routed" in name:
                steps = [sorted(flat(step)) for step in steps]
                assert steps == [sorted(flat(step)) for step in shared(order, world, batch, drop_last)], name
            else:
                assert steps == shared(order, world, batch, drop_last), name
            # Each global batch is that of a single process with the batch size of all.
            whole = order[: SIZE // (batch * world) * batch * world]
            together = [index for step in steps for part in step for index in np.atleast_1d(part)]
            assert sorted(together[: len(whole)]) == sorted(whole), name


def random_transform(index: int) -> tuple[int, float, float]:
    return index, float(torch.rand(())), float(np.random.rand())


def load_by_mesh(rank: int, world: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    cube = init_device_mesh("cpu", (2, world // 4, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    columns = [dist.new_group(list(range(column, world, 2))) for column in range(2)]
    whole = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("a", "b"))
    groups = {
        "mesh": mesh["dp"],
        "group": columns[rank % 2],
        "pair": (rank // 2, world // 2),
        "flat": cube["dp_replicate", "dp_shard"]._flatten("dp"),
        "two dimensions": cube["dp_replicate", "dp_shard"],
        "world": dist.group.WORLD,
        "across": mesh["tp"],
    }
    loaded: dict[str, Any] = {}
    for name, group in groups.items():
        for kind, more in {"": {}, " cache": {"cache": "3KiB"}, " route": {"cache": ROUTED}}.items():
            with make(num_workers=0, transform=random_transform, group=group, **more) as loader:
                loaded[name + kind] = [
                    [[part.tolist() for part in batch] for batch in loader] for _ in range(EPOCHS)
                ]
    loaded["errors"] = []
    gone = dist.new_group(list(range(world)))
    dist.barrier()  # so that none closes its connections while another one is still making them
    dist.destroy_process_group(gone)
    for wrong in (whole, mesh, columns[1 - rank % 2], gone, 3, "dp"):
        try:
            make(group=wrong)
        except (ValueError, TypeError) as error:
            loaded["errors"].append(f"{type(error).__name__}: {error}")
    return loaded


ROUTED = fl.Cache("3KiB", route=True)


@pytest.mark.parametrize("world", [4, MANY])
def test_ranks_outside_of_the_group_get_the_same_batches(world: int, tmp_path: Path) -> None:
    got = run_ranks(load_by_mesh, world, tmp_path)
    for name in ("mesh", "group", "pair", "flat", "two dimensions", "world", "across"):
        place = {"world": lambda rank: rank, "across": lambda rank: rank % 2}.get(name, lambda rank: rank // 2)
        ranks = len({place(rank) for rank in range(world)})
        for kind in ("", " cache", " route"):
            # Twins have the same samples, and random numbers.
            firsts = [next(rank for rank in range(world) if place(rank) == part) for part in range(ranks)]
            for rank in range(world):
                assert got[rank][name + kind] == got[firsts[place(rank)]][name + kind], (name, kind, rank)
            for epoch in range(EPOCHS):
                alone = make(num_workers=0, batch_size=None, transform=random_transform)
                alone.set_epoch(epoch)
                samples = {sample[0]: list(sample) for sample in alone}
                expected = shared(list(samples), ranks, BATCH, drop_last=False)
                steps = list(zip(*(got[rank][name + kind][epoch] for rank in firsts), strict=True))
                for step, wanted in zip(steps, expected, strict=True):
                    indices = [part[0] for part in step]
                    if kind == " route":
                        assert sorted(flat(indices)) == sorted(flat(wanted))
                    else:
                        assert indices == wanted, (name, kind)
                    # What is random is of the sample alone.
                    for part in step:
                        for index, *drawn in zip(*part, strict=True):
                            assert np.allclose(drawn, samples[index][1:]), (name, kind)
    for messages in (rank["errors"] for rank in got):
        for message, words in zip(messages, WRONG_GROUPS, strict=True):
            assert words in message


WRONG_GROUPS = [
    "ValueError: group: this mesh has 2 dimensions ('a', 'b'): slice out those that split the data",
    "ValueError: group: this mesh has 2 dimensions ('dp', 'tp'): slice out those that split the data",
    "is not in this group",
    "ValueError: group: this process group does not exist any more",
    "TypeError: group must be a ProcessGroup, a DeviceMesh, or a pair (rank, number of ranks), got int",
    "TypeError: group must be a ProcessGroup, a DeviceMesh, or a pair (rank, number of ranks), got str",
]
