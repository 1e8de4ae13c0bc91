"""Answers that another try would only repeat: errors at once, that name the URL and the remedy, but no secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from tests.remote.web_server import SHARDS, Handler, Server, samples_of, with_slow

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")

Reader = Callable[[str], Any]


def open_dataset(url: str) -> Any:
    return samples_of(fl.TarDataset(url))


def read_stream(url: str) -> Any:
    return list(fl.TarStream(url, shuffle=False))


READERS: dict[str, Reader] = {"dataset": open_dataset, "stream": read_stream}
both = pytest.mark.parametrize("reader", READERS)


def answering(status: int, **headers: str) -> Callable[[Handler], bool]:
    def fault(handler: Handler) -> bool:
        handler.refuse(status, **headers)
        return True

    return fault


@pytest.mark.sampled(2)
@both
@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (401, PermissionError, r"refuses access.*may have expired"),
        (403, PermissionError, r"refuses access.*may have expired"),
        (407, PermissionError, r"refuses access"),
        (404, FileNotFoundError, r"no such file"),
        (410, FileNotFoundError, r"no such file.*410"),
        (304, OSError, r"304"),
        (305, OSError, r"305|redirect"),
        (402, OSError, r"402 Payment Required"),
        (405, OSError, r"405 Method Not Allowed"),
        (406, OSError, r"406 Not Acceptable"),
        (409, OSError, r"409 Conflict"),
        (418, OSError, r"418"),
        (431, OSError, r"431"),
        (451, OSError, r"451"),
        (501, OSError, r"501 Not Implemented"),
        (505, OSError, r"505 HTTP Version Not Supported"),
    ],
)
def test_a_status_that_is_final(
    reader: str, status: int, kind: Any, message: str, folder: Path, serve: Any
) -> None:
    server = serve(folder)
    server.fault = answering(status)
    with pytest.raises(kind, match=message) as caught:
        READERS[reader](server.url("s-0.tar"))
    assert len(server.asked) == 1
    assert caught.value.filename == server.url("s-0.tar")
    assert type(caught.value) is kind


@pytest.mark.sampled(3)
@both
@pytest.mark.parametrize("status", with_slow([302, 308], [302]))
@pytest.mark.parametrize("target", ["itself", "in a ring", "file", "ftp", "nothing", "data", "gopher"])
def test_redirects_that_lead_nowhere(reader: str, status: int, target: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    secret = folder / "s-1.tar"

    def redirect(handler: Handler) -> bool:
        targets = {
            "itself": handler.path,
            "in a ring": "/b" if handler.path == "/a" else "/a",
            "file": secret.as_uri(),
            "ftp": "ftp://127.0.0.1:9/s-0.tar",
            "data": "data:application/x-tar;base64,AAAA",
            "gopher": "gopher://127.0.0.1:9/0s-0.tar",
        }
        handler.refuse(status, **({"Location": targets[target]} if target in targets else {}))
        return True

    server.fault = redirect
    with pytest.raises(OSError, match=r"redirect|30\d"):
        READERS[reader](server.url("s-0.tar"))
    assert len(server.asked) <= 12  # as many as one try follows


@both
def test_redirects_that_lead_somewhere(reader: str, folder: Path, serve: Any) -> None:
    """As to a mirror, or to a signed address; ranges and their version are those of the target."""
    target, server = serve(folder), serve(folder)

    def redirect(handler: Handler) -> bool:
        handler.refuse(302, Location=target.url(handler.path.lstrip("/") + "?signature=1"))
        return True

    server.fault = redirect
    assert READERS[reader](server.url("s-0.tar")) == READERS[reader](target.url("s-0.tar"))


@both
def test_416_is_a_file_that_is_too_short(reader: str, folder: Path, serve: Any, impatient: None) -> None:
    server = serve(folder)
    server.fault = lambda handler: handler.command == "GET" and answering(416)(handler)
    with pytest.raises(OSError, match=r"ends before|416|cut short"):
        READERS[reader](server.url("s-0.tar"))
    assert sum(command == "GET" for command, _ in server.asked) <= 2


@both
def test_secrets_of_the_address_are_not_shown(reader: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    url = server.url("s-0.tar").replace("http://", "http://me:password@")
    if reader == "stream":
        url += "?X-Amz-Signature=abcdef"
    for status in (403, 404, 405):
        server.fault = answering(status)
        with pytest.raises(OSError, match=r"s-0\.tar") as caught:
            READERS[reader](url)
        shown = str(caught.value) + repr(caught.value) + str(caught.value.filename)
        assert "password" not in shown
        assert "abcdef" not in shown


def test_secrets_are_not_in_messages_of_damage(folder: Path, serve: Any, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar" * 1000)
    server = serve(tmp_path)
    url = server.url("a.tar?signature=abcdef").replace("http://", "http://me:password@")
    with pytest.raises(OSError, match=r"http://127[^ ]*/a\.tar: not a tar file") as caught:
        read_stream(url)
    assert "abcdef" not in str(caught.value)
    with pytest.raises(OSError, match=r"a\.tar") as caught:
        open_dataset(url.partition("?")[0])
    assert "password" not in str(caught.value)
    with pytest.raises(ValueError, match="address with a query") as refused:
        fl.TarDataset(url)
    assert "abcdef" not in str(refused.value)
    assert "password" not in str(refused.value)


@both
def test_credentials_that_expire_in_the_middle(reader: str, folder: Path, serve: Any) -> None:
    server = serve(folder)
    urls = [server.url(f"s-{number}.tar") for number in range(3)]
    dataset: Any = fl.TarDataset(urls) if reader == "dataset" else fl.TarStream(urls, shuffle=False)
    samples = iter(dataset)
    next(samples)
    server.fault = answering(403)
    server.asked.clear()
    with pytest.raises(PermissionError, match=r"expired.*s-\d\.tar"):
        list(samples)
    assert len(server.asked) == 1


@both
def test_a_certificate_that_nobody_trusts(reader: str, encrypted: Server) -> None:
    url = encrypted.url("s-0.tar").replace("http:", "https:")
    with pytest.raises(OSError, match=r"certificate is not trusted.*s-0\.tar"):
        READERS[reader](url)
    assert encrypted.asked == []


def test_a_certificate_of_ones_own(encrypted: Server, certificate: Path, folder: Path) -> None:
    url = encrypted.url(SHARDS).replace("http:", "https:")
    trusted = {"client_options": {"root_certificate": certificate.read_text()}}
    assert samples_of(fl.TarDataset(url, storage=trusted)) == list(fl.TarDataset(folder))
