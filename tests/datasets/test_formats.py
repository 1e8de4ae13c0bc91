"""Files of any format, and files that are not images."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import transforms
from tests.conftest import jpeg, photo

PLAIN = transforms.resize((40, 60), normalize=False)


def pixels(path: Path) -> np.ndarray:
    """The decoded image, at its own size."""
    return fl.ImageDataset([path], transform=np.asarray)[0][0].astype(int)


RGB = photo(60, 40)
FORMATS: dict[str, tuple[Image.Image, dict[str, Any], int]] = {
    "a.png": (RGB, {}, 0),
    "interlaced.png": (RGB, {"interlace": 1}, 0),
    "alpha.png": (Image.merge("RGBA", (*RGB.split(), Image.new("L", RGB.size, 77))), {}, 0),
    "a.bmp": (RGB, {}, 0),
    "a.tiff": (RGB, {"compression": "tiff_lzw"}, 0),
    "a.webp": (RGB, {"lossless": True}, 0),
    "a.gif": (RGB.quantize(256), {}, 40),
    "palette.png": (RGB.quantize(256), {}, 40),
    "a.ppm": (RGB, {}, 0),
    "wrong_name.jpg": (RGB, {"format": "PNG"}, 0),
}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_that_keep_pixels_give_them_back(tmp_path: Path, name: str) -> None:
    image, options, tolerance = FORMATS[name]
    path = tmp_path / name
    image.save(path, **options)
    assert np.abs(pixels(path) - np.asarray(RGB)).mean() <= tolerance / 4
    assert np.abs(pixels(path) - np.asarray(Image.open(path).convert("RGB"))).max() == 0
    ((images, _),) = fl.DataLoader(fl.ImageDataset([path], transform=PLAIN), num_workers=2)
    expected = np.asarray(Image.open(path).convert("RGB").resize((60, 40), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(images[0].permute(1, 2, 0).numpy() - expected).max() <= 2


def test_grey_and_cmyk_jpegs_come_as_rgb(tmp_path: Path) -> None:
    for mode in ("L", "CMYK"):
        path = tmp_path / f"{mode}.jpg"
        path.write_bytes(jpeg(RGB.convert(mode)))
        assert np.abs(pixels(path) - np.asarray(Image.open(path).convert("RGB"))).max() <= 1
        ((images, _),) = fl.DataLoader(fl.ImageDataset([path], transform=PLAIN))
        assert images.shape == (1, 3, 40, 60)


def test_the_first_frame_of_an_animation_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "moving.gif"
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    assert pixels(path)[5, 5].tolist() == [255, 0, 0]


def test_any_file_name_will_do(tmp_path: Path) -> None:
    folder = tmp_path / "one class"
    folder.mkdir()
    names = [b"sp ace.jpg", "umläut.JPG".encode(), b"not\xffutf8.jpeg"]
    for name in names:
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(jpeg(RGB))
    dataset = fl.ImageDataset(tmp_path, 32, cache_size=0)
    assert sorted(os.fsencode(Path(path).name) for path, _ in dataset.samples) == sorted(names)
    assert len(next(iter(fl.DataLoader(dataset, batch_size=3)))[0]) == 3
    (folder / os.fsdecode(names[2])).write_bytes(b"no image")
    with pytest.raises(fl.errors.DecodeError):
        list(fl.DataLoader(dataset, batch_size=3))


def test_flat_folders_and_lists_take_labels(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(3)]
    for path in paths:
        path.write_bytes(jpeg(RGB))
    assert fl.ImageDataset(tmp_path).targets == [-1, -1, -1]
    assert fl.ImageDataset(tmp_path, labels=[2, 0, 1]).targets == [2, 0, 1]
    named = fl.ImageDataset(paths, labels=["dog", "cat", "dog"])
    assert (named.classes, named.targets) == (["cat", "dog"], [1, 0, 1])
    assert fl.ImageDataset([str(path) for path in paths], labels=np.array([5, 6, 5])).targets == [5, 6, 5]
    _, labels = next(iter(fl.DataLoader(named, batch_size=3)))
    assert labels.tolist() == [1, 0, 1]
    assert labels.dtype is torch.int64


@pytest.mark.parametrize("mode", list(fl.LoadingMode))
def test_what_is_kept_in_memory_changes_no_sample(photos: Path, mode: fl.LoadingMode, tmp_path: Path) -> None:
    transform = transforms.train(32)
    plain = torch.cat([x for x, _ in fl.DataLoader(fl.ImageDataset(photos, transform=transform), 8, seed=1)])
    dataset = fl.ImageDataset(photos, transform=transform, loading_mode=mode, cache_size=15)
    for _ in range(2):
        loader = fl.DataLoader(dataset, 8, seed=1, num_workers=2)
        assert torch.equal(torch.cat([x for x, _ in loader]), plain)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(torch.cat([x for x, _ in fl.DataLoader(copy, 8, seed=1)]), plain)


@pytest.mark.parametrize(
    ("mode", "kept"),
    [("streaming", ()), ("lazy", (2, 3)), ("cached", (0, 1)), ("eager", (0, 1, 2, 3))],
)
def test_kept_files_are_not_read_again(tmp_path: Path, mode: str, kept: tuple[int, ...]) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    for path in paths:
        path.write_bytes(jpeg(RGB))
    dataset = fl.ImageDataset(paths, 16, loading_mode=fl.LoadingMode(mode), cache_size=2)
    list(fl.DataLoader(dataset, num_workers=0))
    for path in paths:
        path.unlink()
    for i in range(4):
        if i in kept:
            assert dataset[i][0].shape == (3, 16, 16)
        else:
            with pytest.raises(FileNotFoundError):
                dataset[i]


def bomb(kind: str) -> bytes:
    """A small file whose header claims 20,000 x 20,000 pixels."""
    if kind == "jpeg":
        data = bytearray(jpeg(RGB))
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 20000, 20000)
        return bytes(data)
    header = struct.pack(">IIBBBBB", 20000, 20000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + jpeg(RGB)


def truncated(share: float) -> bytes:
    data = jpeg(photo(300, 200))
    return data[: int(len(data) * share)]


DAMAGED: dict[str, bytes] = {
    "cut early": truncated(0.3),
    "cut late": truncated(0.95),
    "header only": truncated(0.02),
    "text": b"this is not an image, whatever its name says",
    "empty": b"",
    "soi": b"\xff\xd8\xff",
    "bomb.jpeg": bomb("jpeg"),
    "bomb.png": bomb("png"),
    "half a png": b"\x89PNG\r\n\x1a\n" + b"\0" * 50,
}
LOADERS: dict[str, Callable[[Any], Any]] = {
    "dataset": lambda dataset: [dataset[i] for i in range(len(dataset))],
    "foreload, 0": lambda dataset: list(fl.DataLoader(dataset, batch_size=4, num_workers=0)),
    "foreload, 2": lambda dataset: list(fl.DataLoader(dataset, batch_size=4, num_workers=2)),
    "stock": lambda dataset: list(TorchDataLoader(dataset, batch_size=4)),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("damage", sorted(DAMAGED))
@pytest.mark.parametrize("how", sorted(LOADERS))
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, damage: str, how: str) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(7)]
    for i, path in enumerate(paths):
        path.write_bytes(DAMAGED[damage] if i == 5 else jpeg(RGB))
    for transform in (transforms.train(16), None, np.asarray):
        with pytest.raises(fl.errors.DecodeError, match=r"5\.jpg") as caught:
            LOADERS[how](fl.ImageDataset(paths, 16, transform=transform))
        assert isinstance(caught.value, OSError)
        if transform is not np.asarray:
            assert "sample 5" in str(caught.value)
        elif how.startswith("foreload"):
            assert "sample 5" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("how", sorted(LOADERS))
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, how: str) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(5)]
    for path in paths:
        path.write_bytes(jpeg(RGB))
    dataset = fl.ImageDataset(paths, 16)
    paths[2].unlink()
    with pytest.raises(FileNotFoundError, match="sample 2") as caught:
        LOADERS[how](dataset)
    assert caught.value.filename == str(paths[2])
    paths[2].mkdir()
    with pytest.raises(IsADirectoryError, match=r"2\.jpg"):
        LOADERS[how](dataset)


def test_every_crop_of_a_truncated_file_fails(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    path.write_bytes(truncated(0.8))
    dataset = fl.ImageDataset([path], transform=transforms.train(16, scale=(0.08, 0.1)))
    for _ in range(30):
        with pytest.raises(fl.errors.DecodeError, match="truncated"):
            dataset[0]


def test_a_picture_needs_its_end_marker_and_nothing_behind_it(tmp_path: Path) -> None:
    data = jpeg(photo(300, 200))
    whole = tmp_path / "whole.jpg"
    whole.write_bytes(data + b"\0" * 999)
    assert np.array_equal(pixels(whole), np.asarray(Image.open(whole)))
    whole.write_bytes(data[:-2])  # which Pillow refuses
    with pytest.raises(fl.errors.DecodeError, match="truncated"):
        pixels(whole)


def test_a_loader_survives_a_damaged_sample(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(6)]
    for i, path in enumerate(paths):
        path.write_bytes(b"?" if i == 2 else jpeg(RGB))
    iterator = iter(fl.DataLoader(fl.ImageDataset(paths, 16), batch_size=2, num_workers=2))
    assert next(iterator)[0].shape == (2, 3, 16, 16)
    with pytest.raises(fl.errors.DecodeError):
        next(iterator)
    assert next(iterator)[0].shape == (2, 3, 16, 16)
    assert list(iterator) == []


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda tmp: fl.ImageDataset(tmp / "none"), FileNotFoundError, "data_path.*none"),
        (lambda tmp: fl.ImageDataset(tmp), FileNotFoundError, "no image in"),
        (lambda tmp: ((tmp / "c").mkdir(), fl.ImageDataset(tmp)), FileNotFoundError, "class folder"),
        (lambda tmp: ((tmp / "f").touch(), fl.ImageDataset(tmp / "f")), NotADirectoryError, "is a file"),
        (lambda tmp: fl.ImageDataset([]), ValueError, "empty list"),
        (lambda tmp: fl.ImageDataset(["a.jpg"], labels=[1, 2]), ValueError, "labels has 2 entries for 1 file;"),
        (lambda tmp: fl.ImageDataset(["a.jpg"], labels=[1.5]), TypeError, "labels"),
        (lambda tmp: fl.ImageDataset(5), TypeError, "data_path"),
        (lambda tmp: fl.ImageDataset(["a.jpg"], cache_size=-1), ValueError, "cache_size"),
        (lambda tmp: fl.ImageDataset(["a.jpg"], transform=3), TypeError, "transform"),
        (lambda tmp: fl.ImageDataset(["a.jpg"], 0), ValueError, "size"),
        (lambda tmp: fl.ImageDataset(["a.jpg"])[1], IndexError, "index 1"),
        (lambda tmp: fl.ImageDataset(["a.jpg"], loading_mode="soon"), ValueError, "soon"),
        (lambda tmp: list(fl.DataLoader(fl.ImageDataset(["a.jpg"]), sampler=[3])), IndexError, "index 3"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make(tmp_path)


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1 << 63, 1],
        [0, -1, 1 << 63],
        [0, 1, -(1 << 63) - 1],
        (0, 1 << 64, 0),
        np.array([0, 1 << 63, 0], np.uint64),
        torch.tensor([0, 2**64 - 1, 0], dtype=torch.uint64),
    ],
)
@pytest.mark.parametrize("kind", [fl.ImageDataset, fl.FileDataset])
def test_labels_beyond_int64_are_refused(tmp_path: Path, kind: Any, labels: Any) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(3)]
    for path in paths:
        path.write_bytes(jpeg(RGB))
    with pytest.raises(ValueError, match=r"labels: -?\d+ of '.*[12]\.jpg' does not fit into int64"):
        kind(paths, labels=labels)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", ">u8", "i1", "i8", "?"])
def test_labels_of_any_type_stay_what_they_are(tmp_path: Path, dtype: str) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(2)]
    for path in paths:
        path.write_bytes(jpeg(RGB))
    most = 1 if dtype == "?" else min(np.iinfo(dtype).max, np.iinfo(np.int64).max)
    dataset = fl.ImageDataset(paths, 16, labels=np.array([0, most], dtype))
    assert dataset.targets == [0, most]
    (_, labels), *_ = fl.DataLoader(dataset, batch_size=2)
    assert labels.dtype is torch.int64
    assert labels.tolist() == [0, most]


def test_labels_are_all_numbers_or_all_names(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.jpg" for i in range(2)]
    for labels in ([1, "cat"], ["cat", 1], ["cat", None], ["cat", 2.5]):
        with pytest.raises(TypeError, match="labels must be"):
            fl.ImageDataset(paths, labels=labels)
