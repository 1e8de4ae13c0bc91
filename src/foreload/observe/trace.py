"""Traces: who worked on which batch when, as a file that Perfetto and chrome://tracing open."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from foreload.observe.spans import Stage
from foreload.observe.watched import named

__all__ = ["Recording", "write_recordings", "write_trace"]

# Threads are numbered from their process's number on, and no two in a trace may have the same.
_LANES_MOST = 1 << 17
_RATE_STEPS = 200
_WAIT = Stage.WAIT.name.lower()


class _Lane(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


class Recording(NamedTuple):
    """What was recorded of one loader.

    Attributes:
        name: what the trace calls it.
        spans: as ``loader.spans.recent()`` gives them.
        lanes: whose they are, as ``loader.spans.lanes``.
    """

    name: str
    spans: npt.NDArray[Any]
    lanes: Sequence[_Lane]


@dataclass(eq=False)
class _Slice:
    begin: int
    end: int
    name: str
    lane: int
    args: dict[str, int]
    arrow: dict[str, Any] | None = None  # from where a batch was finished, or to where it is used


def write_trace(loaders: Any, path: str | os.PathLike[str]) -> None:
    """Write what a loader's workers did lately, for ui.perfetto.dev (or chrome://tracing).

    There is one track per worker and one for the loop, with a slice for each stage of each batch; an arrow from
    where a batch was finished to the loop's work on it; and the counters *batches ready* (made, but not taken
    yet) and *read MiB/s*. What is written is what the rings still hold: some thousand spans per worker.

    Args:
        loaders: a loader, or a dict of names and loaders, which are shown one below the other.
        path: the file, in the Trace Event Format (JSON); compressed if it ends with ``.gz``, which Perfetto
            opens too. It is replaced if it exists, and is never seen half-written.

    Raises:
        TypeError: something is no loader of foreload's.
        OSError: the file cannot be written.

    >>> import foreload, tempfile, torch
    >>> loader = foreload.DataLoader(torch.utils.data.TensorDataset(torch.arange(64.)), batch_size=8)
    >>> batches = list(loader)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(loader, f"{folder}/trace.json")
    ...     events = json.load(open(f"{folder}/trace.json"))["traceEvents"]
    >>> "wait" in {event["name"] for event in events}
    True
    """
    write_recordings(
        [Recording(name, each.spans.recent(), each.spans.lanes) for name, each in named(loaders).items()], path
    )


def write_recordings(recordings: Iterable[Recording], path: str | os.PathLike[str]) -> None:
    """Write recordings as :func:`write_trace` does; times are those of CLOCK_MONOTONIC, from the first span on."""
    recordings = list(recordings)
    first = min((int(each.spans["begin"].min()) for each in recordings if len(each.spans)), default=0)
    about: list[dict[str, Any]] = []
    timed: list[dict[str, Any]] = []
    for i, each in enumerate(recordings):
        for event in _events(each, (i + 1) * _LANES_MOST):
            (about if event["ph"] == "M" else timed).append(event)
    # A stable sort: where times are equal, a slice must end before the next of its track begins.
    timed.sort(key=lambda event: event["ts"])
    for event in timed:
        event["ts"] = (event["ts"] - first) / 1000  # microseconds
    trace = {
        "traceEvents": about + timed,
        "displayTimeUnit": "ms",
        "otherData": {"producer": "foreload", "clock": "CLOCK_MONOTONIC", "begin_ns": str(first)},
    }
    _replace(Path(path), json.dumps(trace, separators=(",", ":")).encode())


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(gzip.compress(content, 6) if path.suffix == ".gz" else content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _events(recording: Recording, process: int) -> Iterator[dict[str, Any]]:
    yield _about("process_name", process, process, name=f"foreload: {recording.name}")
    slices = [_slice(span) for span in recording.spans]
    loops = {i for i, lane in enumerate(recording.lanes) if lane.kind == "consumer"}
    waits = [each for each in slices if each.lane in loops and each.name == _WAIT]
    work = _work(waits, max((each.end for each in slices), default=0))
    made = _finished(each for each in slices if each.lane not in loops)
    ready = list(_ready(waits, work, made, process))
    thread = process
    # Workers first: where times are equal, an arrow must begin before it ends.
    for lane in sorted(range(len(recording.lanes)), key=lambda lane: (lane in loops, lane)):
        for layer, track in enumerate(_layers(each for each in [*slices, *work] if each.lane == lane)):
            thread += 1
            name = recording.lanes[lane].name + (f" ({layer + 1})" if layer else "")
            yield _about("thread_name", process, thread, name=name)
            yield _about("thread_sort_index", process, thread, sort_index=0 if lane in loops else thread - process)
            yield from _drawn(track, process, thread)
    yield from ready
    yield from _rate(recording.spans, process)


def _about(what: str, process: int, thread: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _slice(span: Any) -> _Slice:
    args = {field: int(span[field]) for field in ("batch", "samples", "bytes")}
    return _Slice(int(span["begin"]), int(span["end"]), Stage(span["stage"]).name.lower(), int(span["lane"]), args)


def _work(waits: list[_Slice], end: int) -> list[_Slice]:
    """Give what the loop did with each batch, which is what lies between two waits."""
    ends = [each.begin for each in waits[1:]] + [end]
    return [
        _Slice(wait.end, max(wait.end, end), "loop", wait.lane, {"batch": wait.args["batch"]})
        for wait, end in zip(waits, ends, strict=False)
    ]


def _finished(slices: Iterable[_Slice]) -> dict[int, deque[_Slice]]:
    """Give for each batch's number the workers' slices, by their end."""
    made: dict[int, deque[_Slice]] = defaultdict(deque)
    for each in sorted(slices, key=lambda each: each.end):
        made[each.args["batch"]].append(each)
    return made


def _ready(
    waits: list[_Slice], work: list[_Slice], made: dict[int, deque[_Slice]], process: int
) -> Iterator[dict[str, Any]]:
    """Draw an arrow for each batch to the loop's work on it, and count the batches that nobody has taken yet."""
    changes = []
    for number, (wait, used) in enumerate(zip(waits, work, strict=True)):
        # Numbers begin anew with each epoch: a batch's last slice is the last one before it was given.
        before = made[wait.args["batch"]]
        last = None
        while before and before[0].end <= wait.end:
            last = before.popleft()
        if last is not None:
            identity = process + number
            last.arrow = {"ph": "s", "id": identity}
            used.arrow = {"ph": "f", "bp": "e", "id": identity}
            changes += [(last.end, 1), (wait.end, -1)]
    # What has not been taken, but would be next; not what a loop that was left early left behind.
    begun = max((b.begin for a, b in pairwise(waits) if b.args["batch"] <= a.args["batch"]), default=0)
    newest = waits[-1].args["batch"] if waits else -1
    changes += [
        (left[-1].end, 1) for batch, left in made.items() if left and batch > newest and left[-1].end > begun
    ]
    ready = 0
    for time, change in sorted(changes, key=lambda change: (change[0], -change[1])):
        ready += change
        yield {"ph": "C", "name": "batches", "pid": process, "ts": time, "args": {"ready": ready}}


def _layers(slices: Iterable[_Slice]) -> list[list[_Slice]]:
    """Put slices on as few tracks as let each lie within, or beside, every other of its track."""
    layers: list[tuple[list[_Slice], list[int]]] = []  # each with the ends of those that are still open
    for each in sorted(slices, key=lambda each: (each.begin, -each.end)):
        for layer in layers:
            ends = layer[1]
            while ends and ends[-1] <= each.begin:
                ends.pop()
            if not ends or each.end <= ends[-1]:
                break
        else:
            layer = [], []
            layers.append(layer)
        layer[0].append(each)
        layer[1].append(each.end)
    return [track for track, _ in layers]


def _drawn(track: list[_Slice], process: int, thread: int) -> Iterator[dict[str, Any]]:
    # Begins and ends, not whole slices: viewers round times, and what touches may then overlap.
    place = {"pid": process, "tid": thread}
    inside: list[_Slice] = []
    for each in [*track, None]:
        while inside and (each is None or inside[-1].end <= each.begin):
            over = inside.pop()
            if over.arrow is not None and over.arrow["ph"] == "s":
                yield {"name": "batch", "cat": "batch", **place, "ts": over.end, **over.arrow}
            yield {"ph": "E", **place, "ts": over.end}
        if each is not None:
            yield {"ph": "B", "name": each.name, "cat": "foreload", **place, "ts": each.begin, "args": each.args}
            if each.arrow is not None and each.arrow["ph"] == "f":
                yield {"name": "batch", "cat": "batch", **place, "ts": each.begin, **each.arrow}
            inside.append(each)


def _rate(spans: npt.NDArray[Any], process: int) -> Iterator[dict[str, Any]]:
    """Count the bytes that were read, each span's spread over its time."""
    spans = spans[(spans["stage"] == Stage.READ) & (spans["bytes"] > 0)]
    if not len(spans):
        return
    begin, end = spans["begin"].astype(np.int64), spans["end"].astype(np.int64)
    edges = np.linspace(begin.min(), max(end.max(), begin.min() + 1), _RATE_STEPS + 1).astype(np.int64)
    shares = ((edge - begin) / np.maximum(1, end - begin) for edge in edges)
    read = np.array([float(np.sum(np.clip(share, 0, 1) * spans["bytes"])) for share in shares])
    rates = np.diff(read) / np.maximum(1, np.diff(edges)) * (1e9 / (1 << 20))
    for time, rate in zip(edges.tolist(), [*rates.tolist(), 0], strict=True):
        yield {"ph": "C", "name": "read", "pid": process, "ts": time, "args": {"MiB/s": round(rate, 3)}}
