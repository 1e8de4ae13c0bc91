"""Streams of tar shards without random access: compressed, piped, damaged, from busy servers."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import tarfile
import threading
import warnings
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

import foreload as fl
from foreload.errors import DecodeError
from tests.datasets.stream.numbers import write_tar
from tests.programs import Program


def test_zstandard(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "a.tar", range(20), size=2000)
    packed = plain.with_suffix(".tar.zst")
    zstandard = pytest.importorskip("zstandard")
    content = zstandard.ZstdCompressor(write_checksum=True).compress(plain.read_bytes())
    packed.write_bytes(content)
    assert list(fl.TarStream(packed, shuffle=False)) == list(fl.TarDataset(plain))
    for damaged in (content[: len(content) // 2], content[:9000] + b"x" * 30 + content[9030:]):
        packed.write_bytes(damaged)
        with pytest.raises(DecodeError, match=r"a\.tar\.zst: "):
            list(fl.TarStream(packed))
    with patch.dict(sys.modules, zstandard=None), pytest.raises(ImportError, match="needs zstandard: pip install"):
        list(fl.TarStream(packed))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_shards_compressed_or_not_give_what_tar_dataset_gives(tmp_path: Path, mode: str) -> None:
    plain = write_tar(tmp_path / "plain.tar", range(20), size=2000)
    packed = write_tar(tmp_path / f"packed.tar.{mode[2:]}".rstrip("."), range(20), mode, size=2000)
    data = packed.read_bytes()
    expected = list(fl.TarDataset(plain))
    for shard in (packed, str(packed), [packed], partial(open, packed, "rb"), lambda: io.BytesIO(data)):
        assert list(fl.TarStream(shard, shuffle=False)) == expected
    (tmp_path / "folder").mkdir()
    packed.rename(tmp_path / "folder" / packed.name)
    assert list(fl.TarStream(tmp_path / "folder", lambda sample: sample["cls"], shuffle=False)) == [
        sample["cls"] for sample in expected
    ]


@pytest.mark.slow
def test_standard_input(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar.gz", range(20), "w:gz")
    script = (
        "import foreload as fl; loader = fl.DataLoader(fl.TarStream('-', seed=0), batch_size=None);"
        "print(sorted(int(s['cls']) for s in loader) == list(range(20)))"
    )
    with shard.open("rb") as file:
        run = Program("-c", script, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert run.communicate(timeout=300) == ("True\n", "")
    with (
        patch("multiprocessing.parent_process"),
        pytest.raises(ValueError, match="processes have no standard input"),
    ):
        list(fl.TarStream("-"))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_shard_that_is_cut_short_says_where(tmp_path: Path, mode: str) -> None:
    whole = write_tar(tmp_path / "whole.tar", range(10), mode, size=3000).read_bytes()
    good = list(fl.TarDataset(write_tar(tmp_path / "plain.tar", range(10), size=3000)))
    cut = tmp_path / "cut.tar"
    # At any byte, also within headers and padding; not where only the padding of the archive is missing.
    end = len(whole) if mode != "w" else 10 * (512 + 3072 + 512 + 512)
    for size in [0, 1, 300, *range(511, end, 997), end - 1]:
        cut.write_bytes(whole[:size])
        got: list[Any] = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            said = _until_it_fails(fl.TarStream(cut, shuffle=False), got)
        assert (str(cut) in said) or any("no end marker" in str(each.message) for each in warned), size
        assert size < 1000 or mode != "w" or not said or "member '0" in said
        assert got == good[: len(got)] or (mode == "w" and got[:-1] == good[: len(got) - 1])


@pytest.fixture(params=["this", "later"])
def tarfiles_own_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse headers as this Python does, or by the methods that it has got in later ones."""
    if request.param == "later" and not hasattr(tarfile.TarInfo, "_frombuf"):
        parse, read = tarfile.TarInfo.frombuf.__func__, tarfile.TarInfo.fromtarfile.__func__  # type: ignore[attr-defined]

        def parse_later(cls: Any, buf: Any, encoding: str, errors: str, *, dircheck: bool = True) -> Any:
            return parse(cls, buf, encoding, errors)

        def read_later(cls: Any, tar: Any, *, dircheck: bool = True) -> Any:
            with patch.object(cls, "frombuf", partial(cls._frombuf, dircheck=dircheck)):
                return read(cls, tar)

        for name, later in (("frombuf", parse_later), ("fromtarfile", read_later)):
            monkeypatch.setattr(tarfile.TarInfo, f"_{name}", classmethod(later), raising=False)
            call = classmethod(lambda cls, *arguments, to=f"_{name}": getattr(cls, to)(*arguments))
            monkeypatch.setattr(tarfile.TarInfo, name, call)


@pytest.mark.usefixtures("tarfiles_own_way")
@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize("rest", [1, 149, 511])
def test_an_archive_may_end_within_a_block_of_zeros(tmp_path: Path, blocks: int, rest: int) -> None:
    whole = write_tar(tmp_path / "whole.tar", range(3), size=700)
    with tarfile.open(whole) as tar:
        members = tar.getmembers()
    end = members[-1].offset_data + 512
    expected = list(fl.TarDataset(whole))
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[: end + 512 * blocks + rest])
    with tarfile.open(cut) as tar:
        assert [member.name for member in tar] == [member.name for member in members]
    with pytest.warns(UserWarning, match="no end marker"):
        assert list(fl.TarDataset(cut)) == expected
    with pytest.warns(UserWarning, match="no end marker"):
        assert list(fl.TarStream(cut, shuffle=False)) == expected
    # With anything in it, it is a header that is cut short.
    cut.write_bytes(whole.read_bytes()[:end] + b"x".ljust(rest, b"\0"))
    for read in (fl.TarDataset, lambda path: list(fl.TarStream(path))):
        with pytest.raises(DecodeError, match="cut short"):
            read(cut)


def _until_it_fails(stream: Any, got: list[Any]) -> str:
    try:
        got.extend(iter(stream))  # which keeps what came before
    except DecodeError as error:
        return str(error)
    return ""


def test_damage_is_never_a_sample(tmp_path: Path) -> None:
    content = bytearray(write_tar(tmp_path / "a.tar.gz", range(10), "w:gz", size=90_000).read_bytes())
    content[len(content) // 2] ^= 0x55
    (tmp_path / "a.tar.gz").write_bytes(content)
    good = write_tar(tmp_path / "b.tar", range(10, 20))
    loader: Any = fl.DataLoader(
        fl.TarStream([tmp_path / "a.tar.gz", good], shuffle=False), batch_size=None, num_workers=0, on_error="skip"
    )
    keys = [int(sample["cls"]) for sample in loader]
    assert keys[-10:] == list(range(10, 20))
    assert 0 < len(keys) - 10 < 10
    assert keys[:-10] == list(range(len(keys) - 10))
    (failure,) = loader.errors
    assert "a.tar.gz: damaged or cut short at member '0000" in failure.error
    header = bytearray(good.read_bytes())
    header[1024 * 3 + 100] ^= 1  # in the mode of a later member
    good.write_bytes(header)
    with pytest.raises(DecodeError, match=r"b.tar: damaged or cut short at member '00001"):
        list(fl.TarStream(good))


def test_what_is_no_shard(tmp_path: Path) -> None:
    def shard(*members: tuple[str, bytes]) -> Path:
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return tmp_path / "x.tar"

    (tmp_path / "text.tar").write_text("no tar at all" * 100)
    for path, said in (
        (tmp_path / "text.tar", "text.tar: not a tar file, or damaged before its first member"),
        (shard(("../../etc/a.txt", b"1")), r"x.tar: member '../../etc/a.txt' leads out of the archive"),
    ):
        with pytest.raises(DecodeError, match=said):
            list(fl.TarStream(path))
    with pytest.raises(DecodeError, match="sample 'a' has two members 'txt'"):
        list(fl.TarStream(shard(("a.txt", b"1"), ("a.txt", b"2"))))
    with pytest.raises(DecodeError, match="the shard has no samples"):
        list(fl.TarStream(shard(("README", b"1"))))
    with pytest.raises(FileNotFoundError):
        list(fl.TarStream(tmp_path / "none.tar"))
    for source, error, said in (
        ("pipe:cat a.tar", ValueError, "is a command, and none is run"),
        (io.BytesIO(), TypeError, "an open file can be read once only; give a function that opens it"),
        ([], ValueError, "shards is an empty list"),
        (5, TypeError, "shards must be files, URLs, '-' or functions"),
    ):
        with pytest.raises(error, match=said):
            fl.TarStream(source)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a function must give a file open for reading, got int"):
        list(fl.TarStream(lambda: 5))  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="transform must be callable, got int"):
        fl.TarStream("a.tar", 5)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no tar files, compressed or not, in"):
        fl.TarStream(tmp_path / "empty")


def test_fewer_shards_than_readers_is_said(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "a.tar", range(10))
    loader: Any = fl.DataLoader(fl.TarStream(shard, seed=0), batch_size=None, num_workers=3, workers="threads")
    with pytest.warns(UserWarning, match=r"only 1 shards for 3 readers .* 2 of them have nothing to read"):
        assert sorted(int(sample["cls"]) for sample in loader) == list(range(10))


class Server(BaseHTTPRequestHandler):
    """Knows no ranges, is busy at first, and cuts connections."""

    files: ClassVar[dict[str, bytes]] = {}
    ranges = False
    cuts: ClassVar[list[int]] = []
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        Server.asked.append(self.headers.get("Range"))
        if self.path == "/busy.tar" and len(Server.asked) == 1:
            self.send_error(503)
            return
        data = self.files.get(self.path)
        if data is None:
            self.send_error(403 if "secret" in self.path else 404)
            return
        begin = 0
        if self.ranges and (wanted := self.headers.get("Range")):
            begin = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", f'"{len(data)}"')
        self.end_headers()
        until = self.cuts.pop(0) if self.cuts else len(data)
        self.wfile.write(data[begin:until])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("ranges", [False, True])
def test_web_servers(tmp_path: Path, ranges: bool) -> None:
    content = write_tar(tmp_path / "a.tar", range(30), size=9000).read_bytes()
    expected = list(fl.TarDataset(tmp_path / "a.tar"))
    Server.files = {"/a.tar": content, "/busy.tar": content, "/a.tar.gz": gzip.compress(content)}
    Server.files["/%C3%BC%20%2B.tar"] = content
    Server.ranges = ranges
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        try:
            for name in ("busy.tar", "a.tar", "a.tar.gz", "ü %2B.tar"):
                Server.asked, Server.cuts = [], [100_000, 170_000] if name == "a.tar" else []
                assert list(fl.TarStream(f"{base}/{name}", shuffle=False)) == expected
            for name, error in (("none.tar", FileNotFoundError), ("secret.tar", PermissionError)):
                with pytest.raises(error) as caught:
                    list(fl.TarStream(f"{base}/{name}"))
                assert caught.value.filename == f"{base}/{name}"
        finally:
            server.shutdown()
            thread.join()
