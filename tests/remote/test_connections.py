"""Ranges that are read over connections of our own are those that the server sends, or the library is asked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foreload.remote import connections
from foreload.remote.answers import Changed
from foreload.remote.connections import Connections
from foreload.remote.patience import Patience
from tests.remote.web_server import Handler, Server

CONTENT = bytes(range(256)) * 64
SHORT = Patience(silence=0.5)

Serve = Callable[[Path], Server]


def read(
    url: str, *ranges: tuple[int, int], version: list[Any] | None = None, patience: Patience = SHORT
) -> list[bytes | None]:
    """Return what is read, one range after the other; None where the library has to be asked."""

    async def all_of() -> list[bytes | None]:
        own, found, loop = Connections(), list[bytes | None](), asyncio.get_running_loop()
        for start, length in ranges:
            target = bytearray(length)
            is_read = await own.get(url, version, start, memoryview(target), patience, loop.time)
            found.append(bytes(target) if is_read else None)
        return found

    return asyncio.run(all_of())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    return tmp_path


class Pieces:
    """A server that answers each request with these bytes, in these pieces, and counts its connections."""

    def __init__(self, *pieces: bytes, closes: bool = False) -> None:
        self.pieces, self.closes, self.connections, self.requests = pieces, closes, 0, list[bytes]()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/a.bin"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self._live = connection
            self.connections += 1
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while request := self._received(connection):
                    if request == b"end":
                        return
                    self.requests.append(request)
                    for number, piece in enumerate(self.pieces):
                        if number:
                            threading.Event().wait(0.002)
                        with contextlib.suppress(ConnectionError):  # the client has seen enough
                            connection.sendall(piece)
                    if self.closes:
                        break

    @staticmethod
    def _received(connection: socket.socket) -> bytes:
        with contextlib.suppress(ConnectionError):
            return connection.recv(1 << 16)
        return b""

    def close(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # there is none, or it is closed
            self._live.shutdown(socket.SHUT_RDWR)
        with socket.create_connection(self._socket.getsockname()) as last:
            last.sendall(b"end")
            self._thread.join()
        self._socket.close()


@pytest.fixture
def pieces() -> Iterator[Callable[..., Pieces]]:
    servers: list[Pieces] = []

    def start(*parts: bytes, closes: bool = False) -> Pieces:
        servers.append(Pieces(*parts, closes=closes))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


HEAD = b'HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3-12/100\r\ncontent-length:10\r\nETag: "x"\r\n\r\n'
BODY = b"0123456789"


def test_ranges_are_the_files(file: Path, serve: Serve) -> None:
    server = serve(file)
    ranges = [(0, 1), (5, 1000), (len(CONTENT) - 7, 7), (0, len(CONTENT))]
    assert read(server.url("a.bin"), *ranges) == [CONTENT[start : start + length] for start, length in ranges]


def test_an_answer_may_come_in_any_pieces(pieces: Callable[..., Pieces]) -> None:
    whole = HEAD + BODY
    for cut in range(1, len(whole), 7):
        server = pieces(whole[:cut], whole[cut:])
        assert read(server.url, (3, 10), (3, 10)) == [BODY, BODY]
        assert server.connections == 1
    assert read(pieces(*(bytes([byte]) for byte in whole)).url, (3, 10)) == [BODY]


@pytest.mark.parametrize("head", [HEAD, HEAD.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n")])
def test_connections_that_the_server_closes_are_made_anew(head: bytes, pieces: Callable[..., Pieces]) -> None:
    server = pieces(head + BODY, closes=True)
    assert read(server.url, (3, 10), (3, 10), (3, 10)) == [BODY] * 3
    assert server.connections == 3


@pytest.mark.parametrize(
    "answer",
    [
        HEAD.replace(b"206 Partial Content", b"200 OK") + BODY,
        HEAD.replace(b"206 Partial Content", b"302 Found\r\nLocation: http://127.0.0.1:1/"),
        HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + BODY,
        HEAD.replace(b"content-length:10", b"Transfer-Encoding: chunked") + b"a\r\n0123456789\r\n0\r\n\r\n",
        HEAD.replace(b"content-length:10", b"content-length: 9") + BODY,
        HEAD.replace(b"content-length:10\r\n", b"") + BODY,
        HEAD.replace(b"3-12/100", b"3-12/*") + BODY,
        HEAD.replace(b"3-12/100", b"4-13/100") + BODY,
        HEAD.replace(b"3-12", b"3-14").replace(b":10", b":12") + BODY + b"xx",
        HEAD + BODY + b"more",
        HEAD.replace(b"ETag", b"Long: " + b"x" * 20_000 + b"\r\nETag") + BODY,
        HEAD.replace(b"ETag", b"Last-Modified: yesterday\r\nETag") + BODY,
        b"220 hello\r\n\r\n",
        (HEAD + BODY).replace(b"\r\n", b"\n"),
        HEAD.replace(b"ETag", b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\nETag") + BODY,
        HEAD.replace(b"ETag", b"Content-Length: 12\r\nETag") + BODY,
        HEAD.replace(b"content-length:10", b"content-length: 10, 10") + BODY,
        HEAD.replace(b"content-length:10", b"content-length: +10") + BODY,
        HEAD.replace(b"content-length:10", b"content-length :10") + BODY,
        HEAD.replace(b"ETag", b" folded\r\nETag") + BODY,
        HEAD.replace(b"ETag", b"Last-Modified: Sun, 06 Nov 1994 08:49:37 +0100\r\nETag") + BODY,
        HEAD.replace(b"ETag", b"Last-Modified: Sun, 99 Nov 1994 08:49:37 GMT\r\nETag") + BODY,
    ],
)
def test_the_library_is_asked_what_is_not_plain(answer: bytes, pieces: Callable[..., Pieces]) -> None:
    server = pieces(answer)
    assert read(server.url, *[(3, 10)] * 7) == [None] * 7
    assert len(server.requests) == 4  # then it is left to the library


@pytest.mark.parametrize(
    ("answer", "version", "error", "match"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\n", None, OSError, "non-2xx status code: 503"),
        (b"HTTP/1.1 404 \r\nContent-Length: 3\r\n\r\nno!", None, OSError, "404 Not Found"),
        (HEAD + BODY, [100, '"y"'], Changed, "it was"),
        (HEAD + BODY, [101, '"x"'], Changed, "101 bytes, now 100"),
        (HEAD.replace(b"/100", b"/11").replace(b"-12", b"-10").replace(b":10", b":8"), None, EOFError, "2 bytes"),
        (HEAD.replace(b"-12", b"-10").replace(b":10", b":8") + BODY[:8], None, ConnectionError, "shorter"),
        (HEAD.replace(b"ETag", b"Content-Encoding: gzip\r\nETag") + BODY, None, ValueError, "encoded"),
        (HEAD + BODY[:4], None, TimeoutError, "less than 240 bytes in 0.5 s"),
        (b"HTTP/1.1 206", None, TimeoutError, "less than"),
    ],
)
def test_errors_are_those_of_the_library(
    answer: bytes, version: list[Any] | None, error: Any, match: str, pieces: Callable[..., Pieces]
) -> None:
    with pytest.raises(error, match=match):
        read(pieces(answer).url, (3, 10), version=version)


def test_an_answer_that_is_cut_is_an_error(pieces: Callable[..., Pieces]) -> None:
    with pytest.raises(ConnectionError, match="before the answer was complete"):
        read(pieces(HEAD + BODY[:4], closes=True).url, (3, 10))


def test_the_version_is_asked_for(pieces: Callable[..., Pieces]) -> None:
    server = pieces(HEAD + BODY)
    assert read(server.url, (3, 10), version=[100, '"x"']) == [BODY]
    (request,) = server.requests
    assert b'\r\nIf-Match: "x"\r\n' in request
    assert b"\r\nRange: bytes=3-12\r\n" in request


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:secret@127.0.0.1:1/a", "http://127.0.0.1:1/a?b", "http://127.0.0.1:1/ä", "s3://bucket/a"),
        *(
            "http://127.0.0.1:99999/a",
            "http://127.0.0.1:1/a%2Fb",
            "http://127.0.0.1:1//a",
            "http://127.0.0.1:1/a/",
        ),
        *(
            "http://127.0.0.1:1/a/../b",
            "http://127.0.0.1:1/./b",
            "http://127.0.0.1:1",
            "http://127.0.0.1:1/50%.tar",
        ),
        *("http://a..b/a", f"http://{'x' * 70}.invalid/a"),
    ],
)
def test_what_is_no_plain_address_is_left_to_the_library(url: str) -> None:
    assert read(url, (0, 1)) == [None]


def test_proxies_are_the_librarys(file: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(file)
    monkeypatch.setattr(connections, "getproxies", lambda: {"http": "http://127.0.0.1:1"})
    monkeypatch.setattr(connections, "proxy_bypass", lambda host: False)
    assert read(server.url("a.bin"), (0, 1)) == [None]
    assert not server.asked


def test_a_server_that_cannot_be_reached_is_the_librarys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert read(f"http://127.0.0.1:{port}/a", (0, 1), (0, 1)) == [None, None]


def test_it_is_asked_again_once_it_can_be_reached(file: Path, serve: Serve) -> None:
    server = serve(file)

    async def all_of() -> list[bool]:
        own, loop = Connections(), asyncio.get_running_loop()
        found, urls = list[bool](), [server.url("a.bin")] * 2
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        urls[:0] = [f"http://127.0.0.1:{port}/a.bin"] * 6
        for url in urls:
            if port and url == server.url("a.bin"):  # the same server, as it were, back again
                own._servers[f"http://127.0.0.1:{server.server_port}"] = own._servers[f"http://127.0.0.1:{port}"]
                own._servers[f"http://127.0.0.1:{port}"].port = server.server_port  # type: ignore[union-attr]
                port = 0
            found.append(await own.get(url, None, 0, memoryview(bytearray(3)), SHORT, loop.time))
        return found

    assert asyncio.run(all_of()) == [False] * 6 + [True] * 2


def test_idle_connections_are_closed(file: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_IDLE_SECONDS", 0.1)
    monkeypatch.setattr(connections, "_MOST_IDLE", 7)
    server = serve(file)

    async def counted() -> tuple[int, int, bool]:
        own, loop = Connections(), asyncio.get_running_loop()

        async def get() -> bool:
            return await own.get(server.url("a.bin"), None, 0, memoryview(bytearray(3)), SHORT, loop.time)

        assert all(await asyncio.gather(*(get() for _ in range(20))))
        idle = len(own._idle)
        while own._idle:
            await asyncio.sleep(0.01)
        return idle, len(own._servers[server.url("a.bin")[:-6]].idle), await get()  # type: ignore[union-attr]

    assert asyncio.run(counted()) == (7, 0, True)


def test_nothing_is_written_after_a_request_was_given_up(pieces: Callable[..., Pieces]) -> None:
    server = pieces(HEAD + BODY[:2], BODY[2:])

    async def given_up() -> tuple[bytes, bytes]:
        own, loop, target = Connections(), asyncio.get_running_loop(), bytearray(10)
        job = loop.create_task(own.get(server.url, None, 3, memoryview(target), SHORT, loop.time))
        while not target[0]:
            await asyncio.sleep(0)
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        before = bytes(target)
        await asyncio.sleep(0.05)
        return before, bytes(target)

    before, after = asyncio.run(given_up())
    assert before == after


def test_many_at_a_time(file: Path, serve: Serve) -> None:
    server = serve(file)

    def late(handler: Handler) -> bool:
        threading.Event().wait(0.01)
        return False

    server.fault = late

    async def all_of() -> list[bytes]:
        own, loop = Connections(), asyncio.get_running_loop()
        targets = [bytearray(100) for _ in range(100)]
        asked = (
            own.get(server.url("a.bin"), None, 3 * number, memoryview(target), SHORT, loop.time)
            for number, target in enumerate(targets)
        )
        assert all(await asyncio.gather(*asked))
        return [bytes(target) for target in targets]

    assert asyncio.run(all_of()) == [CONTENT[3 * number : 3 * number + 100] for number in range(100)]


def test_connections_may_be_encrypted(
    encrypted: Server, certificate: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, content = encrypted.url("s-0.tar").replace("http:", "https:"), (folder / "s-0.tar").read_bytes()
    assert read(url, (0, 10)) == [None]  # nobody trusts the certificate: the library says so
    assert not encrypted.asked
    trusting = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
    ranges = [(7, 1), (0, 50_000), (100, 3)]
    assert read(url, *ranges) == [content[start : start + length] for start, length in ranges]
