"""The objects that a dataset holds, directly or in others, and the variables that its code uses."""

from __future__ import annotations

import builtins
import functools
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from itertools import islice
from types import BuiltinMethodType, FunctionType, MappingProxyType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch

from foreload._torch import TorchDataLoader
from foreload.checks import module_of, optional, package_of, tells_class
from foreload.dataset_state.handles import is_open
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.kept import LRU_CACHE, is_of_library, kept_values
from foreload.dataset_state.names import globals_used, modules_used, names_used, set_in_builtins
from foreload.forks.per_process import PerProcess
from foreload.nested.constants import is_constant

__all__ = [
    "CONTAINERS",
    "MEMOS_OF_PANDAS",
    "MOST_VALUES",
    "OPAQUE",
    "PLAIN",
    "find_open_file",
    "generators",
    "is_of_loaders",
    "is_owner",
    "is_pythons",
    "is_unchanging",
    "leaves",
    "may_be_users",
    "plain_iter",
    "slots_of",
    "value_of",
    "values_of",
    "variables_of",
    "walk",
]

# The most values of a dataset that are looked at.
MOST_VALUES = 20_000

# Packages of the classes that datasets are derived from, whose own state says nothing of a dataset: typing.Generic
# remembers what it was subscripted with, by whatever is imported.
_BASES = ("torch", "typing", "builtins", "abc", "collections")

# Attributes that Python, dataclasses and typing give to classes, and the beginnings of those of other libraries.
_PYTHONS = {
    *("__module__", "__doc__", "__qualname__", "__annotations__", "__annotate__", "__annotate_func__", "__dict__"),
    *("__annotations_cache__", "__weakref__", "__slots__", "__static_attributes__", "__firstlineno__"),
    *("__orig_bases__", "__parameters__", "__type_params__", "__abstractmethods__", "__match_args__", "__hash__"),
    *("__dataclass_fields__", "__dataclass_params__", "__final__", "__classcell__", "__slotnames__"),
    "__non_callable_proto_members__",
}
_PYTHONS_SLOTS = ("__dict__", "__weakref__")
_BEGINNINGS = ("_abc_", "__pydantic_", "__attrs_")

# Where tables and indexes of pandas keep what they have computed from themselves.
MEMOS_OF_PANDAS = ("_cache", "_item_cache")

PLAIN = (int, float, complex, bool, str, bytes, type(None))
CONTAINERS = (list, dict, set, tuple, frozenset, deque)

# What is not looked into: the state of a logger, or what a process opens for itself, is in no sample.
OPAQUE = (logging.Logger, PerProcess)

# The beginnings of the names of what loaders set in themselves while they load; and what says who loads and when,
# which is in no sample.
_OF_LOADERS = ("_iterator", "_IterableDataset_len_called", "_DataLoader__", "_fl_")
_OF_WORKERS = {
    *("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "pin_memory_device", "timeout"),
    *("in_order", "workers", "memory", "device", "device_depth", "max_restarts"),
}


@functools.cache  # and when it is first needed, since NumPy imports its generators then
def generators() -> tuple[Any, ...]:
    """Return the types of random generators, and of what they are made from, which is drawn from too."""
    numpys = np.random.Generator, np.random.RandomState, np.random.BitGenerator, np.random.SeedSequence
    return random.Random, *numpys, torch.Generator


@functools.cache
def leaves() -> tuple[Any, ...]:
    """Return the types that are compared as a whole, and loggers, whose state is in no sample."""
    return *PLAIN, *generators(), torch.Tensor, np.ndarray, logging.Logger, ModuleType


def find_open_file(dataset: Any, most: int = MOST_VALUES) -> str | None:
    """Return the name of an open file or connection, which forked processes would share; None if there is none.

    An iterator that has begun counts as open too: copies of it would all yield the same.

    >>> class Lines: pass
    >>> lines = Lines(); lines.file = open(__file__)
    >>> find_open_file(lines); lines.file.close(); find_open_file(lines)
    'file'
    """
    return next((name for name, value in walk(dataset, None, most) if is_open(value)), None)


def walk(
    dataset: Any, is_opaque: Callable[[Any], bool] | None = None, most: int = MOST_VALUES
) -> Iterator[tuple[str, Any]]:
    """Yield what a dataset holds, directly or in containers and objects, with its name.

    Args:
        dataset: of any class.
        is_opaque: whether an object is not looked into; None: all are.
        most: the most values that are looked at, of all and of one container.
    """
    seen: set[int] = set()
    kinds: set[type] = set()
    left = deque([("", dataset)])  # what is nearest first: a long list does not hide what lies beside it
    while left and len(seen) < most:
        name, value = left.popleft()
        if not tells_class(value) or (id(value) in seen and not isinstance(value, PLAIN)):
            continue
        seen.add(id(value))
        if name:
            yield name, value
        if is_opaque is not None and is_opaque(value):
            continue
        left += _inner(name, value, most)
        kind = type(value)
        if kind not in kinds and (value is dataset or not is_installed(module_of(kind))):
            kinds.add(kind)
            left += _globals_of(kind)


def _inner(name: str, value: Any, most: int) -> Iterator[tuple[str, Any]]:
    if is_open(value) or isinstance(value, OPAQUE):
        return  # reading changes where it is at, which does not matter if each copy opens its own
    if isinstance(value, ModuleType):
        yield from ((f"{name}.{attribute}", inner) for attribute, inner in variables_of(value).items())
    if isinstance(value, leaves()):
        return
    if isinstance(value, dict):
        present = list(islice(dict.items(value), most))  # at once: a thread of the dataset's may change it
        items: Any = ((f"{name}[{key!r}]", inner) for key, inner in present)
    elif isinstance(value, LRU_CACHE):
        kept = () if is_of_library(value) else enumerate(kept_values(value))
        items = ((name, value.__wrapped__), *((f"{name}().{place}", inner) for place, inner in kept))
    elif isinstance(value, ContextVar):
        items = ((f"{name}.get()", value_of(value)),)
    elif isinstance(value, functools.partial):
        items = ((f"{name}.{part}", getattr(value, part)) for part in ("func", "args", "keywords"))
    elif isinstance(value, (MethodType, BuiltinMethodType, MethodWrapperType)):
        owner = value.__self__
        items = ((f"{name}.__self__", owner),) if is_owner(owner) else ()
        if isinstance(value, MethodType):
            items = (*items, (name, value.__func__))
    elif isinstance(value, TorchDataLoader):
        own = {part: inner for part, inner in vars(value).items() if not is_of_loaders(part)}
        items = ((f"{name}.{part}", inner) for part, inner in own.items())
    elif isinstance(value, FunctionType):
        items = _held_by_function(name, value)
    elif isinstance(value, (list, tuple, deque)):
        present = list(islice(plain_iter(value), most))
        items = ((f"{name}[{position}]", inner) for position, inner in enumerate(present))
    elif isinstance(value, type):
        known = not is_installed(module_of(value))
        items = ((f"{name}.{attribute}", inner) for attribute, inner in _values_of(value)) if known else ()
    else:
        slots = [slot for kind in type(value).__mro__ for slot in slots_of(kind)]
        own = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
        own |= {
            attribute: inner
            for kind in type(value).__mro__[:-1]
            if package_of(kind) not in _BASES
            for attribute, inner in _values_of(kind)
        }
        held = optional(value, "__dict__")
        own |= held if isinstance(held, dict) else {}
        if package_of(type(value)) == "pandas":
            own = {attribute: inner for attribute, inner in own.items() if attribute not in MEMOS_OF_PANDAS}
        items = ((f"{name}.{attribute}" if name else attribute, inner) for attribute, inner in own.items())
    yield from items


def slots_of(kind: type) -> list[str]:
    """Return the names by which a class's own slots are found, private ones too.

    >>> class Cell: __slots__ = ("value", "__count")
    >>> slots_of(Cell)
    ['value', '_Cell__count']
    """
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else [slot for slot in slots if isinstance(slot, str)]
    own = kind.__name__.lstrip("_")
    private = {name for name in names if name.startswith("__") and not name.endswith("__")}
    return [f"_{own}{name}" if name in private else name for name in names if name not in _PYTHONS_SLOTS]


def value_of(variable: ContextVar[Any]) -> Any:
    """Return what a context variable is set to here, or its default; None if it has none."""
    try:
        return variable.get()
    except LookupError:
        return None


def variables_of(module: ModuleType) -> dict[str, Any]:
    """Return the values in a module of the user's, such as settings, but not its code."""
    if is_installed(module.__name__):
        return {}
    code = type, FunctionType, BuiltinMethodType, ModuleType
    return {
        name: value
        for name, value in vars(module).items()
        if not (name.startswith("__") or issubclass(type(value), code))
    }


def may_be_users(value: Any) -> bool:
    """Whether a library's function may have got a value from the user."""
    known = FunctionType, MethodType, functools.partial, *CONTAINERS
    return tells_class(value) and (isinstance(value, known) or not is_installed(module_of(type(value))))


def is_owner(value: Any) -> bool:
    """Whether what a method belongs to is an object, and neither a module nor a class."""
    return not (value is None or issubclass(type(value), (ModuleType, type)))


def plain_iter(value: Any) -> Iterator[Any]:
    """Iterate over a container of Python's, or one derived from it, whatever its class makes of that."""
    kind = next(kind for kind in type(value).__mro__ if kind in _ITERATED)
    return _ITERATED[kind](value)


def values_of(value: Any) -> Iterator[Any]:
    """Iterate over the values of a container, without its class's own methods; see :func:`plain_iter`."""
    return iter(dict.values(value)) if isinstance(value, dict) else plain_iter(value)


_ITERATED: dict[type, Callable[[Any], Iterator[Any]]] = {
    kind: kind.__iter__ for kind in (list, tuple, deque, OrderedDict, dict, set, frozenset, MappingProxyType)
}


def is_unchanging(value: Any) -> bool:
    """Whether an object has nothing that can be set, and nobody can change what it is."""
    kind: Any = type(value)
    return kind.__dictoffset__ == 0 and is_installed(kind.__module__) and is_constant(value)


def is_of_loaders(name: str) -> bool:
    """Whether an attribute of a loader is in no sample, by its name."""
    return name in _OF_WORKERS or name.startswith(_OF_LOADERS)


def is_pythons(name: str) -> bool:
    """Whether an attribute of a class is none of the user's, by its name."""
    return name in _PYTHONS or name.startswith(_BEGINNINGS)


def _values_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a class that its instances share."""
    is_library = is_installed(module_of(kind))
    for name, value in vars(kind).items():
        if not tells_class(value) or (is_library and not isinstance(value, (*PLAIN, list, dict, set))):
            continue
        is_code = isinstance(value, (FunctionType, property, classmethod, staticmethod, type))
        is_own = not (is_pythons(name) or (is_library and name.startswith("__")))
        if is_own and not (is_code or hasattr(type(value), "__get__")):
            yield name, value


def _held_by_function(name: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function holds, and the variables that it uses, global or of functions around it."""
    for attribute, value in vars(function).items():
        yield f"{name}.{attribute}", value
    yield f"{name}.__defaults__", function.__defaults__
    yield f"{name}.__kwdefaults__", function.__kwdefaults__
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is not set yet
            yield f"{name}.{variable}", cell.cell_contents
    if not is_installed(function.__globals__.get("__name__", "")):
        yield from _globals_used(function)


def _globals_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the global variables that the methods of a class use."""
    for base in kind.__mro__[:-1]:
        if package_of(base) in _BASES:
            continue
        for member in vars(base).values():
            function = getattr(member, "fget" if isinstance(member, property) else "__func__", member)
            if isinstance(function, LRU_CACHE) and not is_installed(module_of(base)):
                yield f"{base.__name__}.{function.__name__}", function
                function = function.__wrapped__
            if isinstance(function, FunctionType):
                yield from _held_by_function(f"{base.__name__}.{function.__name__}", function)


def _globals_used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    known, names = function.__globals__, names_used(function.__code__)
    used = set(globals_used(function.__code__))
    for name in used & known.keys():
        if not issubclass(type(known[name]), ModuleType):
            yield f"{known.get('__name__')}.{name}", known[name]
    for name in set_in_builtins(used - known.keys()):
        yield f"builtins.{name}", vars(builtins)[name]
    for module in modules_used(function):
        for name in names & vars(module).keys():
            if not issubclass(type(vars(module)[name]), ModuleType):
                yield f"{module.__name__}.{name}", vars(module)[name]
