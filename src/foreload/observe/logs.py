"""What loaders did, every few seconds: as lines of JSON, or as TensorBoard scalars."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from foreload.observe.watched import Watched, figure

__all__ = ["StatsLog", "log_stats", "log_tensorboard", "scalars"]


class StatsLog:
    """Writes the figures of loaders down at intervals, on a thread of its own.

    It ends when it is closed, with its block, with the interpreter, or when the loaders are gone, whichever is
    first; it does not keep them. Before it ends, it writes what they have come to, if they are still there.

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
        write: Callable[[str, dict[str, Any]], None],
        end: Callable[[], None] | None = None,
        *,
        every: float | None,
    ) -> None:
        self._every = _check_every(every)
        self._write = write
        self._end = end
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ended = self._warned = False
        self._thread: threading.Thread | None = None
        self._watched = Watched(loaders, self._gone)
        if every is not None:
            self._thread = threading.Thread(target=self._run, name="foreload-log", daemon=True)
            self._thread.start()

    def write(self) -> None:
        """Write the figures as they are now, such as at the end of an epoch.

        Raises:
            OSError: they cannot be written.
        """
        loaders = self._watched.alive()  # until after the lock is free: what ends with them may write, too
        with self._lock:
            if not self._ended:
                for name, loader in loaders.items():
                    self._write(name, loader.stats())

    def close(self) -> None:
        """Write once more, and end."""
        if not self._watched.is_here:
            return
        self._over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._finish()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._try()
        self._finish()

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
            self._watched.release()
            if self._end is not None:
                self._end()

    def _gone(self) -> None:
        if self._watched.alive():  # then the interpreter exits
            self.close()
        self._over.set()  # whoever lets go of the last loader does not wait
        if self._thread is None:
            self._finish()

    def __enter__(self) -> Self:
        """Give the log, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the log."""
        self.close()


def _check_every(every: float | None) -> float | None:
    if every is None:
        return None
    if isinstance(every, bool) or not isinstance(every, (int, float)):
        raise TypeError(f"every must be a number of seconds or None, got {every!r}")
    if not 0 < every <= threading.TIMEOUT_MAX:
        raise ValueError(f"every must be a number of seconds above 0, got {every}")
    return every


def log_stats(loaders: Any, path: str | os.PathLike[str], *, every: float | None = 10.0) -> StatsLog:
    """Append what ``loader.stats()`` gives to a file, a line of JSON each time.

    Args:
        loaders: a loader, or a dict of names and loaders: then a line for each.
        path: the file; what it holds stays. It is opened anew for each line, so it may be moved away (logrotate).
        every: seconds between lines; None: only when ``write()`` is called, such as after each epoch.

    Returns:
        The log: ``write()`` and ``close()`` it, or use it as a context manager. It also ends by itself: after a
        last line when the program ends, and when the loaders are gone, whom it does not keep.

    Each line has, beside what ``stats()`` has, ``time`` (seconds since 1970) and ``name``.

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
    file = Path(path)
    with file.open("ab"):
        pass

    def write(name: str, stats: dict[str, Any]) -> None:
        _append(file, json.dumps({"time": time.time(), "name": name, **stats}))

    return StatsLog(loaders, write, every=every)


def _append(path: Path, line: str) -> None:
    with path.open("ab+", buffering=0) as file:
        content = f"{line}\n".encode()
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            content = b"\n" + content  # the disk was full, or somebody was killed, in the middle of a line
        if file.write(content) != len(content):  # in one piece: others may append and read
            raise OSError(f"the disk of {path} is full")


def log_tensorboard(loaders: Any, writer: Any, *, every: float | None = 10.0) -> StatsLog:
    """Write how a loader is doing as TensorBoard scalars: each is of the time since the one before it.

    Tags begin with the loader's name: ``loader/samples_per_second``, ``loader/wait_share``,
    ``loader/stages/decode`` (how many workers were at it, on average) and so on; see :func:`scalars`. The step is
    the number of batches given.

    Args:
        loaders: a loader, or a dict of names and loaders.
        writer: a ``torch.utils.tensorboard.SummaryWriter`` (or anything with ``add_scalar``), which stays open; or
            a folder to write to.
        every: seconds between points; None: only when ``write()`` is called, such as after each epoch.

    Returns:
        The log, as :func:`log_stats` does.

    Raises:
        ImportError: a folder is given, and TensorBoard is not installed.
        ValueError, TypeError: an argument makes no sense.
    """
    own = isinstance(writer, (str, os.PathLike))
    if not own and not callable(getattr(writer, "add_scalar", None)):
        raise TypeError(f"writer must be a SummaryWriter or a folder, got {type(writer).__name__}")
    _check_every(every)
    points = _Points(_summary_writer(writer) if own else writer)
    try:
        return StatsLog(loaders, points.write, points.writer.close if own else None, every=every)
    except BaseException:
        if own:
            points.writer.close()
        raise


def _summary_writer(folder: str | os.PathLike[str]) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("log_tensorboard needs TensorBoard: pip install 'foreload[tensorboard]'") from error
    return SummaryWriter(os.fspath(folder))


class _Points:
    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self._before: dict[str, dict[str, Any]] = {}

    def write(self, name: str, stats: dict[str, Any]) -> None:
        before = self._before.get(name)
        if stats["batches"] == (0 if before is None else before["batches"]):
            return
        for tag, value in scalars(stats, before).items():
            self.writer.add_scalar(f"{name}/{tag}", value, stats["batches"])
        self._before[name] = stats
        flush = getattr(self.writer, "flush", None)
        if flush is not None:
            flush()


def scalars(now: dict[str, Any], before: dict[str, Any] | None = None) -> dict[str, float]:
    """Flatten the figures of a loader, rates and shares being those since ``before``, which it gave earlier."""
    seconds = now["seconds"] - (before["seconds"] if before else 0)
    per_second = 1 / seconds if seconds > 0 else 0.0

    def rate(*path: str) -> float:
        return (figure(now, *path) - (figure(before, *path) if before else 0)) * per_second

    values = {
        "samples_per_second": rate("samples"),
        "batches_per_second": rate("batches"),
        "wait_share": rate("wait_seconds"),
        "first_batch_seconds": now["first_batch_seconds"],
        "read_mib_per_second": rate("bytes_read") / (1 << 20),
        "memory/tree_mib": now["memory"]["tree_bytes"] / (1 << 20),
        "cpu_share": now["cpu"]["share"],
        "errors": now["errors"],
        "restarts": len(now["restarts"]),
        "workers": now["workers"]["count"],
    }
    values |= {f"batch_seconds/{which}": value for which, value in now["batch_seconds"].items()}
    values |= {f"stages/{stage}": rate("stages", stage, "seconds") for stage in now["stages"]}
    if now["cache"] is not None:
        hits, misses = rate("cache", "hits"), rate("cache", "misses")
        values["cache/hit_rate"] = hits / (hits + misses) if hits + misses else 0.0
    if now["gpu"] is not None:
        values["gpu_idle_share"] = now["gpu"]["idle_share"]
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
