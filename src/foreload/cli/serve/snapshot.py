"""Checks of what loaders' processes answer: whatever it is, the page gets values of the types that it shows."""

from __future__ import annotations

import json
from itertools import islice
from types import UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from foreload.export.publisher import FORMAT
from foreload.record.stats import Stats

__all__ = ["MAX_BYTES", "Snapshot", "parse"]

# The longest answer that is read, and what is shown of it.
MAX_BYTES = 8 << 20
_MAX_LOADERS = 100
_MAX_ITEMS = 1000
_MAX_CHARACTERS = 2000

# Larger numbers are no figures of a loader, and would overflow in floating point.
_MAX_NUMBER = 1 << 63

_UNFIT = object()


class _Failed(TypedDict):
    index: int | str | list[int] | None
    source: str | None
    error: str
    action: str


class _Failure(TypedDict):
    error: str
    count: int
    first: float
    last: float
    example: _Failed


class _Moment(TypedDict):
    time: float
    observed: float
    batches: float
    samples: float
    waited: float
    seconds: float
    hits: float
    requests: float
    read: float
    memory: float | None
    epoch: int | None
    over: int
    stages: dict[str, float]


class _Spans(TypedDict):
    stages: list[str]
    lanes: list[list[str]]
    begin: list[int]
    length: list[int]
    lane: list[int]
    stage: list[int]
    batch: list[int]
    samples: list[int]
    bytes: list[int]


class Snapshot(TypedDict, total=False):
    """A loader as its process describes it. What is not there, or of another type, is left out."""

    number: int
    name: str
    pid: int
    script: str
    rank: list[int] | None
    stats: Stats
    moment: _Moment | None
    failures: list[_Failure]
    spans: _Spans | None
    failure: str


class _Document(TypedDict):
    foreload: int
    pid: int
    script: str
    rank: list[int] | None


_REQUIRED = {"number", "name", "pid", "script"}


def parse(text: bytes) -> list[Snapshot]:
    """Return the loaders in an answer of a process; none if it is not such a document.

    >>> answer = b'{"foreload": 1, "pid": 7, "script": "a.py", "loaders": [{"number": 1, "name": "x"}]}'
    >>> parse(answer) == [{"pid": 7, "script": "a.py", "number": 1, "name": "x"}]
    True
    >>> parse(b'{"foreload": 1, "loaders": {}}'), parse(b"[" * 100_000)
    ([], [])
    """
    try:
        found = json.loads(text, parse_constant=lambda _: None)  # browsers cannot parse NaN
    except (ValueError, RecursionError):  # the process ended while it answered, or is no process of foreload's
        return []
    document = _fit(found, _Document)
    if document is _UNFIT or document.get("foreload") != FORMAT or not isinstance(found.get("loaders"), list):
        return []
    del document["foreload"]
    loaders = [
        document | _fit(about, Snapshot) for about in found["loaders"][:_MAX_LOADERS] if isinstance(about, dict)
    ]
    for loader in loaders:
        if not _is_drawable(loader.get("spans")):
            loader["spans"] = None
    return [loader for loader in loaders if loader.keys() >= _REQUIRED and isinstance(loader["number"], int)]


def _is_drawable(spans: Any) -> bool:
    """Whether each span has all its figures, a lane and a stage."""
    if spans is None:
        return True
    if spans.keys() != get_type_hints(_Spans).keys() or any(len(lane) != 2 for lane in spans["lanes"]):
        return False
    columns = [spans[name] for name in ("begin", "length", "lane", "stage", "batch", "samples", "bytes")]
    rows = len(columns[0])
    return all(len(column) == rows for column in columns) and all(
        isinstance(number, int) and 0 <= number < len(spans[names])
        for column, names in (("lane", "lanes"), ("stage", "stages"))
        for number in spans[column]
    )


def _fit(value: Any, kind: Any) -> Any:
    """Return as much of a value as is of a type; ``_UNFIT`` if nothing is.

    >>> _fit({"cores": 4, "share": "a lot", "more": []}, get_type_hints(Stats)["cpu"])
    {'cores': 4}
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        fitting = (fit for part in parts if (fit := _fit(value, part)) is not _UNFIT)
        return next(fitting, _UNFIT)
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return _UNFIT
        members = {name: _fit(value[name], part) for name, part in get_type_hints(kind).items() if name in value}
        return {name: fit for name, fit in members.items() if fit is not _UNFIT}
    if origin is dict:
        if not isinstance(value, dict):
            return _UNFIT
        entries = {name: _fit(part, parts[1]) for name, part in islice(value.items(), _MAX_ITEMS)}
        return {name[:_MAX_CHARACTERS]: fit for name, fit in entries.items() if fit is not _UNFIT}
    if origin is list:
        if not isinstance(value, list):
            return _UNFIT
        items = [_fit(part, parts[0]) for part in value[:_MAX_ITEMS]]
        return _UNFIT if any(fit is _UNFIT for fit in items) else items
    return _fit_plain(value, kind)


def _fit_plain(value: Any, kind: Any) -> Any:
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS] if kind in (str, Any) else _UNFIT
    if value is None or isinstance(value, bool):
        return value if kind in (type(value), Any) else _UNFIT
    is_figure = isinstance(value, (int, float)) and -_MAX_NUMBER < value < _MAX_NUMBER
    return value if is_figure and kind in (int, float, Any) else _UNFIT
