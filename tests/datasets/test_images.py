"""Pixels: as Pillow gives them for the same box; the same for any number of workers."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import _native, transforms
from foreload.cache.forms import ENCODED
from tests.conftest import jpeg, photo
from tests.pairwise import pairwise

warnings.filterwarnings("ignore", message="This DataLoader will create")


def loaded(path: Path, transform: Any, seed: int = 0) -> torch.Tensor:
    """One image through the loader."""
    dataset = fl.ImageDataset([path], transform=transform)
    ((images, _),) = fl.DataLoader(dataset, batch_size=1, seed=seed, num_workers=0)
    return images[0]


def by_pillow(image: Image.Image, transform: transforms.ImageTransform, seed: int = 0) -> np.ndarray:
    """The same box of the same image, resized by Pillow: height x width x 3."""
    box, full, (top, left), mirrored = _native.view(transform.native, *image.size, seed, 0, 0)
    x, y, width, height = box
    image = image.convert("RGB").crop((x, y, x + width, y + height))
    image = image.resize((full[1], full[0]), Image.Resampling.BILINEAR)
    image = image.crop((left, top, left + transform.size[1], top + transform.size[0]))
    return np.asarray(ImageOps.mirror(image) if mirrored else image).astype(int)


def assert_close(ours: torch.Tensor, theirs: np.ndarray) -> None:
    difference = np.abs(ours.permute(1, 2, 0).numpy().astype(int) - theirs)
    assert difference.max() <= 2
    assert difference.mean() <= 0.5


def checkerboard(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray((((x // 3 + y // 3) % 2) * 255).astype(np.uint8)).convert("RGB")


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8))


SIZES = [(500, 375), (331, 457), (64, 64), (1, 1), (1, 90), (300, 2), (17, 23)]
KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "optimised": {"optimize": True},
    "restarts": {"restart_marker_blocks": 3},
    "coarse": {"quality": 20},
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("make", "kind", "pixels"), pairwise([photo, checkerboard, noise], sorted(KINDS), SIZES))
def test_pixels_are_pillows(tmp_path: Path, make: Any, kind: str, pixels: tuple[int, int]) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(jpeg(make(*pixels), **KINDS[kind]))
    image = Image.open(path)
    for size in (224, (31, 57)):
        for seed in range(3):
            transform = transforms.train(size, color_jitter=None, normalize=False)
            assert_close(loaded(path, transform, seed), by_pillow(image, transform, seed))
        for transform in (
            transforms.val(size, normalize=False, resize=300),
            transforms.resize(size, normalize=False),
        ):
            assert_close(loaded(path, transform), by_pillow(image, transform))


@pytest.mark.slow
def test_a_large_reduction_is_pillows_too(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    path.write_bytes(jpeg(photo(3000, 2200)))
    for size in (8, 32, (5, 300)):
        transform = transforms.resize(size, normalize=False)
        assert_close(loaded(path, transform), by_pillow(Image.open(path), transform))
    # The quick way stays near: it blurs a little differently.
    exact = loaded(path, transforms.resize(64, normalize=False)).int()
    fast = loaded(path, transforms.resize(64, normalize=False, mode="fast")).int()
    assert (exact - fast).abs().float().mean() < 3


def test_validation_resizes_and_crops_as_torchvision_does(tmp_path: Path) -> None:
    for width, height in ((500, 375), (375, 500), (224, 224), (640, 431)):
        path = tmp_path / f"{width}.jpg"
        path.write_bytes(jpeg(photo(width, height)))
        image = Image.open(path)
        scaled = (256, int(256 * height / width)) if width <= height else (int(256 * width / height), 256)
        image = image.resize(scaled, Image.Resampling.BILINEAR)
        top, left = round((scaled[1] - 224) / 2.0), round((scaled[0] - 224) / 2.0)
        expected = np.asarray(image.crop((left, top, left + 224, top + 224))).astype(int)
        assert_close(loaded(path, transforms.val(224, normalize=False)), expected)


def test_normalised_values_and_layouts_are_the_same_pixels(photos: Path) -> None:
    def batch(**options: Any) -> torch.Tensor:
        dataset = fl.ImageDataset(photos, transform=transforms.train(48, color_jitter=None, **options))
        images, _ = next(iter(fl.DataLoader(dataset, batch_size=8, seed=3)))
        return images

    pixels = batch(normalize=False)
    assert pixels.dtype is torch.uint8
    assert pixels.shape == (8, 3, 48, 48)
    mean, std = torch.tensor(transforms.IMAGENET_MEAN), torch.tensor(transforms.IMAGENET_STD)
    expected = (pixels / 255 - mean[:, None, None]) / std[:, None, None]
    for images in (batch(), batch(channels_last=True)):
        assert images.dtype is torch.float32
        assert torch.allclose(images, expected, atol=1e-5)
    last = batch(channels_last=True, normalize=False)
    assert torch.equal(last, pixels)
    assert last.is_contiguous(memory_format=torch.channels_last)
    other = batch(mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0))
    assert torch.allclose(other[:, 0], (pixels[:, 0] / 255 - 0.5) / 0.25, atol=1e-5)


@pytest.mark.parametrize("jitter", [None, (0.4, 0.3, 0.2, 0.1)])
def test_batches_do_not_depend_on_the_workers(photos: Path, jitter: Any) -> None:
    dataset = fl.ImageDataset(photos, transform=transforms.train(64, color_jitter=jitter))

    def epochs(**arguments: Any) -> list[torch.Tensor]:
        loader = fl.DataLoader(dataset, batch_size=7, shuffle=True, **arguments)
        out = [torch.cat([images for images, _ in loader]) for _ in range(2)]
        loader.close()
        return out

    reference = epochs(seed=5, num_workers=0)
    assert not torch.equal(reference[0].sort(0).values, reference[1].sort(0).values)
    for arguments in ({"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 7}):
        for a, b in zip(epochs(seed=5, **arguments), reference, strict=True):
            assert torch.equal(a, b)
    torch.manual_seed(1)
    first = epochs(num_workers=2)
    torch.manual_seed(1)
    assert torch.equal(epochs(num_workers=0)[1], first[1])
    assert not torch.equal(first[0], reference[0])


def test_augmentation_does_not_depend_on_batches_or_order(photos: Path) -> None:
    dataset = fl.ImageDataset(photos, transform=transforms.train(32))
    one = torch.cat([x for x, _ in fl.DataLoader(dataset, batch_size=9, seed=2)])
    other = torch.cat([x for x, _ in fl.DataLoader(dataset, batch_size=5, sampler=range(39, -1, -1), seed=2)])
    assert torch.equal(one, other.flip(0))
    subset = torch.utils.data.Subset(dataset, [4, 30])
    assert torch.equal(next(iter(fl.DataLoader(subset, batch_size=2, seed=2)))[0], one[[4, 30]])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_come_upright(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.jpg"
    path.write_bytes(jpeg(photo(90, 61), exif=exif, subsampling=0))
    upright = ImageOps.exif_transpose(Image.open(path))
    for transform in (
        transforms.resize(40, normalize=False),
        transforms.train(40, color_jitter=None, normalize=False),
    ):
        assert_close(loaded(path, transform, 3), by_pillow(upright, transform, 3))
    seen = fl.ImageDataset([path], transform=np.asarray)[0][0]
    assert np.array_equal(seen, np.asarray(upright))


def test_a_custom_collate_sees_samples(photos: Path) -> None:
    dataset = fl.ImageDataset(photos, transform=transforms.train(16, color_jitter=None))
    plain = [x for x, _ in fl.DataLoader(dataset, batch_size=8, seed=1)]
    for workers in (0, 2):
        loader = fl.DataLoader(
            dataset, batch_size=8, seed=1, num_workers=workers, collate_fn=lambda s: torch.stack([x for x, _ in s])
        )
        assert all(torch.equal(a, b) for a, b in zip(loader, plain, strict=True))


def test_all_at_the_start_must_fit_into_memory(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fl.pack(photos, tmp_path)
    monkeypatch.setattr("foreload.datasets.images.cache.granted_memory", lambda: 10_000)
    for path in (photos, tmp_path):
        with pytest.raises(MemoryError, match=r"which do not fit into 9,000; use LoadingMode\.CACHED"):
            fl.ImageDataset(path, loading_mode=fl.LoadingMode.EAGER)


@pytest.mark.parametrize("kind", [fl.ImageDataset, fl.HighPerformanceDataset])
def test_a_subclass_is_asked_for_its_samples(photos: Path, kind: Any) -> None:
    class Numbered(kind):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return (*super().__getitem__(index), index)

    dataset = Numbered(photos, transform=transforms.val(16))
    assert dataset[5][2] == 5
    for loader in (fl.DataLoader, TorchDataLoader):
        batches = [numbers.tolist() for _, _, numbers in loader(dataset, 16)]
        assert batches == [list(range(16)), list(range(16, 32)), list(range(32, 40))]


def test_bytes_decode_as_pillow_decodes_them() -> None:
    from foreload.datasets.images.decode import decode_image

    data = jpeg(photo(70, 50))
    assert np.array_equal(decode_image(data), np.asarray(Image.open(io.BytesIO(data))))


@pytest.mark.parametrize("keep", ["encoded", "auto"])
def test_what_reading_costs_is_known_also_of_images_that_are_read_together(photos: Path, keep: Any) -> None:
    dataset = fl.ImageDataset(photos, transform=fl.transforms.val(32))
    loader = fl.DataLoader(dataset, batch_size=len(dataset), num_workers=0, cache=fl.Cache("1GiB", keep=keep))
    dataset._files.expect_cold()
    list(loader)
    costs = dataset.form_costs()
    assert (costs[:2] > 0).all()
    list(loader)  # hits cost neither
    assert (dataset.form_costs() == costs).all()


def test_images_are_kept_as_the_plan_of_their_epoch_says(photos: Path) -> None:
    used = []
    for keep_files in (True, False):
        dataset = fl.ImageDataset(photos, transform=fl.transforms.val(32))
        loader = fl.DataLoader(dataset, batch_size=len(dataset), num_workers=0, cache="1GiB")
        epoch = iter(loader)
        assert loader.sample_cache is not None
        if keep_files:  # as a plan may decide when the first indices are drawn, after the epoch has begun
            loader.sample_cache.forms = np.full(len(dataset), ENCODED, np.uint8)
        list(epoch)
        used.append(loader.stats()["cache"]["used"])  # type: ignore[index]
    assert used[0] < used[1]
