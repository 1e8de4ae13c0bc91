"""Cases of independent factors: every pair of values of any two of them, instead of all combinations."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Value = tuple[int, int]  # of which factor, and which of its values


def pairwise(*factors: Iterable[Any]) -> list[Any]:
    """Return rows of a value of each factor, for ``pytest.mark.parametrize``: every pair of values occurs.

    A defect that needs one value, or two together, fails in one of them, as it would among all combinations. It is
    the same list each time. Values may be of ``pytest.param``: a row has all of its values' marks.
    """
    values = [list(factor) for factor in factors]
    return [
        _row([factor[place] for factor, place in zip(values, places, strict=True)])
        for places in covering([len(factor) for factor in values])
    ]


def covering(counts: list[int]) -> list[tuple[int, ...]]:
    """Return rows of places in factors of so many values; every pair of places of two factors occurs."""
    missing = {
        frozenset(pair)
        for one, other in itertools.combinations(range(len(counts)), 2)
        for pair in itertools.product(_values(one, counts), _values(other, counts))
    }
    if len(counts) < 2:
        return [(place,) for count in counts for place in range(count)]
    uses: Counter[Value] = Counter()
    rows = []
    while missing:
        first = min(missing, key=lambda pair: (sum(uses[value] for value in pair), sorted(pair)))
        row: list[Value] = sorted(first)
        # The factors with most values first, for they have least choice later.
        others = set(range(len(counts))) - {factor for factor, _ in row}
        for factor in sorted(others, key=lambda factor: -counts[factor]):
            values = _values(factor, counts)
            new = {value: sum(frozenset((value, had)) in missing for had in row) for value in values}
            row.append(min(new, key=lambda value: (-new[value], uses[value], value)))
        missing -= {frozenset(pair) for pair in itertools.combinations(row, 2)}
        uses.update(row)
        rows.append(tuple(place for _, place in sorted(row)))
    return rows


def _values(factor: int, counts: list[int]) -> list[Value]:
    return [(factor, place) for place in range(counts[factor])]


def _row(values: list[Any]) -> Any:
    marked = [value if isinstance(value, ParameterSet) else pytest.param(value) for value in values]
    marks = [mark for value in marked for mark in value.marks]
    return pytest.param(*(value.values[0] for value in marked), marks=marks)
