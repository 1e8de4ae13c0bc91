"""The default start method of Python 3.14 on Linux, ``forkserver``, made this Python's: nobody has chosen it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.programs import python

SCRIPT = """
import json, multiprocessing, os, sys
import torch
import foreload as fl

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 50
    def __getitem__(self, index): return index * index, torch.rand(()), os.getppid()

def epochs(kind):
    order = torch.Generator().manual_seed(7)
    loader = kind(Squares(), 8, shuffle=True, num_workers=2, persistent_workers=True, generator=order)
    return [[part.tolist() for part in batch] for _ in range(2) for batch in loader]

if __name__ == "__main__":
    multiprocessing.context._default_context._default_context = multiprocessing.get_context("forkserver")
    multiprocessing.get_all_start_methods = lambda: ["forkserver", "spawn", "fork"]
    found = [epochs(torch.utils.data.DataLoader), epochs(fl.DataLoader)]
    json.dump([os.getpid(), multiprocessing.get_start_method(), found], sys.stdout)
"""


@pytest.mark.slow
def test_epochs_are_torchs_where_forkserver_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = python(tmp_path / "script.py")
    assert done.returncode == 0, done.stderr
    main, method, (stock, ours) = json.loads(done.stdout)
    assert method == "forkserver"
    assert len(ours) == 14
    assert [batch[:2] for batch in ours] == [batch[:2] for batch in stock]
    # A fork of the script would be its child.
    assert main not in {parent for batch in ours for parent in batch[2]}
