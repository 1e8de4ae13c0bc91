"""The commands in README.md and docs/: each runs as it stands, on a folder of photos and a script that trains."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from foreload.cli.commands import app
from tests.programs import python
from tests.test_documents import ROOT, photos

TRAIN = """
import argparse

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index * index))


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=2)
    for _ in range(options.parse_args().epochs):
        for batch in DataLoader(Squares(), 4):
            batch.mean()
"""

# These run until they are told to end: tests/cli tests the page.
ENDLESS = "foreload serve"
# Its contestants take longest to start; tests/cli runs it on a folder, with more options.
LONG = "foreload bench"


def commands() -> list[str]:
    """Return the lines of foreload's commands in shell blocks, without those that end nowhere."""
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        block
        for document in documents
        for block in re.findall(
            r"^```(?:sh|bash|console)\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE
        )
    ]
    lines = [" ".join(shlex.split(line, comments=True)) for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("foreload ") and not line.startswith(ENDLESS)})


def test_there_are_commands() -> None:
    assert {line.split()[1] for line in commands()} >= {"doctor", "profile", "bench", "plan", "pack"}


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "photos")
    photos(tmp_path / "path" / "to" / "data")
    (tmp_path / "my" / "package").mkdir(parents=True)
    for script in ("train.py", "my/package/train.py"):
        (tmp_path / script).write_text(TRAIN)
    name, *arguments = command.split()[1:]
    if command.startswith(LONG):
        typer.main.get_command(app).commands[name].make_context(
            name, arguments
        )  # raises for what it does not know
        return
    done = python("-m", "foreload", name, *arguments, folder=tmp_path)
    if "--nsys" in arguments and done.returncode:
        pytest.skip(f"Nsight Systems: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    for option in ("--plot", "--json", "--trace"):
        if option in arguments:
            assert (tmp_path / arguments[arguments.index(option) + 1]).stat().st_size > 100
