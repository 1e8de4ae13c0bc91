"""Probes of containers: their values, and all that is in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, count, islice, repeat
from operator import is_
from types import MappingProxyType
from typing import Any

from foreload.dataset_state.kept import kept_values
from foreload.dataset_state.probes.probe import is_same, made_of_pairs
from foreload.dataset_state.probes.references import References
from foreload.dataset_state.walk import plain_iter

__all__ = ["ATOMS", "MOST_RECORDS", "CachedFunction", "Contents", "Records", "Unordered", "are_settled"]

# The most containers that are looked at, within others.
MOST_RECORDS = 200_000

# Larger containers are compared with less care for what is equal, but of another type.
_MAX_EXACT_LENGTH = 100_000

ATOMS: frozenset[type] = frozenset({int, float, complex, bool, str, bytes, type(None)})
_FROZEN: frozenset[type] = frozenset({tuple, frozenset})
_PYTHONS_OWN = _FROZEN | {list, dict, set}


def are_settled(values: Collection[Any]) -> bool:
    """Whether values are numbers and texts, and tuples of such, which nobody can change.

    >>> are_settled([1, "a", (2, ("b", None))]), are_settled([(1, [2])])
    (True, False)
    """
    kinds = set(map(type, values))
    while not kinds <= ATOMS:
        if not kinds <= ATOMS.union(_FROZEN):
            return False
        if not kinds <= _FROZEN:
            values = [value for value in values if type(value) in _FROZEN]
        kinds = set(map(type, chain.from_iterable(values)))  # (Most often, these are no tuples.)
        if not kinds <= ATOMS:  # (Many may hold the same ones.)
            values = list({id(value): value for value in chain.from_iterable(values)}.values())
    return True


class Contents:
    """A probe of the values of a container."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self._value = name, value
        self.renew()

    def renew(self) -> None:
        self._before = self._items()

    def _items(self) -> tuple[Any, ...]:
        value = self._value
        if isinstance(value, set):
            return (set(plain_iter(value)),)
        if isinstance(value, dict):
            return (list(plain_iter(value)), list(dict.values(value)))
        if isinstance(value, MappingProxyType):
            return (list(value), list(value.values()))
        return (list(plain_iter(value)),)

    def changed(self) -> str | None:
        value, before = self._value, self._before
        if type(value) is list:
            return None if len(value) == len(before[0]) and _are_items(value, before[0]) else self.name
        now = self._items()
        return None if len(now[0]) == len(before[0]) and all(map(_are_items, now, before)) else self.name

    def made(self) -> list[tuple[Any, Any]] | None:
        items = self._items()
        if len(items[0]) != len(self._before[0]) or isinstance(self._value, set):
            return None
        before, now = (chain.from_iterable(each) for each in (self._before, items))
        return made_of_pairs(zip(_places(self.name), before, now, strict=False))

    def lacks(self, place: tuple[str, int]) -> bool:
        return _lacks(self._items(), place[1])

    def add_to(self, references: References) -> bool:
        value, before = self._value, self._before
        # (Long ones Python compares faster, and to look at all objects in them takes memory in forked processes.)
        if type(value) not in (list, dict) or len(before[0]) > _MAX_EXACT_LENGTH or self.changed() is not None:
            return False
        if not all(map(is_, chain(*self._items()), chain(*before))):
            return False
        references.contents([value], [len(before[0])], before[0] if len(before) == 1 else [*chain(*before)])
        return True


def _places(name: str) -> Iterator[tuple[str, int]]:
    return zip(repeat(name), count())


def _lacks(parts: Iterable[Any], number: int) -> bool:
    """Whether the value of a number, of those in some containers, is nothing."""
    return next(islice(chain.from_iterable(parts), number, None), None) is None


def _are_items(values: Any, before: Any) -> bool:
    if not isinstance(before, list):
        return bool(values == before)
    if len(before) > _MAX_EXACT_LENGTH:
        try:
            return bool((values if type(values) is list else list(values)) == before)
        except Exception:  # a comparison of the user's objects may raise anything
            return False
    values = list(values)
    return all(map(is_, values, before)) or (len(values) == len(before) and all(map(is_same, values, before)))


class Records:
    """A probe of many containers at once, and at those within them.

    Args:
        name: of what holds them.
        records: the containers, and whatever lies beside them.

    Attributes:
        is_whole: whether all are looked at, which takes too long for very many.
        others: what else there is in them, each object once: all that is neither a number nor a text, nor a list,
            dict, set or tuple of Python's own.

    >>> records = [{"box": [1, 2]}, {"box": [3, 4]}]
    >>> probe = Records("records", records)
    >>> probe.changed(), records[1]["box"].append(5), probe.changed()
    (None, None, 'records')
    """

    def __init__(self, name: str, records: list[Any]) -> None:
        self.name, self._records = name, records
        self.renew()

    def renew(self) -> None:
        self.is_whole = True
        self._views: list[Collection[Any]] = []
        self._containers: list[Any] = []  # lists and dicts
        self._sets: list[set[Any]] = []
        others: dict[int, Any] = {}
        seen: set[int] = set()
        left = [value for value in self._records if type(value) not in ATOMS]
        while left:
            new = list({id(value): value for value in left if id(value) not in seen}.values())
            seen.update(map(id, new))
            self.is_whole = len(seen) <= MOST_RECORDS
            if not self.is_whole:
                break
            lists = [value for value in new if type(value) is list]
            dicts = [value for value in new if type(value) is dict]
            sets = [value for value in new if type(value) is set]
            tuples = [value for value in new if type(value) in _FROZEN]
            others |= {id(value): value for value in new if type(value) not in _PYTHONS_OWN}
            self._views += (*lists, *chain.from_iterable((each, each.values()) for each in dicts))
            self._containers += (*lists, *dicts)
            self._sets += sets
            inside = chain.from_iterable((*lists, *sets, *tuples, *dicts, *map(dict.values, dicts)))
            left = [value for value in inside if type(value) not in ATOMS]
        self.others = list(others.values())
        self._sizes, self._values = list(map(len, self._views)), list(chain.from_iterable(self._views))
        self._lengths = list(map(len, self._containers))
        self._members = [set(value) for value in self._sets]

    def changed(self) -> str | None:
        if list(map(len, self._views)) != self._sizes or self._sets != self._members:
            return self.name
        if all(map(is_, chain.from_iterable(self._views), self._values)):
            return None
        return None if all(map(is_same, chain.from_iterable(self._views), self._values)) else self.name

    def made(self) -> list[tuple[Any, Any]] | None:
        if list(map(len, self._views)) != self._sizes or self._sets != self._members:
            return None
        return made_of_pairs(zip(_places(self.name), self._values, chain.from_iterable(self._views), strict=False))

    def lacks(self, place: tuple[str, int]) -> bool:
        return _lacks(self._views, place[1])

    def add_to(self, references: References) -> bool:
        if self._sets or not all(map(is_, chain.from_iterable(self._views), self._values)):
            return False
        references.contents(self._containers, self._lengths, self._values)
        return True


class Unordered(list[Any]):
    """Values whose order means nothing."""


class CachedFunction:
    """A probe of a function that keeps what it returns."""

    def __init__(self, name: str, function: Any) -> None:
        self.name, self._function = name, function
        self.renew()

    def renew(self) -> None:
        self._before = kept_values(self._function)

    def changed(self) -> str | None:
        kept, before = kept_values(self._function), self._before  # in an order that each call may change
        return None if sorted(map(id, kept)) == sorted(map(id, before)) else self.name

    def made(self) -> list[tuple[Any, Any]] | None:
        return None if self._before else [((self.name, 0), Unordered(kept_values(self._function)))]

    def lacks(self, place: tuple[str, int]) -> bool:
        return not kept_values(self._function)

    def add_to(self, references: References) -> bool:
        return False
