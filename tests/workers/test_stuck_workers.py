"""Persistent workers that were stuck when their epoch was left: others go on with the state of their dataset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

import foreload as fl


class Counting(Dataset[int]):
    """Counts the samples that its copy has loaded; sample 6 takes for ever as long as a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.loaded = 100

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        while index == 6 and self.file.exists():
            time.sleep(0.01)
        self.loaded += 1
        return self.loaded

    def state_dict(self) -> dict[str, int]:
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["loaded"]


def test_the_state_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "stuck"
    file.touch()
    loader = fl.DataLoader(
        Counting(file), batch_size=2, num_workers=1, workers="processes", persistent_workers=True, timeout=3
    )
    epoch: Any = iter(loader)
    assert [next(epoch).tolist() for _ in range(3)] == [[101, 102], [103, 104], [105, 106]]
    with pytest.raises(RuntimeError, match="timed out"):
        next(epoch)
    stuck = epoch._workers
    again: Any = iter(loader)
    file.unlink()
    assert not any(worker.is_alive() for worker in stuck)
    assert next(again).tolist() == [107, 108]
    loader.close()
