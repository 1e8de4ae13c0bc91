"""Flips that are left to the device: the draws and the pixels of the CPU, whoever makes the batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import transforms
from foreload.transforms import Normalize
from tests.conftest import jpeg, photo

SIZE = 24


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """JPEGs, of which some lie on their side; PNGs, which Pillow decodes; and grey ones."""
    folder = tmp_path_factory.mktemp("mixed")
    paths = []
    for number in range(12):
        picture = photo(50 + 3 * number, 40 + 2 * number, number)
        path = folder / f"{number:02}.{'png' if number % 4 == 0 else 'jpg'}"
        if number % 4 == 0:
            picture.save(path)
        else:
            exif = picture.getexif()
            exif[0x0112] = 1 + number % 8
            path.write_bytes(jpeg(picture.convert("L") if number % 4 == 1 else picture, exif=exif))
        paths.append(path)
    return paths


def train(**more: Any) -> transforms.ImageTransform:
    return transforms.train(SIZE, **more)


def late(**more: Any) -> transforms.ImageTransform:
    return train(normalize=False, flip_on_device=True, **more)


def load(dataset: Any, **more: Any) -> fl.DataLoader[Any]:
    return fl.DataLoader(dataset, **{"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2, **more})


def on_device(dataset: Any, normalize: Normalize, **more: Any) -> fl.DataLoader[Any]:
    return load(dataset, device="cpu", device_transform=normalize, **more)


def assert_same(wanted: Any, found: Any, dtype: torch.dtype = torch.float32) -> None:
    for epoch in range(2):
        wanted.set_epoch(epoch), found.set_epoch(epoch)
        for (images, labels), (same, also) in zip(wanted, found, strict=True):
            assert torch.equal(same, images.to(dtype))
            assert same.stride() == images.stride()
            assert torch.equal(labels, also)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("color_jitter", [None, (0.3, 0.3, 0.3, 0.1)])
def test_images_are_the_same_wherever_they_are_flipped(
    mixed: list[Path], dtype: torch.dtype, channels_last: bool, color_jitter: Any
) -> None:
    wanted = load(fl.ImageDataset(mixed, transform=train(color_jitter=color_jitter, channels_last=channels_last)))
    normalize = Normalize(dtype=dtype, channels_last=channels_last, flip=2)
    for given in (False, True):
        dataset = fl.ImageDataset(mixed, transform=late(color_jitter=color_jitter, channels_last=given))
        assert_same(wanted, on_device(dataset, normalize), dtype)


@pytest.mark.parametrize(
    "more",
    [
        {"num_workers": 0},
        {"workers": "processes"},
        {"cache": "64MiB"},
        {"cache": fl.Cache("64MiB", keep="encoded")},
        {"cache": fl.Cache("64MiB", keep="decoded")},
    ],
    ids=str,
)
def test_whoever_loads_draws_the_same(mixed: list[Path], more: dict[str, Any]) -> None:
    wanted = load(fl.ImageDataset(mixed, transform=train()))
    assert_same(wanted, on_device(fl.ImageDataset(mixed, transform=late()), Normalize(flip=2), **more))


@pytest.mark.parametrize("hflip", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("mode", ["random", "center", "none"])
def test_a_batch_says_which_images_are_to_be_flipped(mixed: list[Path], mode: str, hflip: float) -> None:
    make = lambda **more: transforms.ImageTransform(
        crop=mode, size=(SIZE, SIZE), shorter=SIZE, normalize=False, **more
    )
    plain = load(fl.ImageDataset(mixed, transform=make(hflip=hflip)))
    left = load(fl.ImageDataset(mixed, transform=make(hflip=hflip, flip_on_device=True)))
    count = 0
    for (images, _), (found, _, flips) in zip(plain, left, strict=True):
        assert flips.dtype is torch.bool
        assert torch.equal(torch.where(flips[:, None, None, None], found.flip(-1), found), images)
        count += int(flips.sum())
    assert (count > 0) == (hflip > 0)
    assert (count < len(mixed)) == (hflip < 1)


def test_images_that_fail_do_not_shift_the_flips(mixed: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(mixed[1].read_bytes()[:-40])
    paths = [*mixed[:3], broken, *mixed[3:]]
    for on_error in ("skip", "replace"):
        wanted = load(fl.ImageDataset(paths, transform=train()), on_error=on_error)
        found = on_device(fl.ImageDataset(paths, transform=late()), Normalize(flip=2), on_error=on_error)
        assert_same(wanted, found)
        assert {error.index for error in found.errors} == {3}


def test_other_loaders_get_the_flips_too(mixed: list[Path]) -> None:
    class Own(fl.ImageDataset):
        def read_encoded(self, index: int) -> bytes:
            return super().read_encoded(index)

    stock = TorchDataLoader(fl.ImageDataset(mixed, transform=late()), batch_size=4)
    for images, labels, flips in stock:
        assert (images.dtype, flips.dtype, len(flips)) == (torch.uint8, torch.bool, len(labels))
    # A sample that Python transforms by itself is mirrored at once: nothing is left to be done.
    dataset = Own(mixed, transform=late(hflip=1))
    torch.manual_seed(0)
    image, _, flip = dataset[1]
    torch.manual_seed(0)
    wanted, _ = Own(mixed, transform=train(hflip=1, normalize=False))[1]
    assert flip is False
    assert torch.equal(image, wanted)
    ((images, _, flips),) = TorchDataLoader(torch.utils.data.Subset(dataset, range(3)), batch_size=3)
    assert flips.tolist() == [False] * 3


def test_a_collate_function_is_told_how_many_samples_are_left(mixed: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff no image")
    collate = lambda samples: [len(samples), torch.stack([image for image, *_ in samples])]
    loader = load(
        fl.ImageDataset([*mixed[:4], broken], transform=train()),
        on_error="skip",
        collate_fn=collate,
        num_workers=0,
    )
    ((count, images),) = loader
    assert count == len(images) == 4


def test_what_cannot_be_is_said(mixed: list[Path]) -> None:
    with pytest.raises(ValueError, match="flip_on_device=True needs normalize=False"):
        transforms.train(SIZE, flip_on_device=True)
    with pytest.raises(ValueError, match="too many values to unpack"):  # flips are not lost silently
        for _images, _labels in load(fl.ImageDataset(mixed, transform=late())):
            pass
    loader = on_device(fl.ImageDataset(mixed, transform=train(normalize=False)), Normalize(flip=2))
    with pytest.raises(TypeError, match=r"Normalize\(flip=2\): the batch has no such entry, it has 2 entries"):
        next(iter(loader))
    with pytest.raises(TypeError, match=r"Normalize\(flip=2\) needs a batch with such an entry, got a tensor"):
        Normalize(flip=2)(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_gpu_gives_the_same_bits(mixed: list[Path], dtype: torch.dtype, channels_last: bool) -> None:
    wanted = load(fl.ImageDataset(mixed, transform=train(channels_last=channels_last)))
    normalize = Normalize(dtype=dtype, channels_last=channels_last, flip=2)
    dataset = fl.ImageDataset(mixed, transform=late())
    found = load(dataset, device="cuda", device_transform=normalize)
    for (images, labels), (same, also) in zip(wanted, found, strict=True):
        assert same.is_cuda
        assert torch.equal(same.cpu(), images.to(dtype))
        assert same.stride() == images.stride()
        assert torch.equal(labels, also.cpu())
