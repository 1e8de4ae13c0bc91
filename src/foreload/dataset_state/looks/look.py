"""Looks at a variable, at attributes, and at what is the same or is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any, Protocol

__all__ = ["MISSING", "Attributes", "Look", "Value", "Whole", "is_same"]

_PLAIN = (int, float, complex, str, bytes, type(None))

MISSING = object()

IsSame = Callable[[], bool]


class Look(Protocol):
    """A look at something that may have been changed.

    Attributes:
        name: of what is looked at.
    """

    name: str

    def changed(self) -> str | None:
        """Return the name of what is not the same as before; None if all is."""

    def made(self) -> list[tuple[str, Any]] | None:
        """Return what has been made where nothing was, by name; None if something else has been changed."""

    def renew(self) -> None:
        """Compare with what is there now from here on."""


@dataclass
class Whole:
    """A look at something that is the same or is not."""

    name: str
    is_same: IsSame

    def changed(self) -> str | None:
        return None if self.is_same() else self.name

    def made(self) -> None:
        return None

    def renew(self) -> None:
        """Go on to compare with what was there before."""


class Value:
    """A look at one variable, attribute or slot, which ``get`` returns."""

    def __init__(self, name: str, get: Callable[[], Any]) -> None:
        self.name, self._get, self.before = name, get, get()

    def changed(self) -> str | None:
        return None if is_same(self._get(), self.before) else self.name

    def made(self) -> list[tuple[str, Any]] | None:
        return made_of_pairs([(self.name, self.before, self._get())])

    def renew(self) -> None:
        self.before = self._get()


class Attributes:
    """A look at the attributes of an object, all but some."""

    def __init__(self, name: str, own: dict[str, Any], but: tuple[str, ...] = ()) -> None:
        self.name, self._own, self._but = name, own, but
        self.renew()

    def renew(self) -> None:
        self._names, self._values = list(self._own), list(self._own.values())

    def changed(self) -> str | None:
        """Return the name of an attribute that is not the same as before; None if all are."""
        own = self._own
        if list(own) == self._names and all(map(is_, own.values(), self._values)):
            return None
        return next((name for name, before, value in self._pairs() if not is_same(value, before)), None)

    def made(self) -> list[tuple[str, Any]] | None:
        return made_of_pairs(self._pairs())

    def _pairs(self) -> Iterator[tuple[str, Any, Any]]:
        before = dict(zip(self._names, self._values, strict=True))
        for name in [name for name in before | self._own if name not in self._but]:
            yield name, before.get(name, MISSING), self._own.get(name, MISSING)


def made_of_pairs(pairs: Any) -> list[tuple[str, Any]] | None:
    """Return what has been made, of names, values before and values now; None if one has been changed."""
    made = []
    for name, before, value in pairs:
        if not is_same(value, before):
            if not (before is None or before is MISSING) or value is MISSING:
                return None
            made.append((str(name), value))
    return made


def is_same(value: Any, before: Any) -> bool:
    """Whether a value is the same object, or a number or text that equals the one before."""
    return value is before or (type(value) is type(before) and isinstance(value, _PLAIN) and value == before)
