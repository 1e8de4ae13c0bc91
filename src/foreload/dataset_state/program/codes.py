"""Hashes of code with all that it uses, the same in every process."""

from __future__ import annotations

import builtins
import copyreg
import dis
import hashlib
import io
import logging
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import pairwise
from types import CodeType, FunctionType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from foreload.cache.fingerprint.content import ContentPickler
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.names import (
    depends_on_hashes,
    globals_used,
    is_only_searched,
    modules_used,
    names_used,
    strings_in,
)
from foreload.dataset_state.walk import PLAIN, variables_of

__all__ = ["UnknownContentError", "digest_code", "has_order_of_its_own"]

# What has no state, or one that is of its process or thread alone.
_STATELESS = (
    *(type(threading.Lock()), type(threading.RLock()), weakref.ref, weakref.WeakKeyDictionary),
    *(weakref.WeakValueDictionary, weakref.WeakSet, GetSetDescriptorType, MemberDescriptorType),
)
_STATELESS_NAMES = {("_abc", "_abc_data")}

# Functions that get at variables by names that are computed.
_RUNS_TEXT = {"eval", "exec"}
_ASKS_MODULE = {"getattr", "vars"}

_MAIN = ("__main__", "__mp_main__")  # its names, here and in processes that are not forked


# Code that has run, or whose result decides nothing but the order of sets.
_NOT_OF_SAMPLES = ("__init__", "__hash__")

# What has the same hash in each interpreter.
_NUMBERS = (bool, int, float, complex)

# The most elements of a set whose contents are compared.
_MOST_ELEMENTS = 1_000


class UnknownContentError(Exception):
    """An object that code uses cannot be compared; the message says what it is."""


def digest_code(value: Any, hashed: list[str] | None = None) -> bytes:
    """Return a hash of a class, a function or any other value with the code and the variables that it uses.

    Args:
        value: the class, the function or the value.
        hashed: the names of functions and kinds of objects are added to it whose result or order depends on the
            hashes of texts, which are others in each interpreter.

    Raises:
        UnknownContentError: a part of it cannot be compared.
    """
    known = hashlib.sha256()
    try:
        _Pickler(known.update, [] if hashed is None else hashed).dump_all(value)
    except UnknownContentError:
        raise
    except Exception as error:  # whatever pickling a user's object may raise
        raise UnknownContentError(f"an object that raises {type(error).__name__} when it is pickled") from error
    return known.digest()


def has_order_of_its_own(value: Any) -> bool:
    """Whether a value is a set whose order depends on hashes that are others in each interpreter.

    So are sets that are made of it, also if it has a single element. (Objects that are hashed by their place in
    memory are in another order in each run.)

    >>> has_order_of_its_own({"cat", "dog"}), has_order_of_its_own({1, 2, (3, 4)})
    (True, False)
    """
    return type(value) in (set, frozenset) and not all(map(_has_known_hash, value))


def _has_known_hash(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_has_known_hash, value))
    by_place: Any = object.__hash__
    return type(value) in _NUMBERS or type(value).__hash__ is by_place


class _Pickler(ContentPickler):
    def __init__(self, write: Callable[[Any], Any], hashed: list[str]) -> None:
        super().__init__(_Written(write), protocol=5, buffer_callback=lambda part: write(part.raw()))
        self._hashed = hashed
        self._numbers: dict[int, int] = {}
        self._left: deque[Any] = deque()
        self._present: Any = None
        self._held: list[Any] = []  # so that nothing else gets their ids

    def dump_all(self, value: Any) -> None:
        """Write a value, then each function and class of the user's that is named by what has been written.

        These stand in it by a number: written where they are named, they would lie in each other too deep.
        """
        self._number(value)
        while self._left:
            self._present = self._left.popleft()
            self.dump(self._present)

    def _number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._numbers)
            self._left.append(thing)
            self._held.append(thing)
        return self._numbers[id(thing)]

    def persistent_id(self, thing: Any) -> Any:
        present, self._present = self._present, None
        kind = type(thing)
        if kind is str:  # pickle tells equal strings from one that is there twice
            return 1, thing.encode(errors="surrogatepass")
        if kind is set or kind is frozenset:  # whose order differs between processes
            self._hashed += ["a set"] if has_order_of_its_own(thing) else []
            return kind.__name__, self._sorted(thing)
        if thing is not present and issubclass(kind, (FunctionType, type)) and not is_installed(_module_of(thing)):
            return 2, self._number(thing)
        return super().persistent_id(thing)

    def _sorted(self, elements: Iterable[Any]) -> list[Any]:
        elements = list(elements)
        if all(type(each) in PLAIN for each in elements):
            return sorted(elements, key=repr)
        if len(elements) > _MOST_ELEMENTS:
            raise UnknownContentError(f"a set of {len(elements)} objects")
        return sorted(map(digest_code, elements))

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, logging.Logger):  # which has the name of its module, and is in no sample
            return str, ("logger",)
        if isinstance(thing, ContextVar):
            return str, (f"variable {thing.name}",), (thing.get(None),)
        if isinstance(thing, threading.local):
            return str, ("local",), (type(thing), vars(thing))
        if isinstance(thing, MappingProxyType):
            return str, ("proxy",), (dict(thing),)
        if isinstance(thing, torch.Generator):
            return str, ("generator",), (thing.get_state(),)
        if isinstance(thing, struct.Struct):
            return str, (f"struct {thing.format}",)
        if isinstance(thing, memoryview):
            return str, (f"memory {thing.format} {thing.shape}",), (thing.tobytes(),)
        if isinstance(thing, torch.jit.ScriptFunction):
            return str, (f"script {thing.code}",)
        if isinstance(thing, _STATELESS) or (type(thing).__module__, type(thing).__name__) in _STATELESS_NAMES:
            return self.of_name(thing, "stateless")
        if type(thing) in copyreg.dispatch_table:
            return NotImplemented
        if isinstance(thing, ModuleType):
            if thing.__name__ in _MAIN:
                return str, ("main module",)
            if not is_installed(thing.__name__):  # that code gets at otherwise than by its name
                return str, (f"module {thing.__name__}",), variables_of(thing)
        return super().reducer_override(thing)

    def of_failed(self, thing: Any, error: Exception) -> Any:
        kind = type(thing)
        if isinstance(thing, io.IOBase):
            return self.of_name(thing, repr([getattr(thing, name, None) for name in ("name", "mode")]))
        if not is_installed(_module_of(kind)) and isinstance(getattr(thing, "__dict__", None), dict):
            return super().of_failed(thing, error)
        raise UnknownContentError(f"an object of {kind.__module__}.{kind.__qualname__}")

    def globals_of(self, function: FunctionType) -> dict[str, Any]:
        code, known = function.__code__, function.__globals__
        # The main module has another name there; modules are looked into for what is used of them.
        used = set(globals_used(code)) - {"__name__"}
        if "globals" in used and "globals" not in known:
            by_name = strings_in(code) & known.keys()
            if not by_name:
                raise UnknownContentError("a global variable whose name is computed")
            used |= by_name
        if "__subclasses__" in names_used(code):
            raise UnknownContentError("a list of the classes that are derived from one")
        if any(name in used and name not in known for name in _RUNS_TEXT):
            raise UnknownContentError("a text that is run as code")
        if depends_on_hashes(code) and code.co_name not in _NOT_OF_SAMPLES:
            self._hashed.append(function.__qualname__)
        found = {name: known[name] for name in sorted(used & known.keys())}
        searched = [name for name, value in found.items() if has_order_of_its_own(value)]
        found |= {name: self._sorted(found[name]) for name in searched if is_only_searched(code, name)}
        # Programs add functions to Python's own, such as that for translated texts.
        added = {
            name: vars(builtins)[name]
            for name in sorted(used - known.keys())
            if name in vars(builtins) and type(vars(builtins)[name]) is not type(len)
        }
        return {name: value for name, value in {**added, **found}.items() if not isinstance(value, ModuleType)}

    def variables_in_modules(self, function: FunctionType) -> list[dict[str, Any]]:
        code, modules = function.__code__, modules_used(function)
        if not modules:
            return []
        names = names_used(code)
        if not names.isdisjoint({"getattr", "attrgetter"}):
            names = names | strings_in(code)
        found = []
        for module in sorted(modules, key=lambda module: module.__name__):
            variables = {name: vars(module)[name] for name in names & vars(module).keys()}
            if _asks_module(function):
                variables |= variables_of(module)
            found.append(
                {name: value for name, value in sorted(variables.items()) if not isinstance(value, ModuleType)}
            )
        return found


def _module_of(code: Any) -> str:
    known = code.__globals__.get("__name__", "") if isinstance(code, FunctionType) else code.__module__
    return str(known)  # which classes may define as anything


def _asks_module(function: FunctionType) -> bool:
    """Whether a function gets at variables of a module by names that may be computed."""
    if names_used(function.__code__).isdisjoint({*_ASKS_MODULE, "__dict__"}):
        return False
    return "__dict__" in names_used(function.__code__) or any(
        isinstance(function.__globals__.get(name), ModuleType) for name in _asked(function.__code__)
    )


def _asked(code: CodeType) -> Iterator[str]:
    """Yield the variables that are the first argument of ``getattr`` or ``vars``."""
    steps = [step for step in dis.get_instructions(code) if step.opname.startswith("LOAD")]
    for step, after in pairwise(steps):
        if step.argval in _ASKS_MODULE and isinstance(after.argval, str):
            yield after.argval
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _asked(value)


class _Written:
    """A file that passes on what is written."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self.write = write
