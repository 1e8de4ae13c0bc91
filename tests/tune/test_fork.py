"""A fork leaves nothing behind: no output, no position of an open file, no process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from foreload.tune.fork import forked


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
