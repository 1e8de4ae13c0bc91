"""The budget of a dataset for images that it keeps: their number, their bytes, and the order of eviction."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreload as fl
from foreload import LoadingMode
from foreload.cache.forms import ENCODED, VIEW
from tests.datasets.kept_images import HEIGHT, TRANSFORMS, WIDTH, photo, write

# What a block in the store takes beside the image: a header of the image, one of the block, and rounding.
OVERHEAD = (128, 192)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resize", 3 * 20 * 28),
        ("bytes", 3 * 20 * 20),
        ("channels last", 3 * 24 * 24),
        ("train", WIDTH * HEIGHT + 2 * (WIDTH // 2) * ((HEIGHT + 1) // 2)),
        ("python", WIDTH * HEIGHT + 2 * (WIDTH // 2) * ((HEIGHT + 1) // 2)),
    ],
)
@pytest.mark.parametrize("arguments", [{}, {"preload": True}])
def test_an_image_takes_the_bytes_that_are_documented(
    tmp_path: Path, name: str, size: int, arguments: dict[str, Any]
) -> None:
    paths = []
    for number in range(10):
        paths.append(tmp_path / f"{number}.jpg")
        photo(number).save(paths[-1], quality=95, subsampling=2)
    dataset = fl.HighPerformanceDataset(paths, list(range(10)), TRANSFORMS[name], **arguments)
    for index in range(10):
        dataset[index]
    stats = dataset.cache_stats()
    assert stats["size"] == stats["capacity"] if arguments else 10
    assert 10 * (size + OVERHEAD[0]) <= stats["bytes"] <= 10 * (size + OVERHEAD[1])


def test_pixels_without_planes_take_three_bytes(tmp_path: Path) -> None:
    photo(1).save(tmp_path / "1.png")
    photo(2).save(tmp_path / "2.jpg", subsampling=0)
    for path in tmp_path.iterdir():
        dataset = fl.HighPerformanceDataset([path], [0], TRANSFORMS["train"])
        dataset[0]
        size = 3 * WIDTH * HEIGHT
        assert size + OVERHEAD[0] <= dataset.cache_stats()["bytes"] <= size + OVERHEAD[1]


class Oracle:
    """The indices that are kept, least recently used first, and what happened."""

    def __init__(self, size: int) -> None:
        self.size, self.kept = size, OrderedDict[int, None]()
        self.hits = self.misses = 0

    def request(self, index: int) -> None:
        is_kept = index in self.kept
        self.hits, self.misses = self.hits + is_kept, self.misses + (not is_kept)
        self.kept[index] = None
        self.kept.move_to_end(index)
        if len(self.kept) > self.size:
            self.kept.popitem(last=False)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [fl.ImageDataset, fl.HighPerformanceDataset])
@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("name", ["resize", "train", "train, fast", "python"])
def test_the_least_recently_used_image_is_evicted(tmp_path: Path, name: str, size: int, kind: Any) -> None:
    paths = write(tmp_path / "images")
    dataset = kind(paths, labels=[0] * len(paths), transform=TRANSFORMS[name], cache_size=size)
    oracle = Oracle(size)
    random = np.random.default_rng(size)
    for number in range(300):
        index = int(min(len(paths) - 1, random.geometric(0.1)))
        dataset[index]
        oracle.request(index)
        if number % 10 == 0:
            assert np.flatnonzero(dataset._cache.store.residents()).tolist() == sorted(oracle.kept)
    counts = dataset._cache.counts()
    assert (counts["hits"], counts["misses"]) == (oracle.hits, oracle.misses)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", [LoadingMode.LAZY, LoadingMode.CACHED])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_no_more_images_are_kept_than_asked_for(tmp_path: Path, mode: LoadingMode, workers: Any) -> None:
    write(tmp_path / "images")
    for name in ("resize", "train", "python"):
        dataset = fl.ImageDataset(tmp_path / "images", transform=TRANSFORMS[name], loading_mode=mode, cache_size=5)
        loader = fl.DataLoader(dataset, 3, shuffle=True, seed=0, num_workers=4, workers=workers)
        assert dataset._cache is not None
        first = None
        for _ in range(4):
            for _ in loader:
                assert len(dataset._cache) <= 5
            kept = dataset._cache.store.residents()
            assert kept.sum() == 5
            if mode is LoadingMode.CACHED:
                assert first is None or np.array_equal(kept, first), "a fixed set"
            first = kept
        loader.close()


def test_what_is_kept_is_bytes_until_it_is_used_again(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(3)]
    for number, path in enumerate(paths):
        photo(number).save(path, quality=40, subsampling=2)
    dataset = fl.HighPerformanceDataset(paths, [0, 0, 0], TRANSFORMS["train"], cache_size=2)
    whole = 1.5 * WIDTH * HEIGHT
    dataset[0]
    assert dataset.cache_stats()["bytes"] < paths[0].stat().st_size + OVERHEAD[1] < whole
    dataset[0]
    assert whole < dataset.cache_stats()["bytes"]
    assert (dataset.cache_stats()["hits"], dataset.cache_stats()["misses"]) == (1, 1)


def test_what_does_not_fit_decoded_is_kept_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(8)]
    for number, path in enumerate(paths):
        photo(number, 400, 300).save(path, quality=30, subsampling=2)
    encoded = sum(path.stat().st_size + OVERHEAD[1] for path in paths)
    assert encoded < 8 * 1.5 * 400 * 300 / 2
    monkeypatch.setattr("foreload.datasets.images.cache.granted_memory", lambda: int(1.2 * encoded))
    dataset = fl.ImageDataset(paths, transform=TRANSFORMS["train"], loading_mode=LoadingMode.EAGER)
    assert dataset._cache is not None
    assert dataset._cache.forms.tolist() == [ENCODED] * 8
    assert len(dataset._cache) == 8
    for path in paths:
        path.unlink()
    assert [image.shape for image, _ in dataset] == [(3, 24, 24)] * 8
    view = fl.ImageDataset(write(tmp_path / "images"), 24, loading_mode=LoadingMode.EAGER)
    assert view._cache is not None
    assert set(view._cache.forms) == {VIEW}


def test_memory_that_is_short_is_given_back(tmp_path: Path) -> None:
    write(tmp_path / "images")
    for name in ("resize", "python"):
        dataset = fl.ImageDataset(tmp_path / "images", transform=TRANSFORMS[name])
        shown = [image for image, _ in dataset]
        assert dataset._cache is not None
        assert len(dataset._cache) == len(dataset)
        pressure = dataset._cache._check_memory.__self__  # type: ignore[attr-defined]
        pressure._available = lambda: 0
        pressure._next = 0
        dataset[0]
        assert len(dataset._cache) < len(dataset)
        assert len(dataset._cache.decisions) == 1
        assert np.array_equal(dataset[5][0], shown[5])
