"""A slow dataset for every kind of worker, and what holds of all figures."""

from __future__ import annotations

import json
import time
from typing import Any, get_type_hints

import pytest
import torch
from torch.utils.data import Dataset

from foreload.record.spans import Stage
from foreload.record.stats import Stats

KINDS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}


class Slow(Dataset[Any]):
    def __init__(self, size: int = 12, seconds: float = 0.003) -> None:
        self.size, self.seconds = size, seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((10,), float(index))


def check(stats: Stats) -> None:
    """Assert what holds of all stats."""
    assert stats == json.loads(json.dumps(stats))
    assert list(stats["stages"]) == [stage.name for stage in Stage]
    assert stats.keys() == get_type_hints(Stats).keys()
    assert stats["seconds"] == pytest.approx(stats["wait_seconds"] + stats["loop_seconds"])
    assert stats["stages"]["wait"]["seconds"] == pytest.approx(stats["wait_seconds"])
    assert stats["stages"]["wait"]["count"] >= stats["batches"]
    assert 0 <= stats["wait_share"] <= 1
    assert 0 <= stats["cpu"]["share"] <= 1
    assert 0 <= stats["loop_cpu_seconds"] <= stats["loop_seconds"]
    for stage in stats["stages"].values():
        assert 0 <= stage["cpu_seconds"] <= stage["seconds"] * 1.001 + 1e-6
    if stats["batches"]:
        assert stats["samples_per_second"] == pytest.approx(stats["samples"] / stats["seconds"])
        assert stats["batches_per_second"] == pytest.approx(stats["batches"] / stats["seconds"])
        assert 0 < stats["first_batch_seconds"] <= stats["seconds"]
    batch = stats["batch_seconds"]
    assert 0 <= batch["median"] <= batch["p95"] <= batch["p99"]
