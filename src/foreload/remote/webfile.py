"""Sequential reading of a file on a web server."""

from __future__ import annotations

import errno
import http.client
import io
import random
import time
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

__all__ = ["WebFile"]

_TRIES = 6
_FIRST_PAUSE = 0.1
_PATIENCE = 60  # seconds without a byte
_STEP = 1 << 20

# Characters with a meaning in a path or a query.
_PLAIN = "!$%&'()*+,/:;=?@~"

# Answers after which it is worth asking again.
_BUSY = (408, 425, 429, 500, 502, 503, 504)


class WebFile(io.RawIOBase):
    """A file on a web server, read sequentially; the server need not know ranges.

    If the connection is cut, or the server is busy, the request is repeated after growing pauses: for the rest,
    or, if the server does not know ranges, for the whole file, whose known part is skipped.

    Args:
        url: ``http://`` or ``https://``.

    Raises:
        FileNotFoundError, PermissionError: the file does not exist, or access is denied.
        OSError: the server fails repeatedly, or the file has changed during the read.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._at = 0
        self._size: int | None = None
        self._tag: str | None = None
        self._response: Any = None

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes, 0 at the end."""
        failure: Exception | None = None
        for attempt in range(_TRIES):
            try:
                if self._response is None:
                    self._connect()
                count = int(self._response.readinto(buffer))
                if count == 0 and self._size is not None and self._at < self._size and len(buffer):
                    raise ConnectionResetError(f"the connection was cut at byte {self._at:,} of {self._size:,}")
                self._at += count
                return count
            except HTTPError as error:
                failure = self._refused(error)
            except _Changed:
                raise
            except (OSError, http.client.HTTPException) as error:
                failure = error
            self._hang_up()
            if attempt < _TRIES - 1:
                time.sleep(_FIRST_PAUSE * 2**attempt * (0.5 + random.random()))
        raise OSError(errno.EIO, f"the server fails again and again: {failure}", self._url) from failure

    def _refused(self, error: HTTPError) -> Exception:
        error.close()
        if error.code in (404, 410):
            raise FileNotFoundError(errno.ENOENT, "there is no such file", self._url) from None
        if error.code in (401, 403):
            raise PermissionError(errno.EACCES, "the server refuses access", self._url) from None
        if error.code not in _BUSY:
            raise OSError(errno.EIO, f"the server answers {error.code} {error.reason}", self._url) from None
        return error

    def _connect(self) -> None:
        request = Request(_encoded(self._url), headers={"Range": f"bytes={self._at}-"} if self._at else {})
        self._response = response = urlopen(request, timeout=_PATIENCE)
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if self._at and tag != self._tag:
            raise _Changed(errno.EIO, "the file has changed while it was read", self._url)
        self._tag = tag
        length = response.headers.get("Content-Length")
        is_rest = self._at > 0 and response.status == 206
        if length is not None:
            self._size = int(length) + (self._at if is_rest else 0)
        if self._at and not is_rest:
            self._skip(self._at)

    def _skip(self, count: int) -> None:
        while count:
            got = len(self._response.read(min(_STEP, count)))
            if not got:
                raise ConnectionResetError(f"the connection was cut before byte {self._at:,}")
            count -= got

    def _hang_up(self) -> None:
        if self._response is not None:
            self._response.close()
        self._response = None

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()
        super().close()


def _encoded(url: str) -> str:
    """Encode the characters that a URL may not contain: spaces, and all but ASCII."""
    parts = urlsplit(url)
    return parts._replace(path=quote(parts.path, _PLAIN), query=quote(parts.query, _PLAIN)).geturl()


class _Changed(OSError):
    """The file has changed, so that asking again does not help."""
