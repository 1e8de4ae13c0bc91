"""Probes of a variable, of attributes, and of what is the same or is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import is_
from typing import Any, Protocol

from foreload.dataset_state.probes.references import References

__all__ = ["MISSING", "Attributes", "Probe", "Value", "Whole", "is_same"]

_PLAIN = (int, float, complex, str, bytes, type(None))

MISSING = object()

IsSame = Callable[[], bool]


class Probe(Protocol):
    """A probe of something that may have been changed.

    Attributes:
        name: of what is probed.
    """

    name: str

    def changed(self) -> str | None:
        """Return the name of what is not the same as before; None if all is."""

    def made(self) -> list[tuple[Any, Any]] | None:
        """Return what has been made where nothing was, by name and number; None if more has been changed."""

    def lacks(self, place: tuple[str, int]) -> bool:
        """Whether there is nothing now where something may be made, given by name and number."""

    def renew(self) -> None:
        """Compare with what is there now from here on."""

    def add_to(self, references: References) -> bool:
        """Add what is probed to the references; return whether nothing has changed as long as these hold."""


@dataclass
class Whole:
    """A probe of something that is the same or is not."""

    name: str
    is_same: IsSame

    def changed(self) -> str | None:
        return None if self.is_same() else self.name

    def made(self) -> None:
        return None

    def lacks(self, place: tuple[str, int]) -> bool:
        return False

    def renew(self) -> None:
        """Go on to compare with what was there before."""

    def add_to(self, references: References) -> bool:
        return False


class Value:
    """A probe of one variable, attribute or slot.

    Args:
        name: of what is probed.
        get: returns it.
        place: what holds it, and the name that it has there; None: it is no variable or attribute.
    """

    def __init__(self, name: str, get: Callable[[], Any], place: tuple[Any, str] | None = None) -> None:
        self.name, self._get, self._place, self.before = name, get, place, get()

    def changed(self) -> str | None:
        return None if is_same(self._get(), self.before) else self.name

    def made(self) -> list[tuple[Any, Any]] | None:
        return made_of_pairs([((self.name, 0), self.before, self._get())])

    def lacks(self, place: tuple[str, int]) -> bool:
        return place[0] == self.name and _is_nothing(self._get())

    def renew(self) -> None:
        self.before = self._get()

    def add_to(self, references: References) -> bool:
        if self._place is None or self._get() is not self.before:
            return False
        holder, name = self._place
        if isinstance(holder, dict):
            if type(holder) is dict:
                references.variable(holder, name, self.before, is_there=self.before is not MISSING)
            return type(holder) is dict
        if self.before is MISSING or (self.before is None and not _has(holder, name)):
            return False
        references.attribute(holder, name, self.before)
        return True


class Attributes:
    """A probe of the attributes of an object or a class, all but some.

    Args:
        name: of what has them.
        holder: what has them.
        is_left_out: whether an attribute does not count, by its name.
    """

    def __init__(self, name: str, holder: Any, is_left_out: Callable[[str], bool]) -> None:
        self.name, self._holder, self._is_left_out = name, holder, is_left_out
        self.renew()

    def renew(self) -> None:
        self._own: Any = vars(self._holder)
        self._kind = type(self._holder)
        self._names, self._values = list(self._own), list(self._own.values())

    def changed(self) -> str | None:
        """Return the name of an attribute that is not the same as before; None if all are."""
        own = self._own = vars(self._holder)
        if type(self._holder) is not self._kind:
            return self.name
        if self._are_same(own):
            return None
        return next((name for name, before, value in self._pairs() if not is_same(value, before)), None)

    def made(self) -> list[tuple[Any, Any]] | None:
        if type(self._holder) is not self._kind:
            return None
        return made_of_pairs(((name, 0), before, value) for name, before, value in self._pairs())

    def lacks(self, place: tuple[str, int]) -> bool:
        return _is_nothing(vars(self._holder).get(place[0], MISSING))

    def add_to(self, references: References) -> bool:
        own = vars(self._holder)
        if type(own) is not dict or vars(self._holder) is not own:
            return False
        if any(map(self._is_left_out, own)) or not self._are_same(own):
            return False
        references.type_of(self._holder, self._kind)
        references.attribute(self._holder, "__dict__", own)
        references.contents([own], [len(self._names)], [*self._names, *self._values])
        return True

    def _are_same(self, own: Any) -> bool:
        return list(own) == self._names and all(map(is_, own.values(), self._values))

    def _pairs(self) -> Iterator[tuple[str, Any, Any]]:
        before = dict(zip(self._names, self._values, strict=True))
        for name in [name for name in {**before, **self._own} if not self._is_left_out(name)]:
            yield name, before.get(name, MISSING), self._own.get(name, MISSING)


def made_of_pairs(pairs: Any) -> list[tuple[Any, Any]] | None:
    """Return what has been made, of places, values before and values now; None if one has been changed."""
    made = []
    for name, before, value in pairs:
        if not is_same(value, before):
            if not _is_nothing(before) or value is MISSING:
                return None
            made.append((name, value))
    return made


def _is_nothing(value: Any) -> bool:
    """Whether something may still be made in place of a value."""
    return value is None or value is MISSING


def _has(holder: Any, name: str) -> bool:
    """Whether a cell or an object has an attribute; None stands for what is not there, too."""
    with suppress(Exception):  # whatever an empty cell, or code of the user's, raises
        getattr(holder, name)
        return True
    return False


def is_same(value: Any, before: Any) -> bool:
    """Whether a value is the same object, or a number or text that equals the one before."""
    if value is before:
        return True
    is_equal = type(value) is type(before) and isinstance(value, _PLAIN) and value == before
    return is_equal and bool(value or repr(value) == repr(before))  # (0.0 equals -0.0)
