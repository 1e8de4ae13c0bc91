"""Servers that are silent are given up in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.remote.fetch import Fetch, Range
from foreload.remote.patience import PATIENCE, Patience
from tests.remote.test_answers import READERS, both
from tests.remote.web_server import Handler, with_slow

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")

# Well above the second and a half of the short patience, and well below the minute of the real one.
BOUND = 45


def test_the_bound_is_what_the_documents_say() -> None:
    assert (PATIENCE.silence, PATIENCE.least, PATIENCE.total, PATIENCE.tries) == (15, 240, 60, 6)
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert "silent for 15 seconds" in text
    assert "60 to 75 seconds" in text


class Listener:
    """A socket that takes connections, and does with each what it is told; it knows no HTTP."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.count = 0
        self.end = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/{name}"

    def _accept(self) -> None:
        threads = []
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.count += 1
                self._open.append(connection)
                threads.append(threading.Thread(target=self._run, args=[connection], daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def _run(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self.end.set()
        for connection in [self._socket, *self._open]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[Any, socket.socket], None]], Listener]]:
    listeners: list[Listener] = []

    def start(serve: Callable[[Any, socket.socket], None]) -> Listener:
        listeners.append(Listener(lambda connection: serve(listeners[-1], connection)))
        return listeners[-1]

    yield start
    for listener in listeners:
        listener.close()


def trickled(content: bytes, seconds: float, head: bytes = b"") -> Callable[[Any, socket.socket], None]:
    """Send bytes one at a time."""

    def serve(listener: Any, connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(head)
        for byte in content:
            connection.sendall(bytes([byte]))
            if listener.end.wait(seconds):
                return

    return serve


def silent(listener: Any, connection: socket.socket) -> None:
    listener.end.wait()


def reset(listener: Any, connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def half_a_head(listener: Any, connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
    listener.end.wait()


def no_body(listener: Any, connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 10240\r\nETag: "1"\r\n\r\n')
    listener.end.wait()


LINES: dict[str, Callable[[Any, socket.socket], None]] = {
    "no body": no_body,
    "silent": silent,
    "half a head": half_a_head,
    "a head that trickles": trickled(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 100, 0.1),
    "a first line that trickles": trickled(b"HTTP/1.1 200 " + b"O" * 1000, 0.1),
    "a body that trickles": trickled(b"x" * 1000, 0.02, b"HTTP/1.1 200 OK\r\nContent-Length: 10240\r\n\r\n"),
    "resets": reset,
    "closes": lambda listener, connection: None,
    "another protocol": lambda listener, connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "an endless head": lambda listener, connection: (
        [connection.sendall(b"X: y\r\n" * 999) for _ in range(999)] and None
    ),
}


@pytest.mark.sampled(2)
@both
@pytest.mark.parametrize("line", with_slow([line for line in LINES if "body" not in line], ["silent", "resets"]))
def test_a_server_that_does_not_answer(line: str, reader: str, listen: Any, impatient: None) -> None:
    listener = listen(LINES[line])
    began = time.monotonic()
    with pytest.raises(OSError, match=r"again and again.*a\.tar"):
        READERS[reader](listener.url("a.tar"))
    assert time.monotonic() - began < BOUND
    assert 1 <= listener.count <= 8


@pytest.mark.sampled(1)
@pytest.mark.parametrize("line", ["no body", "a body that trickles"])
def test_a_body_that_does_not_come(line: str, listen: Any, impatient: None) -> None:
    listener = listen(LINES[line])
    began = time.monotonic()
    with pytest.raises(OSError, match=r"again and again.*a\.tar"):
        READERS["stream"](listener.url("a.tar"))
    assert time.monotonic() - began < BOUND


@pytest.fixture
def nobodys_port() -> Iterator[int]:
    """A port that is taken, so that no other program listens there, and on which nobody listens."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.sampled(3)
@both
@pytest.mark.parametrize(
    "address", ["http://no-such-host.invalid", "http://127.0.0.1", "https://127.0.0.1", "http://[::1]"]
)
def test_nobody_is_there(address: str, reader: str, nobodys_port: int, impatient: None) -> None:
    url = f"{address}:{nobodys_port}/a.tar"
    with pytest.raises(OSError, match=r"again and again.*a\.tar") as caught:
        READERS[reader](url)
    assert caught.value.filename == url


@pytest.mark.slow
@both
@pytest.mark.parametrize("line", ["silent", "half a head", "resets", "another protocol"])
def test_a_handshake_that_fails(line: str, reader: str, listen: Any, impatient: None) -> None:
    url = listen(LINES[line]).url("a.tar").replace("http:", "https:")
    began = time.monotonic()
    with pytest.raises(OSError, match=r"again and again.*a\.tar"):
        READERS[reader](url)
    assert time.monotonic() - began < BOUND


def test_a_range_that_trickles(folder: Path, serve: Any, impatient: None) -> None:
    """A byte now and then is silence; with the real patience, less than 16 bytes a second are."""
    server = serve(folder)
    dataset = fl.TarDataset(server.url("s-0.tar"))

    def trickle(handler: Handler) -> bool:
        content = (folder / "s-0.tar").read_bytes()
        begin, end = handler.wanted(len(content))
        handler.answer(content, begin, end, b"")
        for at in range(begin, end):
            handler.wfile.write(content[at : at + 1])
            handler.wfile.flush()
            time.sleep(0.02)
        return True

    server.fault = trickle
    began = time.monotonic()
    with pytest.raises(OSError, match=r"less than 240 bytes in 0\.5 s.*s-0\.tar"):
        dataset[0]
    assert time.monotonic() - began < BOUND


def gone_silent(handler: Handler) -> bool:
    """Send the head and half of the body, then nothing."""
    path = handler.server.folder / handler.path.lstrip("/")
    if handler.command != "GET" or not path.is_file():
        return False
    content = path.read_bytes()
    begin, end = handler.wanted(len(content))
    handler.answer(content, begin, end, content[begin : (begin + end) // 2])
    handler.wfile.flush()
    time.sleep(2)
    handler.close_connection = True
    return True


@pytest.mark.slow
@both
def test_a_server_that_falls_silent_in_the_middle(reader: str, folder: Path, serve: Any, impatient: None) -> None:
    server = serve(folder)
    fl.TarDataset(server.url("s-0.tar"))
    server.fault = gone_silent
    began = time.monotonic()
    if reader == "dataset":
        with pytest.raises(OSError, match=r"again and again.*s-0\.tar"):
            READERS[reader](server.url("s-0.tar"))
    else:
        # Each try gets half of the rest, until there is none.
        with suppress(OSError):
            assert READERS[reader](server.url("s-0.tar")) == list(fl.TarDataset(folder / "s-0.tar"))
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_many_requests_to_a_silent_server_are_given_up_together(
    folder: Path, serve: Any, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    """Those that wait for their turn do not begin to wait anew."""
    server = serve(folder)
    version = Fetch().head(server.url("s-0.tar"))
    end = threading.Event()
    server.fault = lambda handler: end.wait(60)
    began = time.monotonic()
    url = server.url("s-0.tar")
    ranges = [Range(url, 0, 9000 + number, version) for number in range(1)]
    ranges += [Range(f"{url}?{number}", 0, 10) for number in range(1500)]
    _, _, failures = Fetch().read(ranges)
    took = time.monotonic() - began
    end.set()
    assert len(failures) == len(ranges)
    assert took < 60


@pytest.mark.slow
def test_a_server_that_was_given_up_has_one_try_until_it_is_heard(
    folder: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of shards on a server that is silent are given up together, not one after the other."""
    monkeypatch.setattr("foreload.remote.fetch.PATIENCE", Patience(silence=2, total=5, pause=0.01))
    server = serve(folder)
    end = threading.Event()
    reader = Fetch()
    server.fault = lambda handler: end.wait(60)
    counts = []
    for _ in range(2):
        server.asked.clear()
        with pytest.raises(OSError, match="again and again"):
            reader.head(server.url("s-0.tar"))
        counts.append(len(server.asked))
    assert counts == [3, 1]
    server.fault = None
    end.set()
    assert reader.head(server.url("s-0.tar")).size > 0
    server.fault = gone_silent
    server.asked.clear()
    _, _, failures = reader.read([Range(server.url("s-0.tar"), 0, 9000)])
    assert list(failures) == [0]
    assert len(server.asked) > 1


@pytest.mark.slow
def test_the_silence_of_a_dataset_can_be_given(listen: Any) -> None:
    listener = listen(silent)
    began = time.monotonic()
    with pytest.raises(OSError, match="again and again"):
        fl.TarDataset(listener.url("a.tar"), storage={"client_options": {"read_timeout": "100 ms"}})
    assert time.monotonic() - began < 60
    assert listener.count == PATIENCE.tries
