"""Web servers that say for how long they want to be left alone."""

from __future__ import annotations

import asyncio
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from foreload.remote.patience import seconds_to_wait

__all__ = ["BUSY", "BusyServer"]

BUSY = (429, 503)  # statuses with which Retry-After may come


class BusyServer:
    """A server that is busy. The storage library does not tell for how long it wants to be left alone."""

    def __init__(self) -> None:
        self._until = self._asked = 0.0
        self._turn = asyncio.Lock()

    async def told_to_wait(self, url: str, silence: float) -> float:
        """Return the seconds that are left; one request in a second asks for all of them."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if loop.time() > max(self._until, self._asked + 1):
                seconds = await loop.run_in_executor(None, _ask, url, silence)
                self._asked = loop.time()
                self._until = self._asked + seconds
        return max(0.0, self._until - loop.time())


def _ask(url: str, silence: float) -> float:
    try:
        urlopen(Request(url, method="HEAD"), timeout=silence).close()
    except HTTPError as error:
        error.close()
        return seconds_to_wait(error.headers["Retry-After"]) if error.code in BUSY else 0.0
    except (OSError, ValueError, HTTPException):
        pass  # the request that is repeated shows what is wrong
    return 0.0
