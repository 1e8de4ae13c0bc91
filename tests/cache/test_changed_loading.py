"""A cache of images whose loading changes between epochs: by native code in one, by Python in the next."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

import foreload as fl

COUNT = 6

NATIVE = fl.transforms.resize(8, normalize=False)


def pixels(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).float()


def brighter(sample: Any) -> Any:
    return sample[0].float() + 1, sample[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for number in range(COUNT):
        Image.new("RGB", (20, 30), (20 * number, 255 - 20 * number, 7)).save(folder / f"{number}.jpg")
    return folder


# What is set before each of two epochs: of the dataset, and of the loader.
CHANGES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "transform of the dataset": [({"transform": pixels}, {}), ({"transform": NATIVE}, {})],
    "transform of the loader": [({}, {"transform": brighter}), ({}, {"transform": None})],
    "kind of workers": [({}, {"workers": "processes", "num_workers": 1}), ({}, {"workers": "threads"})],
}


@pytest.mark.parametrize("part", [False, True], ids=["whole", "subset"])
@pytest.mark.parametrize("cache", [fl.Cache("1MiB"), fl.Cache("1MiB", keep="encoded"), fl.Cache("4KiB")], ids=str)
@pytest.mark.parametrize("back", [False, True], ids=["to native", "to Python"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_cache_follows_how_images_are_loaded(
    name: str, back: bool, cache: fl.Cache, part: bool, folder: Path
) -> None:
    images = fl.ImageDataset(folder, transform=NATIVE, cache_size=0)
    dataset: Any = Subset(images, range(COUNT)) if part else images
    with fl.DataLoader(dataset, batch_size=3, num_workers=0, cache=cache) as loader:
        for of_dataset, of_loader in CHANGES[name][:: -1 if back else 1]:
            vars(images).update(of_dataset)
            for attribute, value in of_loader.items():
                setattr(loader, attribute, value)
            samples = list(map(loader.transform, dataset)) if loader.transform else dataset
            stock: Any = TorchDataLoader(list(samples), batch_size=3)  # type: ignore[arg-type]
            for _ in range(3):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    batches = list(loader)
                for (shown, targets), (expected, numbers) in zip(batches, stock, strict=True):
                    assert torch.equal(shown, expected)
                    assert torch.equal(targets, numbers)
        if cache.bytes > 4096:
            known = loader.stats()["cache"]
            assert known is not None
            assert known["hits"] == 4 * COUNT  # of two of three epochs before and after
