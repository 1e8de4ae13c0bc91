"""Ranges of files on web servers, read over connections that are kept, straight into the memory they go to.

The storage library takes eight times the processor time for a range: its answers go through threads that wait
for the GIL. It is asked for all that is not a plain answer of HTTP/1.1 (RFC 9110, 9112) to a plain request.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from types import SimpleNamespace
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from foreload.remote.answers import check_answer
from foreload.remote.patience import Patience

__all__ = ["Connections"]

_MOST_IDLE = 512  # of one server
_IDLE_SECONDS = 30.0  # after which a server may have forgotten a connection without a word
_MOST_UNUSUAL = 4  # answers in a row, after which a server is left to the library
_HEAD_BYTES = 1 << 14

_PATH = re.compile(r"/[\w.~!$&'()*+,;=:@%/-]*", re.ASCII)
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,4}|:[1-5]\d{4})?", re.ASCII)
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})\b")
_RANGE = re.compile(rb"bytes (\d+)-(\d+)/(\d+)")
_NEVER = datetime.fromtimestamp(0, UTC)


class _Unusual(Exception):
    """An answer that the storage library may understand."""


class _Server:
    """A server, its idle connections, the last one first, and how many answers in a row were unusual."""

    def __init__(self, parts: SplitResult) -> None:
        self.host, self.is_secure = parts.hostname or "", parts.scheme == "https"
        self.port = parts.port or (443 if self.is_secure else 80)
        self.idle: list[_Connection] = []
        self.unusual = 0


class _Connection(asyncio.BufferedProtocol):
    """A connection, over which one range is read at a time.

    Attributes:
        idle_since: the loop's time at which the last answer was complete.
    """

    def __init__(self, server: _Server) -> None:
        self.idle_since = 0.0
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._head = bytearray(_HEAD_BYTES)
        self._head_view = memoryview(self._head)
        self._filled = self._fresh = 0
        self._in_body = self._has_come = False
        self._done: asyncio.Future[None] | None = None
        self._limit: asyncio.TimerHandle | None = None
        self.is_closed = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self in self._server.idle:
            self._server.idle.remove(self)
        self._end(error or ConnectionResetError("the connection was closed before the answer was complete"))

    async def read(
        self,
        request: bytes,
        target: memoryview,
        check: Callable[[dict[bytes, bytes]], None],
        patience: Patience,
        heard: Callable[[], float],
    ) -> None:
        """Send a request and read the body of its answer, once ``check`` has not raised for its headers."""
        self._target, self._check, self._patience, self._heard = target, check, patience, heard
        self._filled = self._fresh = 0
        self._in_body = self._has_come = False
        self._done = self._loop.create_future()
        self._latest = self._loop.time()
        self._limit = self._loop.call_later(patience.silence, self._look)
        try:
            self._transport.write(request)
            await self._done
        except BaseException:
            self.close()  # so that nothing more is written to the memory
            raise
        finally:
            self._limit.cancel()
            del self._target, self._check

    @property
    def has_come(self) -> bool:
        """Whether some of the present answer has come."""
        return self._has_come

    def close(self) -> None:
        self._done = None
        self._transport.abort()

    def get_buffer(self, hint: int) -> memoryview:
        return self._target[self._filled :] if self._done and self._in_body else self._head_view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._done is None or self._done.done():
            self._transport.abort()  # nothing was asked for
            return
        self._has_come = True
        self._filled += count
        self._fresh += count
        try:
            if not self._in_body:
                self._read_head()
        except Exception as error:
            self._end(error)
            return
        # A server that sends next to nothing is as silent as one that sends nothing.
        if self._fresh >= self._patience.least:
            self._fresh, self._latest = 0, self._heard()
        if self._in_body and self._filled == len(self._target):
            self._filled, self._in_body = 0, False
            self._end(None)

    def _read_head(self) -> None:
        end = self._head.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            if self._filled == _HEAD_BYTES:
                raise _Unusual
            return
        first, *lines = bytes(self._head_view[:end]).split(b"\r\n")
        status = _STATUS.match(first)
        if status is None:
            raise _Unusual
        fields = (line.partition(b":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        headers[b":status"] = status[1]
        self._check(headers)
        come = self._filled - end - 4
        if come > len(self._target):
            raise _Unusual
        self._target[:come] = self._head_view[end + 4 : self._filled]
        self._filled, self._in_body = come, True

    def _look(self) -> None:
        silence = self._patience.silence
        left = self._latest + silence - self._loop.time()
        if left > 0:
            self._limit = self._loop.call_later(left, self._look)
        else:
            self._end(TimeoutError(f"it sends less than {self._patience.least} bytes in {silence:g} s"))

    def _end(self, error: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


class Connections:
    """Connections to web servers, each of which is asked for one range at a time."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server | None] = {}
        self._secure: ssl.SSLContext | None = None

    async def get(
        self,
        url: str,
        version: list[Any] | None,
        start: int,
        target: memoryview,
        patience: Patience,
        heard: Callable[[], float],
    ) -> bool:
        """Read the bytes from ``start`` on of this version of a file, as many as ``target`` holds.

        Returns:
            False if the storage library has to be asked.

        Raises:
            OSError: the answer is an error, or was cut short; nothing came for too long.
            EOFError: the file ends too early.
            Changed: it is another version.
            ValueError: the server sends it encoded.
        """
        parts = urlsplit(url)
        server = self._server(parts)
        if server is None or server.unusual >= _MOST_UNUSUAL or parts.query or not _PATH.fullmatch(parts.path):
            return False
        lines = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "User-Agent: foreload", "Accept: */*"]
        lines += ["Accept-Encoding: identity", f"Range: bytes={start}-{start + len(target) - 1}"]
        if version is not None and version[1].startswith('"'):
            lines.append(f"If-Match: {version[1]}")
        request = "\r\n".join([*lines, "", ""]).encode("latin-1")
        is_kept = True

        def check(headers: dict[bytes, bytes]) -> None:
            nonlocal is_kept
            is_kept = b"close" not in headers.get(b"connection", b"").lower()
            _check(url, headers, version, start, len(target))

        try:
            connection, is_new = await self._connected(server, patience.silence)
            try:
                await connection.read(request, target, check, patience, heard)
            except ConnectionError:
                if is_new or connection.has_come:
                    raise
                # It had been closed meanwhile.
                connection = await self._connect(server, patience.silence)
                await connection.read(request, target, check, patience, heard)
        except _Unusual:
            server.unusual += 1
            return False
        server.unusual = 0
        if is_kept and not connection.is_closed and len(server.idle) < _MOST_IDLE:
            connection.idle_since = asyncio.get_running_loop().time()
            server.idle.append(connection)
        else:
            connection.close()
        return True

    def _server(self, parts: SplitResult) -> _Server | None:
        base = f"{parts.scheme}://{parts.netloc}"
        if base not in self._servers:
            is_plain = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.netloc)
            proxies = getproxies()
            is_direct = not (proxies.get(parts.scheme) or proxies.get("all")) or proxy_bypass(parts.netloc)
            self._servers[base] = _Server(parts) if is_plain and is_direct else None
        return self._servers[base]

    async def _connected(self, server: _Server, silence: float) -> tuple[_Connection, bool]:
        """Return a connection, and whether it is a new one."""
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while server.idle:
            connection = server.idle.pop()
            if connection.idle_since > oldest:
                return connection, False
            connection.close()
        return await self._connect(server, silence), True

    async def _connect(self, server: _Server, silence: float) -> _Connection:
        if server.is_secure and self._secure is None:
            self._secure = ssl.create_default_context()
        secure = self._secure if server.is_secure else None
        try:
            async with asyncio.timeout(silence):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(server), server.host, server.port, ssl=secure
                )
        except (OSError, ssl.SSLError) as error:  # for which the library has a name
            raise _Unusual from error
        return connection


def _check(url: str, headers: dict[bytes, bytes], version: list[Any] | None, start: int, length: int) -> None:
    status = int(headers[b":status"])
    if status >= 400:
        raise OSError(f"the server answers with a non-2xx status code: {status} {responses.get(status, '')}")
    found = _RANGE.fullmatch(headers.get(b"content-range", b""))
    if status != 206 or found is None or b"transfer-encoding" in headers:
        raise _Unusual
    first, last, size = map(int, found.groups())
    tag, modified, encoding = (
        headers.get(name, b"").decode("latin-1") for name in (b"etag", b"last-modified", b"content-encoding")
    )
    try:
        when = parsedate_to_datetime(modified) if modified else _NEVER
    except (TypeError, ValueError):
        raise _Unusual from None
    meta = {"size": size, "e_tag": tag or None, "last_modified": when}
    attributes = {"Content-Encoding": encoding} if encoding else {}
    check_answer(url, SimpleNamespace(meta=meta, attributes=attributes), version)
    if first != start or last >= start + length or int(headers.get(b"content-length", b"-1")) != last - first + 1:
        raise _Unusual
    if size < start + length:
        raise EOFError(f"it ends {start + length - size:,} bytes too early")
    if last + 1 < start + length:
        raise ConnectionError("the answer is shorter than the range that was asked for")
