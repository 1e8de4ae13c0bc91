"""Sequential reading of a file on a web server."""

from __future__ import annotations

import base64
import errno
import http.client
import io
import socket
import ssl
import threading
import time
import zlib
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from foreload.remote.patience import PATIENCE, seconds_to_wait
from foreload.remote.url import without_secrets

__all__ = ["WebFile"]

_STEP = 1 << 20

# Characters with a meaning in a path or a query.
_PLAIN = "!$%&'()*+,/:;=?@~"

# Answers after which it is worth asking again.
_BUSY = (408, 425, 429, 500, 502, 503, 504)


class WebFile(io.RawIOBase):
    """A file on a web server, read sequentially; the server need not know ranges.

    If the connection is cut, or the server is busy or silent, the request is repeated after growing pauses, or
    when it says (Retry-After): for the rest, or, if the server does not know ranges or gives no strong ETag, for
    the whole file, whose known part must be the same and is skipped. A server that is silent for 15 seconds, or
    sends less than 240 bytes in them, is asked again, and given up after 60 to 75 seconds, all tries together; as
    long as something comes, a file may take any time.

    Args:
        url: ``http://`` or ``https://``.

    Raises:
        FileNotFoundError, PermissionError: the file does not exist, or access is denied.
        OSError: the server fails repeatedly or for good, or the file has changed during the read.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._shown = without_secrets(url)
        self._at = 0
        self._size: int | None = None
        self._tag: str | None = None
        self._sum = 0  # the CRC-32 of what was read
        self._last = 0.0  # when something came
        self._response: Any = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes, 0 at the end."""
        self._last = time.monotonic()
        attempt = 0
        while True:
            try:
                if self._response is None:
                    self._connect()
                data = self._response.read(len(buffer))
                self._last = time.monotonic()
                if not data and self._size is not None and self._at < self._size and len(buffer):
                    raise ConnectionResetError(f"the connection was cut at byte {self._at:,} of {self._size:,}")
                buffer[: len(data)] = data
                self._at += len(data)
                self._sum = zlib.crc32(data, self._sum)
                return len(data)
            except _Final:
                self._hang_up()
                raise
            except (OSError, http.client.HTTPException) as error:
                self._hang_up()
                told = self._seconds_to_wait(error)
                pause = PATIENCE.pause_after(attempt, told, time.monotonic() - self._last)
                if pause is None:
                    advice = "check that it can be reached, or read fewer shards at a time (num_workers)"
                    raise OSError(
                        errno.EIO, f"the server fails again and again: {_said(error)}; {advice}", self._shown
                    ) from None
                attempt += 1
            time.sleep(pause)

    def _seconds_to_wait(self, error: Exception) -> float:
        """Return for how long the server wants to be left alone; raise an error that another try would repeat."""
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise OSError(
                errno.EACCES, f"the server's certificate is not trusted: {reason.verify_message}", self._shown
            ) from None
        if "unknown url type" in str(reason):
            raise OSError(
                errno.EINVAL, "it redirects to what is not a web address; check it", self._shown
            ) from None
        if not isinstance(error, HTTPError):
            return 0.0
        error.close()
        answer = f"the server answers {error.code} {http.client.responses.get(error.code, '')}".rstrip()
        if error.code in (404, 410):
            raise FileNotFoundError(errno.ENOENT, f"there is no such file ({answer})", self._shown) from None
        if error.code in (401, 403, 407):
            advice = "check the address, whose signature may have expired"
            raise PermissionError(
                errno.EACCES, f"the server refuses access ({answer}); {advice}", self._shown
            ) from None
        if error.code not in _BUSY:
            where = "; it redirects in a circle, or not to a web address" if 300 <= error.code < 400 else ""
            raise OSError(errno.EINVAL, f"{answer}{where}; check the address", self._shown) from None
        return seconds_to_wait(error.headers["Retry-After"])

    def _connect(self) -> None:
        headers = {"Accept-Encoding": "identity"}
        if self._at and self._tag is not None and self._tag.startswith('"'):
            headers |= {"Range": f"bytes={self._at}-", "If-Range": self._tag}  # another file is sent whole
        try:
            opened = _opener.open(self._request(headers), timeout=PATIENCE.silence)
        except (ValueError, http.client.InvalidURL):
            raise _Final(errno.EINVAL, "this is not a web address; check it", self._shown) from None
        self._response = response = _Steady(opened)
        tag = opened.headers.get("ETag") or opened.headers.get("Last-Modified")
        length = opened.headers.get("Content-Length")
        is_rest = self._at > 0 and opened.status == 206
        size = int(length) + (self._at if is_rest else 0) if length is not None and length.isdecimal() else None
        if opened.status == 206 and not is_rest:
            raise _Final(errno.EINVAL, "the server sends a part, though it was asked for all of it", self._shown)
        # (An answer in chunks says no length.)
        is_other_size = size is not None and self._size is not None and size != self._size
        if self._at and (tag != self._tag or is_other_size):
            raise self._changed()
        begins = opened.headers.get("Content-Range", f"bytes {self._at}-").partition("-")[0]
        if is_rest and begins != f"bytes {self._at}":
            raise _Final(errno.EINVAL, f"the server sends another range than was asked for: {begins}", self._shown)
        self._tag, self._size = tag, self._size if size is None else size
        if self._at and not is_rest:
            self._skip(response)

    def _request(self, headers: dict[str, str]) -> Request:
        parts = urlsplit(self._url)
        user, has_user, host = parts.netloc.rpartition("@")
        # Encode the characters that a URL may not contain: spaces, and all but ASCII.
        encoded = parts._replace(netloc=host, path=quote(parts.path, _PLAIN), query=quote(parts.query, _PLAIN))
        request = Request(encoded.geturl(), headers=headers)
        if has_user:
            credentials = base64.b64encode(unquote(user).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {credentials}")
        return request

    def _skip(self, response: _Steady) -> None:
        count, found = self._at, 0
        while count:
            data = response.read(min(_STEP, count))
            if not data:
                raise ConnectionResetError(f"the connection was cut before byte {self._at:,}")
            self._last = time.monotonic()
            count -= len(data)
            found = zlib.crc32(data, found)
        if found != self._sum:
            raise self._changed()

    def _changed(self) -> _Final:
        return _Final(errno.ESTALE, "the file has changed while it was read; begin the epoch again", self._shown)

    def _hang_up(self) -> None:
        if self._response is not None:
            self._response.close()
        self._response = None

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()
        super().close()


class _Steady:
    """An answer whose content must keep coming: next to nothing counts as silence."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self._waited = 0.0
        self._count = 0

    def read(self, count: int) -> bytes:
        """Return what has come, up to so many bytes."""
        began = time.monotonic()
        data: bytes = self._opened.read1(count)
        self._waited += time.monotonic() - began
        self._count += len(data)
        if self._waited > PATIENCE.silence:
            if data and self._count < PATIENCE.least:
                raise TimeoutError(f"it sends less than {PATIENCE.least} bytes in {PATIENCE.silence:g} s")
            self._waited, self._count = 0.0, 0
        return data

    def close(self) -> None:
        """Close the connection."""
        self._opened.close()


class _Response(http.client.HTTPResponse):
    """An answer whose headers must have come in time; each byte of them could take as long otherwise."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self._socket = sock

    def begin(self) -> None:
        timer = threading.Timer(PATIENCE.silence, _cut, [self._socket])
        timer.start()
        try:
            super().begin()
        finally:
            timer.cancel()
        is_measured = self.chunked or self.length is not None
        if not is_measured and self.fp is not None and not self.fp.peek(1):
            # Where the head was cut, its rest is missing, and what tells how long the content is.
            raise http.client.RemoteDisconnected("the answer was cut, or has no content")


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it has been closed
        connection.shutdown(socket.SHUT_RDWR)


class _HTTP(HTTPHandler):
    def do_open(self, http_class: Any, *args: Any, **options: Any) -> Any:
        return super().do_open(_bounded(http_class), *args, **options)


class _HTTPS(HTTPSHandler):
    def do_open(self, http_class: Any, *args: Any, **options: Any) -> Any:
        return super().do_open(_bounded(http_class), *args, **options)


def _bounded(http_class: Any) -> Any:
    def connect(*args: Any, **options: Any) -> Any:
        connection = http_class(*args, **options)
        connection.response_class = _Response
        return connection

    return connect


def _make_opener() -> OpenerDirector:
    """Open web addresses alone: a server cannot redirect to a file or to FTP."""
    opener = OpenerDirector()
    plain = (
        ProxyHandler(),
        UnknownHandler(),
        HTTPDefaultErrorHandler(),
        HTTPRedirectHandler(),
        HTTPErrorProcessor(),
    )
    for handler in (*plain, _HTTP(), _HTTPS()):
        opener.add_handler(handler)
    return opener


_opener = _make_opener()


def _said(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) and not isinstance(error, HTTPError) else error
    return without_secrets(" ".join(str(reason).split()))[:300] or type(reason).__name__


class _Final(OSError):
    """An error that asking again would repeat."""
