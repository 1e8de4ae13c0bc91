"""The names that code uses: of variables, of modules and in texts."""

from __future__ import annotations

import builtins
import dis
import functools
import itertools
import re
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from foreload.checks import optional
from foreload.dataset_state.installed import is_installed
from foreload.forks.read_only import REPLACED

__all__ = [
    "depends_on_hashes",
    "draws_unseen",
    "gets_at_all",
    "globals_used",
    "is_only_searched",
    "modules_used",
    "names_used",
    "passed_on",
    "set_in_builtins",
    "steps_of",
    "strings_in",
    "taken_from_libraries",
]

# The names by which code gets at a module whose name is a text.
_BY_NAME = {"import_module", "__import__", "modules"}


# Functions of OpenCV that draw from a generator of which nothing tells the state, or set it.
_DRAWS_UNSEEN = ("randn", "randu", "randShuffle", "setRNGSeed")


def draws_unseen(function: FunctionType) -> str | None:
    """Return a function that this one names, and that draws from a generator of which nothing tells the state."""
    library = sys.modules.get("cv2")
    if library is None:
        return None
    known, code = function.__globals__, function.__code__
    for name in _DRAWS_UNSEEN:
        here = {variable for variable, taken in _taken_from_variables(code) if taken == name}
        is_taken = any(known.get(variable, sys.modules.get(variable)) is library for variable in here)
        drawing = vars(library).get(name)
        if is_taken or any(known.get(variable) is drawing for variable in globals_used(code) if drawing):
            return f"cv2.{name}"
    return None


def gets_at_all(code: CodeType) -> bool:
    """Whether code gets at variables of its module that it does not name."""
    used = globals_used(code)
    return "globals" in used or ("__name__" in used and ("sys", "modules") in _taken_from_variables(code))


@functools.lru_cache(maxsize=4096)
def _taken_from_variables(code: CodeType) -> frozenset[tuple[str, str]]:
    """Return the variables of which code takes attributes, and these."""
    found = {
        (variable, name)
        for (load, variable), (step, name) in itertools.pairwise(steps_of(code))
        if load in _LOADS and step in ("LOAD_ATTR", "LOAD_METHOD")
    }
    inner = (_taken_from_variables(each) for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(found.union(*inner))


@functools.lru_cache(maxsize=4096)
def passed_on(code: CodeType) -> frozenset[str]:
    """Return the global variables that code, or functions defined in it, does more with than to take attributes.

    >>> sorted(passed_on(compile("scale(settings.size, settings) + offsets.x", "", "eval")))
    ['scale', 'settings']
    """
    found = {
        variable
        for (load, variable), (step, _) in itertools.pairwise(steps_of(code))
        if load in _GLOBALS and step not in ("LOAD_ATTR", "LOAD_METHOD")
    }
    return frozenset(found.union(*(passed_on(each) for each in code.co_consts if isinstance(each, CodeType))))


def taken_from_libraries(function: FunctionType) -> list[tuple[dict[str, Any], str]]:
    """Return what a function takes from installed modules, such as ``np.clip``: their variables, and the name.

    Only functions, classes, numbers and texts: all else may be set or filled when it is first needed.

    >>> def clipped(array): return np.clip(array, 0, 1)
    >>> import numpy as np
    >>> taken_from_libraries(FunctionType(clipped.__code__, {"np": np})) == [(vars(np), "clip")]
    True
    """
    found = []
    for variable, name in sorted(_taken_from_variables(function.__code__)):
        module: Any = function.__globals__.get(variable)
        if issubclass(type(module), ModuleType) and module is not sys and is_installed(module.__name__):
            own = vars(module)
            value = own.get(name)
            is_watched = callable(value) or isinstance(value, (int, float, complex, str))
            found += [(own, name)] if is_watched and (module.__name__, name) not in REPLACED else []
    return found


def set_in_builtins(names: Iterable[str]) -> list[str]:
    """Return those of some names that stand for values in ``builtins``, which are there for all modules."""
    own = vars(builtins)
    return sorted(each for each in names if each in own and not isinstance(own[each], (type, BuiltinFunctionType)))


def modules_used(function: FunctionType) -> list[ModuleType]:
    """Return the modules of the user's that a function names or imports, and those that it names within them."""
    code, known = function.__code__, function.__globals__
    names = names_used(code)
    found: list[ModuleType] = []
    around = (optional(cell, "cell_contents") for cell in function.__closure__ or ())
    left = [*(known[name] for name in sorted(names & known.keys())), *around, *_imported_by(function)]
    while left:
        module = left.pop()
        if issubclass(type(module), ModuleType) and module not in found and not is_installed(module.__name__):
            found.append(module)
            left += [vars(module)[name] for name in sorted(names & vars(module).keys())]
    return found


def _imported_by(function: FunctionType) -> list[ModuleType]:
    """Return the modules of the user's that a function itself imports, or takes from ``sys.modules``."""
    code = function.__code__
    names = set() if _BY_NAME.isdisjoint(names_used(code)) else strings_in(code)
    for level, name, inner in _imports(code):
        package = str(function.__globals__.get("__package__") or "").split(".")
        start = package[: len(package) + 1 - level] if level else []
        full = ".".join([*start, *filter(None, [name])])
        parts = full.split(".")
        names |= {".".join(parts[:end]) for end in range(len(start) or 1, len(parts) + 1)}
        names |= {f"{full}.{each}" for each in inner}
    known = [name for name in sorted(names & sys.modules.keys()) if not is_installed(name)]
    return [module for name in known if isinstance(module := sys.modules[name], ModuleType)]


@functools.lru_cache(maxsize=4096)
def _imports(code: CodeType) -> list[tuple[int, str, tuple[str, ...]]]:
    """Return what code imports: the number of leading dots, the name, and what comes after ``import``."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _PREFIXES]
    found = [
        (steps[place - 2].argval, step.argval, steps[place - 1].argval or ())
        for place, step in enumerate(steps)
        if step.opname == "IMPORT_NAME"
    ]
    inner = [value for value in code.co_consts if isinstance(value, CodeType)]
    return [*found, *(each for part in inner for each in _imports(part))]


# Steps that only widen another's number, or leave room in the code.
_PREFIXES = ("EXTENDED_ARG", "CACHE", "NOP")


@functools.lru_cache(maxsize=4096)
def steps_of(code: CodeType) -> list[tuple[str, Any]]:
    """Return the steps of code and their arguments, each of which loads or stores at most one variable.

    (From Python 3.13 on, one step may load or store two.)
    """
    steps: list[tuple[str, Any]] = []
    for step in dis.get_instructions(code):
        name = step.opname.replace("_BORROW", "").replace("_CHECK", "")
        if isinstance(step.argval, tuple) and name.count("_FAST") == 2:
            steps += zip(re.findall("(?:LOAD|STORE)_FAST", name), step.argval, strict=True)
        elif name not in _PREFIXES:
            steps.append((name, step.argval))
    return steps


def strings_in(code: CodeType) -> set[str]:
    """Return the texts in code, and in functions defined in it."""
    found = {value for value in code.co_consts if isinstance(value, str)}
    for value in code.co_consts:
        if isinstance(value, CodeType):
            found |= strings_in(value)
    return found


def names_used(code: CodeType) -> set[str]:
    """Return the names that code uses, and functions defined in it."""
    names = set(code.co_names)
    for value in code.co_consts:
        if isinstance(value, CodeType):
            names |= names_used(value)
    return names


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")
_USES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "STORE_GLOBAL", "DELETE_GLOBAL")


@functools.lru_cache(maxsize=4096)
def globals_used(code: CodeType) -> tuple[str, ...]:
    """Return the global variables that code reads or sets, and functions defined in it."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname in _USES}
    for value in code.co_consts:
        if isinstance(value, CodeType):
            names.update(globals_used(value))
    return tuple(sorted(names))


# Methods that make sets or hashes, and functions to which the order of a set makes no difference.
_OF_SETS = {"union", "intersection", "difference", "symmetric_difference", "__hash__"}
_ORDERLESS, _GLOBALS = ("len", "any", "all"), ("LOAD_GLOBAL", "LOAD_NAME")


@functools.lru_cache(maxsize=4096)
def depends_on_hashes(code: CodeType) -> bool:
    """Whether code makes sets, goes through them, or asks for hashes, which of texts are new in each interpreter.

    >>> depends_on_hashes(compile("list({'cat', 'dog'})", "", "eval"))
    True
    >>> depends_on_hashes(compile("name in {'cat', 'dog'} and len(set(names))", "", "eval"))
    False
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in (*_PREFIXES, "PUSH_NULL")]
    pairs = list(itertools.pairwise(steps))
    # (Of what is equal by its key, the first stays the first, so then the order counts.)
    has_key = any(each == "key" or (isinstance(each, tuple) and "key" in each) for each in code.co_consts)
    has_key |= any(step.opname == "CALL_FUNCTION_EX" for step in steps)
    orderless = () if "pop" in code.co_names else _ORDERLESS if has_key else (*_ORDERLESS, "sorted")
    is_asked = not _OF_SETS.isdisjoint(code.co_names) or any(
        other.opname in _GLOBALS and other.argval in ("hash", "set", "frozenset") and one.argval not in orderless
        for one, other in pairs
    )
    is_made = any(step.opname in ("BUILD_SET", "SET_ADD", "SET_UPDATE") for step in steps)
    is_read = any(isinstance(one.argval, frozenset) and other.opname != "CONTAINS_OP" for one, other in pairs)
    has_views = not {"keys", "items"}.isdisjoint(code.co_names)
    is_made |= has_views and any(step.argrepr.strip("=") in ("&", "|", "-", "^") for step in steps)
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return is_asked or is_made or is_read or any(map(depends_on_hashes, inner))


def is_only_searched(code: CodeType, name: str) -> bool:
    """Whether code only asks whether something is in a global variable.

    >>> is_only_searched(compile("name in known or len(name) > 3", "", "eval"), "known")
    True
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in _PREFIXES]
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    loads = (
        (one, other) for one, other in itertools.pairwise(steps) if one.opname in _USES and one.argval == name
    )
    return all(other.opname == "CONTAINS_OP" for _, other in loads) and all(
        is_only_searched(each, name) for each in inner
    )
