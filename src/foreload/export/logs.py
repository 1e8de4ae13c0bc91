"""What loaders did, written down every few seconds; here as lines of JSON."""

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
    """Writes the figures of loaders down at intervals, on a thread of its own.

    It ends when it is closed, with its block, with the interpreter, or when the loaders are gone, whichever is
    first; it does not keep them. Before it ends, it writes what they have come to, if they are still there. A
    loader that has given no batch since the last time is left out. In a fork it does nothing.

    Args:
        loaders: a loader, or a dict of names and loaders.
        write: takes a loader's name and its ``stats()``.
        end: called when nothing more will be written.
        every: seconds from one time to the next; None: only when :meth:`write` is called, and at the end.

    Raises:
        ValueError, TypeError: an argument makes no sense.
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
        # Unlike an Event, it may be told the end by the garbage collector in the middle of its own waiting.
        self._ending: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = self._warned = False
        self._thread: threading.Thread | None = None
        self._loaders = LoaderRefs(loaders, self._over)
        if every is not None:
            self._thread = threading.Thread(target=self._run, name="foreload-log", daemon=True)
            self._thread.start()

    def write(self) -> None:
        """Write the figures as they are now, such as at the end of an epoch.

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
        except Exception as error:  # a disk that is full may have room again: the log goes on
            if not self._warned:
                self._warned = True
                warnings.warn(f"the figures of a loader could not be written: {error!r}", stacklevel=2)

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
        self._ending.put(None)  # whoever lets go of the last loader does not wait

    def __enter__(self) -> Self:
        """Give the log, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


def check_every(every: float | None) -> None:
    """Raise TypeError or ValueError where this is no number of seconds, and not None."""
    if every is None:
        return
    if isinstance(every, bool) or not isinstance(every, (int, float)):
        raise TypeError(f"every must be a number of seconds or None, got {every!r}")
    if not 0 < every <= threading.TIMEOUT_MAX:
        raise ValueError(f"every must be a number of seconds above 0, got {every}")


def log_stats(loaders: Any, path: str | os.PathLike[str], *, every: float | None = 10.0) -> StatsLog:
    """Append what ``loader.stats()`` gives to a file, a line of JSON each time.

    Each line has, beside what ``stats()`` has, ``time`` (seconds since 1970) and ``name``. Each is written whole:
    a program that is killed leaves all of them up to then.

    Args:
        loaders: a loader, or a dict of names and loaders: then a line for each.
        path: the file; what it holds stays.
        every: seconds between lines; None: only when ``write()`` is called, such as after each epoch.

    Returns:
        The log: ``write()`` and ``close()`` it, or use it as a context manager. It also ends by itself: after a
        last line when the program ends, and when the loaders are gone, whom it does not keep.

    Raises:
        OSError: the file cannot be written. (Later, that is a warning, once.)
        ValueError, TypeError: an argument makes no sense.

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
            content = b"\n" + content  # the disk was full, or somebody was killed, in the middle of a line
        if file.write(content) != len(content):  # in one piece: others may append and read
            raise OSError(f"the disk of {path} is full")
