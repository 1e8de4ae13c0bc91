"""The page goes on, whatever one client asks for."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from foreload.cli.serve.trial import arguments
from tests.cli.served import PATIENCE, Page

for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)


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


@pytest.mark.sampled(10)
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


@pytest.mark.sampled(2)
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
