"""Servers, and folders of shards that they serve."""

from __future__ import annotations

import gc
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foreload.datasets.tar.pack import pack
from foreload.remote import fetch, webfile
from foreload.remote.patience import Patience
from tests.remote.replaced_shards import SIZES, contents
from tests.remote.web_server import COUNT, EACH, Server, noise, write_shard


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:
    servers: list[Server] = []

    def start(folder: Path) -> Server:
        servers.append(Server(folder))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
    # The collector does not see through what is native, so a ring behind a ring takes it two turns.
    gc.collect()
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "foreload fetch":
            thread.join(5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of samples of one size, so that all reads could use the same memory, without indexes."""
    root = tmp_path_factory.mktemp("shards")
    for shard in range(COUNT):
        numbers = range(shard * EACH, (shard + 1) * EACH)
        write_shard(root / f"s-{shard}.tar", [noise(number, 3000) for number in numbers], shard * EACH)
    return root


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    pack(photos, root, shard_bytes=60_000)
    assert len(list(root.glob("*.idx"))) > 1
    return root


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are given up after a second and a half, instead of a minute."""
    short = Patience(silence=0.5, total=1.5, pause=0.01)
    for reader in (fetch, webfile):
        monkeypatch.setattr(reader, "PATIENCE", short)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_shard(tmp_path / "a.tar", contents(1, SIZES))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificate") / "cert.pem"
    made = f"req -x509 -newkey rsa:2048 -nodes -keyout {path.with_name('key.pem')} -out {path} -days 2"
    named = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
    subprocess.run(["openssl", *made.split(), *named.split()], check=True, capture_output=True)
    return path


@pytest.fixture
def encrypted(serve: Callable[[Path], Server], folder: Path, certificate: Path) -> Server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    server = serve(folder)
    # Handshakes are made by the threads of the connections, so that a failed one is not the server's.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server
