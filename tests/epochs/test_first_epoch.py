"""The first epoch of a program, which imports what epochs need."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
import torch, foreload as fl

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return index

loader = fl.DataLoader(Rows(), 8, **eval(sys.argv[1]))
collections = []
gc.callbacks.append(lambda phase, about: collections.append(about))
epoch = iter(loader)
print(len(collections) // 2)  # the start and the end of each
assert sum(map(len, epoch)) == 64
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_workers": 2}, {}])
def test_its_imports_bring_no_collection_of_all_that_torch_has_made_nearer(options: dict[str, int]) -> None:
    command = [sys.executable, "-c", PROGRAM, repr(options)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (run.stderr, run.returncode) == ("", 0)
    assert int(run.stdout) <= 4  # with collections during imports 8 to 10
