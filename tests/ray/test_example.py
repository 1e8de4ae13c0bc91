"""The script of examples/ray, run as a reader runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray.train.torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(620)]

SCRIPT = Path(__file__).parents[2] / "examples" / "ray" / "train.py"


@pytest.fixture
def folder() -> Iterator[str]:
    """A short path: those of Ray's sockets, which lie in it, must be."""
    path = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_a_trainer_learns_from_batches_made_in_the_cluster(folder: str, tmp_path: Path) -> None:
    arguments = ["--samples", "512", "--epochs", "2", "--storage", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        env={**os.environ, "RAY_TMPDIR": folder},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    # (Ray repeats what its workers print, with their names before it.)
    said = re.findall(r"epoch (\d): loss (\S+); (\d+) samples", ended.stdout)
    assert [(epoch, samples) for epoch, _, samples in said] == [("0", "512"), ("1", "1024")]
    assert float(said[1][1]) < float(said[0][1])
