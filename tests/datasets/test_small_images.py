"""Small images in memory: what NumPy and Pillow make of them with the same random numbers, for any workers."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

import foreload as fl
from foreload import transforms
from foreload.transforms import SmallImageTransform, train_small, val_small

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 32, 28, 3), np.uint8)
MASK = 0xFFFFFFFF


def philox(seed: int, epoch: int, index: int) -> Iterator[int]:
    """The 32-bit words of Philox4x32-10, as Salmon et al. define it."""
    block = 0
    while True:
        counter = [block, epoch, index & MASK, index >> 32]
        low, high = seed & MASK, seed >> 32
        for _ in range(10):
            first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
            counter = [
                second >> 32 ^ counter[1] ^ low,
                second & MASK,
                first >> 32 ^ counter[3] ^ high,
                first & MASK,
            ]
            low, high = low + 0x9E3779B9 & MASK, high + 0xBB67AE85 & MASK
        yield from counter
        block += 1


def jittered(image: np.ndarray[Any, Any], widths: tuple[float, ...], draw: Iterator[int]) -> np.ndarray[Any, Any]:
    """Return what Pillow makes of brightness, contrast and saturation."""
    steps = [0, 1, 2, 3]
    for i in (3, 2, 1):
        j = next(draw) * (i + 1) >> 32
        steps[i], steps[j] = steps[j], steps[i]
    factors = []
    for width in widths[:3]:
        low = max(0.0, 1 - width)
        factors.append(low + (1 + width - low) * next(draw) / 2**32)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    picture = Image.fromarray(image)
    for step in steps:
        if step < 3 and widths[step] > 0:
            picture = kinds[step](picture).enhance(factors[step])
    return np.asarray(picture)


def expected(transform: SmallImageTransform, image: np.ndarray[Any, Any], draw: Iterator[int]) -> torch.Tensor:
    """Return what NumPy makes of an image (height x width x 3)."""
    height, width = transform.size
    pad = transform.padding
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    spare = padded.shape[0] - height, padded.shape[1] - width
    if transform.crop == "random":
        top, left = (next(draw) * (count + 1) >> 32 for count in spare)
    else:
        top, left = (round(count / 2) for count in spare)
    out = padded[top : top + height, left : left + width]
    if transform.hflip > 0 and next(draw) / 2**32 < transform.hflip:
        out = out[:, ::-1]
    out = np.array(out)
    middle = [next(draw) * side >> 32 for side in transform.size] if transform.cutout else []
    if transform.color_jitter is not None:
        out = np.array(jittered(out, transform.color_jitter, draw))
    if middle:
        y, x = (max(0, at - transform.cutout // 2) for at in middle)
        to_y, to_x = (at - transform.cutout // 2 + transform.cutout for at in middle)
        out[y : max(0, to_y), x : max(0, to_x)] = np.rint(255 * np.array(transform.mean, np.float32))
    bytes_ = torch.from_numpy(np.ascontiguousarray(out)).permute(2, 0, 1)
    if not transform.normalize:
        return bytes_
    return transforms.Normalize(mean=transform.mean, std=transform.std)(bytes_[None])[0]


def of_loader(transform: Any, images: Any = PIXELS, **options: Any) -> torch.Tensor:
    dataset = fl.ImageArrayDataset(images, range(len(images)), transform)
    options = {"num_workers": 0, "batch_size": 16, "seed": 5, **options}
    with fl.DataLoader(dataset, **options) as loader:
        batches = [(pixels.clone(), targets.clone()) for pixels, targets in loader]
    assert torch.equal(torch.cat([targets for _, targets in batches]), torch.arange(len(images)))
    return torch.cat([pixels for pixels, _ in batches])


@pytest.mark.parametrize(
    "transform",
    [
        train_small((32, 28)),
        train_small((32, 28), normalize=False),
        train_small(24, padding=0, hflip=0, normalize=False),
        train_small(48, padding=16, cutout=8, channels_last=True),
        train_small((20, 31), padding=3, cutout=7, normalize=False, channels_last=True),
        train_small((32, 28), cutout=60, hflip=1, mean=(0.1, 0.9, 1.0), std=(0.3, 0.2, 0.5)),
        val_small(21, normalize=False),
        val_small((32, 28)),
        val_small((31, 27), channels_last=True),
    ],
    ids=str,
)
def test_each_image_is_what_numpy_makes_of_it(transform: SmallImageTransform) -> None:
    batches = of_loader(transform)
    assert batches.dtype == transform.dtype
    for index, image in enumerate(PIXELS):
        assert torch.equal(batches[index], expected(transform, image, philox(5, 0, index)))


@pytest.mark.parametrize(
    "jitter", [(0.4, 0.0, 0.0, 0.0), (0.0, 0.3, 0.0, 0.0), (0.0, 0.0, 0.7, 0.0), (0.4, 0.3, 0.5, 0.0)]
)
def test_colours_are_what_pillow_makes_of_them(jitter: tuple[float, float, float, float]) -> None:
    transform = train_small((32, 28), color_jitter=jitter, cutout=6, normalize=False)
    batches = of_loader(transform)
    for index, image in enumerate(PIXELS):
        wanted = expected(transform, image, philox(5, 0, index)).int()
        # Pillow rounds to bytes after each step.
        assert (batches[index].int() - wanted).abs().max() <= 2 + 2 * (sum(width > 0 for width in jitter) > 1)


def test_another_epoch_and_seed_have_other_numbers() -> None:
    transform = train_small((32, 28), normalize=False)
    dataset = fl.ImageArrayDataset(PIXELS, None, transform)
    loader = fl.DataLoader(dataset, 60, seed=5, num_workers=0)
    for epoch in range(2):
        pixels, targets = next(iter(loader))
        assert set(targets.tolist()) == {-1}
        for index, image in enumerate(PIXELS):
            assert torch.equal(pixels[index], expected(transform, image, philox(5, epoch, index)))
    assert not torch.equal(of_loader(transform), of_loader(transform, seed=6))


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 1}, {"num_workers": 3}, {"num_workers": 2, "workers": "processes"}, {"batch_size": 7}],
)
def test_batches_do_not_depend_on_the_workers(options: dict[str, Any]) -> None:
    transform = train_small(32, cutout=8, color_jitter=(0.4, 0.3, 0.2, 0.1))
    assert torch.equal(of_loader(transform, **options), of_loader(transform))


def test_the_layout_of_the_images_does_not_matter() -> None:
    transform = train_small(32, cutout=8)
    wanted = of_loader(transform)
    planes = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).contiguous()
    wide = np.zeros((60, 40, 40, 3), np.uint8)
    wide[:, 4:36, 6:34] = PIXELS
    read_only = PIXELS.copy()
    read_only.flags.writeable = False
    for images in (planes, wide[:, 4:36, 6:34], np.asfortranarray(PIXELS), read_only):
        assert torch.equal(of_loader(transform, images), wanted)
    grey = torch.from_numpy(PIXELS[..., :1]).permute(0, 3, 1, 2)
    assert torch.equal(
        of_loader(transform, grey.expand(-1, 3, -1, -1)), of_loader(transform, PIXELS[..., :1].repeat(3, 3))
    )


def test_bytes_become_the_same_on_a_device() -> None:
    options: Any = {"cutout": 8, "color_jitter": (0.4, 0.3, 0.2, 0.1)}
    as_bytes = of_loader(train_small(32, normalize=False, **options))
    assert torch.equal(transforms.Normalize()(as_bytes), of_loader(train_small(32, **options)))


def test_samples_batches_and_calls_draw_alike() -> None:
    transform = train_small(32, cutout=8)
    dataset = fl.ImageArrayDataset(PIXELS, list(range(60)), transform)
    torch.manual_seed(3)
    sample, target = dataset[-2]
    assert target == 58
    torch.manual_seed(3)
    assert torch.equal(transform(PIXELS[58]), sample)
    torch.manual_seed(3)
    assert torch.equal(transform(Image.fromarray(PIXELS[58])), sample)
    assert pickle.loads(pickle.dumps(transform)) == transform
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again.images, dataset.images)
    stock = torch.utils.data.DataLoader(dataset, 30, sampler=range(60))
    batches = list(stock)
    assert [pixels.shape for pixels, _ in batches] == [(30, 3, 32, 32)] * 2
    assert torch.equal(batches[1][1], torch.arange(30, 60))


def test_every_place_is_as_likely() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[3, 3] = 255
    transform = train_small(8, padding=2, hflip=0, normalize=False)
    images = np.repeat(image[None], 4000, 0)
    where = of_loader(transform, images, batch_size=500)[:, 0].flatten(1).int().argmax(1)
    counts = torch.bincount(where, minlength=64)
    assert (counts > 0).sum() == 25
    assert counts[counts > 0].min() > 100
    assert counts.max() < 230


def test_other_transforms_and_collations_work_too() -> None:
    own = fl.ImageArrayDataset(PIXELS, None, lambda image: torch.tensor(image.size))
    assert own[0][0].tolist() == [28, 32]
    assert own.__getitems__ is None
    resized = fl.ImageArrayDataset(PIXELS, None, transforms.resize(16))
    assert next(iter(fl.DataLoader(resized, 4)))[0].shape == (4, 3, 16, 16)
    plain = fl.ImageArrayDataset(PIXELS)
    assert torch.equal(plain[3][0], transforms.resize((32, 28))(PIXELS[3]))
    loader = fl.DataLoader(plain, 4, num_workers=0, collate_fn=lambda samples: len(samples))
    assert list(loader) == [4] * 15

    class Marked(fl.ImageArrayDataset):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return super().__getitem__(index)[0], -7

    assert next(iter(fl.DataLoader(Marked(PIXELS), 4, num_workers=0)))[1].tolist() == [-7] * 4


def test_targets_of_any_layout_are_taken_as_they_are() -> None:
    for targets in (
        np.arange(60)[::-1],
        np.arange(60, dtype=">i4")[::-1],
        np.arange(60, dtype=np.uint64)[::-1],
        list(range(59, -1, -1)),
        torch.arange(60, dtype=torch.uint8).flip(0),
    ):
        dataset = fl.ImageArrayDataset(PIXELS, targets)
        assert dataset.targets.dtype == torch.int64
        assert dataset.targets.tolist() == list(range(59, -1, -1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fl.ImageArrayDataset(PIXELS, np.broadcast_to(np.int64(3), (60,))).targets.tolist() == [3] * 60


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="targets must fit into int64, got 9223372036854775813"):
        fl.ImageArrayDataset(PIXELS, np.full(60, 2**63 + 5, np.uint64))
    with pytest.raises(ValueError, match=r"images is a flipped view.*ascontiguousarray"):
        fl.ImageArrayDataset(PIXELS[:, :, ::-1])
    for arguments in ({"padding": 1.5}, {"cutout": True}):
        with pytest.raises(TypeError, match=f"{next(iter(arguments))} must be an int"):
            train_small(**arguments)  # type: ignore[arg-type]
    assert train_small(np.int64(32), padding=np.int64(2)).size == (32, 32)  # type: ignore[arg-type]
    for arguments, message in (
        ({"padding": 32}, "padding"),
        ({"padding": -1}, "padding"),
        ({"size": 0}, "size"),
        ({"hflip": 2}, "hflip"),
        ({"cutout": -1}, "cutout"),
        ({"cutout": 65}, "cutout"),
        ({"color_jitter": (1, 1, 1)}, "color_jitter"),
        ({"std": (0, 1, 1)}, "std"),
        ({"std": (float("nan"), 1, 1)}, "std"),
        ({"mean": (float("nan"), 0, 0), "cutout": 3}, "mean"),
        ({"color_jitter": (float("nan"), 0, 0, 0)}, "color_jitter"),
        ({"color_jitter": (float("inf"), 0, 0, 0)}, "color_jitter"),
    ):
        with pytest.raises(ValueError, match=message):
            train_small(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(48, 48\) does not fit into images of \(32, 28\) with padding=4"):
        fl.ImageArrayDataset(PIXELS, None, train_small(48))
    with pytest.raises(ValueError, match="does not fit"):
        train_small(48)(PIXELS[0])
    with pytest.raises(TypeError, match="uint8"):
        fl.ImageArrayDataset(PIXELS.astype(np.float32))
    with pytest.raises(TypeError, match="ndarray or a tensor"):
        fl.ImageArrayDataset([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expand"):
        fl.ImageArrayDataset(PIXELS[..., 0])
    with pytest.raises(ValueError, match="targets must be an int for each of the 60 images"):
        fl.ImageArrayDataset(PIXELS, [1, 2])
    with pytest.raises(IndexError, match="60 is out of range"):
        fl.ImageArrayDataset(PIXELS)[60]
    with pytest.raises(TypeError, match="callable"):
        fl.ImageArrayDataset(PIXELS, None, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [["cat"] * 60, [None] * 60, [1 << 70] * 60])
def test_targets_that_torch_makes_no_tensor_of_are_named(targets: Any) -> None:
    with pytest.raises(ValueError, match="targets must be an int for each of the 60 images, got list: "):
        fl.ImageArrayDataset(PIXELS, targets)
