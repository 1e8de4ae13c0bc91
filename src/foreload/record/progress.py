"""Progress bars for long work, on terminals (with rich if it is installed) and in notebooks."""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Protocol, Self, TypeVar

from foreload.machine import granted_cores

__all__ = ["ProgressBar", "track", "track_threads"]

S = TypeVar("S")
T = TypeVar("T")

# Seconds between two redraws of a bar, and the characters in a full one.
_REDRAW_SECONDS = 0.1
_MAX_BAR_WIDTH = 40

# Two bars would draw over each other, so a second one is not shown.
_shown = threading.Lock()


def track(items: Iterable[T], what: str, *, total: int, after: float = 0) -> Generator[T, None, None]:
    """Iterate over ``items``, and show how many of ``total`` are done in a :class:`ProgressBar`.

    The bar goes with the iterator. A ``for`` loop lets go of it however it ends; a comprehension or a variable
    does not while its frame is kept, as that of an exception is: close the iterator there.

    >>> list(track([1, 2], "counting", total=2))
    [1, 2]
    """
    with ProgressBar(what, total, after=after) as progress:
        for item in items:
            yield item
            progress.advance()


def track_threads(
    work: Callable[[S], T], items: Sequence[S], what: str, *, threads: int | None = None, after: float = 0
) -> Iterator[T]:
    """Call ``work`` with each item in threads, one per core, and yield the results in order, with a progress bar.

    If the loop over it ends early, calls that have not begun are cancelled.

    >>> list(track_threads(abs, [-1, 2], "making positive"))
    [1, 2]
    """
    pool = ThreadPoolExecutor(granted_cores() if threads is None else threads)
    try:
        yield from track(pool.map(work, items), what, total=len(items), after=after)
    finally:
        pool.shutdown(cancel_futures=True)


class ProgressBar:
    """Progress bar for the length of a ``with`` block: the work done, its pace, and the time left.

    It is shown on standard error if that is a terminal, or below the cell of a notebook; nowhere else, and not in
    worker processes. When the block ends, however it ends, the bar is removed.

    Args:
        what: a word or two for the work.
        total: the number of steps.
        after: seconds before anything is shown.

    >>> with ProgressBar("packing", 3) as progress:
    ...     progress.advance(2)
    ...     progress.advance()
    """

    def __init__(self, what: str, total: int, *, after: float = 0) -> None:
        self._what = what
        self._total = total
        self._after = after
        self._done = self._worked = 0
        self._bar: _Bar | None = None
        self._began = self._next = math.inf

    def __enter__(self) -> Self:
        """Start the clock."""
        self._began = time.monotonic()
        self._next = self._began + self._after
        if self._after <= 0:
            try:
                self._show(self._began)
            except BaseException:  # Ctrl-C, which may come at any time
                self.__exit__()
                raise
        return self

    def advance(self, count: int = 1) -> None:
        """Count steps as done."""
        self._worked += count
        self._count(count)

    def skip(self, count: int = 1) -> None:
        """Count steps that need no work, and that the pace leaves out."""
        self._count(count)

    def _count(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now >= self._next:
            self._show(now)

    def _show(self, now: float) -> None:
        self._next = now + _REDRAW_SECONDS
        # A terminal that was closed is no reason to stop the work.
        with suppress(OSError):
            if self._bar is None:
                self._bar = _open(self._what, self._total)
            if self._bar is None:
                self._next = math.inf
            else:
                self._bar.show(self._done, _pace(self._done, self._worked, self._total, now - self._began))

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        bar, self._bar, self._next = self._bar, None, math.inf
        if bar is not None:
            try:
                with suppress(OSError):
                    bar.close()
            finally:
                _shown.release()


def _pace(done: int, worked: int, total: int, seconds: float) -> str:
    """Format the pace and the time left.

    >>> _pace(50, 40, 130, 2.0), _pace(0, 0, 10, 1.0)
    ('20/s, 0:00:04 left', '')
    """
    if not worked or seconds <= 0:
        return ""
    rate = worked / seconds
    left = timedelta(seconds=max(0, round((total - done) / rate)))
    return f"{rate:,.0f}/s, {left} left" if rate >= 10 else f"{rate:.2g}/s, {left} left"


class _Bar(Protocol):
    def show(self, done: int, pace: str) -> None: ...

    def close(self) -> None: ...


def _open(what: str, total: int) -> _Bar | None:
    """Open the bar that suits the output; None if none is to be shown."""
    if multiprocessing.parent_process() is not None or not _shown.acquire(blocking=False):
        return None
    bar: _Bar | None = None
    try:
        if _in_notebook():
            bar = _NotebookBar(what, total)
        elif _on_terminal():
            bar = _PlainBar(what, total) if find_spec("rich") is None else _RichBar(what, total)
    finally:
        if bar is None:
            _shown.release()
    return bar


def _on_terminal() -> bool:
    stream: Any = sys.stderr
    return stream is not None and not getattr(stream, "closed", False) and bool(stream.isatty())


def _in_notebook() -> bool:
    """Whether this is a notebook kernel, whose output is a web page."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class _RichBar:
    def __init__(self, what: str, total: int) -> None:
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        columns = [progress.TextColumn("{task.description}"), progress.MofNCompleteColumn()]
        room = console.width - len(what) - 2 * len(str(total)) - 4
        if room >= 10:
            columns.insert(1, progress.BarColumn(min(_MAX_BAR_WIDTH, room - 24 if room >= 34 else room)))
        if room >= 34:
            columns.append(progress.TextColumn("{task.fields[pace]}"))
        # Output printed meanwhile goes above the bar, unless it goes to a file or a pipe.
        to_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._progress = progress.Progress(*columns, console=console, transient=True, redirect_stdout=to_terminal)
        self._task = self._progress.add_task(what, total=total, pace="")

    def show(self, done: int, pace: str) -> None:
        self._progress.start()
        self._progress.update(self._task, completed=done, pace=pace)

    def close(self) -> None:
        self._progress.stop()


class _PlainBar:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._stream = sys.stderr

    def show(self, done: int, pace: str) -> None:
        # The last column is left empty: a terminal may begin a new line there.
        width = (os.get_terminal_size(self._stream.fileno()).columns or 80) - 1
        line = f"{self._what} {done}/{self._total}"
        for more in (f" {pace}", f" [{self._filled(done, width - len(line) - len(pace) - 4)}]"):
            line += more if len(line) + len(more) <= width else ""
        self._stream.write(f"\r{line[:width]}\x1b[K")
        self._stream.flush()

    def _filled(self, done: int, room: int) -> str:
        room = max(0, min(_MAX_BAR_WIDTH, room))
        return ("#" * (room * min(done, self._total) // max(1, self._total))).ljust(room)

    def close(self) -> None:
        self._stream.write("\r\x1b[K")
        self._stream.flush()


class _NotebookBar:
    def __init__(self, what: str, total: int) -> None:
        ipython: Any = importlib.import_module("IPython.display")
        self._what, self._total, self._html = what, total, ipython.HTML
        self._handle = ipython.display(self._html(""), display_id=True)

    def show(self, done: int, pace: str) -> None:
        bar = f'<progress value="{done}" max="{self._total}"></progress>'
        self._handle.update(self._html(f"{self._what} {bar} {done}/{self._total} {pace}"))

    def close(self) -> None:
        self._handle.update(self._html(""))
