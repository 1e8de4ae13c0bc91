"""JPEGs of all kinds, and ways to damage them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from foreload import _native
from tests.conftest import jpeg, photo

# Markers of a JPEG, by their second byte.
FRAME, TABLES, RESTART, END, SCAN, QUANTISERS, INTERVAL = 0xC0, 0xC4, 0xD0, 0xD9, 0xDA, 0xDB, 0xDD
RESTARTS = range(RESTART, RESTART + 8)
FRAMES = range(FRAME, FRAME + 3)


def scans_of_their_own() -> bytes:
    """A baseline JPEG of three components, each of which has a scan."""
    planes = photo(90, 70, 3).convert("YCbCr").split()
    files = [jpeg(plane) for plane in planes]
    begin = files[0].index(bytes([0xFF, FRAME]))
    scan = files[0].index(bytes([0xFF, SCAN]))
    frame = struct.pack(">2BHBHHB", 0xFF, FRAME, 17, 8, 70, 90, 3) + bytes([1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0])
    tables = files[0][begin + 2 + 11 : scan]
    data = [
        bytes([0xFF, SCAN, 0, 8, 1, 1 + i, 0, 0, 63, 0]) + file[scan + 10 : -2] for i, file in enumerate(files)
    ]
    return files[0][:begin] + frame + tables + b"".join(data) + bytes([0xFF, END])


PHOTO = photo(120, 90, 2)
SOUND = {
    "baseline": jpeg(PHOTO),
    "4:4:4": jpeg(PHOTO, subsampling=0),
    "grey": jpeg(PHOTO.convert("L")),
    "own tables": jpeg(PHOTO, optimize=True, quality=60),
    "short intervals": jpeg(PHOTO, restart_marker_blocks=3),
    "long intervals": jpeg(PHOTO, restart_marker_blocks=20),
    "intervals of rows": jpeg(PHOTO, restart_marker_rows=1, subsampling=1),
    "progressive": jpeg(PHOTO, progressive=True),
    "progressive with intervals": jpeg(PHOTO, progressive=True, restart_marker_rows=1),
    "progressive grey": jpeg(PHOTO.convert("L"), progressive=True),
    "scans": scans_of_their_own(),
    "tiled": _native.tile_jpeg(jpeg(PHOTO)),
}


def places(data: bytes, codes: range | int) -> list[int]:
    """Return the positions of markers with these codes."""
    wanted = range(codes, codes + 1) if isinstance(codes, int) else codes
    return [i for i in range(2, len(data) - 1) if data[i] == 0xFF and data[i + 1] in wanted]


def segment(data: bytes, place: int) -> int:
    """The end of the segment of a marker."""
    return place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")


def data_begin(data: bytes) -> int:
    return segment(data, places(data, SCAN)[0])


def any_data(data: bytes, draw: random.Random) -> int:
    return draw.randrange(data_begin(data), len(data) - 2)


Damage = Callable[[bytes, random.Random], bytes]


def with_marker(codes: range | int, change: Callable[[bytes, int, random.Random], bytes]) -> Damage:
    def damage(data: bytes, draw: random.Random) -> bytes:
        found = places(data, codes)
        return change(data, draw.choice(found), draw) if found else data

    return damage


def put(offset: int, *values: int) -> Callable[[bytes, int, random.Random], bytes]:
    """Overwrite bytes behind a marker."""
    return lambda d, p, _: d[: p + offset] + bytes(values) + d[p + offset + len(values) :]


def without_segment(data: bytes, place: int, _: random.Random) -> bytes:
    return data[:place] + data[segment(data, place) :]


def twice(data: bytes, place: int, _: random.Random) -> bytes:
    return data[:place] + data[place : segment(data, place)] + data[place:]


def changed_bit(data: bytes, place: int, draw: random.Random) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def any_bit(begin: int, end: int) -> Callable[[bytes, int, random.Random], bytes]:
    """Change a bit so many bytes behind a marker."""
    return lambda d, p, draw: changed_bit(d, p + draw.randrange(begin, end), draw)


def inserted(*values: int, ahead_of: int = 0) -> Damage:
    """Insert bytes into the data, or so many bytes ahead of the end."""

    def damage(data: bytes, draw: random.Random) -> bytes:
        place = len(data) - ahead_of if ahead_of else any_data(data, draw)
        return data[:place] + bytes(values) + data[place:]

    return damage


def between(codes: range) -> Damage:
    """Remove what lies between two markers, with the first."""

    def damage(data: bytes, draw: random.Random) -> bytes:
        found = [place for place in places(data, codes) if place > data_begin(data)]
        if len(found) < 2:
            return data
        first, last = sorted(draw.sample(found, 2))
        return data[:first] + data[last:]

    return damage


def swapped(data: bytes, draw: random.Random) -> bytes:
    """Two pieces of the data change places."""
    a, b, c = sorted(any_data(data, draw) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def half_of_another(data: bytes, draw: random.Random) -> bytes:
    other = jpeg(photo(120, 90, 7))
    return data[: any_data(data, draw)] + other[any_data(other, draw) :]


DAMAGES: dict[str, Damage] = {
    "a restart marker is lost": with_marker(RESTARTS, lambda d, p, _: d[:p] + d[p + 2 :]),
    "a restart marker has another number": with_marker(
        RESTARTS, lambda d, p, draw: d[: p + 1] + bytes([draw.choice(RESTARTS)]) + d[p + 2 :]
    ),
    "a restart marker became data": with_marker(RESTARTS, put(1, 0)),
    "an interval is lost": between(RESTARTS),
    "a restart marker within the data": inserted(0xFF, RESTART + 3),
    "a restart marker at the end": inserted(0xFF, RESTART, ahead_of=2),
    "no restart interval": with_marker(INTERVAL, without_segment),
    "another restart interval": with_marker(INTERVAL, put(5, 7)),
    "a restart interval of nothing": with_marker(INTERVAL, put(4, 0, 0)),
    "a height that is too large": with_marker(FRAMES, put(5, 1, 90)),
    "a height that is too small": with_marker(FRAMES, put(5, 0, 40)),
    "no height": with_marker(FRAMES, put(5, 0, 0)),
    "a width that is too large": with_marker(FRAMES, put(7, 1, 30)),
    "other sampling factors": with_marker(FRAMES, put(11, 0x21)),
    "sampling factors that are none": with_marker(FRAMES, put(11, 0x05)),
    "another precision": with_marker(FRAMES, put(4, 12)),
    "arithmetic coding": with_marker(FRAMES, put(1, 0xC9)),
    "lossless coding": with_marker(FRAMES, put(1, 0xC3)),
    "a repeated frame": with_marker(FRAMES, twice),
    "no Huffman table": with_marker(TABLES, without_segment),
    "a repeated Huffman table": with_marker(TABLES, twice),
    "a Huffman table of other lengths": with_marker(TABLES, any_bit(5, 21)),
    "a Huffman table of other symbols": with_marker(TABLES, any_bit(21, 30)),
    "a table for another class": with_marker(TABLES, put(4, 0x13)),
    "no quantisers": with_marker(QUANTISERS, without_segment),
    "other quantisers": with_marker(QUANTISERS, any_bit(5, 65)),
    "a repeated scan header": with_marker(SCAN, twice),
    "no scan header": with_marker(SCAN, without_segment),
    "scans are lost": between(range(TABLES, SCAN + 1)),
    "another band of a scan": with_marker(
        SCAN, lambda d, p, draw: changed_bit(d, segment(d, p) - draw.randint(1, 3), draw)
    ),
    "other tables of a scan": with_marker(SCAN, any_bit(6, 7)),
    "a bit in the data": lambda d, draw: changed_bit(d, any_data(d, draw), draw),
    "ones in the data": inserted(*[0xFF, 0x00] * 6),
    "zeros in the data": inserted(*[0x00] * 9),
    "fill bytes in the data": inserted(0xFF, 0xFF, 0x00),
    "bytes missing": lambda d, draw: (lambda at: d[:at] + d[at + draw.randint(1, 30) :])(any_data(d, draw)),
    "pieces in another order": swapped,
    "bytes before the end marker": inserted(1, 2, 3, ahead_of=2),
    "bytes behind the end marker": lambda d, _: d + b"\0" * 100,
    "a comment before the end marker": inserted(0xFF, 0xFE, 0, 4, 65, 66, ahead_of=2),
    "an unknown marker before the end marker": inserted(0xFF, 0x02, ahead_of=2),
    "a segment without an end": inserted(0xFF, 0xE5, 0x40, 0, ahead_of=2),
    "a height behind the data": inserted(0xFF, 0xDC, 0, 4, 0, 90, ahead_of=2),
    "an end marker within the data": inserted(0xFF, END),
    "a second beginning within the data": inserted(0xFF, 0xD8),
    "a marker without a meaning": lambda d, _: d[:2] + b"\xff\x01" + d[2:],
    "bytes between segments": lambda d, _: d[:20] + b"\0\0\0" + d[20:],
    "cut short": lambda d, draw: d[: any_data(d, draw)],
    "cut short, but ended": lambda d, draw: d[: any_data(d, draw)] + b"\xff\xd9",
    "cut within the header": lambda d, draw: d[: draw.randrange(3, data_begin(d))],
    "cut before the end marker": lambda d, _: d[:-2],
    "cut within the end marker": lambda d, _: d[:-1],
    "the end of another file": half_of_another,
}  # fmt: skip
