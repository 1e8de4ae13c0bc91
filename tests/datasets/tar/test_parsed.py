"""Members parsed natively, against tarfile: of plain and of odd archives, damaged and cut short."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import warnings
import zlib
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foreload as fl
from foreload import _native
from foreload.datasets.tar.shards import leads_out, split_name
from foreload.errors import DecodeError

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
PLAIN = (tarfile.REGTYPE, tarfile.REGTYPE, tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
OTHERS = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)

STEMS = (
    *("a", "b", "0001", "A", "__meta__", "__m", "__a__b__", "____", "a b", "it's", 'say "a"', "back\\slash"),
    *("\u00e9", "\U0001f600", "tab\t", "line\n", ".", "..", "x" * 60, "y" * 120),
    *("d/a", "d/b", "d.e/a", "/abs", "d/../a", "..a/b"),
)
stems = st.sampled_from(STEMS)
fields = st.sampled_from(["txt", "TXT", "cls", "seg.PNG", "", ".", "__key__", "__KEY__", "\u00c9", "it's", "a/b"])
names = st.one_of(st.tuples(stems, fields).map(".".join), stems)
members = st.tuples(
    names,
    st.one_of(st.sampled_from([0, 1, 511, 512, 513]), st.integers(0, 2000)),
    st.sampled_from(PLAIN * 3 + OTHERS),
    st.sampled_from([0, 0, 0, 1.5]),  # a time that takes a pax header
)


def archive(
    entries: list[tuple[str, int, bytes, float]], format_: int, headers: dict[str, str] | None = None
) -> bytes:
    """A tar of members with these names, sizes, types and times."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format_, pax_headers=headers) as tar:
        for number, (name, size, type_, time) in enumerate(entries):
            member = tarfile.TarInfo(name)
            member.type, member.mtime, member.linkname = type_, time, "a"
            member.size = size if type_ in PLAIN else 0
            tar.addfile(member, io.BytesIO(bytes([number % 251]) * member.size))
    return file.getvalue()


def told(stream: Any) -> tuple[list[Any], str, list[str]]:
    """Return what comes of a stream: samples, the error that ends it, and warnings."""
    got: list[Any] = []
    said = ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            got.extend(list(sample.items()) for sample in stream)  # with their order
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
    return got, said, [str(each.message) for each in warned]


def streams(content: bytes) -> tuple[Any, Any]:
    """A shard parsed natively where it can be, and one that tarfile alone parses, since it is compressed."""
    shown: Callable[[], Any]

    def shown() -> Any:
        return io.BytesIO(data)

    data = content
    plain = told(fl.TarStream(shown, shuffle=False))
    data = gzip.compress(content, 1)
    return plain, told(fl.TarStream(shown, shuffle=False))


@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(members, min_size=1, max_size=12), st.sampled_from(FORMATS))
def test_samples_are_those_of_tarfile(entries: list[Any], format_: int) -> None:
    try:
        content = archive(entries, format_)
    except (ValueError, UnicodeError):  # the format has no place for a name
        return
    plain, packed = streams(content)
    assert plain == packed
    expected: list[Any] = []
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = [(member.name, split_name(member.name), member) for member in tar]
        if any(leads_out(name) for name, _, _ in found):
            assert "leads out of the archive" in plain[1] or "has two members" in plain[1]
            return
        parts = [(*split, member) for _, split, member in found if split and member.isfile()]
        for key, group in groupby(parts, lambda part: part[0]):
            sample: list[Any] = [("__key__", key)]
            for _, field, member in group:
                if field in dict(sample):
                    assert field == "__key__" or f"has two members {field!r}" in plain[1]
                    return
                sample.append((field, tar.extractfile(member).read()))  # type: ignore[union-attr]
            expected.append(sample)
    assert plain[0] == expected
    assert plain[1] == "" if expected else "the shard has no samples" in plain[1]


@settings(max_examples=3 * settings.default.max_examples)
@given(
    st.lists(members, min_size=1, max_size=8),
    st.sampled_from(FORMATS),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3),
    st.floats(0, 1),
    st.binary(max_size=1500),
)
def test_damage_is_told_as_tarfile_finds_it(
    entries: list[Any], format_: int, flips: list[Any], cut: float, more: bytes
) -> None:
    try:
        content = bytearray(archive(entries, format_))
    except (ValueError, UnicodeError):
        return
    for place, change in flips:
        content[int(place * len(content))] ^= change
    end = max(1, int(cut * len(content))) if cut < 0.9 else len(content)
    plain, packed = streams(bytes(content[:end]) + (more if cut > 0.8 else b""))
    assert plain == packed


@pytest.mark.sampled(40)
@pytest.mark.parametrize("at", [0, 124, 136, 148, 156, 257, 345, 511])
@pytest.mark.parametrize("value", [0, 1, 32, 45, 48, 56, 76, 120, 128, 255])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_header_with_any_value_in_a_field(at: int, value: int, fixed: bool) -> None:
    """Also with the right sum, so that the value counts."""
    content = bytearray(
        archive([("0.txt", 5, b"0", 0), ("1.txt", 700, b"0", 0), ("2.txt", 9, b"0", 0)], FORMATS[0])
    )
    header = memoryview(content)[1024:1536]
    header[at] = value
    if fixed:
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    plain, packed = streams(bytes(content))
    assert plain == packed


def test_what_a_global_header_says_counts_for_every_member() -> None:
    for headers in ({"comment": "c"}, {"path": "other.txt"}, {"size": "3"}):
        content = archive([(f"{number}.txt", 600, b"0", 0) for number in range(4)], tarfile.PAX_FORMAT, headers)
        plain, packed = streams(content)
        assert plain == packed, headers
    # One in the middle, as where tars are joined.
    first = archive([("0.txt", 5, b"0", 0), ("1.txt", 5, b"0", 0)], tarfile.PAX_FORMAT)[:2048]
    plain, packed = streams(first + content)
    assert plain == packed


class Pieces(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, content: bytes, most: int) -> None:
        self.left, self.most = memoryview(content), most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self.most, len(self.left))
        buffer[:count], self.left = self.left[:count], self.left[count:]
        return count


@pytest.mark.parametrize("most", [511, 70_001, 1 << 20])
def test_members_larger_than_a_block_and_across_its_end(most: int) -> None:
    sizes = [10, 250_000, 11_000, 262_144, 261_120, 261_632, 262_145, 700_000, 0, 5, 120_000, 120_000, 120_000]
    entries = [(f"{number:02}.bin", size, b"0", 0.0) for number, size in enumerate(sizes)]
    content = archive(entries, FORMATS[0])
    for shard in (lambda: Pieces(content, most), lambda: io.BufferedReader(Pieces(content, most), 100)):
        got = list(fl.TarStream(shard, shuffle=False))  # type: ignore[arg-type]
        assert got == [
            {"__key__": name[:2], "bin": bytes([number]) * size} for number, (name, size, *_) in enumerate(entries)
        ]


def test_a_sample_comes_once_the_next_one_begins() -> None:
    """A pipe may have no more for long: a sample that is whole does not wait for it."""
    content = archive([(f"{number}.bin", 3000, b"0", 0) for number in range(5)], FORMATS[0])
    left = io.BytesIO(content)

    class Pipe(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            assert left.tell() < allowed, "it reads on"
            return left.readinto(memoryview(buffer)[: allowed - left.tell()])

    samples = iter(fl.TarStream(lambda: Pipe(), shuffle=False))  # type: ignore[arg-type,return-value]
    for number in range(4):
        allowed = (number + 1) * (512 + 3072) + 512
        assert next(samples)["__key__"] == str(number)


keys = st.text(max_size=20)
samples_ = st.lists(
    st.tuples(keys, st.dictionaries(st.text(max_size=9), st.binary(max_size=30), max_size=4)), max_size=5
)


@given(samples_, st.integers(0, (1 << 32) - 1))
def test_sums_are_of_the_keys_and_sizes(found: list[Any], before: int) -> None:
    samples = [{"__key__": key} | members for key, members in found]
    expected = []
    last = before
    for sample in samples:
        sizes = [(name, len(content)) for name, content in sample.items()]
        last = zlib.crc32(repr((sample["__key__"], sizes)).encode(), last)
        expected.append(last)
    assert _native.sample_sums(samples, before) == expected


def test_sums_of_names_that_are_no_text() -> None:
    sample = {"__key__": "\udcff\udc80", "\udcfe": b"12", "\U0001f600'\n": b""}
    expected = zlib.crc32(repr((sample["__key__"], [(name, len(one)) for name, one in sample.items()])).encode())
    assert _native.sample_sums([sample], 0) == [expected]
    with pytest.raises(KeyError, match="__key__"):
        _native.sample_sums([{}], 0)


def test_errors_name_the_shard_and_the_member(tmp_path: Any) -> None:
    shard = tmp_path / "x.tar"
    for entries, said in (
        (["a.txt", "b.txt", "b.TXT"], "sample 'b' has two members 'txt'"),
        (["a.txt", "b.txt", "c/../d.txt"], "member 'c/../d.txt' leads out of the archive"),
    ):
        shard.write_bytes(archive([(name, 5, b"0", 0) for name in entries], FORMATS[0]))
        samples = iter(fl.TarStream(shard, shuffle=False))
        assert next(samples)["__key__"] == "a"
        with pytest.raises(DecodeError, match=re.escape(f"{shard}: {said}")):
            list(samples)
