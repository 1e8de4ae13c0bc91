"""The simulator of benchmarks/scale.py counts the hits that real ranks have."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import foreload as fl
from foreload.cache import budget, sharing
from foreload.cache.serialize import serialize
from foreload.cache.store import block_size
from tests.ranks import run_ranks

SPEC = importlib.util.spec_from_file_location("layouts", Path(__file__).parents[1] / "benchmarks" / "layouts.py")
assert SPEC is not None
assert SPEC.loader is not None
layouts: Any = sys.modules.setdefault("layouts", importlib.util.module_from_spec(SPEC))
SPEC.loader.exec_module(layouts)

SAMPLES, EPOCHS, BATCH, WORLD = 4000, 3, 16, 4
ITEM = block_size(sum(map(len, serialize(torch.zeros(8, dtype=torch.int64)))))


class Rows(Dataset[torch.Tensor]):
    thread_safe = True

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index)


def train(rank: int, world: int, machines: int, capacity: int, options: dict[str, Any]) -> list[int]:
    """Load epochs as one rank of a machine; return the hits of this machine after each."""
    names = f"machine {rank // (world // machines)}"
    sharing.machine_name = lambda: names
    if options.pop("as_if_many", False):
        budget._MUCH_BYTES = 0
    cache = fl.Cache(capacity * ITEM, **options)
    loader: Any = fl.DataLoader(Rows(), BATCH, shuffle=True, seed=3, num_workers=0, cache=cache)
    hits = []
    for _ in range(EPOCHS):
        for _ in loader:
            dist.barrier()  # as every step of a training has one
        hits.append(loader.stats()["cache"]["hits"])
        dist.barrier()
    return hits


def real_hits(tmp_path: Path, machines: int, capacity: int, options: dict[str, Any]) -> Any:
    """Return the share of hits of each machine in each epoch."""
    got = run_ranks(train, WORLD, tmp_path, machines, capacity, options)
    hits = np.array(got[:: WORLD // machines])
    return np.diff(hits, axis=1, prepend=0) / (SAMPLES // machines)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2, 4])
@pytest.mark.parametrize(
    ("cache", "options"),
    [
        ("foreload, routed", {"route": True}),
        ("foreload, planned", {}),
        ("LRU", {"policy": "lru"}),
        ("foreload, more than 2 million samples", {"as_if_many": True}),
    ],
    ids=["routed", "planned", "lru", "many"],
)
def test_simulated_hits_are_those_of_real_ranks(
    machines: int, cache: str, options: dict[str, Any], tmp_path: Path
) -> None:
    capacity = SAMPLES // 4
    layout = layouts.Layout(WORLD, SAMPLES, capacity, BATCH, WORLD // machines, seed=3)
    simulated = np.array([layouts.hits(cache, layout, machine, EPOCHS) for machine in range(machines)])
    real = real_hits(tmp_path, machines, capacity, dict(options))
    print(cache, machines, real.round(3).tolist(), simulated.round(3).tolist())
    # Ranks of one machine are in step, but not within a step.
    assert np.abs(real - simulated).max() <= (0.0 if "route" in options else 0.01)


def test_traffic_is_what_caches_do_not_have() -> None:
    layout = layouts.Layout(32, 4096, 1024)
    pooled = layouts.traffic("pooled", layout, 1.0)
    assert (pooled.storage, pooled.between, pooled.per_machine) == (0.0, 0.75, 0.75 / 4)
    routed = layouts.traffic("foreload, routed", layout, 0.9)
    assert (round(routed.storage, 3), routed.between) == (0.1, 0.0)


def test_what_a_cluster_loads_is_each_sample_once_with_routing_too() -> None:
    layout = layouts.Layout(32, 5000, 100)
    router = layouts.Router(layout.samples, layout.ranks)
    for swaps in (None, router):
        found = np.concatenate([layout.accesses(machine, 1, swaps) for machine in range(layout.machines)])
        assert set(found.tolist()) == set(range(layout.samples))
        assert len(found) == -(-layout.samples // layout.ranks) * layout.ranks


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--kind", "rooted", "--samples", "100"), "rooted"),
        (("--kind", "routed", "--samples", "0"), "--samples"),
        (("--kind", "routed", "--samples", "100", "--ranks", "0"), "--ranks"),
    ],
)
def test_a_wrong_argument_of_the_planner_is_named(
    arguments: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kind that does not exist was measured as a shuffled order."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["planner.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("planner").main()
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_the_planner_knows_the_kinds_that_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    planner, scale = importlib.import_module("planner"), importlib.import_module("scale")
    assert {kind for kind, _ in scale.KINDS} == set(planner.KINDS)
