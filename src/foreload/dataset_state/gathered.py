"""Probes of all that a dataset refers to: attributes, values, what functions close over and classes have."""

from __future__ import annotations

import builtins
import ctypes
import functools
import io
import mmap
import threading
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from operator import is_
from types import BuiltinMethodType, FunctionType, MappingProxyType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import TorchDataLoader
from foreload.batch.generators.loops import of_the_loop
from foreload.checks import module_of, optional, package_of, tells_class
from foreload.dataset_state.digest import contents, digest
from foreload.dataset_state.handles import handle_kind
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.kept import LRU_CACHE, is_of_library, kept_values
from foreload.dataset_state.names import (
    draws_unseen,
    gets_at_all,
    globals_used,
    modules_used,
    names_used,
    passed_on,
    set_in_builtins,
    strings_in,
    taken_from_libraries,
)
from foreload.dataset_state.probes.containers import MOST_RECORDS, CachedFunction, Contents, Records, are_settled
from foreload.dataset_state.probes.libraries import columns_of, is_of_pandas, rules_of
from foreload.dataset_state.probes.numbers import Numbers, Room, is_of_compiler, objects_in
from foreload.dataset_state.probes.path import Path, Step, ValuePath
from foreload.dataset_state.probes.probe import MISSING, Attributes, Probe, Value, Whole
from foreload.dataset_state.sealed import SEALED, TOO_LARGE, pickled_state
from foreload.dataset_state.walk import (
    MEMOS_OF_PANDAS,
    OPAQUE,
    generators,
    is_of_loaders,
    is_owner,
    is_pythons,
    is_unchanging,
    may_be_users,
    plain_iter,
    slots_of,
    value_of,
)

__all__ = ["Gathered"]

# The most objects that are looked at, and the values of a container that are looked at one by one if there is a
# quicker way.
_MOST_OBJECTS, _MOST_INNER = 10_000, 64

# Why it cannot be told whether copies of a dataset are still the same.
_TOO_MANY_RECORDS = f"the dataset holds more than {MOST_RECORDS:,} lists and dicts, too many to look at each"
_TOO_MANY = f"the dataset holds more than {_MOST_OBJECTS:,} objects, too many to see what is changed of them"
_UNSEEN = "samples may draw from the generator of {}, which nothing tells about"

# The bytes of a file in memory that are compared.
_MOST_BYTES = 1 << 14

# The bytes of libraries' objects that are pickled in each probe, and what one counts that is not, for its size.
_MOST_PICKLED, _TOO_LARGE_BYTES = 1 << 18, 1 << 17

_PLAIN = (int, float, complex, str, bytes, type(None))
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_CONTAINERS = (list, tuple, deque, dict, set, frozenset, MappingProxyType)

# The names by which code reads variables of the environment.
_ENVIRONMENT = {"environ", "getenv", "expandvars"}

# What ctypes holds in memory, also values that processes share.
_C_DATA: Any = ctypes.Structure.__base__

# What is compared as a whole, and may have attributes beside that.
_WHOLE: tuple[Any, ...] = (
    *(torch.Tensor, np.ndarray, bytearray, array, memoryview, _C_DATA, mmap.mmap, io.BytesIO, io.StringIO),
    *(LRU_CACHE, FunctionType, functools.partial),
)


class Gathered:
    """All that some objects refer to, with a probe of each that can be changed.

    Attributes:
        probes: the probes.
        generators: random generators, with a name and a digest of each as it was.
        untold: a sentence that says why not all can be looked at; None if all are.
        environment: the texts in code that reads variables of the environment; None: none does.
        locks: locks of threads.

    >>> class Scaled: pass
    >>> dataset = Scaled(); dataset.weights = [1, 2]
    >>> gathered = Gathered()
    >>> gathered.follow([((("dataset", 0),), dataset)])
    >>> dataset.weights.append(3); [name for probe in gathered.probes if (name := probe.changed())]
    ['weights']
    """

    def __init__(self) -> None:
        self.probes: list[Probe] = []
        self.generators: list[tuple[str, Any, Any]] = []
        self.untold: str | None = None
        self.environment: set[str] | None = None
        self.locks: list[Any] = []
        self._left_bytes, self._room = _MOST_PICKLED, Room()
        self._seen: dict[int, Any] = {}  # held, so that nothing else gets their ids
        self._left: deque[tuple[Step, Any]] = deque()
        self._steps: list[Step] = []  # to what each of the probes is of
        self._here = Step((), ("", 0), 0)

    def follow(self, parts: Iterable[tuple[Path, Any]]) -> None:
        """Look at objects, given with their paths, and at all that they refer to."""
        self._left += ((Step(path[:-1], path[-1], len(path)), value) for path, value in parts)
        seen = self._seen
        while self._left and len(seen) < _MOST_OBJECTS:
            self._here, value = self._left.popleft()
            if not tells_class(value):
                continue
            if (not isinstance(value, _PLAIN) or hasattr(value, "__dict__")) and id(value) not in seen:
                seen[id(value)] = value
                self._watch(self._here.last[0], value)
        self.untold = _TOO_MANY if self._left else self.untold
        self._left.clear()

    def path(self, number: int) -> Path:
        """Return the path to what a probe is of, by its number."""
        return self._steps[number].path()

    def probes_at(self, places: Iterable[ValuePath]) -> list[tuple[Probe, ValuePath]]:
        """Return the probes of some places."""
        wanted: dict[tuple[int, tuple[str, int]], dict[Path, list[ValuePath]]] = {}
        for place in places:
            by_path = wanted.setdefault((len(place.path), place.path[-1]), {})
            by_path.setdefault(place.path, []).append(place)
        found = []
        for step, probe in zip(self._steps, self.probes, strict=True):
            if near := wanted.get((step.length, step.last)):
                here = near.get(step.path(), [])
                found += [(probe, place) for place in here if place.probe == type(probe).__name__]
        return found

    def _go_on(self, parts: Iterable[tuple[str, Any]]) -> None:
        """Follow what the object that is looked at refers to."""
        here, length = self._here, self._here.length + 1
        self._left += ((Step(here, (name, place), length), value) for place, (name, value) in enumerate(parts))

    def _probe(self, probe: Probe) -> None:
        self.probes.append(probe)
        self._steps.append(self._here)

    def _watch(self, name: str, value: Any) -> None:
        if isinstance(value, (OPAQUE, _LOCKS)):
            self.locks += [value] if isinstance(value, _LOCKS) else []
            return
        is_plain = type(value) in (torch.Tensor, np.ndarray)  # of which there may be many
        if isinstance(value, (*_WHOLE, *generators())) and not (is_plain and not optional(value, "__dict__")):
            self._watch_attributes(value)
        if isinstance(value, (torch.Tensor, np.ndarray)):
            self._probe(Numbers(name, value, self._room))
            if isinstance(value, np.ndarray) and value.dtype.hasobject:
                self._watch_inner(name, objects_in(value))
        elif isinstance(value, ModuleType):
            self._watch_module(value)
        elif isinstance(value, (bytearray, array, memoryview, _C_DATA)):
            before = _numbers_in(value)
            self._add(name, lambda: bool(_numbers_in(value) == before))
        elif isinstance(value, (mmap.mmap, io.BytesIO, io.StringIO)):
            text = contents(value, _MOST_BYTES)
            self._add(name, lambda: contents(value, _MOST_BYTES) == text)
        elif isinstance(value, generators()):
            before = digest(value)
            self.generators.append((name, value, before))
            if not any(value is each for each in of_the_loop()):  # for samples, they are set to others' states
                self._add(name, lambda: bool(digest(value) == before))
        elif isinstance(value, np.void):
            record = value.tobytes()
            self._add(name, lambda: value.tobytes() == record)
        elif isinstance(value, LRU_CACHE):
            if not is_of_library(value):
                self._probe(CachedFunction(name, value))
                self._go_on((name, part) for part in (value.__wrapped__, *kept_values(value)))
        elif isinstance(value, ContextVar):
            self._add_value(name, lambda: value_of(value))
        elif isinstance(value, weakref.ref):
            self._add_value(name, value)
        elif isinstance(value, FunctionType):
            self._watch_function(name, value)
        elif isinstance(value, MethodType):
            self._go_on([(name, value.__self__), (name, value.__func__)])
        elif isinstance(value, (BuiltinMethodType, MethodWrapperType)):
            self._go_on([(name, value.__self__)] if is_owner(value.__self__) else [])
        elif isinstance(value, functools.partial):
            for part in ("func", "args", "keywords"):
                self._add_attribute(name, value, part)
        elif isinstance(value, type):
            self._watch_class(value)
        elif is_of_pandas(value):  # which pickles in other ways once it has been used
            self._watch_object(name, value)
        elif self._left_bytes > 0 and (state := pickled_state(value)) is not None:
            self._left_bytes -= _TOO_LARGE_BYTES if state == TOO_LARGE else len(state)
            if state not in (SEALED, TOO_LARGE):
                self._add(name, lambda: pickled_state(value) == state)
        elif not handle_kind(value):
            if isinstance(value, _CONTAINERS):
                self._watch_container(name, value)
            if type(value) not in _CONTAINERS:
                self._watch_object(name, value)

    def _add(self, name: str, is_same: Callable[[], bool]) -> None:
        self._probe(Whole(name, is_same))

    def _add_attribute(self, name: str, holder: Any, attribute: str) -> None:
        self._add_value(name, partial(getattr, holder, attribute, MISSING), (holder, attribute))

    def _add_value(
        self, name: str, get: Callable[[], Any], place: tuple[Any, str] | None = None, *, is_global: bool = False
    ) -> None:
        probe = Value(name, get, place)
        self._probe(probe)
        is_module = issubclass(type(probe.before), ModuleType)
        if not (is_module and is_global):  # of one that code names, only what it names there counts
            self._go_on([(name, probe.before)])

    def _watch_attributes(self, value: Any) -> None:
        own = optional(value, "__dict__")
        if isinstance(own, dict):
            is_left_out: Callable[[str], bool] = (MEMOS_OF_PANDAS if is_of_pandas(value) else ()).__contains__
            if isinstance(value, TorchDataLoader):
                is_left_out = is_of_loaders
            elif isinstance(value, torch.Tensor):
                is_left_out = is_of_compiler
            self._probe(Attributes(type(value).__name__, value, is_left_out))
            if package_of(type(value)) == "transformers" and (tokenizer := own.get("_tokenizer")) is not None:
                is_left_out, rules = ("_tokenizer",).__contains__, rules_of(tokenizer)
                self._add("_tokenizer", lambda: rules_of(tokenizer) == rules)
            self._go_on((str(key), inner) for key, inner in own.items() if not is_left_out(str(key)))

    def _watch_object(self, name: str, value: Any) -> None:
        self._watch_attributes(value)
        if isinstance(value, BaseException):
            self._add_attribute("args", value, "args")
        for slot in [slot for kind in type(value).__mro__ for slot in slots_of(kind)]:
            self._add_attribute(slot, value, slot)
        if columns := columns_of(value):
            self._add(name, lambda: len(now := columns_of(value)) == len(columns) and all(map(is_, now, columns)))
            self._go_on((name, part) for part in columns)
        self._go_on((kind.__name__, kind) for kind in type(value).__mro__[:-1])

    def _watch_names(self, own: Mapping[str, Any], names: Iterable[str]) -> None:
        """Watch some variables of a module."""
        for name in names:
            self._add_value(name, partial(own.get, name, MISSING), (own, name), is_global=True)

    def _watch_module(self, module: ModuleType) -> None:
        """Watch all that a module of the user's has, and the modules in it: what is used of it is not known."""
        if not is_installed(module.__name__):
            own = {name: value for name, value in vars(module).items() if not name.startswith("__")}
            self._watch_names(vars(module), own)
            self._go_on((name, value) for name, value in own.items() if isinstance(value, ModuleType))

    def _watch_container(self, name: str, value: Any) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self._probe(Contents(name, value))
        if isinstance(value, defaultdict):
            self._add_attribute("default_factory", value, "default_factory")
        if isinstance(value, dict):
            inside = [*dict.values(value), *plain_iter(value)]
        else:
            inside = [*value.values(), *value] if isinstance(value, MappingProxyType) else [*plain_iter(value)]
        self._watch_inner(name, inside)

    def _watch_inner(self, name: str, inside: list[Any]) -> None:
        """Watch what a container holds, as a whole if that is much and only of Python's own."""
        if are_settled(inside):
            return
        held = [part for part in inside if type(part) not in _PLAIN]
        if len(held) > _MOST_INNER:
            records = Records(name, held)
            self.untold = self.untold if records.is_whole else _TOO_MANY_RECORDS
            self._probe(records)
            held = [part for part in records.others if not is_unchanging(part)]
        self._go_on((name, part) for part in held)

    def _watch_class(self, kind: type) -> None:
        own = vars(kind)
        if is_installed(module_of(kind)):  # whose instances may draw from one generator
            drawn = ((name, value) for name, value in own.items() if tells_class(value))
            self._go_on((name, value) for name, value in drawn if isinstance(value, generators()))
            return
        self._probe(Attributes(kind.__name__, kind, is_pythons))
        self._go_on((each.__name__, each) for each in (type(kind), *kind.__mro__[1:-1]))
        inside = ((name, value) for name, value in own.items() if not is_pythons(name))
        self._go_on(inside)
        for member in own.values():
            function = getattr(member, "fget" if isinstance(member, property) else "__func__", None)
            if isinstance(function, (FunctionType, LRU_CACHE)):
                self._go_on([(function.__name__, function)])

    def _watch_function(self, name: str, function: FunctionType) -> None:
        for part in ("__defaults__", "__kwdefaults__"):
            self._add_attribute(f"{name}.{part}", function, part)
        self._probe(Value(f"{name}.__code__", partial(getattr, function, "__code__"), (function, "__code__")))
        cells = list(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if is_installed(function.__globals__.get("__name__", "")):
            # One that decorates the user's: what it keeps for itself decides nothing.
            inside = ((variable, optional(cell, "cell_contents")) for variable, cell in cells)
            self._go_on((variable, value) for variable, value in inside if may_be_users(value))
            return
        for variable, cell in cells:
            self._add_value(variable, partial(optional, cell, "cell_contents"), (cell, "cell_contents"))
        if not _ENVIRONMENT.isdisjoint(names_used(function.__code__)):
            self.environment = (self.environment or set()) | strings_in(function.__code__)
        if (drawing := draws_unseen(function)) is not None:
            self.untold = _UNSEEN.format(drawing)
        known = function.__globals__
        used = globals_used(function.__code__)
        if gets_at_all(function.__code__):
            used = (*used, *(name for name in known if name not in used and not name.startswith("__")))
        self._watch_names(known, used)
        self._watch_names(vars(builtins), set_in_builtins(each for each in used if each not in known))
        for module in modules_used(function):
            self._watch_names(vars(module), sorted(names_used(function.__code__) & vars(module).keys()))
        passed = ((name, known.get(name)) for name in passed_on(function.__code__))
        self._go_on((name, value) for name, value in passed if issubclass(type(value), ModuleType))
        for own, variable in taken_from_libraries(function):
            self._probe(Value(variable, partial(own.get, variable), (own, variable)))


def _numbers_in(value: Any) -> Any:
    try:
        return digest(value)
    except ValueError:  # a view that has been released
        return None
