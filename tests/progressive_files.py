"""Progressive JPEGs that no encoder makes, but the standard allows: any coefficients, scans, tables and intervals.

Their Huffman codes are as long as they may be, their runs of blocks end anywhere, each scan has a restart interval
and tables of its own, and what may lie between scans does.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.entropy_codes import Writer, huffman_table

__all__ = ["Frame", "Scan", "any_file", "any_frame", "any_scans", "encode"]

# A run of blocks without anything new is at most so long.
MAX_RUN = 0x7FFF


@dataclass
class Component:
    h: int
    v: int
    columns: int = 0  # blocks in the picture
    rows: int = 0
    stride: int = 0  # with those that fill up MCUs
    blocks: list[list[int]] = field(default_factory=list)  # 64 coefficients each, in zigzag order


@dataclass
class Frame:
    width: int
    height: int
    components: list[Component]

    @property
    def mcus(self) -> tuple[int, int]:
        across = max(component.h for component in self.components) * 8
        down = max(component.v for component in self.components) * 8
        return -(-self.width // across), -(-self.height // down)


@dataclass
class Scan:
    components: list[int]
    first: int
    last: int
    high: int
    low: int
    restart: int | None = None  # MCUs; None: as in the scan before
    ends: float = 0.1  # how probable it is that a run of blocks ends early


# What a scan codes: (symbol, table or -1) with a symbol, or (bits, their number).
Token = tuple[str, int, int]


def value_bits(value: int, size: int) -> int:
    return value if value > 0 else value + (1 << size) - 1


def shifted(value: int, low: int) -> int:
    return value >> low if value >= 0 else -(-value >> low)


class EndRuns:
    """Blocks that have nothing new, and the bits of what they have."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self.count = 0
        self.bits: list[int] = []

    def add(self, bits: list[int]) -> None:
        self.count += 1
        self.bits += bits
        if self.count == MAX_RUN:
            self.end()

    def end(self) -> None:
        if self.count:
            size = self.count.bit_length() - 1
            self._tokens.append(("symbol", size << 4, 0))
            self._tokens.append(("bits", self.count - (1 << size), size))
            self._tokens += [("bits", bit, 1) for bit in self.bits]
        self.count, self.bits = 0, []


def code_first(tokens: list[Token], scan: Scan, blocks: Iterator[list[int]], draw: random.Random) -> None:
    runs = EndRuns(tokens)
    for block in blocks:
        k, zeros = scan.first, 0
        while k <= scan.last:
            value = shifted(block[k], scan.low)
            k += 1
            if value == 0:
                zeros += 1
                continue
            runs.end()
            tokens.extend([("symbol", 0xF0, 0)] * (zeros // 16))
            size = abs(value).bit_length()
            tokens.append(("symbol", zeros % 16 << 4 | size, 0))
            tokens.append(("bits", value_bits(value, size), size))
            zeros = 0
        if zeros and zeros % 16 == 0 and draw.random() < 0.3:  # said in full
            runs.end()
            tokens.extend([("symbol", 0xF0, 0)] * (zeros // 16))
        elif zeros:
            runs.add([])
            if draw.random() < scan.ends:
                runs.end()
    runs.end()


def code_refined(tokens: list[Token], scan: Scan, blocks: Iterator[list[int]], draw: random.Random) -> None:
    runs = EndRuns(tokens)
    for block in blocks:
        band = [shifted(block[k], scan.low) for k in range(scan.first, scan.last + 1)]
        news = [k for k, value in enumerate(band) if abs(value) == 1]
        zeros, bits = 0, list[int]()
        for k, value in enumerate(band):
            if abs(value) > 1:
                bits.append(abs(value) & 1)
                continue
            if value == 0:
                if zeros == 15 and news and k < news[-1]:
                    runs.end()
                    tokens.append(("symbol", 0xF0, 0))
                    tokens += [("bits", bit, 1) for bit in bits]
                    zeros, bits = -1, []
                zeros += 1
                continue
            runs.end()
            tokens += [("symbol", zeros << 4 | 1, 0), ("bits", int(value > 0), 1)]
            tokens += [("bits", bit, 1) for bit in bits]
            zeros, bits = 0, []
        if zeros or bits:
            runs.add(bits)
            if draw.random() < scan.ends:
                runs.end()
    runs.end()


def code_dc(
    tokens: list[Token], scan: Scan, blocks: Iterator[tuple[int, list[int]]], tables: dict[int, int]
) -> None:
    before = dict.fromkeys(scan.components, 0)
    for number, block in blocks:
        value = block[0] >> scan.low
        if scan.high:
            tokens.append(("bits", value & 1, 1))
            continue
        change, before[number] = value - before[number], value
        size = abs(change).bit_length()
        tokens.append(("symbol", size, tables[number]))
        tokens.append(("bits", value_bits(change, size) if size else 0, size))


def blocks_of(frame: Frame, scan: Scan) -> list[list[tuple[int, list[int]]]]:
    """The blocks of each MCU, with the number of their component."""
    if len(scan.components) == 1:
        number = scan.components[0]
        of = frame.components[number]
        return [[(number, of.blocks[y * of.stride + x])] for y in range(of.rows) for x in range(of.columns)]
    across, down = frame.mcus
    return [
        [
            (number, of.blocks[(y * of.v + j) * of.stride + x * of.h + i])
            for number in scan.components
            for of in [frame.components[number]]
            for j in range(of.v)
            for i in range(of.h)
        ]
        for y in range(down)
        for x in range(across)
    ]


def code_scan(frame: Frame, scan: Scan, restart: int, draw: random.Random) -> bytes:
    """A scan with its tables."""
    tables = {number: draw.randrange(4) if scan.first == 0 else 0 for number in scan.components}
    mcus = blocks_of(frame, scan)
    step = restart or len(mcus)
    intervals = []
    for begin in range(0, len(mcus), step):
        tokens: list[Token] = []
        within = [block for mcu in mcus[begin : begin + step] for block in mcu]
        if scan.first == 0:
            code_dc(tokens, scan, iter(within), tables)
        else:
            (code_refined if scan.high else code_first)(tokens, scan, (block for _, block in within), draw)
        intervals.append(tokens)
    used: dict[int, set[int]] = {}
    for tokens in intervals:
        for kind, symbol, table in tokens:
            if kind == "symbol":
                used.setdefault(table, set()).add(symbol)
    number = draw.randrange(4)  # of the table of other coefficients
    made, codes = b"", {}
    for table, symbols in used.items():
        more = range(12) if scan.first == 0 else [run << 4 | size for run in range(15) for size in (0, 1)]
        symbols |= set(draw.sample(more, draw.choice([0, 1, 5])))
        coded, codes[table] = huffman_table(symbols, draw)
        made += bytes([table if scan.first == 0 else 0x10 | number]) + coded
    out = marker(0xC4, made) if made else b""
    if scan.restart is not None:
        out += marker(0xDD, struct.pack(">H", scan.restart))
    heads = [(i + 1, tables[i] << 4 if scan.first == 0 else number) for i in scan.components]
    out += marker(
        0xDA,
        bytes([len(heads)])
        + b"".join(map(bytes, heads))
        + bytes([scan.first, scan.last, scan.high << 4 | scan.low]),
    )
    for place, tokens in enumerate(intervals):
        writer = Writer()
        for kind, value, count in tokens:
            writer.put(*(codes[count][value] if kind == "symbol" else (value, count)))
        writer.align(draw)
        out += (bytes([0xFF, 0xD0 + (place - 1) % 8]) if place else b"") + writer.out
    return out


def marker(code: int, content: bytes) -> bytes:
    return bytes([0xFF, code]) + struct.pack(">H", len(content) + 2) + content


def encode(frame: Frame, scans: list[Scan], draw: random.Random, *, between: float = 0.2) -> bytes:
    """A file of these scans; with this probability something else lies before each."""
    quantiser = bytes(draw.choice([1, 1, 2, 3, 16]) for _ in range(64))
    out = b"\xff\xd8" + marker(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0") + marker(0xDB, b"\0" + quantiser)
    parts = [bytes([i + 1, of.h << 4 | of.v, 0]) for i, of in enumerate(frame.components)]
    out += marker(0xC2, struct.pack(">BHHB", 8, frame.height, frame.width, len(parts)) + b"".join(parts))
    restart = 0
    for scan in scans:
        if draw.random() < between:
            out += draw.choice([marker(0xFE, b"between \xff\xd9"), b"\xff" * 3, marker(0xE5, b"\xff\xda" * 9)])
        restart = restart if scan.restart is None else scan.restart
        out += code_scan(frame, scan, restart, draw)
    return out + b"\xff\xd9"


def any_frame(draw: random.Random, most: int = 70) -> Frame:
    """Coefficients of any kind, in any legal sampling."""
    factors = draw.choice(
        [[(1, 1)], [(2, 2)]]
        + [[(h, v), (1, 1), (1, 1)] for h, v in [(1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (3, 1), (4, 2)]]
        + [[(2, 2), (2, 1), (1, 2)], [(1, 1), (2, 2), (1, 1)], [(2, 2), (2, 2), (2, 2)], [(2, 1), (1, 1), (2, 1)]]
    )
    frame = Frame(draw.randint(1, most), draw.randint(1, most), [Component(h, v) for h, v in factors])
    across, down = frame.mcus
    widest, tallest = max(h for h, _ in factors), max(v for _, v in factors)
    density, largest = draw.choice([0, 0.02, 0.3, 0.9]), draw.choice([1, 5, 60, 1023])
    for of in frame.components:
        of.columns = -(-frame.width * of.h // (widest * 8))
        of.rows = -(-frame.height * of.v // (tallest * 8))
        of.stride = across * of.h
        for _ in range(of.stride * down * of.v):
            many = density if draw.random() < 0.7 else 0
            block = [draw.randint(-largest, largest) if draw.random() < many else 0 for _ in range(64)]
            block[0] = draw.randint(-1000, 1000)
            of.blocks.append(block)
    return frame


def any_scans(frame: Frame, draw: random.Random) -> list[Scan]:
    """All bits of all coefficients, in any legal order."""
    count = len(frame.components)
    most = draw.choice([0, 2, 5])
    waiting: list[list[Scan]] = []  # lists whose scans stay in their order
    left = draw.sample(range(count), count)
    while left:
        size = draw.randint(1, len(left))
        some, left = sorted(left[:size]), left[size:]
        fits = sum(frame.components[i].h * frame.components[i].v for i in some) <= 10
        for group in [some] if fits else [[i] for i in some]:
            low = draw.randint(0, most)
            order = [Scan(group, 0, 0, 0, low)]
            order += [Scan(group, 0, 0, bit + 1, bit) for bit in reversed(range(low))]
            waiting.append(order)
    begun = [order.pop(0) for order in waiting]
    for number in range(count):
        first = 1
        while first < 64:
            last = 63 if draw.random() < 0.4 else draw.randint(first, 63)
            low = draw.randint(0, most)
            order = [Scan([number], first, last, 0, low)]
            for bit in reversed(range(low)):
                middle = draw.randint(first, last)
                whole = middle == last or draw.random() < 0.5
                parts = [(first, last)] if whole else [(first, middle), (middle + 1, last)]
                order += [Scan([number], *part, bit + 1, bit) for part in parts]
            waiting.append(order)
            first = last + 1
    while any(waiting):
        begun.append(draw.choice([order for order in waiting if order]).pop(0))
    for scan in begun:
        scan.ends = draw.choice([0, 0, 0.1, 0.5, 1])
        if draw.random() < 0.3:
            scan.restart = draw.choice([0, 1, 2, 3, 7, 50, 65535])
    return begun


def any_file(seed: object, most: int = 70) -> bytes:
    """A sound file of any frame and scans."""
    draw = random.Random(repr(seed))
    frame = any_frame(draw, most)
    return encode(frame, any_scans(frame, draw), draw)
