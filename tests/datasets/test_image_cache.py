"""Images that a dataset keeps change no pixel, in any worker, and are read again when files change."""

from __future__ import annotations

import copy
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import LoadingMode, transforms
from foreload.dataset_state.digest import changed, digests_of
from foreload.datasets.images.cache import ImageCache
from tests.datasets.kept_images import TRANSFORMS, as_array, photo, write
from tests.pairwise import pairwise

KEPT: dict[str, dict[str, Any]] = {
    "all, lazy": {"loading_mode": LoadingMode.LAZY},
    "some, lazy": {"loading_mode": LoadingMode.LAZY, "cache_size": 7},
    "some, cached": {"loading_mode": LoadingMode.CACHED, "cache_size": 7},
    "all, eager": {"loading_mode": LoadingMode.EAGER},
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_pixels_are_those_without_a_cache(tmp_path: Path, name: str, kept: str) -> None:
    write(tmp_path / "images")
    transform = TRANSFORMS[name]
    plain = fl.ImageDataset(tmp_path / "images", transform=transform, cache_size=0)
    dataset = fl.ImageDataset(tmp_path / "images", transform=transform, **KEPT[kept])
    # A second request of what was kept as bytes decodes it whole; the third one shows that.
    for options in ({"num_workers": 0}, {"num_workers": 2, "workers": "threads"}):
        expected = fl.DataLoader(plain, 5, shuffle=True, seed=1, **options)
        loader = fl.DataLoader(dataset, 5, shuffle=True, seed=1, **options)
        epochs = []
        for _ in range(4):
            found = list(loader)
            for (x, y), (u, v) in zip(found, expected, strict=True):
                assert torch.equal(x, u)
                assert torch.equal(y, v)
            epochs.append({int(label): each for x, y in found for each, label in zip(x, y, strict=True)})
    assert dataset._cache is not None
    assert dataset._cache.counts()["hits"] > 0


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "stock, none": (TorchDataLoader, {"num_workers": 0}),
    "stock, fork": (TorchDataLoader, {"num_workers": 2, "multiprocessing_context": "fork"}),
    "stock, spawn": (
        TorchDataLoader,
        {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    ),
    "fork": (fl.DataLoader, {"num_workers": 2, "workers": "processes"}),
    "spawn": (fl.DataLoader, {"num_workers": 2, "workers": "processes", "multiprocessing_context": "spawn"}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "transform", "mode"),
    pairwise(
        [pytest.param(name, marks=pytest.mark.slow) if "spawn" in name else name for name in KINDS],
        ["train", "resize", "python"],
        [LoadingMode.LAZY, LoadingMode.EAGER],
    ),
)
def test_every_kind_of_worker_uses_one_cache(tmp_path: Path, name: str, transform: str, mode: LoadingMode) -> None:
    kind, options = KINDS[name]
    write(tmp_path / "images")
    plain = fl.ImageDataset(tmp_path / "images", transform=TRANSFORMS[transform], cache_size=0)
    dataset = fl.ImageDataset(tmp_path / "images", transform=TRANSFORMS[transform], loading_mode=mode)
    # (Another start method changes no pixel: what it does to the cache is in question.)
    usual = {**options, "multiprocessing_context": "fork"} if "spawn" in name else options
    loaders = [kind(plain, batch_size=8, **usual), kind(dataset, batch_size=8, **options)]
    epochs = []
    for epoch in range(2):
        batches = []
        for loader in loaders:
            torch.manual_seed(epoch)
            batches.append(torch.cat([x for x, _ in loader]))
        assert torch.equal(*batches)
        epochs.append(batches[0])
    assert torch.equal(*epochs) == (transform != "train"), "what is random is drawn anew in each epoch"
    assert dataset._cache is not None
    counts = dataset._cache.counts()
    assert counts["misses"] == len(dataset), "what one worker has loaded, others do not load again"
    assert counts["hits"] == len(dataset) * (2 if mode is LoadingMode.EAGER else 1)
    for loader in loaders:
        getattr(loader, "close", lambda: None)()


@pytest.mark.parametrize("mode", [LoadingMode.LAZY, LoadingMode.CACHED, LoadingMode.EAGER])
def test_files_are_read_once(tmp_path: Path, mode: LoadingMode) -> None:
    for name in ("resize", "train", "python"):
        paths = write(tmp_path / name)
        dataset = fl.ImageDataset(paths, transform=TRANSFORMS[name], loading_mode=mode)
        loader = fl.DataLoader(dataset, batch_size=5, num_workers=2)
        list(loader)
        for path in paths:
            path.unlink()
        for _ in range(2):
            assert sum(len(images) for images, _ in loader) == len(paths)


@pytest.mark.slow
def test_an_exchanged_transform_shows_the_same_as_without_a_cache(tmp_path: Path) -> None:
    paths = write(tmp_path / "images", 6)
    plain = fl.ImageDataset(paths, cache_size=0)
    for arguments in ({}, {"cache_size": 3}, {"loading_mode": LoadingMode.EAGER}):
        dataset = fl.ImageDataset(paths, transform=TRANSFORMS["resize"], **arguments)
        for name in ("resize", "bytes", "channels last", "fast", "python", "train, fast", "train", "resize"):
            dataset.transform = plain.transform = TRANSFORMS[name]
            for index in (*range(6), *range(6)):
                shown = []
                for one in (dataset, plain):
                    torch.manual_seed(index)
                    shown.append(one[index][0])
                assert np.array_equal(*shown), (name, index)


def test_other_normalisation_needs_no_other_image(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "images", 1)
    dataset = fl.HighPerformanceDataset([path], [0], transforms.val(24))
    shown = dataset[0][0]
    dataset.transform = transforms.val(24, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    path.unlink()
    mean = torch.tensor(transforms.IMAGENET_MEAN).view(3, 1, 1)
    std = torch.tensor(transforms.IMAGENET_STD).view(3, 1, 1)
    assert torch.allclose(dataset[0][0], shown * std + mean, atol=1e-6)


@pytest.mark.parametrize("mode", list(LoadingMode))
@pytest.mark.parametrize("transform", ["resize", "train", "python"])
def test_damaged_images_raise_each_time_and_only_when_asked_for(
    tmp_path: Path, mode: LoadingMode, transform: str
) -> None:
    paths = write(tmp_path / "images", 6)
    paths[1].write_bytes(b"no image")
    paths[2].write_bytes(b"\xff\xd8\xffnothing")
    dataset = fl.ImageDataset(paths, transform=TRANSFORMS[transform], loading_mode=mode)
    for _ in range(2):
        for index in (1, 2):
            with pytest.raises(fl.errors.DecodeError, match=paths[index].name):
                dataset[index]
    loader = fl.DataLoader(dataset, batch_size=6, on_error="skip", num_workers=0)
    for _ in range(3):
        assert [len(images) for images, _ in loader] == [4]


def test_a_missing_file_is_an_error_at_the_start_if_all_are_kept(tmp_path: Path) -> None:
    paths = write(tmp_path / "images", 6)
    for transform in ("resize", "python"):
        for path in (tmp_path / "none.jpg",):
            with pytest.raises(FileNotFoundError, match=r": '.*none\.jpg'"):
                fl.ImageDataset([*paths, path], transform=TRANSFORMS[transform], loading_mode=LoadingMode.EAGER)


def test_a_copy_has_a_cache_of_its_own(tmp_path: Path) -> None:
    paths = write(tmp_path / "images", 6)
    lazy = fl.ImageDataset(paths, 24, cache_size=3)
    eager = fl.ImageDataset(paths, 24, loading_mode=LoadingMode.EAGER)
    for index in range(6):
        lazy[index]
    for make in (copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))):
        other, whole = make(lazy), make(eager)
        assert (len(other._cache), len(whole._cache)) == (0, 6)
        for index in range(6):
            assert torch.equal(other[index][0], lazy[index][0])
        assert np.flatnonzero(other._cache.store.residents()).tolist() == [3, 4, 5], "the most recently used"


def test_the_loaders_own_cache_takes_its_place(tmp_path: Path) -> None:
    dataset = fl.ImageDataset(write(tmp_path / "images"), 24)
    loader = fl.DataLoader(dataset, batch_size=5, num_workers=2, cache=fl.Cache("10MB", keep="encoded"))
    for _ in range(2):
        list(loader)
    assert dataset._cache is not None
    assert dataset._cache.counts()["misses"] == 0
    assert loader.stats()["cache"]["hits"] == len(dataset)


@pytest.mark.parametrize("name", ["resize", "train", "python"])
def test_what_is_kept_is_no_state_of_the_dataset(tmp_path: Path, name: str) -> None:
    dataset = fl.ImageDataset(write(tmp_path / "images"), transform=TRANSFORMS[name], cache_size=5)
    before = digests_of(dataset)
    for index in range(len(dataset)):
        dataset[index]
    assert changed(before, digests_of(dataset)) is None


LOADERS: dict[str, Any] = {
    "one by one": lambda dataset: [dataset[index] for index in range(len(dataset))],
    "stock": lambda dataset: TorchDataLoader(dataset, None),
    "stock, processes": lambda dataset: TorchDataLoader(dataset, None, num_workers=2),
    "threads": lambda dataset: fl.DataLoader(dataset, None, num_workers=2, workers="threads"),
    "processes": lambda dataset: fl.DataLoader(dataset, None, num_workers=2, workers="processes"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("loader", "transform", "mode"),
    pairwise(LOADERS, ["resize", "python"], [LoadingMode.LAZY, LoadingMode.CACHED]),
)
def test_files_that_change_are_read_again(tmp_path: Path, loader: str, transform: str, mode: LoadingMode) -> None:
    paths = write(tmp_path / "images")

    def pixels(dataset: Any) -> list[Any]:
        return [torch.as_tensor(image) for image, _ in LOADERS[loader](dataset)]

    dataset = fl.ImageDataset(paths, transform=TRANSFORMS[transform], loading_mode=mode)
    for change in range(3):
        fresh = fl.ImageDataset(paths, transform=TRANSFORMS[transform], cache_size=0)
        for _ in range(2):
            pairs = zip(pixels(dataset), pixels(fresh), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)
        for path in paths[change::5]:
            about = path.stat()
            photo(100 + change).save(path)
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # as some programs leave it


class Inverted(fl.ImageDataset):
    """Decodes files of its own kind."""

    def read_encoded(self, index: int) -> bytes:
        data = super().read_encoded(index)
        return data[:54] + bytes(255 - value for value in data[54:])


@pytest.mark.filterwarnings("ignore:loading_mode=.* keeps no images")
@pytest.mark.parametrize("mode", list(LoadingMode))
@pytest.mark.parametrize("transform", [as_array, transforms.resize(8, normalize=False)])
def test_a_subclass_may_read_in_its_own_way(tmp_path: Path, mode: LoadingMode, transform: Any) -> None:
    Image.new("RGB", (8, 8), (1, 1, 1)).save(tmp_path / "a.bmp")
    dataset = Inverted([tmp_path / "a.bmp"], transform=transform, loading_mode=mode)
    for loader in (TorchDataLoader, fl.DataLoader):
        for _ in range(2):
            ((images, _),) = loader(dataset)
            assert (images == 254).all()


def test_nothing_is_kept_where_nothing_is_to_be() -> None:
    assert ImageCache.of(10, LoadingMode.LAZY, 0) is None
    assert ImageCache.of(10, LoadingMode.CACHED, 0) is None
    assert ImageCache.of(10, LoadingMode.STREAMING, 5) is None
    assert ImageCache.of(10, LoadingMode.EAGER, 0) is not None


@pytest.mark.slow
def test_shards_are_kept_too(tmp_path: Path) -> None:
    write(tmp_path / "images" / "a" if (tmp_path / "images").mkdir() is None else tmp_path)
    fl.pack(tmp_path / "images", tmp_path / "packed")
    for name in ("resize", "train", "python"):
        plain = fl.ImageDataset(tmp_path / "packed", transform=TRANSFORMS[name], cache_size=0)
        for mode in (LoadingMode.LAZY, LoadingMode.EAGER):
            dataset = fl.ImageDataset(tmp_path / "packed", transform=TRANSFORMS[name], loading_mode=mode)
            for seed in range(2):
                for index in range(len(plain)):
                    shown = []
                    for one in (plain, dataset):
                        torch.manual_seed(seed)
                        shown.append(one[index][0])
                    assert np.array_equal(*shown)
            assert dataset._cache is not None
            assert len(dataset._cache) == len(plain)


def test_a_jpeg_that_only_pillow_reads_is_kept_as_pillow_reads_it(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    photo(3).convert("CMYK").save(buffer, "JPEG", quality=90)
    (tmp_path / "cmyk.jpg").write_bytes(buffer.getvalue())
    for name in ("resize", "train, fast", "python"):
        plain = fl.ImageDataset([tmp_path / "cmyk.jpg"], transform=TRANSFORMS[name], cache_size=0)
        dataset = fl.ImageDataset([tmp_path / "cmyk.jpg"], transform=TRANSFORMS[name])
        for seed in range(3):
            shown = []
            for one in (plain, dataset):
                torch.manual_seed(seed)
                shown.append(one[0][0])
            assert np.array_equal(*shown)
