"""Progress bars on long work: on a terminal only, with rich where it is installed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["track"]

T = TypeVar("T")


def track(items: Iterable[T], what: str, *, total: int, after: float = 0) -> Iterator[T]:
    """Iterate over ``items`` and show on standard error how many of ``total`` are done.

    Nothing is shown before ``after`` seconds have passed, nor where standard error is not a terminal.

    >>> list(track([1, 2], "counting", total=2))
    [1, 2]
    """
    started = time.monotonic()
    done = 0
    iterator = iter(items)
    if after > 0 or not sys.stderr.isatty():
        for item in iterator:
            yield item
            done += 1
            if sys.stderr.isatty() and time.monotonic() - started >= after:
                break
        else:
            return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield from _plain(iterator, what, total, done)
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, completed=done)
        for item in iterator:
            yield item
            progress.advance(task)


def _plain(items: Iterator[T], what: str, total: int, done: int) -> Iterator[T]:
    for item in items:
        yield item
        done += 1
        if done % max(1, total // 100) == 0 or done == total:
            sys.stderr.write(f"\r{what}: {done}/{total}")
    sys.stderr.write("\n")
