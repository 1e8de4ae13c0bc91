"""Mixtures of datasets that count what is loaded, and how far they are from their proportions."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from torch.utils.data import Dataset

import foreload as fl


class Part(Dataset[int]):
    """Counts what is loaded."""

    def __init__(self, size: int, first: int = 0) -> None:
        self.size, self.first = size, first
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        self.loaded.append(index)
        return self.first + index


def mixture(weights: Any = (5, 3, 2), **options: Any) -> fl.Mixture:
    """Of which sample ``i`` is ``i``."""
    return fl.Mixture({"a": Part(50), "b": Part(7, 50), "c": Part(20, 57)}, weights, **options)


def worst(mixed: fl.Mixture, order: list[int], weights: dict[Any, Any] | None = None) -> Fraction:
    """Return how far the share of any dataset is from the exact one after any number of samples."""
    weights = weights or dict(zip(mixed.names, mixed.shares, strict=True))
    total = sum(map(Fraction, weights.values()))
    counts: Counter[Any] = Counter()
    largest = Fraction(0)
    for t, index in enumerate(order, 1):
        counts[mixed.where(index)[0]] += 1
        largest = max(largest, *(abs(counts[name] - t * Fraction(w) / total) for name, w in weights.items()))
    return largest


def flat(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]
