"""Objects outside of a dataset, in global variables and closures, of which its code reads attributes."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from foreload.checks import module_of, optional
from foreload.dataset_state.between_epochs.attributes import (
    functions_of,
    is_plain_container,
    names,
    own_attributes,
    owners,
)
from foreload.dataset_state.between_epochs.loading_code import chains_of, set_by
from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.names import modules_used, names_used

__all__ = ["Elsewhere"]

# The most functions that are looked through.
_MOST_FUNCTIONS = 256


class Elsewhere:
    """The values that functions find in global variables and closures, and in the code that they call there.

    Of ``args.size`` it is the attribute ``size`` that is read; of an object that is handed on to other code, each
    attribute of a name that loading code reads.

    Args:
        functions: those of a dataset that load samples.
        read: the names that they read.

    Attributes:
        functions: these and all that they call elsewhere.
        read: the names of the attributes.
    """

    def __init__(self, functions: list[FunctionType], read: frozenset[str]) -> None:
        self.functions = dict.fromkeys(functions)
        self.read = read
        self._found: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._handed_on: dict[int, Any] = {}
        followed: set[FunctionType] = set()
        # What is called may call more, and read more of what it is given.
        while len(followed) < len(self.functions) and len(followed) < _MOST_FUNCTIONS:
            for function in [each for each in self.functions if each not in followed]:
                followed.add(function)
                self.read |= names_used(function.__code__)
                self._follow(function)
            given = sorted(self._handed_on.values(), key=is_plain_container)  # which may be large
            for owner, own in owners(given, self.read):
                self._note(owner, own, self.read)

    def settings(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield the attributes that are read and that no code which loads sets: owners, names and values."""
        sets = frozenset[str]().union(*(set_by(function.__code__) for function in self.functions))
        yield from (each for each in self._found.values() if each[1] not in sets)

    def _note(self, owner: Any, own: dict[str, Any], read: frozenset[str]) -> None:
        """Note the attributes of an object that are read, and the functions of it that are called."""
        for name in own.keys() & read:
            self._found[id(owner), name] = owner, name, own[name]
        self.functions |= dict.fromkeys(functions_of([(owner, own)], read))

    def _follow(self, function: FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = {name: optional(cell, "cell_contents") for name, cell in cells}
        spaces = [closure, function.__globals__, *map(vars, modules_used(function))]
        for (first, *rest), is_handed_on in chains_of(function.__code__):
            space = next((space for space in spaces if first in space), None)
            if space is not None:
                self._walk(space[first], rest, is_handed_on=is_handed_on)

    def _walk(self, value: Any, attributes: list[str], *, is_handed_on: bool) -> None:
        """Follow a variable's value through attributes."""
        for name in attributes:
            own = _variables(value) if isinstance(value, ModuleType) else own_attributes(value)
            if own is None or name not in own:
                is_handed_on = own is None  # to a method of a library's object
                break
            if not isinstance(value, ModuleType):
                is_called = isinstance(own[name], FunctionType)
                self._note(value, own, (names(value, frozenset({name}))[0] if is_called else frozenset()) | {name})
            value = own[name]
        if isinstance(value, FunctionType):
            if not is_installed(module_of(value)):
                self.functions.setdefault(value)
        elif is_handed_on and not isinstance(value, ModuleType):
            self._handed_on.setdefault(id(value), value)


def _variables(module: ModuleType) -> dict[str, Any]:
    return {} if is_installed(module.__name__) else vars(module)
