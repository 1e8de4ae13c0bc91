"""The page goes on, and shows the other loaders, whatever one process answers or one client asks."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.cli.serve.seen import LoaderView
from foreload.cli.serve.snapshot import parse
from foreload.cli.serve.trial import arguments
from foreload.export.publisher import snapshot

for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)

PATIENCE = 60.0


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What a process answers about a loader that has run."""
    loader = fl.DataLoader(list(range(64)), batch_size=4, cache="1MiB", num_workers=2, workers="threads")
    for _ in range(2):
        list(loader)
    found: dict[str, Any] = json.loads(json.dumps(snapshot([(1, "honest", loader)]), default=str))
    loader.close()
    return found


class Page:
    """A running ``foreload serve``, and sockets that it asks."""

    def __init__(self, temporary: Path) -> None:
        self.folder = temporary / f"foreload-{os.getuid()}"
        self.folder.mkdir(mode=0o700)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from foreload.cli.main import main; main()", "serve", "--port", "0"],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip().split(": ", 1)[1]
        self.port = int(address.split(":")[2].split("/")[0])
        self.token = address.partition("token=")[2]
        self._numbers = iter(range(1000))

    @contextmanager
    def answering(self, answer: Callable[[socket.socket], object]) -> Iterator[str]:
        """A socket in the folder, each of whose clients gets an answer."""
        name = f"{next(self._numbers)}-0000"
        over = threading.Event()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.folder / f"{name}.sock"))
            listener.listen(16)
            listener.settimeout(0.2)

            def run() -> None:
                with ExitStack() as clients:
                    while not over.is_set():
                        with suppress(OSError):
                            client = clients.enter_context(listener.accept()[0])
                            client.settimeout(PATIENCE)
                            answer(client)

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield name
            finally:
                over.set()
                thread.join()
                (self.folder / f"{name}.sock").unlink(missing_ok=True)

    def ask(self, request: bytes, *, timeout: float = PATIENCE) -> tuple[int, bytes]:
        """Send bytes; return the status and the body, or 0 if the connection was closed without any."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as client:
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(request)
            answer = http.client.HTTPResponse(client)
            try:
                answer.begin()
                return answer.status, answer.read()
            except (http.client.HTTPException, ConnectionResetError):
                return 0, b""

    def state(self) -> dict[str, Any]:
        status, body = self.ask(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert status == 200
        found: dict[str, Any] = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        return found

    def until(self, seen: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not seen(state := self.state()):
            assert time.monotonic() < deadline, state
            threading.Event().wait(0.2)
        return state


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    running = Page(tmp_path_factory.mktemp("s"))
    try:
        yield running
    finally:
        running.process.kill()
        _, wrong = running.process.communicate()
        assert "Traceback" not in wrong, wrong


def sends(content: bytes) -> Callable[[socket.socket], None]:
    def answer(client: socket.socket) -> None:
        client.sendall(content)
        client.close()

    return answer


def slow(client: socket.socket) -> None:
    for _ in range(20):
        client.sendall(b" ")
        threading.Event().wait(0.05)


def endless(client: socket.socket) -> None:
    for _ in range(64):
        client.sendall(b"[" * (1 << 20))


def changed(document: dict[str, Any], **values: Any) -> bytes:
    return json.dumps({**document, **values}).encode()


def with_stats(document: dict[str, Any], **values: Any) -> bytes:
    (loader,) = document["loaders"]
    return changed(document, loaders=[{**loader, "stats": {**loader["stats"], **values}}])


ANSWERS: dict[str, Any] = {
    "nothing": lambda document: sends(b""),
    "garbage": lambda document: sends(random.Random(0).randbytes(5000)),
    "half": lambda document: sends(json.dumps(document).encode()[:-100]),
    "a list": lambda document: sends(b"[1, 2]"),
    "a number": lambda document: sends(b"5"),
    "a string": lambda document: sends(b'"foreload"'),
    "null": lambda document: sends(b"null"),
    "a deep list": lambda document: sends(b"[" * 500_000),
    "a deep field": lambda document: sends(
        changed(document).replace(b'"honest"', b'{"a":' * 900 + b"1" + b"}" * 900)
    ),
    "a long number": lambda document: sends(b"1" * 100_000),
    "too much": lambda document: endless,
    "a byte at a time": lambda document: slow,
    "no answer": lambda document: lambda client: None,
    "loaders that are a number": lambda document: sends(changed(document, loaders=3)),
    "loaders that are an object": lambda document: sends(changed(document, loaders={"a": 1})),
    "loaders that are numbers": lambda document: sends(changed(document, loaders=[1, None, "x", [], {}])),
    "a process that is a list": lambda document: sends(changed(document, pid=[], script={}, rank="first")),
    "no process": lambda document: sends(json.dumps({"foreload": 1, "loaders": document["loaders"]}).encode()),
    "another version": lambda document: sends(changed(document, foreload=[2])),
    "a hundred thousand loaders": lambda document: sends(
        changed(document, loaders=[{"number": number, "name": "x"} for number in range(100_000)])
    ),
    "stats that are a list": lambda document: sends(changed(document, loaders=[{"number": 1, "stats": [1]}])),
    "infinite figures": lambda document: sends(with_stats(document, samples=5).replace(b"5", b"1e999")),
    "no figures": lambda document: sends(with_stats(document, samples=77777).replace(b"77777", b"NaN")),
    "enormous figures": lambda document: sends(with_stats(document, samples=10**400, seconds=-(10**400))),
    "tiny figures": lambda document: sends(with_stats(document, seconds=5e-324, wait_seconds=1e300)),
    "words for figures": lambda document: sends(
        with_stats(document, samples="many", stages={"read": {"seconds": "long"}, "x": 3}, cache=[], memory=0)
    ),
    "no stages": lambda document: sends(with_stats(document, stages=None, batch_seconds={"median": None})),
    "half surrogates": lambda document: sends(changed(document).replace(b"honest", rb"\ud800")),
    "moments that are none": lambda document: sends(
        changed(document, loaders=[{**document["loaders"][0], "moment": {"time": "now", "stages": []}}])
    ),
    "a moment that cannot be": lambda document: sends(
        changed(document).replace(b'"moment": {"time": ', b'"moment": {"time": -')
    ),
    "an epoch of another kind": lambda document: sends(
        with_stats(document, epoch={"number": 1e300, "batches": -1, "length": "all", "running": 5})
    ),
    "failures of another kind": lambda document: sends(
        changed(document, loaders=[{**document["loaders"][0], "failures": [{"error": 1}, 3, {"example": []}]}])
    ),
    "figures of the page": lambda document: sends(
        changed(document, loaders=[{**document["loaders"][0], "id": [], "state": {}, "point": 1, "verdict": 1}])
    ),
}


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ANSWERS)
def test_any_answer_leaves_the_other_loaders_shown(page: Page, document: dict[str, Any], kind: str) -> None:
    answers = 0

    def honest(client: socket.socket) -> None:
        nonlocal answers
        answers += 1
        sends(changed(document))(client)

    with page.answering(honest) as good, page.answering(ANSWERS[kind](document)) as bad:
        state = page.until(
            lambda state: answers > 1 and any(one["id"] == f"{good}.1" for one in state["loaders"]),
        )
        (shown,) = [one for one in state["loaders"] if one["id"] == f"{good}.1"]
        assert shown["state"] == "running"
        assert shown["name"] == "honest"
        assert shown["stats"] == document["loaders"][0]["stats"]
        assert shown["spans"] == document["loaders"][0]["spans"]
        for other in state["loaders"]:
            assert isinstance(other["id"], str)
            assert other["state"] in ("running", "silent", "ended")
        assert sum(other["id"].startswith(bad) for other in state["loaders"]) <= 100
    # Nor do those who listen miss it.
    assert page.process.poll() is None


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["folder", "pipe", "file", "link to nowhere", "loop", "no utf-8", "dots"])
def test_odd_entries_among_the_sockets_are_passed_over(page: Page, document: dict[str, Any], kind: str) -> None:
    name = os.fsencode(page.folder) + {"no utf-8": b"/\xff-1.sock", "dots": b"/a.b.c.sock"}.get(
        kind, b"/9-odd.sock"
    )
    try:
        if kind == "folder":
            os.mkdir(name)
        elif kind == "pipe":
            os.mkfifo(name)
        elif kind in ("link to nowhere", "loop"):
            os.symlink(b"nowhere" if kind == "link to nowhere" else name, name)
        elif kind == "file":
            Path(os.fsdecode(name)).touch()
        else:
            with socket.socket(socket.AF_UNIX) as unheard:
                unheard.bind(name)
        with page.answering(sends(changed(document))) as good:
            page.until(lambda state: any(one["id"] == f"{good}.1" for one in state["loaders"]))
    finally:
        if kind == "folder":
            os.rmdir(name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(name)


WRITTEN: dict[str, bytes] = {
    "nothing": b"",
    "garbage": random.Random(1).randbytes(5000),
    "deep": b"[" * 500_000,
    "odd moments": b"[1e999]\n[]\n5\n" + json.dumps([[]] * 13).encode() + b"\n" + b"[1" + b",1" * 10_000 + b"]\n",
    "moments without end": b"".join(
        json.dumps([i, *[i] * 8, None, 0, 0, {}]).encode() + b"\n" for i in range(60_000)
    ),
    "a long line": b"[" + b"1" * (16 << 20),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", WRITTEN)
def test_any_file_leaves_the_other_loaders_shown(page: Page, document: dict[str, Any], kind: str) -> None:
    written = [page.folder / f"8-{kind.replace(' ', '')}.{number}" for number in range(3)]
    for path in written:
        path.with_name(f"{path.name}.history").write_bytes(WRITTEN[kind])
    # The first is a loader that has ended, the second none, the third neither file nor folder.
    (loader,) = document["loaders"]
    moment = {**loader["moment"], "time": time.time() + PATIENCE}  # the latest of those that have ended are shown
    last = changed(document, loaders=[{**loader, "moment": moment}])
    written[0].with_name(f"{written[0].name}.json").write_bytes(last)
    written[1].with_name(f"{written[1].name}.json").write_bytes(WRITTEN[kind])
    os.mkfifo(written[2].with_name(f"{written[2].name}.json"))
    try:
        with page.answering(sends(changed(document))) as good:
            state = page.until(
                lambda state: {f"{good}.1", written[0].name} <= {one["id"] for one in state["loaders"]}
            )
            states = {one["id"]: one["state"] for one in state["loaders"]}
            assert states[f"{good}.1"] == "running"
            assert states[written[0].name] == "ended"
            assert not {path.name for path in written[1:]} & states.keys()
            request = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
            with socket.create_connection(("127.0.0.1", page.port), timeout=PATIENCE) as client:
                client.sendall(request)
                lines = client.makefile("rb")
                line = next(line for line in lines if line.startswith(b"data: "))
                curves = json.loads(line[6:], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
                assert all(len(curve) <= 5001 for curve in curves.values())
    finally:
        for path in written:
            path.with_name(f"{path.name}.history").unlink()
            path.with_name(f"{path.name}.json").unlink(missing_ok=True)


KINDS = [
    None,
    True,
    -1,
    0,
    1e300,
    10**30,
    -(10**30),
    5e-324,
    "",
    "x",
    "x" * 5000,
    [],
    [[]],
    [None] * 3,
    {},
    {"a": {}},
]


def change(value: Any, random: random.Random) -> Any:
    """Return a value with a part of it exchanged, left out or added."""
    if random.random() < 0.15 or not isinstance(value, (dict, list)) or not value:
        return random.choice(KINDS)
    if isinstance(value, dict):
        name = random.choice(list(value))
        kind = random.random()
        if kind < 0.1:
            return {key: part for key, part in value.items() if key != name}
        return {**value, ("more" if kind < 0.15 else name): change(value[name], random)}
    at = random.randrange(len(value))
    return [*value[:at], change(value[at], random), *value[at + 1 :]]


@pytest.mark.parametrize("seed", range(8))
def test_changed_documents_make_states_that_browsers_read(document: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    view = LoaderView()
    for _ in range(250):
        hostile = document
        for _ in range(rng.randint(1, 6)):
            hostile = change(hostile, rng)
        for about in parse(json.dumps(hostile).encode()):
            view.update(about)
            shown = view.to_dict()
            json.dumps(shown, allow_nan=False)
            json.dumps([point._asdict() for point in view.points()], allow_nan=False)
            spans = shown.get("spans")
            if spans is not None:
                assert max(spans["lane"], default=0) < max(1, len(spans["lanes"]))
                assert {len(spans[name]) for name in ("begin", "length", "batch")} == {len(spans["lane"])}
            assert isinstance(shown["name"], str)
            assert isinstance(shown.get("stats", {}), dict)


@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_make_no_exception(document: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    good = json.dumps(document).encode()
    for _ in range(500):
        content = bytearray(good)
        for _ in range(rng.randint(1, 20)):
            content[rng.randrange(len(content))] = rng.choice(b'{}[],:"0e-\\\xff')
        for about in parse(bytes(content[: rng.choice((len(content), rng.randrange(len(content))))])):
            LoaderView().update(about)


def test_the_state_is_there_without_viewers(page: Page, document: dict[str, Any]) -> None:
    with page.answering(sends(changed(document))) as name:
        threading.Event().wait(1.1)  # a state of less than a second ago would do
        state = page.state()
        assert f"{name}.1" in [one["id"] for one in state["loaders"]]
        assert state["viewers"] == 0
        assert abs(state["time"] - time.time()) < PATIENCE
        before = {one["id"]: one["until"] for one in state["loaders"]}[f"{name}.1"]
        page.until(
            lambda state: any(one["id"] == f"{name}.1" and one["until"] > before for one in state["loaders"])
        )


@pytest.mark.slow
def test_no_process_is_asked_while_nobody_looks(page: Page, document: dict[str, Any]) -> None:
    page.until(lambda state: state["viewers"] == 0)
    asked: list[float] = []

    def answer(client: socket.socket) -> None:
        asked.append(time.monotonic())
        sends(changed(document))(client)

    with page.answering(answer):
        threading.Event().wait(2.5)
        assert not asked


def test_many_who_ask_for_the_state_at_once_are_one_reading(page: Page, document: dict[str, Any]) -> None:
    asked: list[float] = []

    def answer(client: socket.socket) -> None:
        asked.append(time.monotonic())
        sends(changed(document))(client)

    with page.answering(answer):
        began = time.monotonic()
        threads = [threading.Thread(target=page.state) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(asked) <= 2 + (time.monotonic() - began)


def post(page: Page, body: bytes, *more: str, path: str | None = None, length: int | None = None) -> bytes:
    head = [
        f"POST {path or f'/bench?token={page.token}'} HTTP/1.1",
        f"Host: 127.0.0.1:{page.port}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
        *more,
    ]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


REQUESTS: dict[str, tuple[Callable[[Page], bytes], set[int]]] = {
    "a long address": (
        lambda page: b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        {400, 414, 431},
    ),
    "a name too long": (lambda page: b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", {414}),
    "a long query": (
        lambda page: b"GET /?" + b"a" * 99_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        {400, 414, 431},
    ),
    "a long header": (
        lambda page: b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 99_000 + b"\r\n\r\n",
        {400, 431},
    ),
    "many headers": (
        lambda page: b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        {400, 431},
    ),
    "a zero byte": (lambda page: b"GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    "a way out": (lambda page: b"GET /%2e%2e/app.py HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    "no UTF-8": (lambda page: b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", {400, 404}),
    "no HTTP": (lambda page: b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", {400}),
    "no host": (lambda page: b"GET / HTTP/1.0\r\n\r\n", {400}),
    "another host": (lambda page: b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", {400}),
    "a host in half brackets": (lambda page: b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", {400}),
    "a host with a name before it": (lambda page: b"GET / HTTP/1.1\r\nHost: localhost@evil\r\n\r\n", {400}),
    "two hosts": (lambda page: b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", {400}),
    "a WebSocket": (
        lambda page: (
            b"GET /events HTTP/1.1\r\nHost: evil.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        ),
        {400},
    ),
    "a deep body": (lambda page: post(page, b"[" * 9_000), {400}),
    "a deep field": (
        lambda page: post(page, b'{"kind":"tensors","rows":' + b"[" * 900 + b"]" * 900 + b"}"),
        {400},
    ),
    "a long body": (lambda page: post(page, b" " * 20_000), {413}),
    "a longer body": (lambda page: post(page, b" " * 20_000, length=10**15), {413}),
    "a negative body": (lambda page: post(page, b"{}", length=-1), {400}),
    "a body in pieces": (
        lambda page: (
            post(page, b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
            + b"1000\r\n"
            + b" " * 4096
            + b"\r\n"
            + b"1000\r\n"
            + b" " * 4096
            + b"\r\n"
            + b"1000\r\n"
            + b" " * 4096
            + b"\r\n0\r\n\r\n"
        ),
        {413},
    ),
    "no JSON": (lambda page: post(page, b"\xff\xfe{"), {400}),
    "a long number": (lambda page: post(page, b'{"kind":"tensors","rows":' + b"9" * 9000 + b"}"), {400}),
    "a float": (lambda page: post(page, b'{"kind":"tensors","rows":1e999}'), {400}),
    "nothing": (lambda page: post(page, b""), {400}),
    "a folder of nobody": (lambda page: post(page, b'{"kind":"folder","folder":"~nobody-at-all/x"}'), {400}),
    "a long folder": (
        lambda page: post(page, json.dumps({"kind": "folder", "folder": "/" + "a" * 5000}).encode()),
        {400},
    ),
    "a folder with a zero byte": (lambda page: post(page, rb'{"kind":"folder","folder":"/a\u0000"}'), {400}),
    "a folder with half a surrogate": (lambda page: post(page, rb'{"kind":"folder","folder":"/a\ud800"}'), {400}),
    "an origin that is no address": (lambda page: post(page, b"{}", "Origin: http://["), {403}),
    "an origin that looks like ours": (
        lambda page: post(page, b"{}", f"Origin: http://127.0.0.1:{page.port}.evil.example"),
        {403},
    ),
    "an origin with us as its user": (
        lambda page: post(page, b"{}", f"Origin: http://127.0.0.1:{page.port}@evil.example"),
        {403},
    ),
    "a benchmark without the token": (lambda page: post(page, b'{"kind":"tensors"}', path="/bench"), {401}),
    "a benchmark with another token": (
        lambda page: post(page, b'{"kind":"tensors"}', path="/bench?token=x"),
        {401},
    ),
    "a benchmark with an odd token": (lambda page: post(page, b"{}", path="/bench?token=%ff%C3%A9"), {401}),
    "a benchmark with an odd cookie": (
        lambda page: post(page, b"{}", f"Cookie: foreload-{page.port}=\xe9; =; a", path="/bench"),
        {401},
    ),
    "an end without the token": (lambda page: post(page, b"{}", path="/bench/stop"), {401}),
    "another method": (
        lambda page: post(page, b"{}", path=f"/state.json?token={page.token}").replace(b"POST", b"DELETE"),
        {405},
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_odd_requests_are_refused_as_the_clients_fault(page: Page, kind: str) -> None:
    request, statuses = REQUESTS[kind]
    status, body = page.ask(request(page))
    assert status in statuses, (status, body[:300])
    state = page.state()
    assert state["bench"] is None  # no benchmark was started


@pytest.mark.slow
def test_a_body_that_does_not_come_is_not_waited_for(page: Page) -> None:
    status, body = page.ask(post(page, b"{", length=100))
    assert status == 408
    assert b"within" in body


@pytest.mark.parametrize(
    "head", [b"", b"GET / HTT", b"POST /bench HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"]
)
def test_clients_that_stop_in_the_middle_hold_up_nobody(page: Page, head: bytes) -> None:
    with ExitStack() as clients:
        for _ in range(40):
            client = clients.enter_context(socket.create_connection(("127.0.0.1", page.port), timeout=PATIENCE))
            client.sendall(head)
        assert page.state()["loaders"] is not None
    assert page.state()["loaders"] is not None


def test_the_page_that_was_opened_by_the_printed_address_knows_the_token(page: Page) -> None:
    client = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
    client.request("GET", f"/?token={page.token}")
    answer = client.getresponse()
    assert (answer.status, answer.getheader("location")) == (303, "/")
    cookie = (answer.getheader("set-cookie") or "").split(";")[0]
    answer.read()
    headers = {"Cookie": cookie, "Content-Type": "application/json", "Origin": f"http://127.0.0.1:{page.port}"}
    client.request("POST", "/bench", json.dumps({"kind": "nonsense"}), headers)
    answer = client.getresponse()
    assert (answer.status, json.loads(answer.read())["error"][:4]) == (400, "kind")  # not for want of a token
    client.request("GET", "/", headers={"Cookie": "foreload=none"})
    assert client.getresponse().status == 200  # looking needs none
    client.close()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"kind": "tensors", "rows": 10**8, "columns": 10**6}, "rows x columns must be at most"),
        ({"kind": "tensors", "rows": 10**6, "columns": 101}, "rows x columns must be at most 100,000,000"),
        ({"kind": "tensors", "rows": 10**8, "columns": 1, "seeds": 100}, "rows x seeds must be at most"),
        ({"kind": "tensors", "rows": 1, "columns": 10**6, "batch_size": 10**6}, "batch_size x columns must be"),
        ({"kind": "photos", "images": 100_000, "seeds": 100}, "images x seeds must be at most 1,000,000"),
        ({"kind": "photos", "images": 10, "batch_size": 10**6}, "batch_size x numbers per image must be at most"),
        ({"kind": "folder", "folder": "/", "batch_size": 10**5}, "batch_size x numbers per image must be at most"),
        ({"kind": "folder", "folder": "~nobody-at-all/x"}, "cannot be looked at"),
        ({"kind": "folder", "folder": "/" + "a" * 5000}, "cannot be looked at|does not exist"),
        ({"kind": "tensors", "rows": [[1]]}, "rows must be a whole number .* got list"),
        ({"kind": ["tensors"]}, "kind must be one of"),
        ({"kind": "tensors", "seeds": float("nan")}, "seeds must be a whole number"),
    ],
)
def test_what_fields_ask_for_together_is_limited(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        arguments(wish)


@pytest.mark.parametrize(
    "wish",
    [
        {"kind": "tensors"},
        {"kind": "photos"},
        {"kind": "photos", "batch_size": 1024},
        {"kind": "tensors", "rows": 10**6},
    ],
)
def test_usual_sizes_are_allowed(wish: dict[str, Any]) -> None:
    assert arguments(wish)
