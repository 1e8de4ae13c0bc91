"""Damaged images: Pillow's pixels or an error if Pillow raises one, in every crop; and never a wait."""

from __future__ import annotations

import gc
import io
import itertools
import random
import struct
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import foreload as fl
from foreload import _native, transforms
from foreload.batch.buffers import Buffers
from foreload.datasets.images.decode import decode_image
from foreload.errors import DecodeError
from tests.datasets.damages import DAMAGES, SCAN, SOUND, TABLES, data_begin, places


def by_pillow(data: bytes) -> np.ndarray | None:
    """The upright pixels; None if Pillow raises an error."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None


CROPS = (
    transforms.train(24, normalize=False),
    transforms.train(40, scale=(0.01, 0.2), normalize=False),
    transforms.val(16, resize=20, normalize=False),
    transforms.resize((31, 17), normalize=False),
)


def damaged(name: str) -> Iterator[tuple[str, bytes]]:
    """Every kind of sound file with this damage, in several places."""
    for kind, sound in SOUND.items():
        draw = random.Random(f"{name} {kind}")
        versions = {DAMAGES[name](sound, draw) for _ in range(8)} - {sound}
        yield from ((kind, version) for version in sorted(versions))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_gives_pillows_pixels_or_an_error(name: str) -> None:
    for kind, data in damaged(name):
        expected = by_pillow(data)
        if expected is None:
            with pytest.raises(DecodeError):
                decode_image(data)
        else:
            assert np.array_equal(decode_image(data), expected), kind


def crop(data: bytes, path: Path, transform: transforms.ImageTransform, seed: int) -> torch.Tensor:
    """Load one image of a file, natively, with the random numbers of a seed."""
    path.write_bytes(data)
    dataset = fl.ImageDataset([path], transform=transform)
    batch = dataset.image_assembly(transform, (seed, 0), Buffers()).start([0])
    batch.job.run_here()
    return batch.take()[0][0]


def crop_of(array: np.ndarray, transform: transforms.ImageTransform, seed: int) -> torch.Tensor:
    """The same of pixels that are decoded already."""
    out = torch.empty(3 * transform.size[0] * transform.size[1], dtype=transform.dtype)
    _native.transform_rgb(transform.native, array, seed, out.view(torch.uint8).numpy())
    return out.view(3, *transform.size)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DAMAGES)
def test_crops_of_damaged_files_are_those_of_pillows_pixels(name: str, tmp_path: Path) -> None:
    for number, (kind, data) in enumerate(damaged(name)):
        expected = by_pillow(data)
        transform = CROPS[number % len(CROPS)]
        if expected is None:
            with pytest.raises(DecodeError, match=r"one\.jpg"):
                crop(data, tmp_path / "one.jpg", transform, number)
        else:
            ours = crop(data, tmp_path / "one.jpg", transform, number)
            assert torch.equal(ours, crop_of(expected, transform, number)), kind


@pytest.mark.parametrize("kind", ["progressive", "progressive with intervals", "progressive grey", "scans"])
def test_a_file_that_is_cut_between_scans_is_an_error(kind: str, tmp_path: Path) -> None:
    data = SOUND[kind]
    cuts = [place for place in places(data, range(TABLES, SCAN + 1)) if place > data_begin(data)]
    assert len(cuts) >= 2
    for cut in cuts:
        assert by_pillow(data[:cut]) is None
        with pytest.raises(DecodeError):
            decode_image(data[:cut])
        with pytest.raises(DecodeError):
            crop(data[:cut], tmp_path / "one.jpg", CROPS[0], 1)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("keep", ["auto", "encoded"])
@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_files_are_the_same_from_the_cache(keep: Any, workers: int, tmp_path: Path) -> None:
    chosen = ("a bit in the data", "cut short, but ended", "scans are lost", "zeros in the data")
    files = [data for name in chosen for _, data in damaged(name)]
    files = [data for data in files if by_pillow(data) is not None][:80]
    for number, data in enumerate(files):
        (tmp_path / f"{number:03}.jpg").write_bytes(data)
    transform = transforms.resize((31, 17), normalize=False)
    dataset = fl.ImageDataset(tmp_path, transform=transform)
    loader = fl.DataLoader(
        dataset, batch_size=8, num_workers=workers, workers="threads", cache=fl.Cache("1GiB", keep=keep)
    )
    for _ in range(3):
        for number, image in enumerate(itertools.chain.from_iterable(images for images, _ in loader)):
            assert torch.equal(image, crop_of(by_pillow(files[number]), transform, 0))  # type: ignore[arg-type]


def test_damage_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    for name in ("good", "cut", "lost"):
        (tmp_path / f"{name}.jpg").write_bytes(SOUND["progressive"])
    (tmp_path / "cut.jpg").write_bytes(SOUND["progressive"][:-2])
    (tmp_path / "lost.jpg").write_bytes(DAMAGES["cut within the header"](SOUND["baseline"], random.Random(0)))
    loader = fl.DataLoader(fl.ImageDataset(tmp_path), batch_size=3, on_error="skip", num_workers=0)
    assert [len(images) for images, _ in loader] == [1]
    assert [error.source for error in loader.errors] == [str(tmp_path / "cut.jpg"), str(tmp_path / "lost.jpg")]


def test_more_scans_than_any_picture_has_are_refused() -> None:
    data = SOUND["progressive grey"]
    last = places(data, SCAN)[-1]
    with pytest.raises(DecodeError, match="more than 500 scans"):
        decode_image(data[:last] + data[last:-2] * 600 + data[-2:])


def with_exif(data: bytes, order: str, kind: int, count: int, value: bytes) -> bytes:
    """A JPEG with one entry for its orientation, and a number behind it that the entry may lead to."""
    begin = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, 1)
    entry = struct.pack(order + "HHI", 0x0112, kind, count) + value.ljust(4, b"\0")
    tiff = b"Exif\0\0" + begin + entry + b"\0" * 4 + struct.pack(order + "HHHHHH", 8, 3, 3, 3, 3, 3)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(tiff) + 2) + tiff + data[2:]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("order", ["<", ">"])
def test_orientations_of_any_type_are_read_as_pillow_reads_them(order: str) -> None:
    for kind, count in itertools.product([*range(14), 99], [0, 1, 2, 3]):
        size = {1: "B", 2: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i"}.get(kind, "H")
        inline = count * struct.calcsize(size) <= 4
        value = struct.pack(order + size, 6) * max(1, count) if inline else struct.pack(order + "I", 26)
        data = with_exif(SOUND["baseline"], order, kind, count, value)
        assert np.array_equal(decode_image(data), by_pillow(data)), (kind, count)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_that_is_over_keeps_nothing(workers: int, tmp_path: Path) -> None:
    (tmp_path / "one.jpg").write_bytes(SOUND["progressive"][:-200])

    def fail(load: Callable[[Any], Any]) -> weakref.ref[Any]:
        dataset = fl.ImageDataset([tmp_path / "one.jpg"], transform=transforms.val(32))
        with pytest.raises(DecodeError):
            load(dataset)
        return weakref.ref(dataset)

    for load in (lambda data: data[0], lambda data: list(fl.DataLoader(data, num_workers=workers))):
        left = fail(load)
        gc.collect()
        assert left() is None


def test_files_that_are_gone_keep_nothing_when_their_error_is_over(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    dataset = fl.FileDataset([tmp_path / "one"])
    (tmp_path / "one").unlink()
    with pytest.raises(FileNotFoundError):
        list(fl.DataLoader(dataset))
    left = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert left() is None
