"""Files that tests of arguments and messages take."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two images of one colour."""
    paths = [tmp_path / f"{name}.png" for name in "ab"]
    for path in paths:
        Image.new("RGB", (4, 4)).save(path)
    return [str(path) for path in paths]
