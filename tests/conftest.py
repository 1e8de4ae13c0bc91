"""Pictures, and a watch over what tests leave behind."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

# The same examples every time, and no clock.
settings.register_profile("foreload", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("foreload")

collect_ignore = ["scripts"]  # run by tests, in processes of their own


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    """Every test ends with the threads that it began with."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 20
    while True:
        left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("foreload")]
        if not left or time.monotonic() > deadline:
            break
        gc.collect()  # which does nothing while another thread is at it
        left[0].join(0.2)  # it may be on its way out
    assert not left


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes, edges and noise, in colour."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (7 + 9 * c) + y / (11 + 5 * c) + seed) for c in range(3)]
    image = 128 + 80 * np.stack(waves, -1) + rng.normal(0, 18, (height, width, 3))
    image[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 255, 3)
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with 40 JPEGs of different sizes."""
    root = tmp_path_factory.mktemp("photos")
    for i in range(40):
        folder = root / f"class_{i % 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"{i:03}.jpg").write_bytes(jpeg(photo(80 + 13 * (i % 7), 60 + 17 * (i % 5), i)))
    return root
