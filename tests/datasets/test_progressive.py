"""Progressive JPEGs of any legal scans: libjpeg's pixels, by the native decoder, in every crop."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from foreload import _native
from foreload.datasets.images.decode import decode_image
from foreload.errors import DecodeError
from tests.datasets.test_damaged_images import CROPS, by_pillow, crop, crop_of
from tests.progressive_files import Component, Frame, Scan, any_file, encode


def refuse(path: str, data: bytes) -> np.ndarray:
    raise AssertionError(path)


def check_native(data: bytes) -> None:
    assert np.array_equal(_native.decode_rgb("one", data, refuse), by_pillow(data))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_any_scans_give_libjpegs_pixels(seed: int, tmp_path: Path) -> None:
    data = any_file(seed)
    check_native(data)
    expected, transform = by_pillow(data), CROPS[seed % len(CROPS)]
    ours = crop(data, tmp_path / "one.jpg", transform, seed)
    assert torch.equal(ours, crop_of(expected, transform, seed))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 400))
def test_more_of_any_scans_give_libjpegs_pixels(seed: int, tmp_path: Path) -> None:
    test_any_scans_give_libjpegs_pixels(seed, tmp_path)


def grey(side: int, first: list[int], last: list[int]) -> Frame:
    """A grey picture in which nothing but the first and the last block have coefficients."""
    blocks = [first, *([0] * 64 for _ in range(side * side - 2)), last]
    return Frame(side * 8, side * 8, [Component(1, 1, side, side, side, blocks)])


@pytest.mark.slow
def test_the_longest_runs_of_blocks() -> None:
    draw = random.Random(1)
    block = [draw.randint(-300, 300) for _ in range(64)]
    frame = grey(260, [5] * 64, block)
    scans = [Scan([0], 0, 0, 0, 0, 0), Scan([0], 1, 63, 0, 1, ends=0), Scan([0], 1, 63, 1, 0, ends=0)]
    check_native(encode(frame, scans, draw))


def blocks(draw: random.Random) -> Frame:
    return Frame(
        24, 24, [Component(1, 1, 3, 3, 3, [[draw.randint(-900, 900) for _ in range(64)] for _ in range(9)])]
    )


def refined(first: int, last: int, bits: int) -> list[Scan]:
    """Scans of a band, a bit after the other."""
    lows = range(bits - 1, -1, -1)
    return [Scan([0], first, last, 0, bits), *(Scan([0], first, last, low + 1, low) for low in lows)]


DC, AC = Scan([0], 0, 0, 0, 0), Scan([0], 1, 63, 0, 0)
STRANGE: dict[str, list[Scan]] = {
    "13 bits of DC below": [*refined(0, 0, 13), AC],
    "9 bits of AC below": [DC, *refined(1, 63, 9)],
    "bands that overlap": [DC, Scan([0], 1, 40, 0, 0), Scan([0], 30, 63, 0, 0)],
    "a bit left out": [DC, Scan([0], 1, 63, 0, 3), Scan([0], 1, 63, 2, 1), Scan([0], 1, 63, 1, 0)],
    "bits that never come": [DC, Scan([0], 1, 63, 0, 3), Scan([0], 1, 63, 3, 2)],
    "no DC": [AC],
    "DC last": [AC, DC],
    "DC twice": [DC, DC, AC],
    "DC refined only": [Scan([0], 0, 0, 1, 0), AC],
    "DC with a jump": [Scan([0], 0, 0, 0, 2), Scan([0], 0, 0, 1, 0), AC],
    "AC refined only": [DC, Scan([0], 1, 63, 1, 0)],
    "DC only": [DC],
}


@pytest.mark.parametrize("scans", STRANGE.values(), ids=STRANGE)
def test_scans_that_no_encoder_writes_give_pillows_pixels_or_its_error(scans: list[Scan]) -> None:
    for seed in range(4):
        draw = random.Random(seed)
        data = encode(blocks(draw), scans, draw)
        expected = by_pillow(data)
        if expected is None:
            with pytest.raises(DecodeError):
                decode_image(data)
        else:
            assert np.array_equal(decode_image(data), expected)


LARGE = """
import io
from PIL import Image
from foreload.datasets.images.decode import decode_image

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def grey(side):
    file = io.BytesIO()
    Image.new("L", (side, side), 90).save(file, "JPEG", progressive=True)
    return file.getvalue()

files = grey(64), grey(8000)
decode_image(files[0])
before = resident()
decode_image(files[1])
decode_image(files[0])
print((resident() - before) // 2**20)
"""


@pytest.mark.slow
def test_a_large_picture_does_not_keep_its_memory() -> None:
    run = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, timeout=300)
    assert int(run.stdout) < 100


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_a_file_cut_anywhere_is_what_pillow_makes_of_it(seed: int) -> None:
    data = any_file(("cut", seed), 24)
    for size in range(4, len(data), max(1, len(data) // 150)):
        for end in (b"", b"\xff\xd9"):
            cut = data[:size] + end
            expected = by_pillow(cut)
            if expected is None:
                with pytest.raises(DecodeError):
                    decode_image(cut)
            else:
                assert np.array_equal(decode_image(cut), expected), size


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_more_scans_than_any_picture_has_are_refused_whoever_decodes(mode: str) -> None:
    draw = random.Random(0)
    frame = Frame(8, 8, [Component(1, 1, 1, 1, 1, [[3] * 64]) for _ in range(1 if mode == "L" else 4)])
    begin = [
        Scan([i], first, last, 0, 0) for i in range(len(frame.components)) for first, last in [(0, 0), (1, 63)]
    ]
    assert decode_image(encode(frame, begin, draw)).shape == (8, 8, 3)
    scans = begin + [Scan([0], 1, 63, 0, 0)] * 500
    with pytest.raises(DecodeError, match="more than 500 scans"):
        decode_image(encode(frame, scans, draw), "one")
