"""Headers in all the forms that tar has: Python's tarfile, files, a server and streams give the same members."""

from __future__ import annotations

import gzip
import io
import tarfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.errors import DecodeError
from tests.datasets.tar.headers import BLOCK, END, binary, by_tarfile, gnu_name, header, padded, pax
from tests.remote.web_server import with_slow

pytest.importorskip("obstore")

LONG = b"folder/" * 20 + b"a" * 120
HELLO, MORE = padded(b"hello"), padded(b"x" * 700)
FIRST, SMALL = header(b"a.txt", 5) + HELLO, header(b"z.txt", 3) + padded(b"end")
PICTURE = header(b"z.jpg", 2) + padded(b"hi")

SHARDS: dict[str, bytes] = {
    "a size in a record": pax(size="700") + header(b"a.txt", 0) + MORE + SMALL,
    "a size in a record that contradicts": pax(size="700") + header(b"a.txt", 5) + MORE + SMALL,
    "a size in a record beside a binary one": pax(size="9")
    + header(b"a.txt", 0, field=binary(9))
    + padded(b"x" * 9)
    + SMALL,
    "a path in a record": pax(path="b/c.txt") + FIRST + SMALL,
    "a path and a size in a record": pax(path="b/c.txt", size="5") + header(b"a", 0) + HELLO + SMALL,
    "a long path in a record": pax(path=LONG.decode() + ".txt") + header(LONG, 5) + HELLO + SMALL,
    "a path in another alphabet": pax(path="Übung/字.txt") + header(b"?.txt", 5) + HELLO + SMALL,
    "records that mean nothing here": pax(mtime="1.5", SCHILY_xattr="x" * 3000) + header(b"a.txt", 5) + HELLO,
    "a binary size": header(b"a.txt", 0, field=binary(700)) + MORE + SMALL,
    "a size without an end": header(b"a.txt", 0, field=b"00000001274\x20") + MORE + SMALL,
    "a size of spaces and digits": header(b"a.txt", 0, field=b"       1274 ") + MORE + SMALL,
    "a long name of GNU": gnu_name(LONG + b".txt") + header(LONG, 5) + HELLO + SMALL,
    "a long name and a record": gnu_name(LONG + b".txt") + pax(size="5") + header(LONG, 0) + HELLO + SMALL,
    "a long link of GNU": gnu_name(b"t" * 200, b"K") + header(b"a.txt", 0, b"2") + SMALL,
    "a hard link": FIRST + header(b"b.txt", 0, b"1", link=b"a.txt") + SMALL,
    "a hard link with a size": header(b"a.txt", 5) + HELLO + header(b"b.txt", 5, b"1", link=b"a.txt") + SMALL,
    "a symbolic link": header(b"b.txt", 0, b"2", link=b"a.txt") + SMALL,
    "a link among the members": header(b"z.jpg", 2)
    + padded(b"hi")
    + header(b"z.lnk", 0, b"1", link=b"z.jpg")
    + SMALL,
    "a folder among the members": PICTURE + header(b"z.d/", 0, b"5") + SMALL,
    "a device and a pipe": header(b"a.txt", 0, b"3") + header(b"b.txt", 0, b"6") + SMALL,
    "a contiguous file": header(b"a.txt", 5, b"7") + HELLO + SMALL,
    "an old file": header(b"a.txt", 5, b"\0") + HELLO + SMALL,
    "a kind of somebody's own": header(b"a.txt", 5, b"Q") + HELLO + SMALL,
    "a comment for all": pax(b"g", comment="0123456789abcdef") + FIRST + SMALL,
    "a path for all": pax(b"g", path="same.txt") + FIRST,
    "two comments for all": pax(b"g", comment="1") + pax(b"g", comment="2") + SMALL,
    "a comment for all in the middle": FIRST + pax(b"g", comment="1") + SMALL,
    "an empty member": header(b"a.txt", 0) + SMALL,
    "a size that fills its blocks": header(b"a.txt", 1024) + b"x" * 1024 + SMALL,
    "Solaris records": pax(b"X", path="b.txt") + FIRST + SMALL,
}


FAST = ["a size in a record", "a path in a record", "a binary size", "a long name of GNU", "a hard link"]


class Ranges(SimpleHTTPRequestHandler):
    """Python's own server, with ranges and ETags."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        begin, end = 0, len(content)
        wanted = self.headers["Range"]
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), int(last) + 1 if last else end
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[begin:end])

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def url_of(tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield lambda path: f"http://127.0.0.1:{server.server_port}/{path.name}"
        server.shutdown()
        thread.join()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", with_slow(SHARDS, FAST))
def test_headers_of_all_forms(name: str, url_of: Any, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(SHARDS[name] + END)
    expected = by_tarfile(shard)
    assert expected
    remote = fl.TarDataset(url_of(shard))  # makes the index
    assert list(remote) == expected
    assert list(fl.TarDataset(shard)) == expected  # and writes it
    assert list(fl.TarDataset(shard)) == expected
    by_index = fl.TarDataset(url_of(shard))
    assert list(by_index) == by_index.__getitems__(list(range(len(expected)))) == expected  # type: ignore[misc]
    assert list(fl.TarStream(shard, shuffle=False)) == expected
    assert list(fl.TarStream(url_of(shard), shuffle=False)) == expected


def sparse(tmp_path: Path, style: str) -> bytes:
    if style == "a record":
        hole = pax(GNU_sparse_major="1", GNU_sparse_minor="0", GNU_sparse_realsize="2000", GNU_sparse_name="a.txt")
        body = padded(b"1\n0\n5\n") + HELLO
        return hole + header(b"GNUSparseFile.0/a.txt", len(body)) + body
    block = bytearray(header(b"a.txt", 512, b"S"))
    block[257:265] = b"ustar  \0"
    block[386:410] = b"%011o\0%011o\0" % (0, 512)
    block[483:495] = b"%011o\0" % 4096
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + b"x" * 512


@pytest.mark.parametrize("style", ["a record", "GNU's own"])
def test_members_with_holes_are_refused(style: str, url_of: Any, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(sparse(tmp_path, style) + SMALL + END)
    for read in (
        lambda: fl.TarDataset(shard),
        lambda: fl.TarDataset(url_of(shard)),
        lambda: list(fl.TarStream(shard)),
    ):
        with pytest.raises(DecodeError, match=r"a\.tar: .*stored with holes.*--sparse"):
            read()


@pytest.mark.parametrize(
    "size", [b"\xff" * 12, b"\x80" + b"\xff" * 11, binary(1 << 62), b"77777777777\0", b"-0000000001\0"]
)
def test_sizes_that_cannot_be(size: bytes, url_of: Any, tmp_path: Path) -> None:
    shard = tmp_path / "a.tar"
    shard.write_bytes(header(b"a.txt", 0, field=size) + HELLO + SMALL + END)
    for read in (
        lambda: fl.TarDataset(shard),
        lambda: fl.TarDataset(url_of(shard)),
        lambda: list(fl.TarStream(shard)),
    ):
        with pytest.raises(DecodeError, match=r"a\.tar: "):
            read()


@pytest.mark.parametrize("record", ["-1", "99999999999999999999", "1e3", "", "5 "])
def test_sizes_in_records_that_cannot_be(record: str, url_of: Any, tmp_path: Path) -> None:
    """They are read as tarfile reads them, or an error is raised; the same everywhere."""
    shard = tmp_path / "a.tar"
    shard.write_bytes(pax(size=record) + FIRST + SMALL + END)
    try:
        expected = by_tarfile(shard)
    except (tarfile.TarError, OverflowError, ValueError):
        expected = []
    for read in (
        lambda: list(fl.TarDataset(shard)),
        lambda: list(fl.TarDataset(url_of(shard))),
        lambda: list(fl.TarStream(shard, shuffle=False)),
    ):
        with suppress(DecodeError):
            assert read() == expected


# The end.


ENDS: dict[str, tuple[bytes, str | None]] = {
    "two blocks": (END, None),
    "padded": (END + bytes(10 * 1024), None),
    "much padding": (END + bytes(3 << 20), None),
    "a concatenated tar": (END + bytes(8192) + SMALL + END, "bytes after the end marker"),
    "a concatenated tar without padding": (END + SMALL + END, "bytes after the end marker"),
    "a concatenated tar far behind": (END + bytes(2 << 20) + SMALL + END, "bytes after the end marker"),
    "rubbish": (END + b"rubbish", "bytes after the end marker"),
    "one block alone": (bytes(BLOCK), "no end marker"),
    "nothing": (b"", "no end marker"),
    "part of a block": (bytes(100), "no end marker"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", ENDS)
def test_reading_stops_at_the_end_marker(end: str, url_of: Any, tmp_path: Path) -> None:
    behind, said = ENDS[end]
    shard = tmp_path / "a.tar"
    shard.write_bytes(FIRST + behind)
    expected = by_tarfile(shard)
    assert [sample["__key__"] for sample in expected] == ["a"]
    reads: list[Callable[[], Any]] = [
        lambda: list(fl.TarDataset(shard)),
        lambda: list(fl.TarDataset(url_of(shard))),
        lambda: list(fl.TarStream(shard)),
        lambda: list(fl.TarStream(url_of(shard))),
        lambda: list(fl.TarStream(lambda: io.BytesIO(shard.read_bytes()))),
    ]
    for read in reads:
        shard.with_name("a.tar.idx").unlink(missing_ok=True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if end == "part of a block":
                with suppress(DecodeError):
                    assert read() == expected
                continue
            assert read() == expected
        texts = [str(each.message) for each in told if issubclass(each.category, UserWarning)]
        assert len(texts) == (said is not None), texts
        assert said is None or said in texts[0]


def test_a_header_of_zeros_in_the_middle_is_damage(url_of: Any, tmp_path: Path) -> None:
    """One block of zeros is no end: what follows would be lost without a word."""
    shard = tmp_path / "a.tar"
    shard.write_bytes(FIRST + bytes(BLOCK) + HELLO + SMALL + END)
    for read in (
        lambda: fl.TarDataset(shard),
        lambda: fl.TarDataset(url_of(shard)),
        lambda: list(fl.TarStream(shard)),
    ):
        with pytest.raises(DecodeError, match=r"a\.tar: .*damaged"):
            read()


def test_compressed_tars_one_after_the_other(tmp_path: Path) -> None:
    shard = tmp_path / "a.tar.gz"
    shard.write_bytes(gzip.compress(FIRST + END) + gzip.compress(SMALL + END))
    with pytest.warns(UserWarning, match=r"a\.tar\.gz: there are bytes after the end marker"):
        assert [sample["__key__"] for sample in fl.TarStream(shard)] == ["a"]
