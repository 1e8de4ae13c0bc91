"""A comparison of many probes at once, by whether everything is the very object that it was."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import is_
from typing import Any, Protocol

import numpy as np

from foreload import _native
from foreload.checks import Array

__all__ = ["References"]


class _Probe(Protocol):
    def changed(self) -> str | None: ...

    def add_to(self, references: References) -> bool:
        """Add what there was to the references; return whether the probe need not be asked if these hold.

        As the probe noted it, not as it is: another thread may change it meanwhile.
        """


class References:
    """Variables, attributes and containers of all probes, which are most often the objects that they were.

    To ask probe by probe takes about half a microsecond each, and several times as long where the caches of the
    processor hold other things, as they do after a step of training.

    Args:
        probes: the probes; they are asked where that cannot be told from the references alone.

    >>> from foreload.dataset_state.probes.containers import Contents
    >>> weights = [1, 2]
    >>> references = References([Contents("weights", weights)])
    >>> references.hold(), weights.append(3), references.hold()
    (True, None, False)
    """

    def __init__(self, probes: Iterable[_Probe]) -> None:
        variables, attributes = self._new_variables, self._new_attributes = _Named(), _Named()
        self._typed: tuple[list[Any], list[type]] = ([], [])
        self._containers: list[list[Any] | dict[Any, Any]] = []
        self._new_sizes: list[int] = []
        self._held: list[list[Any]] = []  # what they held, several at a time
        self._others = [probe for probe in probes if not probe.add_to(self)]
        self._variables, self._attributes = variables.columns(), attributes.columns()
        self._sizes = np.array(self._new_sizes, np.int64)
        contents = chain.from_iterable(self._held)
        self._contents = np.fromiter(map(id, contents), np.int64, sum(map(len, self._held)))

    def variable(self, variables: dict[Any, Any], name: str, value: Any, *, is_there: bool) -> None:
        """Add a variable of a name, and the value that it had, if it was there."""
        self._new_variables.add(variables, name, value, id(value) if is_there else 0)

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Add an attribute, and the value that it had."""
        self._new_attributes.add(owner, name, value, id(value))

    def type_of(self, value: Any, kind: type) -> None:
        """Add the type that an object had."""
        self._typed[0].append(value)
        self._typed[1].append(kind)

    def contents(
        self, containers: Iterable[list[Any] | dict[Any, Any]], sizes: Iterable[int], held: list[Any]
    ) -> None:
        """Add containers, their sizes, and what they held: one after the other, keys of a dict before its values.

        The list of what they held is kept as it is, and must not be changed.
        """
        self._containers += containers
        self._new_sizes += sizes
        self._held.append(held)

    def hold(self) -> bool:
        """Whether all is as it was; if not, it may still be equal to that."""
        values, kinds = self._typed
        return (
            all(map(is_, map(type, values), kinds))
            and _native.are_attributes(*self._attributes)
            and _native.are_variables(*self._variables)
            and _native.are_contents(self._containers, self._sizes, self._contents)
            and all(probe.changed() is None for probe in self._others)
        )


class _Named:
    """Values, each with its name and what has it."""

    def __init__(self) -> None:
        self._holders: list[Any] = []
        self._names: list[str] = []
        self._values: list[Any] = []  # held, so that nothing else gets their addresses
        self._addresses: list[int] = []

    def add(self, holder: Any, name: str, value: Any, address: int) -> None:
        self._holders.append(holder)
        self._names.append(name)
        self._values.append(value)
        self._addresses.append(address)

    def columns(self) -> tuple[list[Any], list[str], Array]:
        return self._holders, self._names, np.array(self._addresses, np.int64)
