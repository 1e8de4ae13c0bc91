"""Scripts with a loader, for ``foreload profile``."""

from __future__ import annotations

from pathlib import Path

# For programs, which are forks; the script that one runs has an interpreter of its own.
COMMAND = ["-m", "foreload", "profile"]

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
