"""A fork leaves nothing behind: no output, no position of an open file, no process."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

import foreload as fl
from foreload.forks.fork import forked


@pytest.mark.parametrize("is_temporary", [False, True])
@pytest.mark.parametrize("buffering", [0, -1])
def test_reading_on_in_a_fork_moves_nothing_here(tmp_path: Path, buffering: int, is_temporary: bool) -> None:
    """The fork reads on from where its parent is, who then reads on as if there had been none."""
    path = tmp_path / "lines"
    text = b"".join(b"%9d\n" % number for number in range(10_000))
    path.write_bytes(text)
    with tempfile.TemporaryFile(buffering=buffering) as temporary, path.open("rb", buffering=buffering) as file:
        temporary.write(text)
        temporary.seek(0)
        source: Any = temporary if is_temporary else file
        assert int(source.readline()) == 0
        with forked(lambda into: os.write(into, source.read(50_000)[-10:]) and None) as fork:
            assert int(os.read(fork.pipe, 100)) == 5000
        assert [int(source.readline()) for _ in range(9_999)] == list(range(1, 10_000))


class Writing(Dataset[int]):
    """Writes a file for each sample, in two parts, as compiled code does that keeps what it has computed."""

    def __init__(self, folder: Path, seconds: float, size: int) -> None:
        self.folder, self.seconds, self.size = folder, seconds, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        path = self.folder / f"{os.getpid()}-{index}-{time.monotonic_ns()}"
        file = ctypes.CDLL(None).open(os.fsencode(path), os.O_CREAT | os.O_WRONLY, 0o600)  # which nobody hears of
        os.write(file, b"one half\n")
        time.sleep(self.seconds)
        os.write(file, b"the other\n")
        os.close(file)
        return index


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "size"), [(0.02, 400), (1.2, 40)], ids=["in time", "given up"])
@pytest.mark.parametrize("safe", [False, True], ids=["processes", "threads"])
def test_measuring_cuts_no_sample_in_half(tmp_path: Path, safe: bool, seconds: float, size: int) -> None:
    data = Writing(tmp_path, seconds, size)
    data.thread_safe = safe  # type: ignore[attr-defined]
    loader = fl.DataLoader(data, batch_size=1)
    batches = iter(loader)
    own = str(os.getpid())
    written = [path for path in tmp_path.iterdir() if path.name.partition("-")[0] != own]
    started = loader.stats()["workers"]
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    loader.close()
    assert started["choosing_seconds"] > 0
    assert written
    assert [path.name for path in tmp_path.iterdir() if len(path.read_text().splitlines()) != 2] == []
