"""Objects of a program that take what its code prints, logs or warns of, and keep it in memory."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import is_
from typing import Any

from foreload.checks import module_of, optional
from foreload.dataset_state.digest import contents, snapshot
from foreload.dataset_state.installed import is_installed

__all__ = ["Outputs"]

# Why a process would not do: what it writes there, the loop would not have.
_NAMES = "what samples print", "what samples log", "what samples warn of"


class Outputs:
    """A look at what has been written where only this process has it: not at terminals and files.

    >>> kept = io.StringIO(); before, sys.stdout = sys.stdout, kept
    >>> outputs = Outputs(); print("loaded"); changed = outputs.changed()
    >>> sys.stdout = before; changed
    'what samples print'
    """

    def __init__(self) -> None:
        self._streams = _streams()
        self._present = list(_present())
        self._before = [present() for _, present in self._present]

    def redirected(self) -> str | None:
        """Return what is written elsewhere since; None if nothing is."""
        pairs = zip(_NAMES, _streams(), self._streams, strict=True)
        return next((name for name, now, before in pairs if not _are_same(now, before)), None)

    def changed(self) -> str | None:
        """Return what has been written since; None if nothing has."""
        pairs = zip(self._present, self._before, strict=True)
        return next((name for (name, present), before in pairs if present() != before), None)


def _streams() -> list[list[Any]]:
    """Return where what is printed, logged and warned of goes first, if that is not a terminal or a file."""
    shows = [optional(warnings, "_showwarnmsg_impl"), warnings.showwarning]
    streams = [stream for stream in (sys.stdout, sys.stderr) if not _is_file(stream)]
    handlers = [handler for handler in logging.root.handlers if not _writes_to_file(handler)]
    return [streams, handlers, [kept for show in shows if isinstance(kept := optional(show, "__self__"), list)]]


def _are_same(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _present() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what returns all that has been written until then, with the name of that."""
    for stream in (sys.stdout, sys.stderr):
        if not _is_file(stream):
            yield _NAMES[0], lambda stream=stream: _written(stream)  # type: ignore[misc]
    loggers = [logging.root, *(each for each in logging.root.manager.loggerDict.values())]
    for handler in {id(each): each for logger in loggers for each in optional(logger, "handlers") or ()}.values():
        if not _writes_to_file(handler):
            kept = handler, optional(handler, "stream")
            yield _NAMES[1], lambda kept=kept: (_kept(kept[0]), _written(kept[1]))  # type: ignore[misc]
    # (Within warnings.catch_warnings(record=True), this is the method of a list.)
    shows = optional(warnings, "_showwarnmsg_impl"), warnings.showwarning
    for kept in (optional(show, "__self__") for show in shows):
        if isinstance(kept, list):
            yield _NAMES[2], lambda kept=kept: len(kept)  # type: ignore[misc]


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
        return snapshot(vars(value), 256)  # (A stream itself would count as an open file.)
    return None
