"""The cases that :mod:`tests.pairwise` chooses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.pairwise import covering, pairwise


@pytest.mark.parametrize(
    "counts",
    [[1], [3], [1, 1], [4, 5], [2, 2, 2], [3, 1, 4], [2, 3, 2, 5], [3] * 6, [2] * 10, [14, 7, 4, 2], [9, 9, 9]],
)
def test_every_pair_of_values_occurs_in_few_rows(counts: list[int]) -> None:
    rows = covering(counts)
    for one, other in itertools.combinations(range(len(counts)), 2):
        found = {(row[one], row[other]) for row in rows}
        assert found == set(itertools.product(range(counts[one]), range(counts[other])))
    assert all(0 <= place < count for row in rows for place, count in zip(row, counts, strict=True))
    assert len(set(rows)) == len(rows)
    if len(counts) > 2:
        # The two largest factors alone need as many as all their pairs.
        largest, second = sorted(counts)[-1:-3:-1]
        assert len(rows) <= largest * second * (1.5 if len(counts) < 5 else 3)
    assert covering(counts) == rows


def test_rows_have_the_values_and_their_marks() -> None:
    mark: Any = pytest.mark.slow
    rows = pairwise(["a", pytest.param("b", marks=mark)], {"x": 1, "y": 2})
    assert sorted(row.values for row in rows) == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
    assert {row.values[0] for row in rows if row.marks} == {"b"}
