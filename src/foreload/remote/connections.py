"""Ranges of files on web servers, read over connections that are kept, straight into the memory they go to.

The storage library takes several times the processor time for a range: its answers go through threads that wait
for the GIL. It is asked for all that is not a plain answer of HTTP/1.1 (RFC 9110, 9112) to a plain request.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http.client import responses
from types import SimpleNamespace
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from foreload.remote.answers import check_answer
from foreload.remote.connection import Connection, Unusual
from foreload.remote.patience import Patience

__all__ = ["Connections"]

_MOST_IDLE = 512  # of all servers
_IDLE_SECONDS = 30.0  # after which a server may have forgotten a connection without a word
_ADDRESS_SECONDS = 0.25  # after which the next address of a server is tried beside the one before
_MOST_UNUSUAL = 4  # answers in a row, after which a server is left to the library

# Paths that the library sends as they are.
_PATH = re.compile(r"(/(?!\.\.?(/|$))[\w.=-]+)+", re.ASCII)
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?", re.ASCII)
_DATE = re.compile(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")
_RANGE = re.compile(rb"bytes (\d+)-(\d+)/(\d+)")
_NEVER = datetime.fromtimestamp(0, UTC)


class _Unreachable(Exception):
    """No connection could be made, for a reason that the storage library has a name for."""


class _Server:
    """A server, its idle connections, the last one last, and how many answers in a row were unusual."""

    def __init__(self, parts: SplitResult, port: int | None) -> None:
        self.host, self.is_secure = parts.hostname or "", parts.scheme == "https"
        self.port = (443 if self.is_secure else 80) if port is None else port
        self.idle: list[Connection] = []
        self.unusual = 0


class Connections:
    """Connections to web servers, each of which is asked for one range at a time."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server | None] = {}
        self._idle: dict[Connection, _Server] = {}  # the oldest first
        self._cleaning: asyncio.TimerHandle | None = None
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
        except _Unreachable:
            return False
        except Unusual:
            server.unusual += 1
            return False
        except ConnectionError:
            if connection.has_come:
                raise
            return False
        server.unusual = 0
        if is_kept and not connection.is_closed:
            self._keep(connection, server)
        else:
            connection.close()
        return True

    def _keep(self, connection: Connection, server: _Server) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        server.idle.append(connection)
        self._idle[connection] = server
        if len(self._idle) > _MOST_IDLE:
            self._drop(next(iter(self._idle)))
        if self._cleaning is None:
            self._cleaning = loop.call_later(_IDLE_SECONDS, self._clean)

    def _clean(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = next(iter(self._idle))
            left = connection.idle_since + _IDLE_SECONDS - loop.time()
            if left > 0 and not connection.is_closed:
                self._cleaning = loop.call_later(left, self._clean)
                return
            self._drop(connection)
        self._cleaning = None

    def _drop(self, connection: Connection) -> None:
        idle = self._idle.pop(connection).idle
        if connection in idle:  # not if the server has closed it
            idle.remove(connection)
        connection.close()

    def _server(self, parts: SplitResult) -> _Server | None:
        base = f"{parts.scheme}://{parts.netloc}"
        if base not in self._servers:
            is_plain = parts.scheme in ("http", "https") and _HOST.fullmatch(parts.netloc)
            proxies = getproxies()
            is_direct = not (proxies.get(parts.scheme) or proxies.get("all")) or proxy_bypass(parts.netloc)
            self._servers[base] = None
            if is_plain and is_direct:
                with suppress(ValueError):  # there is no such port
                    self._servers[base] = _Server(parts, parts.port)
        return self._servers[base]

    async def _connected(self, server: _Server, silence: float) -> tuple[Connection, bool]:
        """Return a connection, and whether it is a new one."""
        if server.idle:
            connection = server.idle.pop()
            del self._idle[connection]
            return connection, False
        return await self._connect(server, silence), True

    async def _connect(self, server: _Server, silence: float) -> Connection:
        try:
            if server.is_secure and self._secure is None:
                self._secure = ssl.create_default_context()
            secure = self._secure if server.is_secure else None
            async with asyncio.timeout(silence):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(server.idle),
                    *(server.host, server.port),
                    ssl=secure,
                    happy_eyeballs_delay=_ADDRESS_SECONDS,
                )
        except TimeoutError:
            raise TimeoutError(f"no connection within {silence:g} s") from None
        except (OSError, ValueError) as error:  # of names, certificates, descriptors
            raise _Unreachable from error
        return connection


def _check(url: str, headers: dict[bytes, bytes], version: list[Any] | None, start: int, length: int) -> None:
    status = int(headers[b":status"])
    if status >= 400:
        raise OSError(f"the server answers with a non-2xx status code: {status} {responses.get(status, '')}")
    found = _RANGE.fullmatch(headers.get(b"content-range", b""))
    if status != 206 or found is None or b"transfer-encoding" in headers:
        raise Unusual
    first, last, size = map(int, found.groups())
    sent, when = headers.get(b"content-length", b""), _time_of(headers.get(b"last-modified"))
    if not sent.isdigit() or when is None:
        raise Unusual
    tag, encoding = (headers.get(name, b"").decode("latin-1") for name in (b"etag", b"content-encoding"))
    meta = {"size": size, "e_tag": tag or None, "last_modified": when}
    attributes = {"Content-Encoding": encoding} if encoding else {}
    check_answer(url, SimpleNamespace(meta=meta, attributes=attributes), version)
    if first != start or last >= start + length or int(sent) != last - first + 1:
        raise Unusual
    if size < start + length:
        raise EOFError(f"it ends {start + length - size:,} bytes too early")
    if last + 1 < start + length:
        raise ConnectionError("the answer is shorter than the range that was asked for")


@lru_cache(maxsize=1024)
def _time_of(modified: bytes | None) -> datetime | None:
    """Return the time that a server gives; None if it does so in an unusual form."""
    if modified is None:
        return _NEVER
    with suppress(TypeError, ValueError):
        return parsedate_to_datetime(modified.decode()) if _DATE.fullmatch(modified) else None
    return None
