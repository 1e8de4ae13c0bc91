"""Entropy-coded bits of JPEGs, and Huffman tables of any form."""

from __future__ import annotations

import random


class Writer:
    """Entropy-coded bits, with stuffed bytes."""

    def __init__(self) -> None:
        self.out = bytearray()
        self._bits = self._count = 0

    def put(self, value: int, count: int) -> None:
        self._bits = self._bits << count | value
        self._count += count
        while self._count >= 8:
            self._count -= 8
            byte = self._bits >> self._count & 255
            self.out += bytes([255, 0]) if byte == 255 else bytes([byte])
        self._bits &= (1 << self._count) - 1

    def align(self, draw: random.Random) -> None:
        """Fill up the last byte; encoders do it with ones, decoders do not look at it."""
        if self._count:
            count = 8 - self._count
            self.put((1 << count) - 1 if draw.random() < 0.9 else draw.getrandbits(count), count)


def code_lengths(count: int, draw: random.Random) -> list[int]:
    """Lengths of a prefix code of any form; the code of ones alone is left out."""
    lengths, bias = [0], draw.choice([0.0, 0.5, 0.95])
    while len(lengths) < count + 1:
        can = [place for place, length in enumerate(lengths) if length < 16]
        place = max(can, key=lengths.__getitem__) if draw.random() < bias else draw.choice(can)
        lengths[place] += 1
        lengths.append(lengths[place])
    return sorted(lengths)[:count]


def huffman_table(symbols: set[int], draw: random.Random) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """A table as it is in a file, and the code of each symbol with its length."""
    order = draw.sample(sorted(symbols), len(symbols))
    lengths = code_lengths(len(order), draw)
    codes, code, before = {}, 0, lengths[0]
    for symbol, length in zip(order, lengths, strict=True):
        code <<= length - before
        codes[symbol] = code, length
        code, before = code + 1, length
    return bytes(lengths.count(length) for length in range(1, 17)) + bytes(order), codes
