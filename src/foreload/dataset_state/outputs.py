"""The destinations of what a program prints, logs and warns: outside the process, or objects in memory."""

from __future__ import annotations

import io
import logging
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

from foreload._libraries import recorded_warnings, warning_writer
from foreload.checks import module_of, optional
from foreload.dataset_state.digest import contents, digests_of
from foreload.dataset_state.gathered import Gathered
from foreload.dataset_state.installed import is_installed

__all__ = ["Outputs"]

# Why a process would not do: what it writes there, the loop would not have.
_NAMES = "what samples print", "what samples log", "what samples warn of"


class Outputs:
    """A probe of what has been written where only this process has it: not at terminals and files.

    >>> kept = io.StringIO(); before, sys.stdout = sys.stdout, kept
    >>> outputs = Outputs(); print("loaded"); changed = outputs.changed()
    >>> sys.stdout = before; changed
    'what samples print'
    """

    def __init__(self) -> None:
        self._ends = _ends()
        self._present = list(_present())
        self._before = [present() for _, present in self._present]
        called = Gathered()  # for code of the user's may keep it in its variables
        called.follow((((name, place),), function) for place, (name, function) in enumerate(_called()))
        self._probes = called.probes

    def redirected(self) -> str | None:
        """Return what is written elsewhere since; None if nothing is."""
        pairs = zip(_NAMES, _ends(), self._ends, strict=True)
        return next((name for name, now, before in pairs if not _are_same(now, before)), None)

    def changed(self) -> str | None:
        """Return what has been written since; None if nothing has."""
        pairs = zip(self._present, self._before, strict=True)
        kept = next((name for (name, present), before in pairs if present() != before), None)
        return kept or (_NAMES[1] if any(probe.changed() is not None for probe in self._probes) else None)


def _ends() -> list[list[Any]]:
    """Return where what is printed, logged and warned of ends: files, by what they are, or objects."""
    printed = [_end(sys.stdout), _end(sys.stderr)]
    logged: list[Any] = []
    # The first log of a program that has set nothing up makes a handler that does what the last resort does.
    for handler in logging.root.handlers or (logging.lastResort,):
        if (end := _end_of_handler(handler)) is not None:
            least = max(logging.root.level, optional(handler, "level") or 0)
            logged += [end, (least, logging.root.manager.disable)]
    return [printed, logged, [*_shows(), recorded_warnings()]]


def _end(stream: Any) -> Any:
    """Return what a stream writes to; None if that cannot be told."""
    if stream is None:
        return None
    try:
        import fcntl  # which systems without forks do not have

        file = stream.fileno()
        about = os.fstat(file)
        # (Where one opens a file again, another goes on to write at its own position.)
        is_apart = stat.S_ISREG(about.st_mode) and not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND
    except Exception:  # it has none, or raises whatever a stream of the user's raises
        return None if _is_file(stream) else stream
    return stream if is_apart else (about.st_dev, about.st_ino)


def _end_of_handler(handler: Any) -> Any:
    if handler is None or isinstance(handler, logging.NullHandler):
        return None
    if isinstance(handler, logging.FileHandler):  # which may open it only when there is something to write
        return (optional(handler, "baseFilename"),) if optional(handler, "mode") == "a" else handler
    stream = optional(handler, "stream")
    return handler if stream is None else _end(stream)


def _shows() -> list[Any]:
    """Return what is called with a warning: within ``warnings.catch_warnings(record=True)``, a list's method."""
    return [warning_writer(), warnings.showwarning]


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(_is_same, now, before))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) is tuple and one == other)


def _present() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what returns all that has been written until then, with the name of that."""
    for stream in (sys.stdout, sys.stderr):
        if not _is_file(stream):
            yield _NAMES[0], lambda stream=stream: _written(stream)  # type: ignore[misc]
    for handler in _handlers():
        if _is_opened_late(handler):
            yield _NAMES[1], lambda handler=handler: optional(handler, "stream") is None  # type: ignore[misc]
        elif not _writes_to_file(handler):
            kept = handler, optional(handler, "stream")
            yield _NAMES[1], lambda kept=kept: (_kept(kept[0]), _written(kept[1]))  # type: ignore[misc]
    for show in _shows():
        if isinstance(optional(show, "__self__"), list) or not is_installed(module_of(show)):
            yield _NAMES[2], lambda show=show: _kept_by(show)  # type: ignore[misc]
    if (recorded := recorded_warnings()) is not None:
        yield _NAMES[2], lambda: len(recorded)


def _loggers() -> list[Any]:
    return [logging.root, *logging.root.manager.loggerDict.values()]


def _handlers() -> list[Any]:
    return list({id(each): each for logger in _loggers() for each in optional(logger, "handlers") or ()}.values())


# The methods by which streams, handlers and filters get what is written.
_METHODS = ("write", "emit", "handle", "format", "filter")


def _called() -> Iterator[tuple[str, Any]]:
    """Yield the user's functions that are called with what is written or logged, and objects that filter it."""
    handlers = _handlers()
    filters = [each for owner in (*_loggers(), *handlers) for each in optional(owner, "filters") or ()]
    for thing in (sys.stdout, sys.stderr, *handlers):
        for name in _METHODS:
            function = optional(type(thing), name)
            if isinstance(function, FunctionType) and not is_installed(module_of(function)):
                yield name, function
    for thing in (*filters, logging.getLogRecordFactory()):
        if not is_installed(module_of(thing if isinstance(thing, (FunctionType, type)) else type(thing))):
            yield "filter", thing


def _is_opened_late(handler: Any) -> bool:
    """Whether a handler opens its file with the first log, and loses what another process has written there."""
    is_closed = isinstance(handler, logging.FileHandler) and optional(handler, "stream") is None
    return is_closed and "a" not in str(optional(handler, "mode"))


def _writes_to_file(handler: Any) -> bool:
    stream = optional(handler, "stream")
    is_elsewhere = isinstance(handler, (logging.NullHandler, logging.FileHandler))
    return is_elsewhere or (stream is not None and _is_file(stream))


def _is_file(stream: Any) -> bool:
    """Whether a stream ends outside this process, or of a library's it cannot be told."""
    if stream is None:
        return True
    with suppress(Exception):  # it has none
        stream.fileno()
        return True
    in_memory = isinstance(stream, io.StringIO) or isinstance(optional(stream, "buffer"), io.BytesIO)
    return not in_memory and is_installed(module_of(type(stream)))


def _written(stream: Any) -> Any:
    with suppress(Exception):  # whatever a stream of the user's raises
        if isinstance(stream, io.StringIO):
            return contents(stream)
        if isinstance(optional(stream, "buffer"), io.BytesIO):
            stream.flush()
            return contents(stream.buffer)
        return _held(stream)
    return None


def _kept(handler: Any) -> Any:
    """Return what tells whether a handler has kept more; what else one of a library's sets does not matter."""
    module = module_of(type(handler))
    if module.partition(".")[0] == "logging" or not is_installed(module):
        return _held(handler)
    return [len(value) for value in vars(handler).values() if isinstance(value, list)]


def _held(value: Any) -> Any:
    with suppress(Exception):  # whatever an object of the user's raises
        return digests_of(vars(value), 256)  # (A stream itself would count as an open file.)
    return None


def _kept_by(show: Any) -> Any:
    """Return what tells whether a function that gets warnings has kept more."""
    with suppress(Exception):  # whatever an object of the user's raises
        return digests_of(show, 256)
    return None
