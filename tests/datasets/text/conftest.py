"""Files of texts, and what plain Python makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

LINES = ["hello", "", "Grüße, 世界 😀", "x" * 40, " tab\tand space ", "end"]


def code_points(text: str, length: int) -> list[int]:
    return [ord(c) for c in text[:length]] + [0] * (length - len(text))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_bytes("\n".join(LINES).encode())
    return file


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "reviews"
    for name, files in {"pos": {"b": "fine\n", "a": "good"}, "neg": {"c": "\ufeffbad\nvery"}}.items():
        for file, text in files.items():
            write(root / name / f"{file}.txt", text)
        write(root / name / "ignored.md", "no")
    return root


def words(text: str) -> torch.Tensor:
    return torch.tensor([len(word) for word in text.split()], dtype=torch.int32)
