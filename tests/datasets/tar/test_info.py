"""Headers of tars parsed fast, against tarfile's own parsing."""

from __future__ import annotations

import io
import random
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl
from foreload.datasets.tar.info import Info
from foreload.errors import DecodeError

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
TYPES = (
    tarfile.REGTYPE,
    tarfile.AREGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.CONTTYPE,
    tarfile.GNUTYPE_SPARSE,
)


def parsed(kind: type[tarfile.TarInfo], header: bytes) -> Any:
    """Return what the loader uses of a header, or the kind of error."""
    try:
        info = kind.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        return type(error)
    return info.name, info.size, info.isfile(), info.isdir(), info.issparse()


def header_of(name: str, size: int, type_: bytes, format_: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mtime = size, type_, 1_700_000_000
    return info.tobuf(format_, "utf-8", "surrogateescape")[-tarfile.BLOCKSIZE :]


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=90),
    st.integers(0, (1 << 33) - 1),
    st.sampled_from(TYPES),
    st.sampled_from(FORMATS),
)
def test_a_header_is_what_tarfile_makes_of_it(name: str, size: int, type_: bytes, format_: int) -> None:
    header = header_of(name, size, type_, format_)
    assert parsed(Info, header) == parsed(tarfile.TarInfo, header)


def test_a_damaged_header_is_an_error_as_of_tarfile() -> None:
    draw = random.Random(0)
    for format_ in FORMATS:
        whole = header_of("train/0001.jpg", 123_456, tarfile.REGTYPE, format_)
        for place in range(tarfile.BLOCKSIZE):
            for value in {0, 0x20, 0x80, 0xFF, draw.randrange(256)} - {whole[place]}:
                header = whole[:place] + bytes([value]) + whole[place + 1 :]
                assert parsed(Info, header) == parsed(tarfile.TarInfo, header), (place, value)


def tar_of(sizes: list[int], **claimed: int) -> bytes:
    """A tar of members 0.bin, 1.bin, ...; the last one's header may claim another size."""
    file = io.BytesIO()
    for number, size in enumerate(sizes):
        is_last = number == len(sizes) - 1
        file.write(header_of(f"{number}.bin", claimed.get("last", size) if is_last else size, b"0", FORMATS[0]))
        file.write(bytes([number]) * size + b"\0" * (-size % 512))
    file.write(b"\0" * 1024)
    return file.getvalue()


class Trickle(io.RawIOBase):
    """A pipe that gives little at a time."""

    def __init__(self, content: bytes) -> None:
        self.left = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece, self.left = self.left[: min(len(buffer), 77)], self.left[min(len(buffer), 77) :]
        buffer[: len(piece)] = piece
        return len(piece)


def test_members_of_all_sizes_come_whole_from_a_pipe() -> None:
    sizes = [0, 1, 511, 512, 513, 100_000]
    stream = fl.TarStream(lambda: Trickle(tar_of(sizes)), shuffle=False)  # type: ignore[arg-type,return-value]
    assert [sample["bin"] for sample in stream] == [bytes([number]) * size for number, size in enumerate(sizes)]


@pytest.mark.parametrize("size", [2000, 1 << 32, (1 << 33) - 1])
def test_a_member_that_claims_more_than_there_is_is_damaged(size: int) -> None:
    stream = fl.TarStream(lambda: io.BytesIO(tar_of([5, 10], last=size)), shuffle=False)
    samples = iter(stream)
    with pytest.raises(DecodeError, match=r"'1\.bin' or after it, after 1 whole samples: unexpected end of data"):
        next(samples)
        next(samples)
