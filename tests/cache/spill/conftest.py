"""A spill folder, empty or filled by an earlier run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cache.spill.trapped import Words, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spill"


@pytest.fixture
def filled(folder: Path) -> Path:
    """A folder that an earlier run has filled."""
    loaded, said = run(Words(), folder)
    assert sorted(loaded) == list(range(24)), said
    assert not said
    return folder
