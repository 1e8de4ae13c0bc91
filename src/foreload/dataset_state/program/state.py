"""The part of a program that processes which are not forked lack: what was set since modules were imported."""

from __future__ import annotations

import io
import os
import pickle
import sys
from types import FunctionType
from typing import Any

import numpy as np
import torch

from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.program.codes import UnknownContentError, digest_code, has_order_of_its_own
from foreload.dataset_state.program.libraries import LibraryState, UserNames
from foreload.dataset_state.program.settings import present_settings

__all__ = ["ProgramState"]

_OTHER = "in a process that is not forked"
_ELSEWHERE = f"is not what it is here {_OTHER}"

# The names by which code reads variables of the environment.
_ENVIRONMENT = {"environ", "getenv", "expandvars"}


# A text whose hash tells whether texts have the hashes that they have in another process.
_TEXT = "foreload"


class ProgramState:
    """The code that loads samples with the global variables and attributes of classes that it uses, and settings.

    Processes that ``spawn`` or ``forkserver`` start import modules anew, and get only what the dataset holds.

    Args:
        parts: the dataset, and what is applied to its samples.
    """

    def __init__(self, *parts: Any) -> None:
        self._unknown: str | None = None
        self._orders: list[tuple[Any, list[Any]]] = []  # of sets, which are made anew there
        try:
            self._note(parts)
        except Exception as error:  # whatever the user's objects and modules may raise
            self._unknown = f"what the program has set (looking at it raises {type(error).__name__}: {error})"

    def _note(self, parts: tuple[Any, ...]) -> None:
        self._codes: dict[tuple[str, str], bytes | str] = {}
        found = _Parts()
        found.dump(parts)
        self._orders = [(each, list(each)) for each in found.sets]
        # (Of a set with one element only the order of others tells, that are made of it.)
        hashed = ["a set" for each in found.sets if len(each) == 1 and has_order_of_its_own(each)]
        for code in found.codes.values():
            try:
                digest: bytes | str = digest_code(code, hashed)
            except UnknownContentError as error:
                digest = str(error)
            self._codes[_module_of(code), code.__qualname__] = digest
        self._hashed = (hashed[0], hash(_TEXT)) if hashed else None
        self._settings = present_settings()
        names = UserNames()
        # (Libraries set some variables in each process that imports them.)
        named = set() if _ENVIRONMENT.isdisjoint(names.used) else names.texts
        known = set(os.environ)
        self._environment = {name: os.environ.get(name) for name in named if name in known or name.isidentifier()}
        self._libraries = LibraryState(names)

    def differs(self) -> str | None:
        """Return a sentence that says what is not the same in this process; None if all is."""
        if self._unknown is not None:
            return f"nothing tells whether {self._unknown} is the same {_OTHER}"
        if self._hashed is not None and self._hashed[1] != hash(_TEXT):
            return f"the hashes of texts, on which {self._hashed[0]} depends, are not what they are here {_OTHER}"
        if any(list(each) != order for each, order in self._orders):
            return f"the order of a set {_ELSEWHERE}"
        for (module, name), before in self._codes.items():
            if isinstance(before, str):
                return f"nothing tells whether {before}, which the code of {name} uses, is the same {_OTHER}"
            try:
                is_same = digest_code(_find(module, name)) == before
            except (UnknownContentError, LookupError):
                is_same = False
            if not is_same:
                return f"the code of {name}, or a variable that it uses, {_ELSEWHERE}"
        present = present_settings()
        changed = [name for name, before in self._settings.items() if present[name] != before]
        changed += [
            f"os.environ[{name!r}]" for name, text in self._environment.items() if os.environ.get(name) != text
        ]
        lack = changed[0] if changed else self._libraries.differs()
        return None if lack is None else f"{lack} {_ELSEWHERE}"


class _Parts(pickle.Pickler):
    """Pickles anything but the content of arrays, and keeps the classes and functions of the user's in it.

    A process that unpickles the parts gets these by their names, and all else as it is here, but for the order of
    sets.
    """

    def __init__(self) -> None:
        super().__init__(_Nothing(), protocol=5)
        self.codes: dict[int, Any] = {}
        self.sets: list[Any] = []

    def persistent_id(self, thing: Any) -> None:
        if isinstance(thing, (set, frozenset)):
            self.sets.append(thing)

    def reducer_override(self, thing: Any) -> Any:
        code = thing if isinstance(thing, (type, FunctionType)) else type(thing)
        # (What has no name of its own is in the code of what has.)
        if not is_installed(_module_of(code)) and "<" not in code.__qualname__:
            self.codes[id(code)] = code
        if isinstance(thing, torch.Tensor):
            return int, ()
        if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            return int, ()
        return NotImplemented


class _Nothing(io.RawIOBase):
    """A file that keeps nothing."""

    def write(self, part: Any) -> int:
        return memoryview(part).nbytes


def _module_of(code: Any) -> str:
    module = str(code.__module__)  # which classes may define as anything
    return "__main__" if module == "__mp_main__" else module


def _find(module: str, name: str) -> Any:
    """Return what pickle finds by a name; raise LookupError if there is nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise LookupError(name) from error
    return found
