"""Servers that are busy, cut connections, refuse, or have other files than before."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.errors import DecodeError
from tests.remote.web_server import EACH, SHARDS, Fault, Handler, expected, right, samples

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")


def busy(times: int) -> Fault:
    """Answer 503 to the first requests for each range."""
    seen: dict[Any, int] = {}

    def fault(handler: Handler) -> bool:
        what = handler.path, handler.headers.get("Range")
        seen[what] = seen.get(what, 0) + 1
        if seen[what] <= times:
            handler.refuse(503)
        return seen[what] <= times

    return fault


def once(answer: Callable[[Handler, bytes, int, int], None]) -> Fault:
    """Spoil the first answer to each request for a range."""
    seen: set[Any] = set()

    def fault(handler: Handler) -> bool:
        what = handler.path, handler.headers.get("Range")
        if what in seen or handler.command != "GET":
            return False
        seen.add(what)
        content = (handler.server.folder / handler.path.lstrip("/")).read_bytes()
        answer(handler, content, *handler.wanted(len(content)))
        return True

    return fault


def cut_body(handler: Handler, content: bytes, begin: int, end: int) -> None:
    handler.answer(content, begin, end, content[begin : (begin + end) // 2])
    handler.cut()


def cut_head(handler: Handler, content: bytes, begin: int, end: int) -> None:
    handler.wfile.write(b"HTTP/1.1 206 Partial Con")
    handler.cut()


def trickle(handler: Handler, content: bytes, begin: int, end: int) -> None:
    handler.answer(content, begin, end, b"")
    for at in range(begin, end, 500):
        handler.wfile.write(content[at : min(end, at + 500)])
        handler.wfile.flush()
        time.sleep(0.02 if end - begin < 10_000 else 0)


FAULTS: dict[str, Callable[[], Fault]] = {
    "busy": lambda: busy(3),
    "body cut": lambda: once(cut_body),
    "too short": lambda: once(lambda handler, content, begin, end: handler.answer(content, begin, end - 10)),
    "head cut": lambda: once(cut_head),
    "closed at once": lambda: once(lambda handler, *_: handler.cut()),
    "slow": lambda: once(trickle),
    "too many requests": lambda: once(lambda handler, *_: handler.refuse(429)),
    "internal error": lambda: once(lambda handler, *_: handler.refuse(500)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "fault",
    [
        fault if fault in ("busy", "body cut", "closed at once") else pytest.param(fault, marks=pytest.mark.slow)
        for fault in FAULTS
    ],
)
def test_what_passes_is_waited_for(fault: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    server.fault = FAULTS[fault]()
    dataset = fl.TarDataset(server.url(SHARDS))
    server.fault = FAULTS[fault]()
    assert right(samples(fl.DataLoader(dataset, 16, shuffle=True)))


@pytest.mark.slow
@pytest.mark.parametrize("latency", [0.03, 2.0])
def test_a_server_that_is_far_away(latency: float, folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))
    server.latency = latency
    assert right(samples(fl.DataLoader(dataset, 16, shuffle=True)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (404, FileNotFoundError, "no such file"),
        (403, PermissionError, "check the credentials"),
        (401, PermissionError, "skip_signature"),
        (410, OSError, "410 Gone"),
        (503, OSError, r"again and again.*503.*num_workers"),
    ],
)
def test_what_does_not_pass_is_an_error(status: int, kind: Any, message: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url(SHARDS))

    def last_shard(handler: Handler) -> bool:
        if handler.path != "/s-2.tar":
            return False
        handler.refuse(status)
        return True

    server.fault = last_shard
    server.asked.clear()
    with pytest.raises(kind, match=message) as caught:
        dataset[2 * EACH]
    assert caught.value.filename == server.url("s-2.tar")
    assert server.asked.count(("GET", "s-2.tar")) == (6 if status == 503 else 1)
    assert f"sample {2 * EACH} " in str(caught.value)
    if status == 503:  # which takes long
        return
    chosen = range(2 * EACH - 5, 2 * EACH + 2)
    loader = fl.DataLoader(dataset, 7, sampler=chosen, on_error="skip")
    assert right(samples(loader), chosen[:5])
    assert [error.index for error in loader.errors] == [*chosen[5:]]
    assert all(server.url("s-2.tar") in str(error) for error in loader.errors)
    with pytest.raises(kind):
        fl.TarDataset(server.url(SHARDS))


def test_images_that_cannot_be_fetched_are_left_out(pictures: Path, serve: Any) -> None:
    server = serve(pictures)
    images = fl.ImageDataset([server.url("shard-000000.tar"), server.url("shard-000001.tar")], image_size=16)
    first = len(images.shards.indexes[0])

    def fault(handler: Handler) -> bool:
        if "000001" not in handler.path:
            return False
        handler.refuse(404)
        return True

    server.fault = fault
    loader = fl.DataLoader(images, 8, on_error="skip")
    assert sum(len(batch) for batch, _ in loader) == first
    assert [error.index for error in loader.errors] == list(range(first, len(images)))
    with pytest.raises(FileNotFoundError, match=rf"sample {first} .*shard-000001.tar"):
        list(fl.DataLoader(images, 8))


def test_shards_that_are_cut_short_or_missing(folder: Path, serve: Any, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    server = serve(tmp_path)
    dataset = fl.TarDataset(server.url(SHARDS))
    os.truncate(tmp_path / "s-1.tar", 48_000)
    for sample in (EACH, 2 * EACH - 1):
        with pytest.raises(DecodeError, match=r"s-1\.tar: .*was replaced.*dataset again"):
            dataset[sample]
    assert dataset[EACH - 1] == expected(EACH - 1)
    with pytest.raises(DecodeError, match=r"s-1\.tar: .*cut short"):
        fl.TarDataset(server.url(SHARDS))
    (tmp_path / "s-1.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"no such file.*s-1\.tar"):
        fl.TarDataset(server.url(SHARDS))
    (tmp_path / "s-1.tar").write_bytes(b"")
    with pytest.raises(DecodeError, match=r"s-1\.tar: the shard is empty"):
        fl.TarDataset(server.url(SHARDS))


def test_a_server_without_ranges(folder: Path, serve: Any) -> None:
    server = serve(folder)
    dataset = fl.TarDataset(server.url("s-0.tar"))

    def no_ranges(handler: Handler) -> bool:
        del handler.headers["Range"]
        return False

    server.fault = no_ranges
    with pytest.raises(OSError, match=r"does not serve ranges of files.*TarStream.*s-0\.tar"):
        dataset[0]


@pytest.mark.slow  # it is asked six times, since another answer may say it
def test_a_server_that_says_no_lengths(folder: Path, serve: Any) -> None:
    server = serve(folder)

    def fault(handler: Handler) -> bool:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(b"0\r\n\r\n")
        return True

    server.fault = fault
    with pytest.raises(OSError, match=r"does not say how long the file is; .*with TarStream .*s-0\.tar"):
        fl.TarDataset(server.url("s-0.tar"))
