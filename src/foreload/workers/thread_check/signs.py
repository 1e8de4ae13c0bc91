"""Signs that threads should not share a dataset: what it holds open, and what loading changes."""

from __future__ import annotations

import io
import logging
import mmap
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from foreload.checks import package_of
from foreload.dataset_state.digest import digest
from foreload.dataset_state.handles import handle_kind
from foreload.dataset_state.names import names_used
from foreload.dataset_state.walk import walk
from foreload.protocol import UserCode

__all__ = ["Seen", "Signs", "find_signs", "seen_by_name"]

# What threads may share whatever it holds, or holds for each thread.
_OPAQUE = (logging.Logger, logging.Handler, logging.LoggerAdapter, threading.local, threading.Thread)

_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore)

# Packages whose classes and functions are not looked into.
_KNOWN_PACKAGES = (sys.stdlib_module_names - {"__main__"}) | {"torch", "numpy", "foreload", "PIL", "pandas"}

# What threads should not share about what is open, by its kind.
_HANDLES = {
    "file": "an open file, whose position threads share",
    "SQLite": "a connection to SQLite, which belongs to the thread that opened it",
    "socket": "an open connection, of which threads would read each other's answers",
    "h5py": "part of an open HDF5 file: h5py lets one thread at a time read, so threads gain nothing",
    "lmdb": "of LMDB, whose transactions and cursors belong to the thread that began them",
    "netCDF4": "an open netCDF file, and that library does not allow for threads",
    "tables": "part of an open PyTables file, and that library does not allow for threads",
    "cv2": "an open video, whose position threads share",
    "decord": "an open video, whose position threads share",
    "av": "part of an open video, whose position threads share",
}

# The most objects and functions that are looked into.
_MOST_VALUES = 20_000


class Seen(NamedTuple):
    """The observed state of a value that a dataset holds.

    Attributes:
        digest: equal as long as the value is the same and unchanged.
        kind: the name of its type.
        handle: what threads should not share about it; "": nothing.
        is_lock: whether it is a lock.
    """

    digest: Any
    kind: str
    handle: str
    is_lock: bool


@dataclass
class Signs:
    """The things that a dataset holds and changes, as far as threads are concerned.

    Attributes:
        findings: what threads should not share.
        notes: what else is good to know.
    """

    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def seen_by_name(roots: Iterable[tuple[str, Any]]) -> dict[str, Seen]:
    """Return what objects hold, and the global variables that their methods use, by name.

    Args:
        roots: the objects and their names, "" for names without a prefix.
    """
    found: dict[str, Seen] = {}
    own = f"[{threading.get_ident()}]"  # what a dataset has for each thread
    for name, value in islice(_reachable(roots), _MOST_VALUES):
        if own not in name:
            kind = type(value).__name__
            found.setdefault(name, Seen(_digest(value), kind, _handle(value), isinstance(value, _LOCKS)))
    return found


def find_signs(before: dict[str, Seen], first: dict[str, Seen], last: dict[str, Seen]) -> Signs:
    """Return what an object holds and changes.

    Args:
        before: what it held before samples were loaded.
        first: what it held after the first of them.
        last: what it held after all of them.

    >>> class Counter:
    ...     __module__ = "__main__"
    ...     calls = 0
    ...     def __getitem__(self, index):
    ...         self.calls += 1
    ...         return index
    >>> counter, seen = Counter(), []
    >>> for index in range(3):
    ...     seen.append(seen_by_name([("", counter)])); _ = counter[index]
    >>> find_signs(*seen).findings
    ["Loading changes 'calls', which threads would do at the same time."]
    """
    signs = Signs()
    told: list[str] = []
    for name in sorted(last, key=len):
        if any(name.startswith((f"{outer}.", f"{outer}[")) for outer in told):
            continue
        seen, then, start = last[name], first.get(name), before.get(name)
        if seen.handle:
            signs.findings.append(f"{name!r} is {seen.handle}.")
        elif _differs(start, then) or _differs(then, seen):
            signs.findings.append(_changed(name, seen))
        elif _digest_of(start) != seen.digest:
            signs.notes.append(
                f"Loading sets {name!r} when it is first needed, which several threads may do at the same time."
            )
        elif seen.is_lock:
            signs.notes.append(f"{name!r} is a lock: threads take turns wherever it is held.")
        else:
            continue
        told.append(name)
    return signs


_NOTHING = digest(None)


def _digest_of(seen: Seen | None) -> Any:
    return _NOTHING if seen is None else seen.digest


def _differs(then: Seen | None, now: Seen | None) -> bool:
    """Whether something has become something else, and not just been set."""
    return _digest_of(then) not in (_NOTHING, _digest_of(now))


def _changed(name: str, seen: Seen) -> str:
    what = seen.digest[0] if isinstance(seen.digest, tuple) else ""
    if what == "generator":
        return (
            f"Loading draws from {name!r}, a random generator of the dataset's own: with threads, chance decides "
            "which sample gets which of its numbers."
        )
    if what in ("tensor", "array"):
        return f"Loading writes to {name!r}, a buffer that threads would write to at the same time."
    if what == "container":
        return f"Loading adds to {name!r} or takes from it ({seen.kind}), which threads would do at the same time."
    return f"Loading changes {name!r}, which threads would do at the same time."


def _digest(value: Any) -> Any:
    if isinstance(value, np.memmap):
        return "memmap", id(value)  # reading all of it would take too long
    if isinstance(value, (io.BytesIO, io.StringIO, mmap.mmap)) and not value.closed:
        return "position", id(value), value.tell()
    if isinstance(value, dict) and threading.get_ident() in value:
        return "container", dict, len(value) - 1  # what it has for this thread is not shared
    return digest(value)


def _handle(value: Any) -> str:
    """Return what threads should not share about a value; "": nothing."""
    if kind := handle_kind(value):
        return _HANDLES[kind]
    # (Archives have their own position also where they are in memory.)
    if isinstance(value, zipfile.ZipFile):
        return "an open zip file, whose position threads share" if value.fp is not None else ""
    if isinstance(value, tarfile.TarFile):
        return "" if getattr(value, "closed", False) else "an open tar file, whose position threads share"
    if isinstance(value, GeneratorType):
        return "a generator, which one thread at a time can advance"
    return ""


def _reachable(roots: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield what objects hold, and what the functions hold and use that are theirs."""
    left = list(roots)
    done: set[int] = set()
    while left:
        label, root = left.pop(0)
        if id(root) in done:
            continue
        done.add(id(root))
        if isinstance(root, FunctionType):
            left += _of_function(label, root)
            continue
        if label:
            yield label, root
        left += _code_of(label, root)
        for name, value in walk(root, _is_opaque):
            full = f"{label}{name}" if name.startswith("[") or not label else f"{label}.{name}"
            yield full, value
            left += _code_of(full, value)


def _is_opaque(value: Any) -> bool:
    # foreload's own objects are made to be shared; of the user's code that they call, they tell.
    return isinstance(value, _OPAQUE) or package_of(type(value)) == "foreload"


def _code_of(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return what has to be looked into because a value may call it."""
    if isinstance(value, FunctionType):
        return [(name, value)]
    if isinstance(value, MethodType):
        return [(name, value.__self__), (name, value.__func__)]
    if isinstance(value, partial):
        return [(name, part) for part in (value.func, *value.args, *value.keywords.values())]
    told = value.user_code() if isinstance(value, UserCode) else ()
    return [*((name, code) for code in told), *_methods_of(type(value))]


def _methods_of(kind: type) -> list[tuple[str, Any]]:
    bases = [base for base in kind.__mro__ if package_of(base) not in _KNOWN_PACKAGES]
    members = [member for base in bases for member in vars(base).values()]
    functions = [getattr(member, "__func__", getattr(member, "fget", member)) for member in members]
    return [(kind.__name__, function) for function in functions if isinstance(function, FunctionType)]


def _of_function(label: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of other functions and of the module that a function uses."""
    if package_of(function) in _KNOWN_PACKAGES:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{label}.{name}", cell.cell_contents
        except ValueError:  # it has not been set
            continue
    for name in sorted(names_used(function.__code__) & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, (type, ModuleType)):
            yield f"{function.__module__}.{name}", value
