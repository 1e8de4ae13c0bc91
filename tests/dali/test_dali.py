"""DALI itself under foreload's order, on the CPU; and on a GPU.

It is in no set-up, being large. To run these: ``pip install nvidia-dali-cuda120`` (here 2.4.0), then
``pytest tests/dali tests/datasets/test_decoders.py``.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import foreload as fl
from foreload.dali import DALILoader
from tests.conftest import jpeg, photo

pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.slow
COUNT = 23
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


def decode(source: Any, *, device: str, **options: Any) -> Any:
    """A pipeline that decodes images, pads them to one size, and returns them with their labels."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(num_threads=2, device_id=0 if device == "cuda" else None)
    def images(source: Any) -> Any:
        files, labels = fn.external_source(source, num_outputs=2, batch=True)
        pixels = fn.decoders.image(
            files, device="mixed" if device == "cuda" else "cpu", jpeg_fancy_upsampling=True
        )
        return fn.pad(pixels, axes=(0, 1), shape=(40, 60)), labels

    return images(source, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    paths = []
    for number in range(COUNT):
        paths.append(folder / f"{number:02}.jpg")
        paths[-1].write_bytes(jpeg(photo(30 + number, 40 - number, number)))
    return paths


def make(files: list[Path], device: str, **more: Any) -> DALILoader:
    dataset = fl.ImageDataset(files, labels=list(range(len(files))))
    how: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 2, "num_workers": 2}
    return DALILoader(dataset, decode, pipeline_options={"device": device}, **{**how, **more})


def labels(loader: Any) -> list[list[int]]:
    return [numbers.tolist() for _, numbers in loader]


def expected(epoch: int = 0, **more: Any) -> list[list[int]]:
    order = fl.DataLoader(range(COUNT), **{"batch_size": 5, "shuffle": True, "seed": 2, "num_workers": 0, **more})  # type: ignore[arg-type]
    order.set_epoch(epoch)
    return [batch.tolist() for batch in order]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 2, 7])
def test_images_come_in_the_order_of_the_loader(files: list[Path], device: str, depth: int) -> None:
    loader = make(files, device, depth=depth)
    for epoch in range(3):
        kept = [(images, numbers) for images, numbers in loader]
        assert [numbers.tolist() for _, numbers in kept] == expected(epoch)
        for images, numbers in kept:
            assert images.device.type == device
            for image, number in zip(images.cpu(), numbers.tolist(), strict=True):
                pixels = np.asarray(Image.open(files[number]))
                height, width, _ = pixels.shape
                difference = np.abs(image[:height, :width].numpy().astype(int) - pixels)
                assert difference.max() <= (0 if device == "cpu" else 16)
    assert labels(make(files, device, drop_last=True)) == expected(drop_last=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 3])
def test_an_epoch_goes_on_where_it_was_left(files: list[Path], device: str, depth: int) -> None:
    for stop in (1, 3):
        loader = make(files, device, depth=depth)
        for given, _ in enumerate(loader, 1):
            if given == stop:
                break
        gc.collect()
        again = make(files, device, depth=depth)
        again.load_state_dict(loader.state_dict())
        assert labels(again) == expected()[stop:]
        assert labels(loader) == expected(1)  # by the same pipeline


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_files_that_cannot_be_decoded(files: list[Path], tmp_path: Path, device: str, depth: int) -> None:
    paths = list(files)
    for number in (4, 5, 17):
        paths[number] = tmp_path / f"{number}.jpg"
        paths[number].write_bytes(b"no image" if number == 4 else files[number].read_bytes()[:60])
    for on_error in ("skip", "replace"):
        loader = make(paths, device, depth=depth, on_error=on_error)
        for epoch in range(2):
            for found, wanted in zip(labels(loader), expected(epoch), strict=True):
                kept = [number for number in wanted if number not in (4, 5, 17)]
                assert found == kept if on_error == "skip" else set(found) == set(kept)
                assert on_error == "skip" or len(found) == len(wanted)
        assert sorted((error.index, error.source) for error in loader.errors) == sorted(
            [(number, str(paths[number])) for number in (4, 5, 17)] * 2
        )
    epoch_of = iter(make(paths, device, depth=depth, shuffle=False))
    with pytest.raises(RuntimeError) as caught:
        next(epoch_of)
    assert any("sample 4 (position 4 of its batch)" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError):
        next(epoch_of)
    assert next(epoch_of)[1].tolist() == [10, 11, 12, 13, 14]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_are_whole_while_the_gpu_is_busy(files: list[Path]) -> None:
    busy = torch.randn(2048, 2048, device="cuda")
    loader = make(files, "cuda", depth=3)
    first = {}
    for _ in range(3):
        sums = []
        for images, numbers in loader:
            for _ in range(20):
                busy = busy @ busy / 50
            sums.append((numbers.clone(), images.long().sum((1, 2, 3))))
            del images
        for numbers, found in sums:
            for number, value in zip(numbers.tolist(), found.tolist(), strict=True):
                assert first.setdefault(number, value) == value
