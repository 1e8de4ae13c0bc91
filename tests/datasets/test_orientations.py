"""Orientations said in any way, in Exif or XMP, are those that Pillow finds."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import foreload as fl
from foreload import _native, transforms
from foreload.datasets.images.decode import decode_image
from foreload.errors import DecodeError
from tests.conftest import jpeg, photo
from tests.datasets.test_damaged_images import by_pillow, crop, crop_of

PHOTO = jpeg(photo(60, 44, 1))
Entry = tuple[int, int, int, bytes]  # tag, type, count, value or where it is


def segment(content: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


def xmp(text: bytes) -> bytes:
    return segment(b"http://ns.adobe.com/xap/1.0/\0" + text)


def tiff(*entries: Entry, head: bytes = b"II*\0", at: int = 8, more: int = 0, tail: bytes = b"") -> bytes:
    order = ">" if head.startswith(b"M") else "<"
    packed = b"".join(struct.pack(order + "HHI", *entry[:3]) + entry[3].ljust(4, b"\0") for entry in entries)
    return head + struct.pack(order + "IH", at, len(entries) + more) + packed + b"\0" * 4 + tail


def exif(*entries: Entry, **options: int | bytes) -> bytes:
    return segment(b"Exif\0\0" + tiff(*entries, **options))  # type: ignore[arg-type]


def turn(value: int, order: str = "<") -> Entry:
    return 0x112, 3, 1, struct.pack(order + "H", value)


def far(tag: int, kind: int, count: int, at: int) -> Entry:
    return tag, kind, count, struct.pack("<I", at)


TURNED = tiff(turn(6))
SAID: dict[str, bytes] = {
    **{f"XMP says {value}": xmp(b'<x tiff:Orientation="%d"/>' % value) for value in range(10)},
    **{f"XMP has {value}": xmp(b"<tiff:Orientation>%d</tiff:Orientation>" % value) for value in range(10)},
    "XMP says nothing of it": xmp(b"<x/>"),
    "XMP names it only": xmp(b"tiff:Orientation"),
    "both": exif(turn(6)) + xmp(b'tiff:Orientation="3"'),
    "XMP, and Exif without one": xmp(b'tiff:Orientation="3"') + exif(far(0x100, 3, 1, 6)),
    "XMP, and Exif of 0": exif(turn(0)) + xmp(b'tiff:Orientation="3"'),
    "two XMPs": xmp(b'tiff:Orientation="3"') + xmp(b'tiff:Orientation="6"'),
    "two XMPs, the second without": xmp(b'tiff:Orientation="3"') + xmp(b"nothing"),
    "a second Exif head": segment(b"Exif\0\0Exif\0\0" + TURNED),
    "two Exifs": exif(turn(6)) + exif(turn(3)),
    "an Exif in two parts": segment(b"Exif\0\0" + TURNED[:12]) + segment(b"Exif\0\0" + TURNED[12:]),
    "9": exif(turn(9)),
    "two entries": exif(turn(6), turn(3)),
    "an entry of no type, then a good one": exif(far(0x112, 99, 1, 3), turn(6)),
    "an empty entry, then a good one": exif(far(0x112, 3, 0, 3), turn(6)),
    "an entry that lies nowhere, then a good one": exif(far(0x112, 3, 9, 9999), turn(6)),
    "behind an entry that lies nowhere": exif(far(0x10F, 2, 20, 9999), turn(6)),
    "behind an entry that is too long": exif(far(0x10F, 2, 100_000, 8), turn(6)),
    "behind an entry that ends too late": exif(far(0x10F, 2, 30, 20), turn(6)),
    "behind an entry of no type": exif(far(0x10F, 0, 100_000, 8), turn(6)),
    "in no TIFF": exif(turn(6), head=b"XX*\0"),
    "in a TIFF of no version": exif(turn(6), head=b"IIxy"),
    "in a large TIFF": exif(turn(6), head=b"II+\0"),
    "big-endian": exif(turn(6, ">"), head=b"MM\0*"),
    "version the other way round": exif(turn(6, ">"), head=b"MM*\0"),
    "nothing": segment(b"Exif\0\0"),
    "half a head": segment(b"Exif\0\0II"),
    "zeros": segment(b"Exif\0\0" + bytes(40)),
    "fewer entries than it says": exif(turn(6), more=500),
    "a directory over the head": exif(turn(6), at=0),
    "a directory that is nowhere": exif(turn(6), at=5000),
    "a long": exif((0x112, 4, 1, b"\6\0\0\0")),
    "a byte": exif((0x112, 1, 1, b"\6")),
    "text": exif((0x112, 2, 2, b"6")),
    "a fraction": exif(far(0x112, 5, 1, 26), tail=struct.pack("<II", 6, 1)),
    "a signed fraction": exif(far(0x112, 10, 1, 26), tail=struct.pack("<ii", 6, 1)),
    "a float": exif((0x112, 11, 1, struct.pack("<f", 6))),
    "a double": exif(far(0x112, 12, 1, 26), tail=struct.pack("<d", 6)),
    "8 bytes": exif(far(0x112, 16, 1, 26), tail=struct.pack("<Q", 6)),
    "with a thumbnail": exif(turn(6), tail=jpeg(photo(16, 12, 2))),
}  # fmt: skip


@pytest.mark.sampled(15)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_an_image_is_turned_as_pillow_turns_it(said: bytes, tmp_path: Path) -> None:
    data = PHOTO[:2] + said + PHOTO[2:]
    expected = by_pillow(data)
    assert expected is not None
    assert np.array_equal(decode_image(data), expected)
    transform = transforms.train(24, normalize=False)
    path = tmp_path / "one.jpg"
    assert crop(data, path, transform, 5).equal(crop_of(expected, transform, 5))
    loader = fl.DataLoader(fl.ImageDataset([path], transform=transform), seed=5, cache="1MiB", num_workers=0)
    first, second, third = (images.clone() for _ in range(3) for images, _ in loader)
    assert first[0].equal(crop_of(expected, transform, 5))
    plain = fl.DataLoader(fl.ImageDataset([path], transform=transform), seed=5, num_workers=0)
    assert [images.tolist() for _ in range(3) for images, _ in plain] == [
        image.tolist() for image in (first, second, third)
    ]


@pytest.mark.parametrize("marker", [0x00, 0x01, *range(0xC8, 0xE2), *range(0xF0, 0x100)])
@pytest.mark.parametrize("fill", [b"", b"\xff\xff", b"\xff\xd3"], ids=["", "filled", "after another"])
def test_a_marker_before_the_exif_block_is_passed_over_if_pillow_does(marker: int, fill: bytes) -> None:
    data = PHOTO[:2] + fill + bytes([0xFF, marker]) + exif(turn(6)) + PHOTO[2:]
    expected = by_pillow(data)
    if expected is None:
        with pytest.raises(DecodeError):
            decode_image(data)
    else:
        assert np.array_equal(decode_image(data), expected)


def test_a_usual_orientation_needs_no_other_decoder() -> None:
    def refuse(path: str, data: bytes) -> np.ndarray:
        raise AssertionError(path)

    usual = [exif(turn(value)) for value in range(1, 9)]
    usual += [exif(turn(6)) + xmp(b'tiff:Orientation="6"'), xmp(b"<x/>"), exif(turn(3, ">"), head=b"MM\0*"), b""]
    usual += [b"\xff\xd0" + exif(turn(6)), b"\xff\xff" + exif(turn(6)), b"\xff\xff\xff\xd7" + exif(turn(6))]
    for said in usual:
        data = PHOTO[:2] + said + PHOTO[2:]
        assert np.array_equal(_native.decode_rgb("one", data, refuse), by_pillow(data))  # type: ignore[arg-type]


def test_other_formats_are_turned_too(tmp_path: Path) -> None:
    image, metadata = photo(40, 30, 3), Image.Exif()
    metadata[0x112] = 6
    for kind in ("PNG", "WEBP", "TIFF"):
        image.save(tmp_path / kind, kind, exif=metadata, **({"lossless": True} if kind == "WEBP" else {}))
        data = (tmp_path / kind).read_bytes()
        assert decode_image(data).shape == (40, 30, 3)
        assert np.array_equal(decode_image(data), by_pillow(data))  # type: ignore[arg-type]
