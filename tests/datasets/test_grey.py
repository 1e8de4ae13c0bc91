"""Grey images of more than 8 bits are scaled by the depth of their file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import foreload as fl
from foreload import transforms

PLAIN = transforms.resize((40, 60), normalize=False)


def pixels(path: Path) -> np.ndarray:
    """The decoded image, at its own size."""
    return fl.ImageDataset([path], transform=np.asarray)[0][0].astype(int)


def test_sixteen_bits_are_cut_to_eight(tmp_path: Path) -> None:
    values = np.linspace(0, 65535, 60 * 40).reshape(40, 60).astype(np.uint16)
    for top in (1, 300):
        path = tmp_path / f"{top}.png"
        Image.fromarray(values // top).save(path)
        expected = np.rint(values // top / 257)
        assert np.abs(pixels(path)[:, :, 1] - expected).max() <= 1


def grey_tiff(bits: int, rows: list[bytes], width: int) -> bytes:
    """A little-endian TIFF of grey."""
    tags = [(256, width), (257, len(rows)), (258, bits), (259, 1), (262, 1), (273, 8), (277, 1), (278, len(rows))]
    data = b"".join(rows)
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (279, len(data))])
    return (
        struct.pack("<2sHI", b"II", 42, 8 + len(data))
        + data
        + struct.pack("<H", len(tags) + 1)
        + entries
        + bytes(4)
    )


GREY = np.array([[0, 1, 200], [255, 256, 300], [1000, 4000, 4095]])


@pytest.mark.parametrize("brightest", [255, 256, 65535])
@pytest.mark.parametrize("kind", ["png", "tiff", "pgm", "pgm of 300", "turned tiff"])
def test_grey_is_scaled_by_the_files_depth_not_by_its_values(tmp_path: Path, kind: str, brightest: int) -> None:
    values = np.minimum(GREY * (16 if brightest > 4095 else 1), brightest)
    white = 65535
    path = tmp_path / f"a.{kind.partition(' ')[0] if 'tiff' not in kind else 'tiff'}"
    if kind.startswith("pgm"):
        white = 300 if "of" in kind else 65535
        values = np.minimum(values, white)
        path.write_bytes(b"P5 3 3 %d\n" % white + values.astype(">u2").tobytes())
    else:
        turned = (
            {"exif": struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 274, 3, 1, 3, 0, 0)} if "turned" in kind else {}
        )
        Image.fromarray(values.astype(np.uint16)).save(path, **turned)
        values = values[::-1, ::-1] if turned else values
    assert np.abs(pixels(path)[:, :, 0] - values * 255 / white).max() <= 0.51


def test_grey_of_twelve_bits_is_scaled_by_4095(tmp_path: Path) -> None:
    row = [0, 4095, 2048, 16]
    packed = b"".join(struct.pack(">I", (a << 12) | b)[1:] for a, b in zip(row[::2], row[1::2], strict=True))
    (tmp_path / "a.tif").write_bytes(grey_tiff(12, [packed], 4))
    assert np.abs(pixels(tmp_path / "a.tif")[0, :, 0] - np.array(row) * 255 / 4095).max() <= 0.51


@pytest.mark.parametrize("values", [GREY.astype(np.int32), GREY / 4095, (GREY > 9) * 255])
def test_grey_whose_white_is_not_known_is_refused(tmp_path: Path, values: np.ndarray) -> None:
    kind = np.int32 if values.dtype.kind == "i" else np.float32
    image = Image.fromarray(values.astype(kind))
    image.save(tmp_path / "a.tiff")
    for transform in (np.asarray, PLAIN):
        with pytest.raises(
            fl.errors.DecodeError, match=r"a\.tiff: an image of .* no known white; convert it to 8"
        ):
            fl.ImageDataset([tmp_path / "a.tiff"], transform=transform)[0]
    with pytest.raises(ValueError, match="no known white"):
        fl.CustomCollateFn.image_collate([image])
