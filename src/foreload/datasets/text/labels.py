"""Labels as targets: names as their position among the sorted names, numbers as they are."""

from __future__ import annotations

import math
import re
import reprlib
import warnings
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from foreload.checks import Array, fits_int64

__all__ = ["Labels"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
# Of the largest number in int64.
_DIGITS = 19
# What programs write in place of a number that is missing or not finite.
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity|na|n/a|null|none)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Labels:
    """A collector of the labels of all samples.

    Args:
        place: names the file and line of a sample, for errors.
        field: the labels' field, for errors.

    >>> labels = Labels(str, "label")
    >>> for index, name in enumerate(["dog", "cat", "dog"]):
    ...     labels.add(index, name)
    >>> labels.targets()
    (array([1, 0, 1]), ['cat', 'dog'])
    """

    def __init__(self, place: Callable[[int], str], field: str | int) -> None:
        self._place = place
        self._field = field
        self._codes: dict[Any, int] = {}
        self._all = array("q")

    def add(self, index: int, value: Any) -> None:
        """Add the label of the next sample.

        Raises:
            ValueError: the label is neither a name nor a number.
        """
        if not isinstance(value, (str, int, float)) or value == "":
            raise ValueError(
                f"{self._place(index)}: {self._field!r} must be a name or a number, got {reprlib.repr(value)}"
            )
        self._all.append(self._codes.setdefault(value, len(self._codes)))

    def targets(self, *, numbers_as_text: bool = False) -> tuple[Array, list[str]]:
        """Return the target of each sample (int64 or float64), and the names of the classes; none for numbers.

        Args:
            numbers_as_text: take names for numbers if all of them can be read as such, spaces around them aside.
                They stay names, and a warning says so, if two of them are the same number (``"01"`` and ``"1"``),
                or one is not finite.

        Raises:
            ValueError: some are names and some are numbers, or a whole number does not fit into int64, or not into
                float64 without loss where other labels are fractions.
        """
        values: list[Any] = list(self._codes)
        codes = np.frombuffer(self._all, np.int64)
        names = [value for value in values if isinstance(value, str)]
        if numbers_as_text and names:
            stripped = [name.strip() for name in names]
            numbers = [_number(value) for value in stripped if _NUMBER.fullmatch(value)]
            others = [value for value in stripped if not _NUMBER.fullmatch(value)]
            doubt = _doubt(stripped, numbers) if not others else _doubt_about(others) if numbers else ""
            if doubt:
                warnings.warn(
                    f"{self._field!r}: the labels are taken for names, although they look like numbers: {doubt}",
                    stacklevel=2,
                )
            elif not others:
                values, names = numbers, []
        if not names:
            return self._numbers(values)[codes], []
        if len(names) < len(values):
            other = next(
                i for i, value in enumerate(values) if isinstance(value, str) != isinstance(values[0], str)
            )
            raise ValueError(
                f"{self._field!r} must be a name everywhere or a number everywhere, got {values[0]!r:.50} and, in "
                f"{self._first(other)}, {values[other]!r:.50}"
            )
        classes = sorted(names)
        if alike := _alike(classes):
            warnings.warn(
                f"{self._field!r}: {alike[0]!r} and {alike[1]!r} are different classes; remove the spaces if they "
                "are the same",
                stacklevel=2,
            )
        ranks = {name: rank for rank, name in enumerate(classes)}
        return np.array([ranks[name] for name in values], np.int64)[codes], classes

    def _numbers(self, values: list[Any]) -> Array:
        """Return different labels as an array that holds each exactly."""
        is_float = any(isinstance(value, float) for value in values)
        for code, value in enumerate(values):
            if isinstance(value, float):
                continue
            if value is None or not fits_int64(value):
                raise ValueError(
                    f"{self._first(code)}: {self._field!r} does not fit into int64: {self._shown(code)}"
                )
            if is_float and int(float(value)) != value:
                raise ValueError(
                    f"{self._first(code)}: {self._field!r} does not fit into float64, which other labels need: "
                    f"{self._shown(code)}"
                )
        return np.array(values, np.float64 if is_float else np.int64)

    def _first(self, code: int) -> str:
        """Return the place of the first sample with a label."""
        return self._place(int(np.argmax(np.frombuffer(self._all, np.int64) == code)))

    def _shown(self, code: int) -> str:
        return f"{list(self._codes)[code]!s:.50}"


def _number(text: str) -> int | float | None:
    """Read a number; None for a whole one of too many digits, which Python might refuse to convert."""
    if not _INTEGER.fullmatch(text):
        return float(text)
    return int(text) if len(text.lstrip("+-0")) <= _DIGITS else None


def _alike(classes: list[str]) -> tuple[str, str] | None:
    """Return two names that differ only in spaces around them; None if there are none."""
    known: dict[str, str] = {}
    for name in classes:
        other = known.setdefault(name.strip(), name)
        if other != name:
            return other, name
    return None


def _doubt(names: list[str], numbers: list[int | float | None]) -> str:
    """Say why the labels may be no numbers; empty if nothing speaks against it."""
    spelled: dict[int | float, str] = {}
    for name, number in zip(names, numbers, strict=True):
        if number is None:
            continue
        if isinstance(number, float) and math.isinf(number):
            return f"{name!r} is too large for one"
        other = spelled.setdefault(number, name)
        # ("-0.00" is what rounding makes of small numbers.)
        if other != name and not (number == 0 and "." in name and "." in other):
            return f"{other!r} and {name!r} would be the same one; write it in one way if they are numbers"
    return ""


def _doubt_about(others: list[str]) -> str:
    """Say which label is none, if all that are not numbers are what programs write for missing ones."""
    return f"{others[0]!r} is none; remove those lines" if all(map(_NO_NUMBER.fullmatch, others)) else ""
