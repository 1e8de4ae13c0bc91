"""DataLoader(cache=) with images: the same pixels, kept before what is random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import RandomSampler

import foreload as fl
from tests.cache.counted import WORKERS
from tests.pairwise import pairwise


def photos(folder: Path, count: int = 24) -> Path:
    (folder / "a").mkdir()
    random = np.random.default_rng(0)
    for i in range(count):
        low = random.integers(0, 255, (7, 9, 3), np.uint8)
        image = Image.fromarray(low).resize((90 + 3 * i, 121 - 2 * i), Image.Resampling.BICUBIC)
        if i % 6 == 5:
            image.save(folder / "a" / f"{i:02}.png")
        elif i % 6 == 4:
            exif = image.getexif()
            exif[0x0112] = 6
            image.save(folder / "a" / f"{i:02}.jpg", exif=exif)
        else:
            image.save(folder / "a" / f"{i:02}.jpg", quality=90, subsampling=i % 3)
    return folder


TRANSFORMS = {
    "train": fl.transforms.train(48, color_jitter=(0.2, 0.2, 0.2, 0.1)),
    "val": fl.transforms.val(48),
    "resize": fl.transforms.resize(50),
}
IN_ORDER: Any = {"batch_size": 5, "shuffle": True, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("cached"))


@pytest.fixture(scope="module")
def uncached(folder: Path) -> dict[str, list[Any]]:
    """The batches of four epochs by each transform, without a cache and without workers."""
    images = {name: fl.ImageDataset(folder, transform=transform) for name, transform in TRANSFORMS.items()}
    loaders = {name: fl.DataLoader(dataset, num_workers=0, **IN_ORDER) for name, dataset in images.items()}
    return {name: [list(loader) for _ in range(4)] for name, loader in loaders.items()}


KEEP, BUDGETS = ["encoded", "decoded", "auto"], ["20KB", "300KB", "10MB"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("keep", "budget", "workers", "name"),
    [
        *pairwise(KEEP, BUDGETS, ["none", "threads"], TRANSFORMS),
        # Torch's workers draw from their own generators.
        *pairwise(
            KEEP, BUDGETS, ["processes"], [name for name, transform in TRANSFORMS.items() if not transform.random]
        ),
    ],
)
def test_images_are_the_same_from_the_cache(
    folder: Path, uncached: dict[str, list[Any]], keep: Any, budget: str, workers: str, name: str
) -> None:
    images = fl.ImageDataset(folder, transform=TRANSFORMS[name])
    cached = fl.DataLoader(images, cache=fl.Cache(budget, keep=keep), **IN_ORDER, **WORKERS[workers])
    for epoch in uncached[name]:
        for (x, y), (u, v) in zip(epoch, cached, strict=True):
            assert torch.equal(x, u)
            assert torch.equal(y, v)
    counts = cached.stats()["cache"]
    assert counts["peak"] <= counts["room"]
    assert counts["hits"] > 0 or (budget == "20KB" and keep != "encoded")


def test_images_with_a_python_transform_are_kept_before_it(tmp_path: Path) -> None:
    shades = iter(range(1000))
    images = fl.ImageDataset(photos(tmp_path), transform=lambda image: (next(shades), image.size))
    loader = fl.DataLoader(images, batch_size=None, num_workers=0, cache="10MB")
    first, second = list(loader), list(loader)
    assert [sample[0][1] for sample in first] == [sample[0][1] for sample in second]
    assert second[0][0][0] == 24
    assert loader.stats()["cache"]["hits"] == 24


def test_images_that_are_damaged_say_so_each_time(tmp_path: Path) -> None:
    images = photos(tmp_path)
    (images / "a" / "03.jpg").write_bytes(b"\xff\xd8\xffnothing")
    loader = fl.DataLoader(fl.ImageDataset(images, 32), batch_size=6, num_workers=2, cache="10MB")
    for _ in range(3):
        with pytest.raises(fl.errors.DecodeError, match=r"03\.jpg"):
            list(loader)


def test_parts_of_a_dataset_of_images_are_kept_before_their_transform(tmp_path: Path) -> None:
    images = fl.ImageDataset(photos(tmp_path), transform=fl.transforms.train(40))
    some = torch.utils.data.Subset(torch.utils.data.Subset(images, range(20, 0, -1)), [0, 3, 4, 9, 12, 19])
    for order in ({"shuffle": True}, {"sampler": RandomSampler(some, replacement=True)}):
        for workers in (0, 2):
            arguments: Any = {"batch_size": 2, "num_workers": workers, **order}
            torch.manual_seed(0)
            plain = [[(x, y) for x, y in fl.DataLoader(some, **arguments)] for _ in range(3)]
            torch.manual_seed(0)
            loader = fl.DataLoader(some, cache="10MB", **arguments)
            for epoch in plain:
                for (x, y), (u, v) in zip(epoch, loader, strict=True):
                    assert torch.equal(x, u)
                    assert torch.equal(y, v)
            counts = loader.stats()["cache"]
            assert counts["samples"] <= 6
            assert counts["hits"] >= 18 - 2 * 6


def test_a_transform_within_is_warned_of(tmp_path: Path) -> None:
    images = fl.ImageDataset(photos(tmp_path), 32)
    both = torch.utils.data.ConcatDataset([images, images])
    with pytest.warns(UserWarning, match="ImageDataset gives them, after its own 'transform'"):
        next(iter(fl.DataLoader(both, cache="1MiB")))
