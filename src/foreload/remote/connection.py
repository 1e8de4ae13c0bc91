"""A connection to a web server, over which ranges of files are read one after the other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

from foreload.remote.patience import Patience

__all__ = ["Connection", "Unusual"]

_HEAD_BYTES = 1 << 14
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})\b")
_FIELD = re.compile(rb"([\w!#$%&'*+.^`|~-]+):(.*)", re.ASCII)
_USED = {b"connection", b"content-encoding", b"content-length", b"content-range", b"etag", b"last-modified"}


class Unusual(Exception):
    """An answer that the storage library may understand."""


class Connection(asyncio.BufferedProtocol):
    """A connection, over which one range is read at a time.

    Args:
        idle: connections to the same server, from which this one is taken when it is closed.

    Attributes:
        idle_since: the loop's time at which the last answer was complete.
        has_come: whether some of the present answer has come.
        is_closed: whether either end has closed it.
    """

    def __init__(self, idle: list[Connection]) -> None:
        self.idle_since = 0.0
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._head = bytearray(_HEAD_BYTES)
        self._head_view = memoryview(self._head)
        self._filled = self._fresh = 0
        self._in_body = self.has_come = False
        self._done: asyncio.Future[None] | None = None
        self._limit: asyncio.TimerHandle | None = None
        self.is_closed = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self in self._idle:
            self._idle.remove(self)
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
        self._in_body = self.has_come = False
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

    def close(self) -> None:
        self._done = None
        self._transport.abort()

    def get_buffer(self, hint: int) -> memoryview:
        return self._target[self._filled :] if self._done and self._in_body else self._head_view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._done is None or self._done.done():
            self._transport.abort()  # nothing was asked for
            return
        self.has_come = True
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
            if self._filled == _HEAD_BYTES or self._head.find(b"\n\n", 0, self._filled) >= 0:
                raise Unusual
            return
        first, *lines = bytes(self._head_view[:end]).split(b"\r\n")
        status = _STATUS.match(first)
        if status is None:
            raise Unusual
        headers = {b":status": status[1]}
        for line in lines:
            field = _FIELD.fullmatch(line)
            if field is None:
                raise Unusual
            name = field[1].lower()
            if name in _USED and name in headers:
                raise Unusual
            headers[name] = field[2].strip(b" \t")
        self._check(headers)
        come = self._filled - end - 4
        if come > len(self._target):
            raise Unusual
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
