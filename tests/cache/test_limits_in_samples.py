"""A cache with a limit in samples takes the memory of so many, however many have been loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler

import foreload as fl

IMAGES, KEPT = 80, 6
BYTES = 3 * 64 * 64 + 192


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{index:03}.png" for index in range(IMAGES)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    return paths


@pytest.mark.parametrize("transform", [fl.transforms.val(64), fl.transforms.train(64), np.asarray], ids=str)
def test_images_that_were_used_long_ago_give_their_memory_back(transform: Any, files: list[Path]) -> None:
    images = fl.HighPerformanceDataset(files, [0] * IMAGES, transform, KEPT)
    for _ in range(2):
        for index in range(IMAGES):
            _ = images[index]
            assert images.cache_stats()["bytes"] <= (KEPT + 1) * BYTES
    assert images.cache_stats()["size"] == KEPT


@pytest.mark.parametrize("workers", [0, 2])
def test_several_workers_share_what_they_gave_back(workers: int, files: list[Path]) -> None:
    images = fl.HighPerformanceDataset(files, [0] * IMAGES, fl.transforms.val(64), KEPT)
    for _ in range(2):
        for make in (DataLoader, fl.DataLoader):
            list(make(images, batch_size=8, shuffle=True, num_workers=workers))
    # (A worker's batch of 8 may be in the making.)
    assert images.cache_stats()["bytes"] <= (KEPT + 8 * max(1, workers)) * BYTES


@pytest.mark.filterwarnings("ignore:OPTCache. the requests are not:UserWarning")
@pytest.mark.parametrize("foretold", [True, False])
def test_the_optimal_cache_takes_what_its_samples_take(foretold: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    fl.OPTInit(RandomSampler, generator, 1000)

    class Rows(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 1000

        @fl.OPTCache(maxsize=50)
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((250,), float(index))

    rows: Any = Rows()
    method: Any = Rows.__getitem__
    sampler = RandomSampler(rows, replacement=True, generator=generator)
    for _ in range(3):
        for index in sampler if foretold else range(1000):
            assert (rows[index] == index).all()
    assert 0 < method.stats()["used"] <= 150 * 1500, method.stats()
