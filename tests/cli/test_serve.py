"""``foreload serve`` and what it can see, as programs that talk to it: real processes, real sockets."""

from __future__ import annotations

import http.client
import json
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.cli.serve.trial import arguments
from foreload.export import publisher as publishing
from tests.cli.served import PATIENCE, SERVE
from tests.programs import python, started

for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)


PUBLISHED = """
import sys, time
import foreload as fl
loader = fl.DataLoader(list(range(640)), batch_size=64, num_workers=0).publish(name="numbers")
print("ready", flush=True)
while True:
    for batch in loader:
        time.sleep(0.01)
"""


class Client:
    """Asks a server, as a program would that is no browser."""

    def __init__(self, line: str) -> None:
        self.address = line.split(": ", 1)[1]
        self.port = int(self.address.split(":")[2].split("/")[0])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            text = None if body is None else json.dumps(body)
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, text, named)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], str]:
        """Ask for a change, with the token."""
        return self.ask("POST", f"{path}?{self.address.partition('?')[2]}", body, **headers)

    @contextmanager
    def events(self) -> Iterator[Iterator[Any]]:
        """Yield what a browser is told, as it comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert answer.getheader("content-type", "").startswith("text/event-stream")

        def told() -> Iterator[Any]:
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

        try:
            yield told()
        finally:
            connection.close()

    def until(self, seen: Callable[[list[Any]], bool]) -> list[Any]:
        """The loaders, once that is true of them."""
        deadline = time.monotonic() + PATIENCE
        with self.events() as events:
            for event in events:
                if "loaders" in event and seen(event["loaders"]):
                    return list(event["loaders"])
                assert time.monotonic() < deadline, event
        raise AssertionError("the events ended")


@pytest.fixture
def server(folder: Path) -> Iterator[Client]:
    with started(*SERVE) as (_, line):
        yield Client(line)


def test_a_running_loader_is_seen_until_it_is_killed(server: Client, folder: Path) -> None:
    with started("-c", PUBLISHED) as (process, _):
        (loader,) = server.until(lambda all: any(one["stats"]["batches"] > 20 for one in all))
        assert loader["name"] == "numbers"
        assert loader["pid"] == process.pid
        assert loader["state"] == "running"
        assert loader["verdict"]["sentence"]
        assert loader["stats"]["samples"] == pytest.approx(64 * loader["stats"]["batches"], abs=64)
        assert {lane[1] for lane in loader["spans"]["lanes"]} == {"consumer"}
        process.kill()
        (ended,) = server.until(lambda all: all[0]["state"] == "ended")
        assert ended["stats"]["batches"] >= loader["stats"]["batches"]
    assert not list(folder.glob("foreload-*/*.sock"))  # what it left behind is gone


@pytest.mark.slow
def test_a_stopped_program_is_silent_and_goes_on(server: Client) -> None:
    with started("-c", PUBLISHED) as (process, _):
        server.until(bool)
        process.send_signal(signal.SIGSTOP)
        server.until(lambda all: all[0]["state"] == "silent")
        process.send_signal(signal.SIGCONT)
        server.until(lambda all: all[0]["state"] == "running")


@pytest.mark.slow
def test_viewers_that_leave_or_never_read_hold_up_nobody(server: Client) -> None:
    silent = []
    for _ in range(20):
        silent.append(socket.create_connection(("127.0.0.1", server.port)))
        silent[-1].sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for one in silent[:10]:
        one.close()
    with started("-c", PUBLISHED):
        assert server.until(bool)
    for one in silent[10:]:
        one.close()
    deadline = time.monotonic() + PATIENCE
    with server.events() as events:
        for event in events:
            if event.get("viewers") == 1:
                break
            assert time.monotonic() < deadline


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_with_viewers_and_a_benchmark(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(*SERVE) as (process, line):
        client = Client(line)
        with client.events() as events:
            next(events)
            assert client.post("/bench", {"kind": "tensors"}, content_type="application/json")[0] == 202
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
            assert process.returncode in (0, 130, -signal.SIGINT)
    assert "Traceback" not in capsys.readouterr().err
    assert not list(folder.glob("foreload-bench-*"))


def test_strangers_are_refused(server: Client) -> None:
    as_json = {"content_type": "application/json"}
    assert server.ask("GET", "/")[0] == 200
    assert server.ask("GET", "/", Host=f"localhost:{server.port}")[0] == 200
    assert server.ask("GET", "/state.json", Host="evil.example")[0] == 400
    for headers in (
        {},
        {"content_type": "text/plain"},
        {**as_json, "Origin": "http://evil.example"},
        {**as_json, "Origin": "null"},
        {**as_json, "Sec_Fetch_Site": "cross-site"},
    ):
        assert server.post("/bench", {"kind": "tensors"}, **headers)[0] == 403
    own = {**as_json, "Origin": f"http://127.0.0.1:{server.port}", "Sec_Fetch_Site": "same-origin"}
    status, headers, text = server.post("/bench", {"kind": "nonsense"}, **own)
    assert (status, json.loads(text)["error"]) == (400, "kind must be one of photos, folder, tensors")
    assert "default-src 'self'" in headers["content-security-policy"]
    assert server.post("/bench", "x" * 20_000, **own)[0] == 413
    assert server.ask("GET", "/../app.py")[0] == 404


@pytest.mark.slow
def test_a_token_is_asked_for_where_it_must_be(folder: Path) -> None:
    for options in (["--token"], ["--host", "0.0.0.0"]):
        with started(*SERVE, *options) as (_, line):
            client = Client(line)
            token = client.address.split("token=")[1]
            assert len(token) >= 32
            assert client.ask("GET", "/")[0] == 401
            assert client.ask("GET", "/state.json?token=wrong")[0] == 401
            assert client.ask("POST", "/bench", {"kind": "tensors"}, content_type="application/json")[0] == 401
            status, headers, _ = client.ask("GET", f"/?token={token}")
            assert (status, headers["location"]) == (303, "/")  # it does not stay in the address bar
            assert "httponly" in headers["set-cookie"].lower()
            assert client.ask("GET", "/", Cookie=headers["set-cookie"].split(";")[0])[0] == 200


@pytest.mark.slow
def test_a_benchmark_runs_once_at_a_time_and_can_be_stopped(server: Client) -> None:
    headers = {"content_type": "application/json"}
    wish = {"kind": "tensors", "rows": 640, "columns": 4, "seeds": 1}
    assert server.post("/bench", {**wish, "rows": 10**7, "seeds": 100}, **headers)[0] == 202
    status, _, text = server.post("/bench", wish, **headers)
    assert (status, json.loads(text)["error"]) == (409, "a benchmark is running already")
    assert server.post("/bench/stop", {}, **headers)[0] == 200
    with server.events() as events:
        assert next(event for event in events if "bench" in event)["bench"]["state"] == "stopped"
        assert server.post("/bench", wish, **headers)[0] == 202
        done = next(event["bench"] for event in events if event["bench"]["state"] not in ("running", "stopped"))
    assert done["state"] == "done", done
    assert "times what stock torch" in done["sentence"]
    assert [result["stock"] for result in done["results"]] == [True, False]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ([], "kind must be one of"),
        ({"kind": "folder", "folder": "/no/such"}, "folder '/no/such' does not exist"),
        ({"kind": "folder", "folder": ""}, "folder is missing"),
        ({"kind": "tensors", "rows": True}, "rows must be a whole number"),
        ({"kind": "photos", "images": 0}, "images must be a whole number from 1"),
    ],
)
def test_wrong_wishes_are_named(wish: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        arguments(wish)


@pytest.mark.slow
def test_a_port_in_use_and_a_host_that_is_not_here(folder: Path, server: Client) -> None:
    for options, code, words in (
        (["--port", str(server.port)], 1, f"port {server.port}: Address already in use; choose another"),
        (["--port", "0", "--host", "192.0.2.1"], 2, "--host: '192.0.2.1' is not an address of this machine"),
        (["--port", "0", "--host", "no.such.name.invalid"], 2, "give a name or address of this machine"),
    ):
        found = python("-m", "foreload", "serve", *options, timeout=PATIENCE)
        assert found.returncode == code
        assert words in " ".join(found.stderr.replace("│", " ").split())
        assert "Traceback" not in found.stderr


def test_a_folder_that_others_may_enter_is_not_used(folder: Path) -> None:
    (folder / f"foreload-{os.getuid()}").mkdir(mode=0o755)
    with pytest.warns(RuntimeWarning, match="must be a folder that is yours alone"):
        loader = fl.export.publish(fl.DataLoader([1, 2, 3]))
    assert [batch.tolist() for batch in loader] == [[1], [2], [3]]


def sockets(folder: Path) -> list[Path]:
    return list(folder.glob("foreload-*/*.sock"))


def sockets_of_mine(folder: Path) -> list[Path]:
    return [path for path in sockets(folder) if path.name.startswith(f"{os.getpid()}-")]


def ask(path: Path) -> Any:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        text = b""
        while part := client.recv(1 << 16):
            text += part
    return json.loads(text)


def test_a_loader_is_published_as_long_as_it_lives(folder: Path) -> None:
    first = fl.export.publish(fl.DataLoader([1, 2, 3]), name="one")
    second = fl.DataLoader([1, 2, 3]).publish()
    assert second.publish() is second  # once
    (path,) = sockets(folder)
    assert path.stat().st_mode & 0o077 == 0
    assert [one["name"] for one in ask(path)["loaders"]] == ["one", "list"]
    thread = publishing._publisher._thread  # type: ignore[union-attr]
    del first, second
    thread.join(PATIENCE)
    assert not sockets(folder)


def test_copies_in_other_processes_are_published_there(folder: Path) -> None:
    loader = fl.export.publish(fl.DataLoader(list(range(8)), num_workers=0), name="mine")
    child = os.fork()
    if child == 0:
        for _ in loader:
            pass
        names = [one["name"] for path in sockets_of_mine(folder) for one in ask(path)["loaders"]]
        os._exit(0 if names == ["mine"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    copy = pickle.loads(pickle.dumps(loader))
    list(copy)
    (path,) = sockets_of_mine(folder)
    assert [one["name"] for one in ask(path)["loaders"]] == ["mine", "mine"]


@pytest.mark.slow
def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"a loader with stats\(\)"):
        fl.export.publish([1, 2])
    with pytest.raises(TypeError, match="name must be a str"):
        fl.export.publish(fl.DataLoader([1]), name=3)  # type: ignore[arg-type]
