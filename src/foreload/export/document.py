"""The document that a process publishes about its loaders, and the history of each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from foreload.export.failures import Failures
from foreload.export.history import History, Totals, replace, steady_time
from foreload.record.spans import Stage

__all__ = ["FORMAT", "PublishedLoader", "current_document", "document"]

# Version of the document; readers must know it.
FORMAT = 1

# Limits of a snapshot: seconds of the latest spans, and their number.
_SPAN_SECONDS = 4
_MAX_SPANS = 600

# Moments that are closer to each other (two pages may be open) are one.
_MIN_DISTANCE = 0.5


def document(loaders: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the document about loaders of this process, as plain values.

    Args:
        loaders: their descriptions.
    """
    return {
        "foreload": FORMAT,
        "pid": os.getpid(),
        "script": _script(),
        "rank": _rank(),
        "loaders": list(loaders),
    }


def current_document(loaders: Iterable[tuple[int, str | None, Any]]) -> dict[str, Any]:
    """Return the document about loaders that have no history.

    Args:
        loaders: of each its number, its name (None: the class of its dataset) and itself.

    >>> current_document([])["loaders"]
    []
    """
    return document(PublishedLoader(number, name).describe(loader) for number, name, loader in loaders)


class PublishedLoader:
    """A loader that is published: its description, its history, and what failed.

    Args:
        number: of the loader, in its process.
        name: what it is called; None: the class of its dataset.
        path: of its files (``.history``, and ``.json`` with the last document), without a suffix; None: no files.

    Attributes:
        number: as given.
        name: as given.
    """

    def __init__(self, number: int, name: str | None, path: Path | None = None) -> None:
        self.number = number
        self.name = name
        self._path = path
        self._history = None if path is None else History(path.with_name(f"{path.name}.history"))
        self._failures = Failures()
        self._last: Totals | None = None

    def describe(self, loader: Any, *, longest: float = 15.0, with_spans: bool = True) -> dict[str, Any]:
        """Return the description of the loader at this moment, which its history gets too.

        Args:
            loader: the loader.
            longest: seconds since the last moment after which the process must have been stopped meanwhile.
            with_spans: whether to add the latest spans.
        """
        name = self.name or type(getattr(loader, "dataset", loader)).__name__
        about: dict[str, Any] = {"number": self.number, "name": name}
        try:
            about["stats"] = loader.stats()
            self._record(about["stats"], longest)
            about["moment"] = None if self._last is None else self._last._asdict()
            self._failures.update(list(getattr(loader, "errors", ())), steady_time())
            about["failures"] = self._failures.kinds()
            about["spans"] = _latest(getattr(loader, "spans", None)) if with_spans else None
        except Exception as error:  # reported, so that the other loaders are still shown
            about["failure"] = f"{type(error).__name__}: {error}"
        return about

    def _record(self, stats: Any, longest: float) -> None:
        now = steady_time()
        if self._last is not None and now - self._last.time < _MIN_DISTANCE:
            return
        self._last = Totals.of(stats, now, self._last, longest)
        if self._history is not None:
            with suppress(OSError):  # the disk is full: the page shows what was written before
                self._history.add(self._last)

    def save(self, loader: Any, longest: float) -> None:
        """Write the document about the loader to its file, for a page that asks when the process has ended."""
        about = document([self.describe(loader, longest=longest, with_spans=False)])
        if self._path is not None:
            with suppress(OSError):
                replace(self._path.with_name(f"{self._path.name}.json"), json.dumps(about, default=str).encode())


def _latest(spans: Any) -> dict[str, Any] | None:
    """Return the latest spans, with times in microseconds since the first of them."""
    if spans is None:
        return None
    rows = spans.recent()
    if len(rows):
        rows = rows[rows["end"] > max(0, int(rows["end"].max()) - _SPAN_SECONDS * 10**9)]
        rows = rows[np.sort(np.argsort(rows["end"], kind="stable")[-_MAX_SPANS:])]
    begin = rows["begin"] - (rows["begin"].min() if len(rows) else np.uint64(0))
    length = np.maximum(rows["end"], rows["begin"]) - rows["begin"]
    return {
        "stages": [stage.name for stage in Stage],
        "lanes": [[lane.name, lane.kind] for lane in list(spans.lanes)],
        "begin": (begin // 1000).tolist(),
        "length": (length // 1000).tolist(),
        **{name: rows[name].tolist() for name in ("lane", "stage", "batch", "samples", "bytes")},
    }


def _script() -> str:
    """Name the running program, without its arguments, which may be private."""
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path("python")
    if path.name == "__main__.py":
        return f"python -m {path.parent.name}"
    return "python -c" if path.name == "-c" else path.name


def _rank() -> list[int] | None:
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return [distributed.get_rank(), distributed.get_world_size()]
