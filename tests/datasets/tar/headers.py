"""Headers of tar, and the members that Python's tarfile reads."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from foreload.datasets.tar.shards import split_name

BLOCK = 512
END = bytes(2 * BLOCK)


def header(name: bytes, size: int, kind: bytes = b"0", field: bytes | None = None, link: bytes = b"") -> bytes:
    """A ustar header, with the size's 12 bytes as they are given."""
    block = bytearray(BLOCK)
    block[: len(name[:100])] = name[:100]
    block[100:108] = b"0000644\0"
    block[124:136] = b"%011o\0" % size if field is None else field
    block[136:148] = b"%011o\0" % 0
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\00000"
    block[148:156] = b"%06o\0 " % (sum(block) + 8 * 32)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def pax(kind: bytes = b"x", **records: str) -> bytes:
    content = b""
    for name, value in records.items():
        text = f" {name.replace('_', '.')}={value}\n".encode()
        length = len(text) + 1
        while len(str(length)) + len(text) != length:
            length += 1
        content += str(length).encode() + text
    return header(b"pax", len(content), kind) + padded(content)


def gnu_name(name: bytes, kind: bytes = b"L") -> bytes:
    return header(b"././@LongLink", len(name) + 1, kind) + padded(name + b"\0")


def binary(size: int) -> bytes:
    """A size as GNU has it from 8 GiB on."""
    return b"\x80" + size.to_bytes(11, "big")


def by_tarfile(path: Path) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            found = split_name(member.name) if member.isreg() else None
            if found is None:
                continue
            if not samples or samples[-1]["__key__"] != found[0]:
                samples.append({"__key__": found[0]})
            samples[-1][found[1]] = tar.extractfile(member).read()  # type: ignore[union-attr]
    return samples
