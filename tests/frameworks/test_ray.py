"""The loader after Ray Train's ``prepare_data_loader``, in processes of torch.distributed, without a cluster."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import foreload as fl
from tests.frameworks.parts import Regression

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def _prepare(rank: int, folder: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ray: Any = importlib.import_module("ray.train.torch.train_loop_utils")
    session: Any = type("Session", (), {"get_world_size": lambda: 2, "get_world_rank": lambda: rank})
    ray.session = session
    own: Any = fl.DataLoader(Regression(22, bad=frozenset({3})), 4, cache="1MiB", on_error="skip", **options)
    accelerator = object.__new__(ray._TorchAccelerator)  # its constructor would start a cluster
    accelerator._seed = None
    loader = accelerator.prepare_data_loader(own, move_to_device=False)
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        epochs.append([batch["index"].tolist() for batch in loader])
    facts = (type(loader) is fl.DataLoader, loader._fl_auto_workers, own.stats()["batches"], loader.on_error)
    torch.save((epochs, facts, own.stats()["cache"]["hits"]), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils"])
def test_both_versions_of_ray_train_are_known(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError:
        pytest.skip("Ray Train is not installed")
    loader: Any = fl.DataLoader(Regression())
    arguments = {"num_workers": loader.num_workers}
    assert type(module.DataLoader(Regression(), **arguments)) is fl.DataLoader  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "seed": 1}, {}])
def test_each_rank_gets_its_part_from_our_class(options: Any, tmp_path: pathlib.Path) -> None:
    try:
        importlib.import_module("ray.train.torch.train_loop_utils")
    except ImportError:
        pytest.skip("Ray Train is not installed")
    mp.start_processes(_prepare, (str(tmp_path), options), nprocs=2, start_method="forkserver")
    (mine, facts, hits), (theirs, other_facts, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert facts == other_facts == (True, True, 6, "skip")
    for first, second in zip(mine, theirs, strict=True):
        assert sorted(index for batch in [*first, *second] for index in batch) == [*range(3), *range(4, 22)]
    assert hits > 0
