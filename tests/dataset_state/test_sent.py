"""Values set while worker processes start are seen: they are in none of their copies, or in only some."""

from __future__ import annotations

import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.names import modules_used
from tests.programs import python


class Held:
    def __init__(self) -> None:
        self.scale, self.tensor, self.array = 1, torch.arange(4), np.arange(4)


def _send(held: Held) -> None:
    ForkingPickler.dumps(held)  # as processes that are not forked get it


def _set_scale(held: Held) -> None:
    held.scale = 10


def _set_array(held: Held) -> None:
    held.array[1] = 10


def _set_tensor(held: Held) -> None:
    held.tensor[1] = 10


def _set_data(held: Held) -> None:
    held.tensor.data = torch.arange(4) + 1


@pytest.mark.parametrize("is_sent_first", [True, False])
@pytest.mark.parametrize(
    ("change", "name"),
    [(_set_scale, "scale"), (_set_array, "array"), (_set_tensor, "tensor"), (_set_data, "tensor")],
)
def test_what_another_thread_sets_meanwhile_is_seen(change: Any, name: str, is_sent_first: bool) -> None:
    held = Held()
    looked = CopiedState(held)
    assert looked.changed() is None
    for step in (_send, change) if is_sent_first else (change, _send):
        step(held)
    looked.sent()
    assert looked.changed() == name


def test_tensors_that_sending_moves_are_the_same_until_they_are_written_to() -> None:
    held = Held()
    looked = CopiedState(held)
    _send(held)
    looked.sent()
    assert looked.changed() is None
    held.tensor[1] = 10
    assert looked.changed() == "tensor"


WHILE_THEY_START = """
import time, torch, foreload as fl
from foreload.workers.processes import pool

class Scaled(torch.utils.data.Dataset):
    def __init__(self): self.scale = 1
    def __len__(self): return 100_000
    def __getitem__(self, index): time.sleep(0.05); return index * self.scale

dataset = Scaled()
start = pool.ProcessPool.__init__
def start_and_set(self, *arguments):
    start(self, *arguments)
    dataset.scale = 10
pool.ProcessPool.__init__ = start_and_set
batches = iter(fl.DataLoader(dataset, batch_size=2, multiprocessing_context="fork"))
print([next(batches).tolist() for _ in range(3)])
batches.close()
"""


def test_samples_have_what_is_set_while_workers_start(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WHILE_THEY_START)
    done = python(tmp_path / "script.py", folder=tmp_path)
    assert (done.stdout, done.returncode) == ("[[0, 10], [20, 30], [40, 50]]\n", 0), done.stderr


@pytest.mark.parametrize("what", ["names", "constants"])
def test_an_import_in_long_code_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"names": "x.name_{}", "constants": "x = 'text {}'"}[what]
    body = [f"    if x == {number}.5: {line.format(number)}" for number in range(300)]
    lines = ["def load(x):", *body, "    from .settings import size", "    return size"]
    settings = ModuleType("long_code.settings")
    monkeypatch.setitem(sys.modules, "long_code", ModuleType("long_code"))
    monkeypatch.setitem(sys.modules, "long_code.settings", settings)
    known: dict[str, Any] = {"__name__": "long_code.data", "__package__": "long_code"}
    exec("\n".join(lines), known)
    assert settings in modules_used(known["load"])
