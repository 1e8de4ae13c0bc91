"""Transforms of images: their boxes and colours, their arguments, and any callable in their place."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import _native, transforms
from tests.conftest import photo
from tests.datasets.test_images import assert_close, by_pillow

warnings.filterwarnings("ignore", message="This DataLoader will create")


def test_boxes_are_distributed_as_torchvisions() -> None:
    width, height, count = 500, 375, 20000
    rng = np.random.default_rng(0)

    def theirs() -> tuple[int, int]:
        for _ in range(10):
            area = width * height * rng.uniform(0.08, 1)
            ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return w, h
        return width, height

    transform = transforms.train(224).native
    ours = np.array([_native.view(transform, width, height, 1, 0, i)[0] for i in range(count)])
    reference = np.array([theirs() for _ in range(count)])
    for values, expected in (
        (ours[:, 2] * ours[:, 3], reference[:, 0] * reference[:, 1]),
        (ours[:, 2] / ours[:, 3], reference[:, 0] / reference[:, 1]),
    ):
        quantiles = np.linspace(0.05, 0.95, 10)
        assert np.allclose(np.quantile(values, quantiles), np.quantile(expected, quantiles), rtol=0.03)
    assert abs((ours[:, 0] / np.maximum(1, width - ours[:, 2])).mean() - 0.5) < 0.02
    flips = [_native.view(transform, width, height, 1, 0, i)[3] for i in range(count)]
    assert abs(np.mean(flips) - 0.5) < 0.02


def test_in_a_stock_loader_every_access_draws_anew(photos: Path) -> None:
    dataset = fl.ImageDataset(photos, transform=transforms.train(32))
    for workers, context in ((0, None), (2, "fork"), (2, "forkserver")):
        loader = TorchDataLoader(dataset, batch_size=10, num_workers=workers, multiprocessing_context=context)
        torch.manual_seed(0)
        epochs = [torch.cat([images for images, _ in loader]) for _ in range(2)]
        assert epochs[0].shape == (40, 3, 32, 32)
        assert not torch.equal(*epochs)
        torch.manual_seed(0)
        assert torch.equal(torch.cat([images for images, _ in loader]), epochs[0])
    assert not torch.equal(dataset[0][0], dataset[0][0])
    image, target = dataset[-1]
    assert image.shape == (3, 32, 32)
    assert type(target) in (int, torch.Tensor)


def test_transforms_can_be_called_on_images(tmp_path: Path) -> None:
    image = photo(100, 80)
    expected = by_pillow(image, transforms.val(32, normalize=False))
    for form in (image, np.asarray(image), torch.from_numpy(np.array(image)).permute(2, 0, 1)):
        assert_close(transforms.val(32, normalize=False)(form), expected)
    assert transforms.val(32)(image.convert("L")).shape == (3, 32, 32)
    with pytest.raises(TypeError, match="uint8"):
        transforms.val(32)(np.zeros((4, 4, 3)))
    with pytest.raises(TypeError, match="image"):
        transforms.val(32)("a.jpg")  # type: ignore[arg-type]


def test_colour_jitter_stays_in_its_range() -> None:
    grey = Image.new("RGB", (20, 20), (100, 100, 100))
    seen = set()
    for seed in range(60):
        torch.manual_seed(seed)
        bright = transforms.train(8, scale=(1, 1), color_jitter=(0.2, 0, 0, 0), normalize=False)(grey)
        assert bright.float().std() == 0
        seen.add(int(bright[0, 0, 0]))
    assert min(seen) >= 80
    assert max(seen) <= 120
    assert len(seen) > 20
    red = Image.new("RGB", (20, 20), (200, 10, 10))
    turned = {
        tuple(transforms.train(8, color_jitter=(0, 0, 0, 0.5), normalize=False)(red)[:, 0, 0].tolist())
        for _ in range(60)
    }
    assert all(max(colour) in (199, 200) and min(colour) in (9, 10) for colour in turned)
    assert len(turned) > 20


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0},
        {"size": (3, 4, 5)},
        {"size": "32"},
        {"size": (32.9, 32)},
        {"size": 32.5},
        {"scale": (0, 1)},
        {"scale": (0.5, 0.2)},
        {"ratio": (-1, 1)},
        {"hflip": 1.5},
        {"color_jitter": (1, 1, 1)},
        {"color_jitter": (0, 0, 0, 0.6)},
        {"std": (0, 1, 1)},
        {"mode": "quick"},
        {"scale": ("a", "b")},
        {"scale": "ab"},
        {"scale": b"ab"},
        {"scale": (np.ones(2), 1)},
        {"ratio": (1, None)},
        {"mean": (10**400, 0, 0)},
        {"mean": ("a", "b", "c")},
        {"color_jitter": (1e300, 0, 0, 0)},
    ],
    ids=lambda arguments: str(arguments)[:40],
)
def test_wrong_values_of_transforms_are_named(arguments: dict[str, Any]) -> None:
    name = next(iter(arguments))
    with pytest.raises((ValueError, TypeError), match=rf"^(mean and )?{name} (must|need|is)|^mean and std need"):
        transforms.train(**arguments)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (100, ValueError, "must be from 224 to 2147483647 pixels, got 100"),
        (2**31, ValueError, "must be from 224 to 2147483647 pixels, got 2147483648"),
        ("a", TypeError, "must be an int, got 'a'"),
        (256.0, TypeError, "must be an int, got 256.0"),
        (True, TypeError, "must be an int, got True"),
    ],
    ids=str,
)
def test_a_shorter_side_that_makes_no_sense_is_named(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^resize {words}"):
        transforms.val(224, resize=value)
    with pytest.raises(error, match=f"^shorter {words}"):
        transforms.ImageTransform(crop="center", size=(224, 200), shorter=value)


def test_a_shorter_side_may_be_a_number_of_numpy() -> None:
    assert transforms.val(224, resize=np.int64(256)) == transforms.val(224)  # type: ignore[arg-type]
    assert type(transforms.val(224, resize=np.int64(256)).shorter) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [transforms.train, transforms.val, transforms.train_small, transforms.val_small])
@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((1e300, 0, 0), (1, 1, 1)),
        ((0, 0, 0), (1e-300, 1, 1)),
        ((0, 0, 0), (1, 1e-39, 1)),
        ((0, 0, 0), (1, 1, 1e300)),
        ((0, 3e38, 0), (1, 0.5, 1)),
    ],
    ids=str,
)
def test_colours_that_become_no_finite_pixels_are_refused(make: Any, mean: Any, std: Any) -> None:
    with pytest.raises(ValueError, match=r"mean and std need three finite numbers.*in float32"):
        make(32, mean=mean, std=std)
    with pytest.raises(ValueError, match="mean and std need"):
        transforms.Normalize(mean=mean, std=std)


def test_any_callable_is_a_transform(photos: Path) -> None:
    kinds = set()

    def plain(image: Image.Image) -> torch.Tensor:
        kinds.add((type(image), image.mode))
        return torch.from_numpy(np.array(image.resize((8, 8))))

    for cls, workers in itertools.product((fl.DataLoader, TorchDataLoader), (0, 2)):
        images, _ = next(iter(cls(fl.ImageDataset(photos, transform=plain), batch_size=4, num_workers=workers)))
        assert images.shape == (4, 8, 8, 3)
    assert kinds == {(Image.Image, "RGB")}

    class Compose:
        __module__ = "albumentations.core.composition"

        def __call__(self, *, image: np.ndarray) -> dict[str, Any]:
            image[:2] = 7
            return {"image": image[:8, :8]}

    dataset = fl.ImageDataset(photos, transform=Compose())
    for _ in range(2):
        images, _ = next(iter(fl.DataLoader(dataset, batch_size=4)))
        assert images.shape == (4, 8, 8, 3)
        assert (images[:, :2] == 7).all()
    dataset.transform = transforms.val(32)  # what is kept is as it was
    assert torch.equal(dataset[0][0], fl.ImageDataset(photos, transform=transforms.val(32))[0][0])


def test_default_transform_is_imagenets(photos: Path) -> None:
    dataset = fl.ImageDataset(photos)
    image, target = dataset[0]
    assert image.shape == (3, 224, 224)
    assert image.dtype is torch.float32
    assert target == 0
    assert fl.ImageDataset(photos, (20, 30))[0][0].shape == (3, 20, 30)


def test_one_number_is_no_color_jitter() -> None:
    wrong: Any = 0.5
    with pytest.raises(ValueError, match=r"color_jitter must be .brightness, contrast, saturation, hue.*got 0.5"):
        fl.transforms.train(32, color_jitter=wrong)


@pytest.mark.parametrize(
    "transform",
    [
        transforms.train(8, color_jitter=(0.1, 0.2, 0.3, 0.4), hflip=0.25),
        transforms.val((8, 9), mean=(0.1, 0.2, 0.3)),
        transforms.train_small(8, cutout=3),
        transforms.Normalize(mean=(0.5, 0.25), std=(1, 2)),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_a_transform_can_be_written_down_and_made_again(transform: Any) -> None:
    values = dataclasses.asdict(transform)
    again = type(transform)(**values)
    assert again == transform
    values["dtype"] = str(values.pop("dtype", None))  # which JSON does not know
    read = json.loads(json.dumps(values))
    del read["dtype"]
    listed = type(transform)(**read)
    assert listed == transform
    assert hash(listed) == hash(again) == hash(transform)
    assert repr(listed) == repr(transform)
