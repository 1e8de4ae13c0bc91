"""Epochs on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import foreload as fl

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_page_locked_where_they_are_made(photos: Path, workers: int) -> None:
    images = fl.ImageDataset(photos, transform=fl.transforms.train(32))
    tensors = fl.CachedDataset((torch.arange(400.0).view(100, 4), torch.arange(100)))
    for dataset in (images, tensors):
        plain = list(fl.DataLoader(dataset, batch_size=8, num_workers=workers, seed=1))
        pinned = list(fl.DataLoader(dataset, batch_size=8, num_workers=workers, seed=1, pin_memory=True))
        for a, b in zip(plain, pinned, strict=True):
            assert all(field.is_pinned() for field in b)
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_copy_under_way_keeps_its_memory(photos: Path) -> None:
    dataset = fl.ImageDataset(photos, transform=fl.transforms.train(128))
    expected = [x.clone() for x, _ in fl.DataLoader(dataset, batch_size=8, seed=2)]
    loader = fl.DataLoader(dataset, batch_size=8, seed=2, pin_memory=True)
    for _ in range(10):
        loader.set_epoch(0)
        copies = [x.to("cuda", non_blocking=True) for x, _ in loader]
        assert all(torch.equal(a.cpu(), b) for a, b in zip(copies, expected, strict=True))


def test_cached_tensors_are_page_locked() -> None:
    assert fl.CachedDataset(torch.zeros(1000, 8))[0].is_pinned()


def test_memory_at_the_same_address_is_locked_anew() -> None:
    for number in range(5):
        data = fl.CachedDataset(torch.full((1000, 1000), float(number)))
        assert data[0].is_pinned()
        assert (data[:].to("cuda", non_blocking=True) == number).all()
        del data  # the next one's memory is likely to be mapped where this was
