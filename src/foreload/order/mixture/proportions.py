"""Exact proportions in a mixture: which dataset each position takes its sample from."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from foreload.checks import Indices

__all__ = ["choose_datasets", "scramble"]


def choose_datasets(shares: tuple[int, ...], counts: list[int], begin: int, count: int, key: int) -> Indices:
    """Choose the dataset of each position from ``begin`` on.

    Args:
        shares: whole numbers in proportion to the weights, together under 2**49.
        counts: samples of each dataset before ``begin``.
        begin: the first position.
        count: the number of positions, at most 8192.
        key: breaks ties between windows that end together.

    >>> choose_datasets((3, 1), [0, 0], 0, 8, key=1).tolist().count(1)
    2
    """
    windows = [_windows(shares, i, counts[i], begin + count, key) for i in range(len(shares))]
    datasets = np.repeat(np.arange(len(shares)), [len(window[0]) for window in windows])
    opens, ends, ties = (np.concatenate([window[row] for window in windows]) for row in range(3))
    by_end = np.lexsort((ties, ends))
    places = np.empty(len(by_end), np.int64)
    places[by_end] = np.arange(len(by_end))
    by_open = np.argsort(opens, kind="stable")
    coming = iter([*zip(opens[by_open].tolist(), places[by_open].tolist(), strict=True), (begin + count, -1)])
    opening, place = next(coming)
    open_now: list[int] = []
    chosen = []
    for position in range(begin, begin + count):
        while opening <= position:
            heappush(open_now, place)
            opening, place = next(coming)
        chosen.append(heappop(open_now))
    return datasets[by_end[chosen]]


def _windows(shares: tuple[int, ...], dataset: int, given: int, until: int, key: int) -> tuple[Any, Any, Any]:
    """Return the window of each next sample of a dataset: its first position, its end, and a random number."""
    share, total = shares[dataset], sum(shares)
    number = max(0, -(-until * share // total) - given)
    whole, rest = divmod(given * total, share)
    steps = rest + np.arange(number + 1, dtype=np.int64) * total
    salt = scramble(np.uint64(key) + scramble(np.array([~dataset & 0xFFFFFFFFFFFFFFFF], np.uint64)))
    ties = scramble(salt + np.arange(given, given + number, dtype=np.uint64))
    return whole + steps[:-1] // share, whole - (-steps[1:] // share), ties


def scramble(values: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Scramble 64-bit numbers (splitmix64: Steele et al., OOPSLA 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray[Any, np.dtype[np.uint64]] = values ^ (values >> np.uint64(31))
    return mixed
