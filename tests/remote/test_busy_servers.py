"""Servers that are slow, busy or cut connections are waited for and asked again."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.remote.patience import Patience, seconds_to_wait
from tests.remote.test_answers import READERS, both
from tests.remote.test_patience import BOUND
from tests.remote.web_server import Fault, Handler, noise, with_slow, write_shard

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")


def test_pauses_end() -> None:
    """However a server fails, the time without a byte is at most the total and one silence."""
    patience = Patience()
    for each in (0.0, 0.01, 14.99, 15.0):
        spent, attempt = each, 0
        while (pause := patience.pause_after(attempt, 0.0, spent)) is not None:
            assert 0 <= pause < 10
            spent += pause + each
            attempt += 1
        assert attempt < patience.tries
        assert spent <= patience.total + patience.silence
    assert patience.pause_after(0, 61.0, 0.0) is None
    assert 20 <= (patience.pause_after(0, 20.0, 0.0) or 0) <= 21


def test_retry_after_is_seconds_or_a_date() -> None:
    assert seconds_to_wait("7") == 7
    assert 50 < seconds_to_wait(formatdate(time.time() + 60, usegmt=True)) <= 60
    for nonsense in ("", "-5", "soon", "1e9999", "Mon, 99 Foo 2026 00:00:00 GMT", "\u0663", None):
        assert seconds_to_wait(nonsense) in (0.0, 3.0)


@pytest.mark.sampled(1)
@both
def test_a_slow_server_may_take_any_time(
    reader: str, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several times the silence, and longer than the total, but something always comes."""
    for module in ("fetch", "webfile"):
        monkeypatch.setattr(f"foreload.remote.{module}.PATIENCE", Patience(silence=2, total=6, pause=0.01))
    shard = write_shard(tmp_path / "a.tar", [noise(number, 9000) for number in range(6)])
    expected = list(fl.TarDataset(shard))
    server = serve(tmp_path)

    def slow(handler: Handler) -> bool:
        path = tmp_path / handler.path.lstrip("/")
        if handler.command != "GET" or path.name != "a.tar":
            return False
        content = path.read_bytes()
        begin, end = handler.wanted(len(content))
        handler.answer(content, begin, end, b"")
        for at in range(begin, end, 3000):
            handler.wfile.write(content[at : min(end, at + 3000)])
            handler.wfile.flush()
            time.sleep(0.4)
        return True

    server.fault = slow
    began = time.monotonic()
    assert READERS[reader](server.url("a.tar")) == expected
    assert time.monotonic() - began > 6
    assert server.asked.count(("GET", "a.tar")) <= 10


@pytest.mark.slow
@both
def test_a_slow_loop_is_not_a_silent_server(reader: str, folder: Path, serve: Any, impatient: None) -> None:
    dataset: Any = {"dataset": fl.TarDataset, "stream": lambda url: fl.TarStream(url, shuffle=False)}[reader](
        serve(folder).url("s-0.tar")
    )
    given = []
    for number, sample in enumerate(dataset):
        given.append(sample)
        if number in (0, 28):
            time.sleep(0.8)
    assert given == list(fl.TarDataset(folder / "s-0.tar"))


def busy_until(at: float, status: int, retry_after: str | None) -> Callable[[Handler], bool]:
    def fault(handler: Handler) -> bool:
        if time.monotonic() >= at:
            return False
        handler.refuse(status, **({"Retry-After": retry_after} if retry_after else {}))
        return True

    return fault


@pytest.mark.sampled(1)
@both
@pytest.mark.parametrize("status", with_slow([429, 503], [503]))
@pytest.mark.parametrize("form", with_slow(["seconds", "a date"], ["seconds"]))
def test_a_busy_server_says_when_to_come_back(
    form: str, status: int, reader: str, folder: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("fetch", "webfile"):
        monkeypatch.setattr(f"foreload.remote.{module}.PATIENCE", Patience(silence=2, pause=0.001, total=10))
    server = serve(folder)
    told = "2" if form == "seconds" else formatdate(time.time() + 3, usegmt=True)
    # Six tries with their own pauses would be over in a tenth of a second.
    server.fault = busy_until(time.monotonic() + 1.5, status, told)
    assert READERS[reader](server.url("s-0.tar")) == list(fl.TarDataset(folder / "s-0.tar"))
    assert len(server.asked) < 12


@pytest.mark.sampled(2)
@both
@pytest.mark.parametrize("told", ["3600", "99999999999999999999", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_busy_server_that_says_to_come_back_much_later(told: str, reader: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    server.fault = busy_until(time.monotonic() + 600, 503, told)
    began = time.monotonic()
    with pytest.raises(OSError, match=r"again and again.*503.*s-0\.tar"):
        READERS[reader](server.url("s-0.tar"))
    assert time.monotonic() - began < BOUND
    assert len(server.asked) <= 2


@both
def test_nonsense_in_retry_after_is_passed_over(reader: str, folder: Path, serve: Any, impatient: None) -> None:
    server = serve(folder)
    for told in ("-1", "soon", b"\x00".hex(), "1.5"):
        server.fault = busy_until(time.monotonic() + 0.03, 503, told)
        assert len(READERS[reader](server.url("s-0.tar"))) == 30


# A stream that is cut and goes on.


def cut_after(count: int) -> Callable[[Handler], bool]:
    def fault(handler: Handler) -> bool:
        content = (handler.server.folder / handler.path.lstrip("/")).read_bytes()
        begin, end = handler.wanted(len(content))
        handler.answer(content, begin, end, content[begin : min(end, begin + count)])
        if begin + count < end:
            handler.cut()
        return True

    return fault


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tag", ['"1"', 'W/"1"', None])
@pytest.mark.parametrize("packed", [False, True])
def test_a_stream_that_is_cut_again_and_again(
    tag: str | None, packed: bool, folder: Path, serve: Any, tmp_path: Path
) -> None:
    content = (folder / "s-0.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(gzip.compress(content) if packed else content)
    server = serve(tmp_path)
    server.validators = lambda content: {"ETag": tag} if tag else {}
    counts = iter([10, 30_000, 1, 60_000, 10**9, 10**9])
    server.fault = lambda handler: cut_after(next(counts, 10**9))(handler)
    assert READERS["stream"](server.url("a.tar")) == list(fl.TarDataset(folder / "s-0.tar"))
    ranges = [name for _, name in server.asked]
    assert len(ranges) >= 4


@pytest.mark.parametrize("tag", ['"1"', 'W/"1"', None])
def test_a_stream_that_is_replaced_and_keeps_its_tag(tag: str | None, serve: Any, tmp_path: Path) -> None:
    """Without a strong tag, the part that is known is compared."""
    first = [noise(number, 9000) for number in range(9)]
    shard = write_shard(tmp_path / "a.tar", first)
    server = serve(tmp_path)
    server.validators = lambda content: {"ETag": tag if tag != '"1"' else f'"{hash(content)}"'} if tag else {}

    def exchange(handler: Handler) -> bool:
        cut_after(40_000)(handler)
        server.fault = None
        write_shard(shard, [noise(number + 1, 9000) for number in range(9)])
        return True

    server.fault = exchange
    with pytest.raises(OSError, match=r"has changed while it was read.*a\.tar"):
        READERS["stream"](server.url("a.tar"))


def test_a_stream_gets_another_range_than_it_asked_for(folder: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(folder)

    def fault(handler: Handler) -> bool:
        if "Range" not in handler.headers:
            return cut_after(50_000)(handler)
        content = (folder / "s-0.tar").read_bytes()
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{len(content) - 1}/{len(content)}")
        begin, _ = handler.wanted(len(content))
        handler.send_header("Content-Length", str(len(content) - begin))
        handler.send_header("ETag", server.validators(content)["ETag"])
        handler.end_headers()
        handler.wfile.write(content[: len(content) - begin])
        return True

    server.fault = fault
    with pytest.raises(OSError, match=r"another range than was asked for.*s-0\.tar"):
        READERS["stream"](server.url("s-0.tar"))


def in_chunks(handler: Handler, part: slice) -> bool:
    """Answer in chunks, without a length, and cut the connection after a part."""
    content = (handler.server.folder / handler.path.lstrip("/")).read_bytes()
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    for name, value in handler.server.validators(content).items():
        handler.send_header(name, value)
    handler.end_headers()
    body = content[part]
    handler.wfile.write(b"%x\r\n" % len(body) + body + b"\r\n" + b"0\r\n\r\n" * (part.stop is None))
    if part.stop is not None:
        handler.cut()
    return True


@pytest.mark.parametrize("lengths", ["then with one", "before with one"])
def test_a_stream_whose_length_is_said_by_some_answers_only(lengths: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    steps: list[Fault] = [lambda handler: in_chunks(handler, slice(0, 40_000))]
    if lengths == "before with one":
        steps = [cut_after(40_000), lambda handler: in_chunks(handler, slice(0, None))]
    left = iter(steps)
    server.fault = lambda handler: (step := next(left, None)) is not None and step(handler)
    assert READERS["stream"](server.url("s-0.tar")) == list(fl.TarDataset(folder / "s-0.tar"))
    assert len(server.asked) == 2


def test_a_part_in_place_of_all_is_no_file(folder: Path, serve: Any) -> None:
    """The part may end between two samples, and look like a shorter shard."""
    server = serve(folder)

    def fault(handler: Handler) -> bool:
        content = (folder / "s-0.tar").read_bytes()
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{4095}/{len(content)}")
        handler.send_header("Content-Length", "4096")
        handler.end_headers()
        handler.wfile.write(content[:4096])
        return True

    server.fault = fault
    with pytest.raises(OSError, match=r"sends a part, though it was asked for all of it.*s-0\.tar"):
        READERS["stream"](server.url("s-0.tar"))
