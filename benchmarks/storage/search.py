"""The largest number of accelerators that are kept busy, by doubling and bisection."""

from __future__ import annotations

import math
from collections.abc import Callable

LEAST, MOST = 1 / 64, 4096.0  # accelerators


def layout(accelerators: float, step: float, most_ranks: int) -> tuple[int, float]:
    """The processes and the step time of each that ask for as much as a number of accelerators, whole or not.

    Each accelerator is a process until there are ``most_ranks``; steps are longer or shorter by what is left.

    >>> layout(1, 0.5, 2), layout(0.25, 0.5, 2), layout(8, 0.5, 2)
    ((1, 0.5), (1, 2.0), (2, 0.125))
    """
    ranks = min(max(1, math.ceil(accelerators)), most_ranks)
    return ranks, step * ranks / accelerators


def largest(
    utilisation: Callable[[float], float], threshold: float, guess: float, precision: float = 0.03
) -> float:
    """Return the largest number whose utilisation reaches the threshold, to ``precision``; 0 if none does.

    Doubles from ``guess`` as long as the threshold is reached, or halves until it is, then bisects in between.

    >>> largest(lambda number: min(1, 10 / number), 0.9, guess=3, precision=0.001)
    11.10...
    """
    good = bad = 0.0
    number = guess
    while not (good and bad):
        if not LEAST <= number <= MOST:
            return good
        if utilisation(number) >= threshold:
            good = number
            number = 2 * number
        else:
            bad = number
            number = number / 2
    while bad / good > 1 + precision:
        middle = math.sqrt(good * bad)
        if utilisation(middle) >= threshold:
            good = middle
        else:
            bad = middle
    return good
