"""The forks of this process, after which a child has all that was in memory then."""

from __future__ import annotations

import os
import threading

__all__ = ["fork_count", "may_be_in_child"]


class _Forks:
    def __init__(self) -> None:
        self.count = 0  # goes up when a fork begins, and when it has ended
        self.under_way = False
        self._lock = threading.RLock()

    def begin(self) -> None:
        self._lock.acquire()  # forks of several threads come one after the other
        self.count += 1
        self.under_way = True

    def end(self) -> None:
        self.count += 1
        self.under_way = False
        self._lock.release()


_forks = _Forks()
os.register_at_fork(before=_forks.begin, after_in_parent=_forks.end, after_in_child=_forks.end)


def fork_count() -> int:
    """Return a number that is another one after a fork, and while one is under way."""
    return _forks.count


def may_be_in_child(since: int) -> bool:
    """Whether a child may have been forked since :func:`fork_count` returned ``since``.

    >>> before = fork_count()
    >>> may_be_in_child(before)
    False
    """
    return since != _forks.count or _forks.under_way
