"""Indexes of remote shards: never a wrong sample, whatever they say."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from tests.remote.web_server import COUNT, EACH, SHARDS, Handler, noise, right, samples_of, write_shard

pytest.importorskip("obstore")


@pytest.mark.slow
def test_indexes_beside_the_shards_and_in_a_folder(folder: Path, serve: Any, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("*.idx"))
    server = serve(bare)

    def ranges() -> int:
        return sum(command == "GET" and name.endswith(".tar") for command, name in server.asked)

    kept = tmp_path / "new" / "indexes"
    fl.TarDataset(server.url(SHARDS), index_folder=kept)
    made = ranges()
    assert made >= COUNT
    again = fl.TarDataset(server.url(SHARDS), index_folder=str(kept))
    assert ranges() == made
    assert right([tuple(sample.values()) for sample in samples_of(again)])
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    fl.TarDataset(own)  # which writes indexes
    server = serve(own)
    assert right([tuple(sample.values()) for sample in samples_of(fl.TarDataset(server.url(SHARDS)))])
    # Neighbours come together, and the indexes are not made.
    assert ranges() < COUNT * EACH
    assert ("GET", "s-1.tar.idx") in server.asked
    # A shard that is exchanged has another tag, so the kept index is not used.
    other = tmp_path / "other"
    shutil.copytree(bare, other)
    server = serve(other)
    fl.TarDataset(server.url("s-0.tar"), index_folder=kept)
    write_shard(other / "s-0.tar", [noise(number, 2990 + number) for number in range(EACH)])
    assert fl.TarDataset(server.url("s-0.tar"), index_folder=kept)[3]["bin"] == noise(3, 2993)


@pytest.mark.parametrize(
    "change",
    [
        "sizes",
        "damaged index",
        *(
            pytest.param(change, marks=pytest.mark.slow)
            for change in ("order", "shorter", "longer", "empty index")
        ),
    ],
)
def test_an_old_index_never_gives_a_wrong_sample(change: str, serve: Any, tmp_path: Path) -> None:
    contents = [noise(number, 700 + number % 3) for number in range(9)]
    shard = write_shard(tmp_path / "a.tar", contents)
    fl.TarDataset(shard)
    index = tmp_path / "a.tar.idx"
    server = serve(tmp_path)
    if change == "sizes":
        write_shard(shard, contents[1:] + contents[:1])
    elif change == "order":  # all of one size, so that only the names tell
        write_shard(shard, [noise(number, 700) for number in range(9)])
        index.unlink()
        fl.TarDataset(shard)
        write_shard(shard, [noise(number, 700) for number in range(1, 10)], first=1)
    elif change == "shorter":
        write_shard(shard, contents[:4])
    elif change == "longer":
        write_shard(shard, [*contents, noise(10, 30_000)])
    else:
        index.write_bytes(index.read_bytes()[:200] if change == "damaged index" else b"")
    with pytest.warns(UserWarning, match=r"1 of 1 shards were read to index them.*a\.tar\.idx"):
        dataset = fl.TarDataset(server.url("a.tar"))
    local = fl.TarDataset(shard)
    assert [dataset[i] for i in range(len(dataset))] == [local[i] for i in range(len(local))]


def test_an_index_that_is_too_long_for_its_shard_is_not_read(serve: Any, tmp_path: Path) -> None:
    contents = [noise(number, 700) for number in range(9)]
    write_shard(tmp_path / "a.tar", contents)
    (tmp_path / "a.tar.idx").write_bytes(bytes(2 << 20))
    server = serve(tmp_path)
    with pytest.warns(UserWarning, match="1 of 1 shards were read to index them"):
        shards = fl.TarDataset(server.url("a.tar"))
    assert [sample["bin"] for sample in samples_of(shards)] == contents
    assert ("GET", "a.tar.idx") not in server.asked


def page_without_ranges(handler: Handler, page: bytes) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(page)))
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(page)


PAGES: dict[str, Callable[[Handler, bytes], None]] = {
    "without ranges": page_without_ranges,
    "by ranges": lambda handler, page: handler.answer(page, *handler.wanted(len(page))),
    "without a length": lambda handler, page: handler.refuse(200, Transfer_Encoding="chunked"),
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_in_place_of_an_index_is_no_index(kind: str, serve: Any, tmp_path: Path) -> None:
    contents = [noise(number, 700) for number in range(9)]
    write_shard(tmp_path / "a.tar", contents)
    server = serve(tmp_path)

    def answer(handler: Handler) -> bool:
        if handler.path.endswith(".tar"):
            return False
        PAGES[kind](handler, b"<html>there is no such page</html>" * 30)
        return True

    server.fault = answer
    with pytest.warns(UserWarning, match=r"1 of 1 shards were read to index them.*refused.*a\.tar\.idx"):
        shards = fl.TarDataset(server.url("a.tar"))
    assert [sample["bin"] for sample in samples_of(shards)] == contents
    assert shards.shards.classes == list("0123456")


def test_another_page_each_time_is_no_index(serve: Any, tmp_path: Path) -> None:
    contents = [noise(number, 700) for number in range(9)]
    write_shard(tmp_path / "a.tar", contents)
    server = serve(tmp_path)

    def answer(handler: Handler) -> bool:
        if handler.path.endswith(".idx"):
            page = f"<html>{'no' * len(server.asked)}</html>".encode()
            handler.answer(page, *handler.wanted(len(page)))
        return handler.path.endswith(".idx")

    server.fault = answer
    with pytest.warns(UserWarning, match="1 of 1 shards were read to index them"):
        shards = fl.TarDataset(server.url("a.tar"))
    assert [sample["bin"] for sample in samples_of(shards)] == contents


@pytest.mark.usefixtures("impatient")
def test_a_server_that_fails_at_the_index_is_an_error(serve: Any, tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [noise(1, 700)])
    server = serve(tmp_path)

    def cut(handler: Handler) -> bool:
        if handler.path.endswith(".idx"):
            handler.cut()
        return handler.path.endswith(".idx")

    server.fault = cut
    with pytest.raises(OSError, match=r"fails again and again.*a\.tar\.idx"):
        fl.TarDataset(server.url("a.tar"))


@pytest.mark.slow
def test_names_of_all_sorts_are_recognised(serve: Any, tmp_path: Path) -> None:
    names = [
        "a.b",
        "./x/y.txt",
        "Über.B",
        "d" * 60 + "/" + "e" * 70 + ".bin",
        "f" * 180 + ".bin",
        "g/" * 60 + "h.bin",
    ]
    for style in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=style) as tar:
            for name in names:
                if style == tarfile.USTAR_FORMAT and name.startswith("f"):
                    continue
                member = tarfile.TarInfo(name)
                member.size = 7
                tar.addfile(member, io.BytesIO(b"content"))
        local = fl.TarDataset(tmp_path)
        dataset = fl.TarDataset(serve(tmp_path).url("a.tar"))
        assert samples_of(dataset) == samples_of(local)
        assert len(dataset) >= len(names) - 1
