"""What a process tells about its published loaders, as plain values for JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from foreload.observe.spans import Stage

__all__ = ["FORMAT", "tell"]

# Of the document; who reads it must know the same.
FORMAT = 1

# How much of the latest past is told, and of how many samples that failed.
_SECONDS = 4
_SPANS = 600
_ERRORS = 20


def tell(loaders: Iterable[tuple[int, str | None, Any]]) -> dict[str, Any]:
    """Give the document about loaders of this process: their numbers, names (None: the usual one) and themselves.

    >>> tell([])["loaders"]
    []
    """
    return {
        "foreload": FORMAT,
        "pid": os.getpid(),
        "script": _script(),
        "rank": _rank(),
        "loaders": [{"number": number, **_describe(loader, name)} for number, name, loader in loaders],
    }


def _describe(loader: Any, name: str | None) -> dict[str, Any]:
    about: dict[str, Any] = {"name": name or type(getattr(loader, "dataset", loader)).__name__}
    try:
        about["stats"] = loader.stats()
        about["errors"] = [_short(error) for error in list(getattr(loader, "errors", ()))[-_ERRORS:]]
        about["spans"] = _latest(getattr(loader, "spans", None))
    except Exception as error:  # it is told, and the other loaders are still told of
        about["failure"] = f"{type(error).__name__}: {error}"
    return about


def _short(error: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(error).items() if key != "traceback"}


def _latest(spans: Any) -> dict[str, Any] | None:
    """Give the latest spans, times in microseconds since the first of them."""
    if spans is None:
        return None
    rows = spans.recent()
    if len(rows):
        rows = rows[rows["end"] > max(0, int(rows["end"].max()) - _SECONDS * 10**9)]
        rows = rows[np.sort(np.argsort(rows["end"], kind="stable")[-_SPANS:])]
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
    """Name what runs, without its arguments, which may be nobody's business."""
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path("python")
    if path.name == "__main__.py":
        return f"python -m {path.parent.name}"
    return "python -c" if path.name == "-c" else path.name


def _rank() -> list[int] | None:
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return [distributed.get_rank(), distributed.get_world_size()]
