"""The time that a server may be silent, and the tries that a request is given."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from random import random
from typing import NamedTuple

__all__ = ["PATIENCE", "Patience", "seconds_to_wait"]


class Patience(NamedTuple):
    """The time that a server may be silent, and the tries; a request in which something comes may take any time.

    Attributes:
        silence: seconds in which something must come, in each try.
        least: bytes that must come in them; a server that sends less is as silent as one that sends nothing.
        total: seconds after the last byte in which the request may be tried again.
        tries: of a request that fails.
        pause: seconds before the second try; they double with each.
    """

    silence: float = 15.0
    least: int = 240
    total: float = 60.0
    tries: int = 6
    pause: float = 0.1

    def pause_after(self, attempt: int, told: float, spent: float) -> float | None:
        """Return the seconds to wait before the next try, or None if there is none.

        Args:
            attempt: how many tries there were before the one that failed.
            told: the seconds that the server wants to be left alone.
            spent: seconds since the last byte.

        >>> Patience().pause_after(5, 0.0, 1.0), Patience().pause_after(0, 120.0, 0.0)
        (None, None)
        """
        # Those who failed together do not come back together.
        pause = self.pause * 2**attempt * (0.5 + random()) + told
        return None if attempt + 1 >= self.tries or spent + pause > self.total else pause


PATIENCE = Patience()


def seconds_to_wait(retry_after: str | None) -> float:
    """Return for how many seconds a busy server wants to be left alone, which it says as such or as a date.

    >>> seconds_to_wait("12"), seconds_to_wait(None), seconds_to_wait("Fri, 02 Jan 1970 00:00:00 GMT")
    (12.0, 0.0, 0.0)
    """
    text = (retry_after or "").strip()
    try:
        if text.isdecimal():
            return float(text)
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0
