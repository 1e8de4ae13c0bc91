"""The code by which a class of the user's loads samples: the names that it reads and sets, what it calls."""

from __future__ import annotations

import dis
import functools
from types import CodeType, FunctionType
from typing import Any

from foreload.checks import module_of, optional
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.names import modules_used, names_used, strings_in

__all__ = ["ENTRIES", "Chain", "Names", "chains_of", "names_of", "set_by", "unwrapped"]

# The methods that load a sample, or are applied to one.
ENTRIES = ("__getitem__", "__getitems__", "__call__", "__iter__", "__next__", "forward")

# What sets an attribute whose name it gets as a text.
_BY_NAME = ("setattr", "__setattr__")

_SETS = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")

# Steps that load a variable of a module, or of a function around, and those between them and what is done with it.
_OUTER = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_DEREF", "LOAD_CLASSDEREF")
_IDLE = ("CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL")

# A variable and attributes of it, as in ``args.data.size``; whether other code gets the value of the last.
Chain = tuple[tuple[str, ...], bool]

# The names that code reads, those of what it sets, and its functions.
Names = tuple[frozenset[str], frozenset[str], tuple[FunctionType, ...]]


def unwrapped(part: Any) -> Any:
    """Return the function in a property, a static method and the like; anything else as it is."""
    for wrapper in ("fget", "func", "__func__", "__wrapped__"):
        part = optional(part, wrapper) or part
    return part


@functools.lru_cache(maxsize=256)
def names_of(kind: Any, entries: frozenset[str]) -> Names:
    """Return the names of attributes that loading reads, those of what it sets, and the functions that it calls.

    Args:
        kind: a class of the user's.
        entries: names that code of others reads, among them those of methods that it calls.
    """
    reads: set[str] = set()
    sets: set[str] = set()
    followed: set[str] = {*ENTRIES, *entries}
    left: list[Any] = [vars(base)[name] for base in kind.__mro__ for name in followed & vars(base).keys()]
    seen: set[CodeType] = set()
    functions: list[FunctionType] = []
    while left:
        function = unwrapped(left.pop())
        if not isinstance(function, FunctionType) or function.__code__ in seen:
            continue
        seen.add(function.__code__)
        functions.append(function)
        names = names_used(function.__code__)
        reads |= names | (strings_in(function.__code__) if "getattr" in names else set())
        sets |= set_by(function.__code__)
        left += (optional(cell, "cell_contents") for cell in function.__closure__ or ())
        spaces = [function.__globals__, *map(vars, modules_used(function))]
        own = (space[name] for space in spaces for name in names & space.keys())
        left += (each for each in own if isinstance(each, FunctionType) and not is_installed(module_of(each)))
        new = names - followed
        followed |= new
        left += (vars(base)[name] for base in kind.__mro__ for name in new & vars(base).keys())
    computed = {
        name
        for base in kind.__mro__
        for name, part in vars(base).items()
        if type(part) is functools.cached_property
    }
    return frozenset(reads), frozenset(sets | computed), tuple(functions)


@functools.lru_cache(maxsize=4096)
def set_by(code: CodeType) -> frozenset[str]:
    """Return the names of what code sets, and functions defined in it."""
    steps = list(dis.get_instructions(code))
    found = {step.argval for step in steps if step.opname in _SETS}
    # And what is written into: ``self.seen[index] = True``, ``self.counts[label] += 1``.
    for holder, index, then, last in zip(steps, steps[1:], steps[2:], [*steps[3:], None], strict=False):
        is_kept = holder.opname in ("LOAD_ATTR", "LOAD_GLOBAL") and index.opname.startswith("LOAD_")
        is_augmented = then.opname == "DUP_TOP_TWO" or (then.opname == "COPY" and last and last.opname == "COPY")
        if is_kept and (then.opname == "STORE_SUBSCR" or is_augmented):
            found.add(index.argval if holder.argval == "__dict__" else holder.argval)
    # And what is set by name: ``object.__setattr__(self, "loads", 1)``.
    for place, step in enumerate(steps):
        if step.argval in _BY_NAME:
            given = (each.argval for each in steps[place + 1 : place + 4] if each.opname == "LOAD_CONST")
            found.update(name for name in given if isinstance(name, str))
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found |= set_by(value)
    return frozenset(found)


@functools.lru_cache(maxsize=4096)
def chains_of(code: CodeType) -> frozenset[Chain]:
    """Return what code, and functions defined in it, read of global variables and closures.

    >>> sorted(chains_of(compile("args.size + len(names)", "", "eval")))
    [(('args', 'size'), True), (('len',), True), (('names',), True)]
    """
    found: set[Chain] = set()
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in _IDLE:
            continue
        if chain and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = (*chain, step.argval)
            continue
        if chain:
            found.add((chain, step.opname not in ("STORE_ATTR", "DELETE_ATTR")))
        chain = (step.argval,) if step.opname in _OUTER else ()
    inner = (chains_of(value) for value in code.co_consts if isinstance(value, CodeType))
    return frozenset(found).union(*inner)
