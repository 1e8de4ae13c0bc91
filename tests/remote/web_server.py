"""A web server for tests that can be told to misbehave, and shards whose samples say which they are."""

from __future__ import annotations

import io
import socket
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

Fault = Callable[["Handler"], bool]
Validators = Callable[[bytes], dict[str, str]]
COUNT, EACH = 3, 30


class Handler(BaseHTTPRequestHandler):
    """Files of the server's folder, by ranges; a fault may answer instead."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].lstrip("/")
        self.server.asked.append((self.command, name))
        time.sleep(self.server.latency)
        if self.server.fault is not None and self.server.fault(self):
            return
        path = self.server.folder / name
        if not path.is_file():
            self.refuse(404)
            return
        content = path.read_bytes()
        tags = self.server.validators(content)
        if self.server.matches and self.headers.get("If-Match", tags.get("ETag")) != tags.get("ETag"):
            self.refuse(412)
            return
        begin, end = self.wanted(len(content))
        if begin >= len(content) > 0:
            self.refuse(416)
        else:
            self.answer(content, begin, end)

    def wanted(self, size: int) -> tuple[int, int]:
        given = self.headers.get("Range")
        if given is None:
            return 0, size
        begin, _, last = given.removeprefix("bytes=").partition("-")
        return int(begin), min(size, int(last) + 1) if last else size

    def answer(self, content: bytes, begin: int, end: int, body: bytes | None = None) -> None:
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        for name, value in self.server.validators(content).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[begin:end] if body is None else body)

    def refuse(self, status: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def cut(self) -> None:
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    """A web server that can be told to misbehave."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.asked: list[tuple[str, str]] = []
        self.latency = 0.0
        self.fault: Fault | None = None
        self.validators: Validators = lambda content: {"ETag": f'"{zlib.crc32(content)}"'}
        self.matches = True  # it honours If-Match
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """Ignore errors: whoever asked has gone."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


def write_shard(path: Path, contents: Sequence[bytes], first: int = 0, shift: int = 0) -> Path:
    """Write samples ``0000.bin, 0000.cls``, ...; ``shift`` is added to the numbers whose labels these are."""
    with tarfile.open(path, "w") as tar:
        for number, content in enumerate(contents, first):
            label = str((number + shift) % 7).encode()
            for name, data in ((f"{number:04}.bin", content), (f"{number:04}.cls", label)):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


SHARDS = f"s-{{0..{COUNT - 1}}}.tar"


def expected(number: int) -> dict[str, Any]:
    return {"__key__": f"{number:04}", "bin": noise(number, 3000), "cls": str(number % 7).encode()}


def samples(batches: Any) -> list[tuple[Any, ...]]:
    return [row for batch in batches for row in zip(batch["__key__"], batch["bin"], batch["cls"], strict=True)]


def right(rows: Sequence[tuple[Any, ...]], numbers: Sequence[int] = range(COUNT * EACH)) -> bool:
    return sorted(rows) == [tuple(expected(number).values()) for number in sorted(numbers)]


def same(batches: Any, others: Any) -> bool:
    pairs = zip(batches, others, strict=True)
    return all(torch.equal(*parts) for pair in pairs for parts in zip(*pair, strict=True))


def samples_of(dataset: Any) -> list[Any]:
    return dataset.__getitems__(list(range(len(dataset))))


WAYS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "thread": {"num_workers": 1, "workers": "threads"},
    "threads": {"num_workers": 2, "workers": "threads"},
    "auto": {},
    "processes": {"num_workers": 2, "workers": "processes"},
    "spawned": {"num_workers": 1, "workers": "processes", "multiprocessing_context": "spawn"},
    "stock": {"num_workers": 0},
    "stock, forked": {"num_workers": 2},
    "stock, spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


def loaders(way: str, dataset: Any, batch_size: int) -> Any:
    if way.startswith("stock"):
        order = torch.Generator().manual_seed(3)
        return TorchDataLoader(dataset, batch_size, shuffle=True, generator=order, **WAYS[way])
    return fl.DataLoader(dataset, batch_size, shuffle=True, seed=3, **WAYS[way])


def with_slow(values: Iterable[Any], fast: Sequence[Any]) -> list[Any]:
    """Parameters of a test, of which all but some are for the slow tests."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]
