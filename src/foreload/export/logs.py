"""Logs of loaders' statistics, written every few seconds: JSON lines, and the base for other formats."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from foreload.export.loaders import LoaderRefs
from foreload.record.stats import Stats

__all__ = ["StatsLog", "log_stats"]


class StatsLog:
    """Writes the statistics of loaders at intervals, on a thread of its own.

    It ends when it is closed, with its block, with the interpreter, or when the loaders are gone, whichever is
    first; it does not keep them alive. Before it ends, it writes their last figures if they still exist. A loader
    that has delivered no batch since the last write is left out. In a fork it does nothing.

    Args:
        loaders: a loader, or a dict of names and loaders.
        write: called with a loader's name and its ``stats()``.
        end: called when nothing more will be written.
        every: seconds between writes; None: write only when :meth:`write` is called, and at the end.

    Raises:
        ValueError, TypeError: an argument is invalid.
    """

    def __init__(
        self,
        loaders: Any,
        write: Callable[[str, Stats], None],
        end: Callable[[], None] | None = None,
        *,
        every: float | None,
    ) -> None:
        check_every(every)
        self._every = every
        self._write = write
        self._end = end
        self._batches: dict[str, int] = {}
        self._lock = threading.RLock()
        # Unlike an Event, it can be set by the garbage collector while the same thread waits on it.
        self._ending: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = self._warned = False
        self._thread: threading.Thread | None = None
        self._loaders = LoaderRefs(loaders, self._over)
        if every is not None:
            self._thread = threading.Thread(target=self._run, name="foreload-log", daemon=True)
            self._thread.start()

    def write(self) -> None:
        """Write the present figures, for example at the end of an epoch.

        Raises:
            OSError: they cannot be written.
        """
        if not self._loaders.is_here:
            return
        with self._lock:
            if self._ended:
                return
            for name, loader in self._loaders.alive().items():
                stats = loader.stats()
                if stats["batches"] != self._batches.get(name, 0):
                    self._write(name, stats)
                    self._batches[name] = stats["batches"]

    def close(self) -> None:
        """Write once more, and end."""
        if not self._loaders.is_here:
            return
        self._ending.put(None)
        if self._thread is not None:
            self._thread.join()
        self._finish()

    def _run(self) -> None:
        while True:
            try:
                self._ending.get(timeout=self._every)
            except queue.Empty:
                self._try()
            else:
                return self._finish()

    def _try(self) -> None:
        try:
            self.write()
        except Exception as error:  # a full disk may get room again, so the log goes on
            if not self._warned:
                self._warned = True
                warnings.warn(f"the statistics of a loader could not be written: {error!r}", stacklevel=2)

    def _finish(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._try()
            self._ended = True
            self._loaders.release()
            if self._end is not None:
                self._end()

    def _over(self) -> None:
        if self._loaders.alive():  # then the interpreter exits
            self.close()
        self._ending.put(None)  # without waiting: this runs in the thread that dropped the last loader

    def __enter__(self) -> Self:
        """Return the log, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


def check_every(every: float | None) -> None:
    """Raise TypeError or ValueError unless ``every`` is a positive number of seconds or None."""
    if every is None:
        return
    if isinstance(every, bool) or not isinstance(every, (int, float)):
        raise TypeError(f"every must be a number of seconds or None, got {every!r}")
    if not 0 < every <= threading.TIMEOUT_MAX:
        raise ValueError(f"every must be a number of seconds above 0, got {every}")


def log_stats(loaders: Any, path: str | os.PathLike[str], *, every: float | None = 10.0) -> StatsLog:
    """Append ``loader.stats()`` to a file every few seconds, as a line of JSON.

    Each line has ``time`` (seconds since 1970) and ``name`` beside the statistics. Lines are written whole: a
    program that is killed leaves all lines up to then.

    Args:
        loaders: a loader, or a dict of names and loaders, which get a line each.
        path: the file; its present content is kept.
        every: seconds between lines; None: only when ``write()`` is called, for example after each epoch.

    Returns:
        The log: ``write()`` and ``close()`` it, or use it as a context manager. It also ends by itself: with a
        last line when the program ends, and when the loaders are gone (it does not keep them alive).

    Raises:
        OSError: the file cannot be written. (Later on, this is a warning, once.)
        ValueError, TypeError: an argument is invalid.

    >>> import foreload, tempfile
    >>> loader = foreload.DataLoader(list(range(10)), batch_size=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with log_stats(loader, f"{folder}/stats.jsonl"):
    ...         batches = list(loader)
    ...     line = json.loads(open(f"{folder}/stats.jsonl").read())
    >>> line["name"], line["batches"], line["samples"]
    ('loader', 2, 10)
    """
    check_every(every)
    file = Path(path).absolute()
    with file.open("ab"):
        pass

    def write(name: str, stats: Stats) -> None:
        _append(file, json.dumps({"time": time.time(), "name": name, **stats}))

    return StatsLog(loaders, write, every=every)


def _append(path: Path, line: str) -> None:
    with path.open("ab+", buffering=0) as file:
        content = f"{line}\n".encode()
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            content = b"\n" + content  # the disk was full, or a program was killed, in the middle of a line
        if file.write(content) != len(content):  # one write call: other processes may append and read
            raise OSError(f"the disk of {path} is full; free some space")
