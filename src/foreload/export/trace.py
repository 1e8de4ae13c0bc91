"""Traces of loaders' spans, as files for Perfetto and chrome://tracing."""

from __future__ import annotations

import gzip
import heapq
import itertools
import json
import math
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from foreload.export.loaders import named
from foreload.record.spans import Stage

__all__ = ["Recording", "write_recordings", "write_trace"]

# A rate counter has at most this many steps, each of at least this many spans.
_MAX_RATE_STEPS = 200
_MIN_SPANS_PER_STEP = 4

_Array = npt.NDArray[Any]
_Event = dict[str, Any]


class _Lane(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


class Recording(NamedTuple):
    """The recorded spans of one loader.

    Attributes:
        name: the loader's name in the trace.
        spans: as from ``loader.spans.recent()``.
        lanes: the lanes of the spans, as in ``loader.spans.lanes``.
    """

    name: str
    spans: _Array
    lanes: Sequence[_Lane]


def write_trace(loaders: Any, path: str | os.PathLike[str]) -> None:
    """Write the latest spans of a loader's workers, for ui.perfetto.dev (or chrome://tracing).

    There is a row for the loop, one for each worker thread, and a process with a row for each worker process. A
    row shows the stages, each with its batch number, samples and bytes; stages that overlap without nesting, such
    as copies to the GPU, get another row, ``... (2)``. The counters are ``samples/s`` delivered to the loop and
    ``read MiB/s``. Each worker keeps its last 4,096 spans; these are what is written.

    Args:
        loaders: a loader, or a dict of names and loaders, which are shown one below the other.
        path: the file, in the Trace Event Format (JSON); compressed if it ends with ``.gz``, which Perfetto
            opens too. It is replaced if it exists, and is never seen half-written. What is no file of its own (a
            link, a pipe, a device such as ``/dev/stdout``) stays what it is, and the trace is written to it.

    Raises:
        TypeError: something is not a foreload loader.
        OSError: the file cannot be written.

    Times are microseconds since the first span, whose ``time.monotonic_ns()`` is in ``otherData``.

    >>> import foreload, tempfile, torch
    >>> loader = foreload.DataLoader(torch.utils.data.TensorDataset(torch.arange(64.)), batch_size=8)
    >>> batches = list(loader)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(loader, f"{folder}/trace.json")
    ...     events = json.load(open(f"{folder}/trace.json"))["traceEvents"]
    >>> "wait" in {event["name"] for event in events}
    True
    """
    # Lanes are read after the spans: there may be more by then, never fewer.
    write_recordings(
        [Recording(name, each.spans.recent(), list(each.spans.lanes)) for name, each in named(loaders).items()],
        path,
    )


def write_recordings(recordings: Sequence[Recording], path: str | os.PathLike[str]) -> None:
    """Write recordings as :func:`write_trace` does."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(path.parent)!r} for the trace {path.name!r}; make it first"
        )
    # (Another file in the place of /dev/null would break every program of the machine.)
    replaces = not path.is_symlink() and (path.is_file() or not path.exists())
    name = f"{path.name}.{os.getpid()}-{threading.get_native_id()}.part"
    written = path.with_name(name) if replaces else path
    try:
        with _open(written, compressed=path.suffix == ".gz") as file:
            _write(recordings, file)
        if replaces:
            os.replace(written, path)
    except OSError as error:
        # (It names the other file, which nobody has asked for, or none.)
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if replaces:
            written.unlink(missing_ok=True)


def _open(path: Path, *, compressed: bool) -> IO[str]:
    return gzip.open(path, "wt", 6, encoding="utf-8") if compressed else path.open("w", encoding="utf-8")


def _write(recordings: Sequence[Recording], file: IO[str]) -> None:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    first = min((int(each.spans["begin"].min()) for each in recordings if len(each.spans)), default=0)
    about = {"producer": "foreload", "clock": "CLOCK_MONOTONIC", "begin_ns": str(first)}
    file.write(f'{{"displayTimeUnit":"ms","otherData":{encode(about)},"traceEvents":[')
    separator = "\n"
    for event in _events(recordings, first):
        file.write(separator + encode(event))
        separator = ",\n"
    file.write("\n]}\n")


def _events(recordings: Sequence[Recording], first: int) -> Iterator[_Event]:
    """Yield the names of rows, then all events by time."""
    numbers = itertools.count(1)  # of processes and threads together: viewers mix up equal thread ids
    timed = []
    for recording in recordings:
        # Enclosing spans come before those inside them.
        spans = recording.spans[
            np.lexsort((-recording.spans["end"].astype(np.int64), recording.spans["begin"].astype(np.int64)))
        ]
        layers = _layers(spans)
        rows = _Rows(recording, numbers)
        for lane in range(len(recording.lanes)):
            for layer in range(max(layers[spans["lane"] == lane].tolist(), default=0) + 1):
                yield from rows.add(lane, layer)
        waits, reads = (spans[spans["stage"] == stage] for stage in (Stage.wait, Stage.read))
        timed += [
            _slices(spans, layers, rows, first),
            _rate("samples/s", waits["end"] - 1, waits["end"], waits["samples"], rows.process, first),
            _rate("read MiB/s", reads["begin"], reads["end"], reads["bytes"] / (1 << 20), rows.process, first),
        ]
    yield from heapq.merge(*timed, key=lambda event: float(event["ts"]))


class _Rows:
    """The rows that show the spans of a recording.

    Attributes:
        process: the number of the loop's process.
        places: process and thread number of each lane and layer.
    """

    def __init__(self, recording: Recording, numbers: Iterator[int]) -> None:
        self._recording = recording
        self._numbers = numbers
        self.process = 0
        self.places: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, lane: int, layer: int) -> Iterator[_Event]:
        """Number a row; yield the events that name it."""
        name, loader = self._recording.lanes[lane].name, self._recording.name
        process = self.process
        if not process:
            process = self.process = next(self._numbers)
            yield _named("process_name", process, process, name=loader)
        if self._recording.lanes[lane].kind == "process":
            process = self.places[lane, 0][0] if layer else next(self._numbers)
            if not layer:
                yield _named("process_name", process, process, name=f"{name} of {loader}")
        thread = next(self._numbers)
        self.places[lane, layer] = process, thread
        yield _named("thread_name", process, thread, name=f"{name} ({layer + 1})" if layer else name)
        yield _named("thread_sort_index", process, thread, sort_index=thread)


def _named(what: str, process: int, thread: int, **args: Any) -> _Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _layers(spans: _Array) -> _Array:
    """Return for each span the first layer of its lane in which spans only nest or follow each other."""
    layers = np.zeros(len(spans), np.int64)
    under_way: dict[int, list[list[int]]] = defaultdict(list)  # the ends in each layer of a lane
    columns = (spans[field].tolist() for field in ("lane", "begin", "end"))
    for number, (lane, begin, end) in enumerate(zip(*columns, strict=True)):
        for layer, ends in enumerate(under_way[lane]):
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                layers[number] = layer
                break
        else:
            layers[number] = len(under_way[lane])
            under_way[lane].append([end])
    return layers


def _slices(spans: _Array, layers: _Array, rows: _Rows, first: int) -> Iterator[_Event]:
    for span, layer in zip(spans, layers.tolist(), strict=True):
        process, thread = rows.places[int(span["lane"]), layer]
        begin, end = int(span["begin"]), int(span["end"])
        yield {
            "ph": "X",
            "name": Stage(span["stage"]).name,
            "cat": "foreload",
            "pid": process,
            "tid": thread,
            "ts": _microseconds(begin - first),
            "dur": _microseconds(end - begin),
            "args": {field: int(span[field]) for field in ("batch", "samples", "bytes")},
        }


def _microseconds(nanoseconds: int) -> float:
    """Return microseconds that Perfetto, which truncates fractions, turns back into exactly these nanoseconds.

    Otherwise a span might end after the next one begins.

    >>> int(1001 / 1000 * 1000), int(_microseconds(1001) * 1000)
    (1000, 1001)
    """
    found = nanoseconds / 1000
    return found if int(found * 1000) == nanoseconds else math.nextafter(found, math.inf)


def _rate(name: str, begins: _Array, ends: _Array, amounts: _Array, process: int, first: int) -> Iterator[_Event]:
    """Yield a counter of amounts per second, each spread evenly over its time."""
    if not len(amounts):
        return
    begins, ends = begins.astype(np.int64) - first, ends.astype(np.int64) - first
    steps = min(_MAX_RATE_STEPS, max(1, len(amounts) // _MIN_SPANS_PER_STEP))
    edges = np.unique(np.linspace(begins.min(), max(ends.max(), begins.min() + 1), steps + 1).astype(np.int64))
    lengths = np.maximum(1, ends - begins)
    come = np.array([np.sum(np.clip((edge - begins) / lengths, 0, 1) * amounts) for edge in edges])
    rates = np.diff(come) / np.diff(edges) * 1e9
    for time, rate in zip(edges.tolist(), [*rates.tolist(), 0.0], strict=True):
        yield {"ph": "C", "name": name, "pid": process, "ts": _microseconds(time), "args": {name: round(rate, 3)}}
