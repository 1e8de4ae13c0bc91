"""Servers that are slow, silent or busy: what goes on is waited for, and silence is given up in time."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.remote.fetch import Fetch, Range
from foreload.remote.patience import PATIENCE, Patience, seconds_to_wait
from tests.remote.test_answers import READERS, both
from tests.remote.web_server import Handler, noise, with_slow, write_shard

pytest.importorskip("obstore")

# Well above the second and a half of the short patience, and well below the minute of the real one.
BOUND = 20


def test_the_bound_is_what_the_documents_say() -> None:
    assert (PATIENCE.silence, PATIENCE.least, PATIENCE.total, PATIENCE.tries) == (15, 240, 60, 6)
    text = (Path(fl.__file__).parents[2] / "docs" / "data.md").read_text()
    assert "silent for 15 seconds" in text
    assert "60 to 75 seconds" in text


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


@pytest.mark.sampled(3)
@both
@pytest.mark.parametrize(
    "url",
    [
        "http://no-such-host.invalid/a.tar",
        "http://127.0.0.1:1/a.tar",
        "https://127.0.0.1:1/a.tar",
        "http://[::1]:1/a.tar",
    ],
)
def test_nobody_is_there(url: str, reader: str, impatient: None) -> None:
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
    monkeypatch.setattr("foreload.remote.fetch.PATIENCE", Patience(silence=0.5, total=1.2, pause=0.01))
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


@pytest.mark.sampled(1)
@both
def test_a_slow_server_may_take_any_time(reader: str, serve: Any, tmp_path: Path, impatient: None) -> None:
    """Several times the silence, and longer than the total, but something always comes."""
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
            time.sleep(0.1)
        return True

    server.fault = slow
    began = time.monotonic()
    assert READERS[reader](server.url("a.tar")) == expected
    assert time.monotonic() - began > 1.6
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


@pytest.mark.slow
def test_the_silence_of_a_dataset_can_be_given(listen: Any) -> None:
    listener = listen(silent)
    began = time.monotonic()
    with pytest.raises(OSError, match="again and again"):
        fl.TarDataset(listener.url("a.tar"), storage={"client_options": {"read_timeout": "100 ms"}})
    assert time.monotonic() - began < 60
    assert listener.count == PATIENCE.tries
