"""A record of all that samples are made from, as it was when worker processes got copies of it."""

from __future__ import annotations

import builtins
import ctypes
import functools
import io
import logging
import mmap
import weakref
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from operator import is_
from types import BuiltinMethodType, FunctionType, MappingProxyType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import TorchDataLoader
from foreload.checks import module_of, optional, package_of, tells_class
from foreload.dataset_state.digest import contents, digest
from foreload.dataset_state.handles import handle_kind
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.kept import LRU_CACHE, is_of_library, kept_values
from foreload.dataset_state.looks.containers import Contents, Kept, Records, are_settled
from foreload.dataset_state.looks.fills import Fills, Place, contents_of, may_fill
from foreload.dataset_state.looks.libraries import MEMOS_OF_PANDAS, columns_of, is_of_pandas, rules_of
from foreload.dataset_state.looks.look import MISSING, Attributes, Look, Value, Whole
from foreload.dataset_state.looks.numbers import Numbers
from foreload.dataset_state.names import globals_read, modules_used, names_used, set_in_builtins
from foreload.dataset_state.outputs import Outputs
from foreload.dataset_state.program.state import ProgramState
from foreload.dataset_state.sealed import SEALED, TOO_LARGE, state_of
from foreload.dataset_state.settings import Settings
from foreload.dataset_state.walk import (
    generators,
    is_of_user,
    is_pythons,
    is_unchanging,
    slots_of,
    value_of,
    variables_of,
)
from foreload.forks.per_process import PerProcess

__all__ = ["CopiedState"]

# The most objects that are looked at, and the values of a container that are looked at one by one if there is a
# quicker way.
_MOST_OBJECTS, _MOST_INNER = 10_000, 64

# Why it cannot be told whether copies of a dataset are still the same.
_TOO_MANY = f"the dataset holds more than {_MOST_OBJECTS:,} objects, too many to see what is changed of them"

# The bytes of a file in memory that are compared.
_MOST_BYTES = 1 << 14

# The bytes of libraries' objects that are pickled in each look, and what one counts that is not, for its size.
_MOST_PICKLED, _TOO_LARGE_BYTES = 1 << 18, 1 << 17

_PLAIN = (int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, deque, dict, set, frozenset)

# What is not looked into: the state of a logger or a loader, or what a process opens for itself, is in no sample.
_OPAQUE = (logging.Logger, TorchDataLoader, PerProcess)

# The names by which code reads variables of the environment.
_ENVIRONMENT = {"environ", "getenv"}

# What ctypes holds in memory, also values that processes share.
_C_DATA: Any = ctypes.Structure.__base__


class CopiedState:
    """The values that samples are made from: a dataset's attributes, and what its containers, tensors and arrays
    hold; the global variables and attributes of classes that its code uses.

    Each batch can be preceded by a look at them, so large arrays are not compared as a whole.

    Args:
        parts: the dataset, and what is applied to its samples.
        fills: what loading is known to make where nothing was, whichever sample is the first.

    Attributes:
        untold: a sentence that says why not all of them can be looked at; None if they can.
        differs: a sentence that says what the parts use that is not what it was in the process that they were sent
            from; None if all is.

    >>> class Scaled:
    ...     factor, weights = 1, [1, 2]
    >>> dataset = Scaled(); dataset.weights = [1, 2]
    >>> held = CopiedState(dataset)
    >>> held.changed(), dataset.weights.append(3), held.changed()
    (None, None, 'weights')
    """

    def __init__(self, *parts: Any, fills: Fills | None = None) -> None:
        self._parts = parts
        self.fills: Fills = fills or {}
        self.untold: str | None = None
        self.differs: str | None = None
        self._program: ProgramState | None = None  # is the same for all that are sent at once
        self._by_loading: str | None = None
        self._is_first = True
        self._reads_environment = False
        self._note()
        self._settings = Settings(with_environment=self._reads_environment)
        self._outputs = Outputs()

    def __reduce__(self) -> Any:
        """Let a process that gets copies of the parts look at these."""
        self._program = self._program or ProgramState(*self._parts)
        return _in_other_process, (self._parts, self.fills, self._program)

    def sent(self) -> None:
        """Follow tensors that sending them has moved to memory that processes share.

        All else is compared with what it was before: another thread may have set it since.
        """
        self._program = None
        for look in self._looks:
            if isinstance(look, Numbers):
                look.sent()

    def _note(self) -> None:
        self._looks: list[Look] = []
        self._left_bytes = _MOST_PICKLED
        self._generators: list[tuple[str, Any, Any]] = []
        self._seen: dict[int, Any] = {}  # held, so that nothing else gets their ids
        self._left: deque[tuple[str, Any]] = deque((type(part).__name__, part) for part in self._parts)
        self._follow()

    def _follow(self) -> None:
        """Look at what is left to be looked at, and all that it refers to."""
        seen = self._seen
        while self._left and len(seen) < _MOST_OBJECTS:
            name, value = self._left.popleft()
            if not tells_class(value):
                continue
            if (not isinstance(value, _PLAIN) or hasattr(value, "__dict__")) and id(value) not in seen:
                seen[id(value)] = value
                self._watch(name, value)
        self.untold = _TOO_MANY if self._left else None
        self._left.clear()

    def changed(self) -> str | None:
        """Return the name of what has been changed since; None if nothing has."""
        return self._changed() or self._settings.changed()

    def _changed(self) -> str | None:
        return next((name for look in self._looks if (name := look.changed()) is not None), None)

    def made(self) -> Fills:
        """Return hashes of what has been made since where nothing was."""
        made = (self._made(number) for number, look in enumerate(self._looks) if look.changed() is not None)
        return contents_of(pair for each in made for pair in each or ())

    def _made(self, number: int) -> list[tuple[Place, Any]] | None:
        made = self._looks[number].made()
        return None if made is None else [((number, *place), value) for place, value in made]

    def changed_by_loading(self) -> str | None:
        """Return the name of what loading has changed, once and for ever; None if nothing.

        What was nothing, and is something now, was made when it was first needed. That each copy may do if it is
        a file that it opens, or if it is the same whichever sample is the first.
        """
        is_first, self._is_first = self._is_first, False
        if is_first:  # what a worker sets before it loads, and what libraries set when they are first used
            self._settings = Settings(with_environment=self._reads_environment)
        if self._by_loading is None:
            self._by_loading = self.settled() or self._apart() or self.untold
        return self._by_loading

    def settled(self) -> str | None:
        """Go on from what was made where nothing was, and may be; return the name of what else has changed."""
        changed = [number for number, look in enumerate(self._looks) if look.changed() is not None]
        made = [self._made(number) for number in changed]
        if not all(each is not None and self._may_be_made(each) for each in made):
            return self._changed()
        if not changed:
            return None
        self._left += ((place[1], value) for each in made for place, value in each or ())
        for number in changed:
            self._looks[number].renew()
        self._follow()
        return None

    def _may_be_made(self, made: list[tuple[Place, Any]]) -> bool:
        return all(may_fill(place, value, self.fills) for place, value in made)

    def _apart(self) -> str | None:
        """Return the name of a generator that has been drawn from, of a setting, or of what has been written."""
        drawn = (name for name, value, before in self._generators if digest(value) != before)
        return next(drawn, None) or self._settings.changed() or self._outputs.changed()

    def _watch(self, name: str, value: Any) -> None:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            self._looks.append(Numbers(name, value))
            if type(value) not in (torch.Tensor, np.ndarray):
                self._watch_attributes(value)
            if isinstance(value, np.ndarray) and value.dtype.hasobject:
                self._watch_inner(name, value.ravel().tolist())
        elif isinstance(value, ModuleType):
            self._watch_names(vars(value), variables_of(value))
        elif isinstance(value, (bytearray, array, memoryview, _C_DATA)):
            before = _numbers_in(value)
            self._add(name, lambda: bool(_numbers_in(value) == before))
        elif isinstance(value, (mmap.mmap, io.BytesIO, io.StringIO)):
            text = contents(value, _MOST_BYTES)
            self._add(name, lambda: contents(value, _MOST_BYTES) == text)
        elif isinstance(value, generators()):
            self._generators.append((name, value, digest(value)))
        elif isinstance(value, np.void):
            record = value.tobytes()
            self._add(name, lambda: value.tobytes() == record)
        elif isinstance(value, LRU_CACHE):
            if not is_of_library(value):
                self._looks.append(Kept(name, value))
                self._left += ((name, part) for part in (value.__wrapped__, *kept_values(value)))
        elif isinstance(value, ContextVar):
            self._add_value(name, lambda: value_of(value))
        elif isinstance(value, weakref.ref):
            self._add_value(name, value)
        elif isinstance(value, FunctionType):
            self._watch_function(name, value)
        elif isinstance(value, MethodType):
            self._left += [(name, value.__self__), (name, value.__func__)]
        elif isinstance(value, (BuiltinMethodType, MethodWrapperType)):
            self._left += [(name, value.__self__)] if is_of_user(value.__self__) else []
        elif isinstance(value, functools.partial):
            self._left += [(name, value.func), (name, value.args), (name, value.keywords)]
        elif isinstance(value, type):
            self._watch_class(value)
        elif is_of_pandas(value):  # which pickles in other ways once it has been used
            self._watch_object(name, value)
        elif self._left_bytes > 0 and (state := state_of(value)) is not None:
            self._left_bytes -= _TOO_LARGE_BYTES if state == TOO_LARGE else len(state)
            if state not in (SEALED, TOO_LARGE):
                self._add(name, lambda: state_of(value) == state)
        elif not (handle_kind(value) or isinstance(value, _OPAQUE)):
            if isinstance(value, MappingProxyType) or (
                isinstance(value, _CONTAINERS) and _iterates_plainly(type(value))
            ):
                self._watch_container(name, value)
            if type(value) not in (*_CONTAINERS, MappingProxyType):
                self._watch_object(name, value)

    def _add(self, name: str, is_same: Callable[[], bool]) -> None:
        self._looks.append(Whole(name, is_same))

    def _add_value(self, name: str, get: Callable[[], Any]) -> None:
        look = Value(name, get)
        self._looks.append(look)
        is_module = issubclass(type(look.before), ModuleType)
        if not is_module:  # of one that code names, only what it names there counts
            self._left.append((name, look.before))

    def _watch_attributes(self, value: Any) -> None:
        own = optional(value, "__dict__")
        if isinstance(own, dict):
            memos: tuple[str, ...] = MEMOS_OF_PANDAS if is_of_pandas(value) else ()
            self._looks.append(Attributes(type(value).__name__, value, memos.__contains__))
            if package_of(type(value)) == "transformers" and (tokenizer := own.get("_tokenizer")) is not None:
                memos, rules = ("_tokenizer",), rules_of(tokenizer)
                self._add("_tokenizer", lambda: rules_of(tokenizer) == rules)
            self._left += ((str(key), inner) for key, inner in own.items() if key not in memos)

    def _watch_object(self, name: str, value: Any) -> None:
        self._watch_attributes(value)
        if isinstance(value, BaseException):
            self._add_value("args", partial(getattr, value, "args", MISSING))
        for slot in [slot for kind in type(value).__mro__ for slot in slots_of(kind)]:
            self._add_value(slot, partial(getattr, value, slot, MISSING))
        if columns := columns_of(value):
            self._add(name, lambda: len(now := columns_of(value)) == len(columns) and all(map(is_, now, columns)))
            self._left += ((name, part) for part in columns)
        self._left += ((kind.__name__, kind) for kind in type(value).__mro__[:-1])

    def _watch_names(self, own: Mapping[str, Any], names: Iterable[str]) -> None:
        """Watch some variables of a module, or attributes of a class."""
        for name in names:
            self._add_value(name, partial(own.get, name, MISSING))

    def _watch_container(self, name: str, value: Any) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self._looks.append(Contents(name, value))
        is_mapping = isinstance(value, (dict, MappingProxyType))
        self._watch_inner(name, [*value.values(), *value] if is_mapping else list(value))

    def _watch_inner(self, name: str, inside: list[Any]) -> None:
        """Watch what a container holds, as a whole if that is much and only of Python's own."""
        if are_settled(inside):
            return
        held = [part for part in inside if type(part) not in _PLAIN]
        if len(held) > _MOST_INNER:
            records = Records(name, held)
            self._looks.append(records)
            held = [part for part in records.others if not is_unchanging(part)]
        self._left += ((name, part) for part in held)

    def _watch_class(self, kind: type) -> None:
        if is_installed(module_of(kind)):
            return
        own = vars(kind)
        self._looks.append(Attributes(kind.__name__, kind, is_pythons))
        self._left += ((each.__name__, each) for each in (type(kind), *kind.__mro__[1:-1]))
        inside = ((name, value) for name, value in own.items() if not is_pythons(name))
        self._left += ((name, value) for name, value in inside if not issubclass(type(value), ModuleType))
        for member in own.values():
            function = getattr(member, "fget" if isinstance(member, property) else "__func__", None)
            if isinstance(function, (FunctionType, LRU_CACHE)):
                self._left.append((function.__name__, function))

    def _watch_function(self, name: str, function: FunctionType) -> None:
        if is_installed(function.__globals__.get("__name__", "")):
            return
        self._left += ((name, value) for value in (function.__defaults__, function.__kwdefaults__, vars(function)))
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._add_value(variable, partial(optional, cell, "cell_contents"))
        self._reads_environment |= not _ENVIRONMENT.isdisjoint(names_used(function.__code__))
        known = function.__globals__
        read = globals_read(function.__code__)
        self._watch_names(known, read)
        self._watch_names(vars(builtins), set_in_builtins(each for each in read if each not in known))
        for module in modules_used(function):
            self._watch_names(vars(module), names_used(function.__code__) & vars(module).keys())


def _in_other_process(parts: tuple[Any, ...], fills: Fills, program: ProgramState) -> CopiedState:
    held = CopiedState(*parts, fills=fills)
    held.differs = program.differs()
    return held


def _numbers_in(value: Any) -> Any:
    try:
        return digest(value)
    except ValueError:  # a view that has been released
        return None


def _iterates_plainly(kind: type) -> bool:
    return any(optional(kind, "__iter__") is known.__iter__ for known in (*_CONTAINERS, OrderedDict))
