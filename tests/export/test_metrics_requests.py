"""The metrics server answers requests that are meant for it, and goes on whatever else it is sent."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.export.hosts import is_addressed

pytest.importorskip("prometheus_client")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    loader = fl.DataLoader(torch.arange(12), batch_size=4)  # type: ignore[arg-type]
    list(loader)
    with fl.export.serve_metrics(loader, port=0) as running:
        yield running
    assert not raised


def ask(port: int, request: bytes) -> tuple[int, bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        with suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(request)
        answer = http.client.HTTPResponse(client)
        try:
            answer.begin()
            return answer.status, answer.read()
        except (http.client.HTTPException, ConnectionResetError):
            return 0, b""


def request(path: bytes = b"/metrics", host: bytes | None = b"localhost", more: bytes = b"") -> bytes:
    named = b"" if host is None else b"Host: " + host + b"\r\n"
    return b"GET " + path + b" HTTP/1.1\r\n" + named + b"Connection: close\r\n" + more + b"\r\n"


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost", "127.0.0.1", "127.1.2.3", "[::1]", "localhost:{}", "[::1]:{}"]
)
def test_names_of_this_machine_are_answered(server: Any, host: str) -> None:
    status, body = ask(server.port, request(host=host.format(server.port).encode()))
    assert status == 200
    assert b"foreload_samples_total" in body


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:9464",
        b"localhost.evil.example",
        b"127.0.0.1.evil.example",
        b"localhost@evil.example",
        b"10.0.0.7",
        b"0.0.0.0",
        b"[",
        b"[::1",
        b"::1]",
        b"",
        b":9464",
        b"\xff\xfe",
        None,
    ],
)
def test_other_names_are_refused_so_that_foreign_pages_cannot_read(server: Any, host: bytes | None) -> None:
    status, body = ask(server.port, request(host=host))
    assert status == 400
    assert b"foreload_" not in body
    assert ask(server.port, request())[0] == 200


@pytest.mark.parametrize(
    ("asked", "statuses"),
    [
        (request(b"http://["), {400}),
        (request(b"/" + b"a" * 70_000), {414}),
        (request(more=b"X: " + b"a" * 70_000 + b"\r\n"), {431}),
        (request(more=b"X: y\r\n" * 200), {431}),
        (request(b"/metrics?name[]=%ff&name[]=" + b"a" * 9000), {200}),
        (request(b"/metrics?" + b"&".join([b"name[]=x"] * 5000)), {200}),
        (request(more=b"Accept: " + b"a/b;q=x," * 50 + b"\r\n"), {200}),
        (request(more=b"Accept: application/openmetrics-text; version=\xff;;=,\r\n"), {200, 400}),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", {400}),
        (b"GET\r\n\r\n", {400}),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", {501}),
        (b"GET / HTTP/9.9\r\n\r\n", {505}),
        (b"", {0}),
        (b"GET /met", {400}),
    ],
)
def test_odd_requests_are_the_clients_fault(server: Any, asked: bytes, statuses: set[int]) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as client:
        client.sendall(asked)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while part := client.recv(1 << 16):
                answer += part
    # Without a version that it knows, the server answers as in the first days of HTTP.
    found = re.match(rb"HTTP/\S+ (\d+)", answer) or re.search(rb"Error code: (\d+)", answer)
    status = int(found[1]) if found else 0
    assert status in statuses, answer[:200]
    assert ask(server.port, request())[0] == 200


def test_a_server_for_other_machines_does_not_know_its_names() -> None:
    loader = fl.DataLoader(torch.arange(12), batch_size=4)  # type: ignore[arg-type]
    with fl.export.serve_metrics(loader, port=0, host="0.0.0.0") as server:
        assert ask(server.port, request(host=b"trainer-3:9464"))[0] == 200


@pytest.mark.parametrize("server", ["127.0.0.1", "localhost", "::1"])
def test_names_are_compared_as_a_whole(server: str) -> None:
    assert is_addressed(server, "[::1]:80")
    assert is_addressed(server, "127.0.0.1:80")
    for name in (
        "127.0.0.1:80:80",
        "[127.0.0.1",
        "localhost:80a",
        "a:localhost",
        "2130706433",
        "0x7f.1",
    ):
        assert not is_addressed(server, name), name
