"""Scripts with a loader, for ``foreload profile``."""

from __future__ import annotations

import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "from foreload.cli.main import main; main()", "profile"]

LOADER = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Rows(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index): return torch.full((3,), float(index))
"""


def write(folder: Path, text: str, *, loader: bool = True) -> Path:
    script = folder / "script.py"
    script.write_text((LOADER if loader else "") + text)
    return script
