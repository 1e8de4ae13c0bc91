"""The benchmark that leaves out what records still finds it in the code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import foreload as fl
from foreload import _native

PROGRAMS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_recorded_where_nothing_should_be(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "Work", _native.Work)  # which the program replaces
    monkeypatch.setattr(sys, "path", [str(PROGRAMS / "record"), str(PROGRAMS), *sys.path])
    import overhead  # type: ignore[import-not-found]

    loader = fl.DataLoader(TensorDataset(torch.arange(64)), batch_size=8, num_workers=workers)
    for is_quiet in (False, True, False):
        before = loader.stats()["batches"]
        if is_quiet:
            with overhead.Quiet():
                assert len(list(loader)) == 8
        else:
            assert len(list(loader)) == 8
        assert loader.stats()["batches"] - before == (0 if is_quiet else 8)
