"""Straight lines through measurements, and how far these are from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Line(NamedTuple):
    """A cost: a fixed one, and one for each unit of the work; neither is negative."""

    fixed: float
    each: float
    worst: float  # the largest distance of a measurement, as a share of it


def fit(work: Sequence[float], costs: Sequence[float], least: float = 0) -> Line:
    """Fit a line by least squares of the relative distances, so that the small ones count as much as the large.

    Distances are shares of ``least`` where a cost is below that, because it is within the noise.
    """
    x, y = np.asarray(work, float), np.asarray(costs, float)
    weights = 1 / np.maximum(y, least)
    fixed, each = _solve([weights, x * weights], y * weights)
    if each < 0:
        fixed, each = *_solve([weights], y * weights), 0.0
    elif fixed < 0:
        fixed, each = 0.0, *_solve([x * weights], y * weights)
    worst = float(np.max(np.abs(fixed + each * x - y) * weights))
    return Line(float(fixed), float(each), worst)


def _solve(columns: list[np.ndarray], values: np.ndarray) -> np.ndarray:
    # Columns of one length: the work may be a thousand million times the fixed part.
    lengths = np.linalg.norm(columns, axis=1)
    solution: np.ndarray = np.linalg.lstsq((columns / lengths[:, None]).T, values, rcond=None)[0] / lengths
    return solution
