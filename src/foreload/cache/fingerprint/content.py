"""Hashes of objects: of their state, and of the code that decides what they do."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from mmap import mmap
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload.cache.fingerprint.named_files import NamedFiles
from foreload.checks import Array
from foreload.nested import bytes_of
from foreload.protocol import SampleSource, UserCode

__all__ = ["ContentPickler", "FilesPickler", "elements_of"]

# The folders that packages are installed in.
_INSTALLED = {"site-packages", "dist-packages"}

# How the strings of other libraries' columns are listed: the attribute that shows their type, and the method.
_COLUMNS = {"pyarrow": ("type", "to_pylist"), "polars": ("dtype", "to_list")}

# Longer bytes are not the name of a file.
_MAX_NAME = 4096

# From Python 3.14 on, a class makes its annotations when asked for them, by a function that knows its module.
_ANNOTATIONS = "__annotate_func__"

# Attributes of what cannot be pickled, such as an open file, that may name a file.
_NAMES_OF_FILES = ("name", "filename", "path")


class ContentPickler(pickle.Pickler):
    """Pickles what can be pickled, and the names of all else; what it writes is to be hashed.

    Classes and functions count by their code, what they hold, and the globals that they name; what comes with
    Python or is installed counts by its version.
    """

    def persistent_id(self, thing: Any) -> Any:
        """Return what stands for a thing in place of what pickle makes of it; None: nothing."""
        kind = type(thing)
        if kind is set or kind is frozenset:
            return kind.__name__, sorted(thing, key=repr)  # whose order differs between processes
        return None

    def reducer_override(self, thing: Any) -> Any:
        """Return how a thing is to be pickled."""
        if thing is str:
            return NotImplemented
        if isinstance(thing, type):
            return self._of_class(thing)
        if isinstance(thing, FunctionType):
            return self._of_function(thing)
        if isinstance(thing, ModuleType):
            return str, (f"module {thing.__name__}", _version(thing.__name__))
        if isinstance(thing, (staticmethod, classmethod)):
            return str, (type(thing).__name__,), thing.__func__
        if isinstance(thing, property):
            return str, ("property",), (thing.fget, thing.fset, thing.fdel)
        if isinstance(thing, MethodType):
            return str, ("method",), (thing.__func__, thing.__self__)
        is_partial = isinstance(thing, partial)  # whose arguments count too
        if "__wrapped__" in _vars_of(thing) and _is_installed(_module_of(type(thing))) and not is_partial:
            # Such as a function with a cache, which may hold samples.
            return str, (_name_of(type(thing)), "wraps"), thing.__wrapped__
        try:
            if isinstance(thing, torch.Tensor) and thing.layout is torch.strided and not thing.is_quantized:
                return str, self.of_tensor(thing)
            reduced = thing.__reduce_ex__(5)
        except Exception as error:  # whatever pickling a user's object may raise
            return self.of_failed(thing, error)
        if isinstance(reduced, str):
            return self.of_name(thing, reduced)
        make, arguments, *rest = reduced
        state, *items = rest or [None]
        if _module_of(type(thing)).partition(".")[0] == "pandas":
            state = _without_memos(state)
        if isinstance(state, dict) and state.keys() <= _vars_of(thing).keys():
            state = self.held(state)
        return make, arguments, (type(thing), state), *items[:2]

    def of_tensor(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """Return the kind of a tensor, and its elements as bytes."""
        kind = repr((tensor.dtype, tensor.shape))
        return kind, pickle.PickleBuffer(elements_of(tensor))  # type: ignore[arg-type]

    def of_name(self, thing: Any, name: str) -> Any:
        """Return how an object is to be pickled that only gives a name, or an error of that name."""
        # What the user's own objects hold counts also if they refuse to be pickled.
        held = {} if _is_installed(_module_of(type(thing))) else _vars_of(thing)
        return str, (_name_of(type(thing)), name), (type(thing), self.held(held))

    def held(self, attributes: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """Return the names of attributes as one string, which is not the name of a file, and their values."""
        return repr(list(attributes)), list(attributes.values())

    def of_failed(self, thing: Any, error: Exception) -> Any:
        """Return how an object is to be pickled that raises an error when it is."""
        return self.of_name(thing, type(error).__qualname__)

    def globals_of(self, function: FunctionType) -> dict[str, Any]:
        """Return the global variables that a function uses, by name."""
        known = function.__globals__
        return {name: known[name] for name in sorted(set(_names(function.__code__))) if name in known}

    def variables_in_modules(self, function: FunctionType) -> Sequence[dict[str, Any]]:
        """Return the variables that a function uses of each module of the user's."""
        names = sorted(set(_names(function.__code__)))
        modules = [part for part in self.globals_of(function).values() if isinstance(part, ModuleType)]
        return [
            {name: vars(part)[name] for name in names if name in vars(part)}
            for part in modules
            if not _is_installed(part.__name__)
        ]

    def _of_class(self, kind: type) -> Any:
        module = _module_of(kind)
        if _is_installed(module):
            return str, (_name_of(kind), _version(module))
        own = {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__") or (callable(value) and name != _ANNOTATIONS)
        }
        return str, (_name_of(kind),), (kind.__bases__, type(kind), self.held(own))

    def _of_function(self, function: FunctionType) -> Any:
        code = function.__code__
        cells = dict(zip(code.co_freevars, map(_cell, function.__closure__ or ()), strict=True))
        held = function.__defaults__, *map(self.held, (function.__kwdefaults__ or {}, cells, vars(function)))
        module = function.__globals__.get("__name__") or ""
        if _is_installed(module):  # the words of whose code name no file of the dataset
            return str, (_name_of(function), repr(_code(code))), (held, _version(module))
        parts = [self.held(variables) for variables in self.variables_in_modules(function)]
        return str, (_name_of(function), _code(code)), (held, self.held(self.globals_of(function)), parts)


class FilesPickler(ContentPickler):
    """Notes also which files are named.

    A :class:`~foreload.protocol.SampleSource` within others counts by its own fingerprint.

    Args:
        known: what the bytes are hashed with.
        files: is told of all strings, some of which may name files.
    """

    def __init__(self, known: Any, files: NamedFiles) -> None:
        super().__init__(_Written(known.update), protocol=5, buffer_callback=lambda part: known.update(part.raw()))
        self._files = files

    def persistent_id(self, thing: Any) -> Any:
        """Return what stands for a thing in place of what pickle makes of it; None: nothing."""
        kind = type(thing)
        if kind is str:
            self._files.note(thing)
        elif kind is bytes and len(thing) <= _MAX_NAME:
            self._files.note(os.fsdecode(thing))
        elif isinstance(thing, PurePath):
            self._files.note(os.fspath(thing), is_path=True)
            return kind.__name__, os.fspath(thing)
        return super().persistent_id(thing)

    def reducer_override(self, thing: Any) -> Any:
        """Return how a thing is to be pickled."""
        if isinstance(thing, np.ndarray):
            if (mapped := _mapped(thing)) is not None:
                return str, mapped
            self._note_strings(thing)
        elif isinstance(thing, SampleSource) and (own := thing.fingerprint()) is not None:
            # With its transforms: they come after the cache only of a loader that is given this dataset itself.
            return str, (_name_of(type(thing)), own), thing.user_code() if isinstance(thing, UserCode) else ()
        elif _module_of(type(thing)).partition(".")[0] in _COLUMNS:
            self._note_column(thing)
        return super().reducer_override(thing)

    def of_name(self, thing: Any, name: str) -> Any:
        """Return how an object is to be pickled that only gives a name, such as an open file."""
        for attribute in _NAMES_OF_FILES:
            with suppress(Exception):  # whatever a property may raise
                if isinstance(path := getattr(thing, attribute, None), str):
                    self._files.note(path)
        return super().of_name(thing, name)

    def held(self, attributes: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """Return the names of attributes as one string, which is not the name of a file, and their values."""
        for value in attributes.values():
            if isinstance(value, str):
                self._files.note(value, is_path=True)
        return super().held(attributes)

    def _note_strings(self, array: Array) -> None:
        if array.dtype.names:
            for name in array.dtype.names:
                self._note_strings(array[name])
        elif array.dtype.kind in "UST":
            for string in array.ravel().tolist():
                self._files.note(os.fsdecode(string))

    def _note_column(self, column: Any) -> None:
        kind, listed = _COLUMNS[_module_of(type(column)).partition(".")[0]]
        if "str" in str(getattr(column, kind, "")).lower() and hasattr(column, listed):
            for string in getattr(column, listed)():
                self._files.note(str(string))


class _Written:
    """A file that passes on what is written."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self.write = write


def elements_of(tensor: torch.Tensor) -> Array:
    """Return the elements of a tensor as bytes, in their order."""
    return bytes_of(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous())


def _vars_of(thing: Any) -> dict[str, Any]:
    """Return an object's attributes; none if it has no dict of them."""
    found = getattr(thing, "__dict__", None)
    return found if isinstance(found, dict) else {}


def _without_memos(state: Any) -> Any:
    """Return the state of an object of pandas without what it has computed from the rest of it since."""
    if isinstance(state, tuple):
        return tuple(map(_without_memos, state))
    if isinstance(state, dict):
        return {name: value for name, value in state.items() if name not in ("_cache", "_item_cache")}
    return state


def _mapped(array: Array) -> tuple[Any, ...] | None:
    """Return what part of which file an array shows; None if it shows none, or what is not written there."""
    if not isinstance(array, np.memmap) or array.mode == "c" or array.filename is None:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, mmap):
        return None
    start = np.frombuffer(base, np.uint8).__array_interface__["data"][0]
    place = array.__array_interface__["data"][0] - start
    return os.fspath(array.filename), array.offset, place, repr((array.dtype, array.shape, array.strides))


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _module_of(thing: Any) -> str:
    module = str(thing.__module__)  # which classes may define as anything
    return "__main__" if module == "__mp_main__" else module  # its name in processes that are not forked


def _name_of(thing: Any) -> str:
    return f"{_module_of(thing)}.{thing.__qualname__}"


def _code(code: CodeType) -> tuple[Any, ...]:
    """Return what a function does, without its place in its file."""
    constants = tuple(map(_constant, code.co_consts))
    return code.co_code, repr((code.co_names, code.co_varnames, code.co_freevars)), constants


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _names(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes that a function names, also in functions within it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names(value)


@cache
def _is_installed(module: str) -> bool:
    """Whether a module comes with Python, with foreload or in another package that is installed."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("builtins", "foreload"):
        return top != "__main__"
    path = getattr(sys.modules.get(module) or sys.modules.get(top), "__file__", None)
    return isinstance(path, str) and not _INSTALLED.isdisjoint(path.split(os.sep))


@cache
def _version(module: str) -> str:
    """Return the version of an installed module's package, and a hash of the module's source."""
    top = module.partition(".")[0]
    version = str(getattr(sys.modules.get(top), "__version__", ""))
    path = getattr(sys.modules.get(module), "__file__", None)
    if top in sys.stdlib_module_names or top == "foreload" or not (isinstance(path, str) and path.endswith(".py")):
        return version
    with suppress(OSError), open(path, "rb") as file:
        version += " " + hashlib.sha256(file.read()).hexdigest()
    return version
