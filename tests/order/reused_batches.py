"""Batches of indices as samplers may yield them: used again, nested, and of any type."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def one_list() -> Iterator[Any]:
    batch: list[int] = []
    for number in range(8):
        batch[:] = range(number, number + 3)
        yield batch


def growing_list() -> Iterator[Any]:
    batch: list[int] = []
    for number in range(8):
        batch.append(number)
        yield batch


def cleared_after() -> Iterator[Any]:
    for number in range(8):
        batch = [number, number + 1]
        yield batch
        batch.clear()


def one_array() -> Iterator[Any]:
    batch = np.zeros(3, np.int64)
    for number in range(8):
        batch[:] = number
        yield batch


def one_tensor() -> Iterator[Any]:
    batch = torch.zeros(3, dtype=torch.int64)
    for number in range(8):
        batch += number
        yield batch


def one_deque() -> Iterator[Any]:
    batch: deque[int] = deque(maxlen=3)
    for number in range(8):
        batch.append(number)
        yield batch


def one_set() -> Iterator[Any]:
    batch: set[int] = set()
    for number in range(8):
        batch.add(number)
        yield batch


def inner_lists() -> Iterator[Any]:
    inner = [0, 1]
    batch = [inner, inner]
    for number in range(8):
        inner[0] = number
        yield batch


def tuples_of_lists() -> Iterator[Any]:
    inner = [0]
    for number in range(8):
        inner[0] = number
        yield (inner, inner)


def generators() -> Iterator[Any]:
    for number in range(8):
        yield (number + item for item in range(3))


def slices_of_one_iterator() -> Iterator[Any]:
    source = iter(range(24))
    for _ in range(8):
        yield itertools.islice(source, 3)


def maps() -> Iterator[Any]:
    numbers = [0, 0]
    for number in range(8):
        numbers[0] = number
        yield map(int, numbers)


def ranges() -> Iterator[Any]:
    yield from (range(number, number + 3) for number in range(8))


def tuples() -> Iterator[Any]:
    yield from ((number, number + 1) for number in range(8))


def texts() -> Iterator[Any]:
    yield from ("ab", "c", "def")


def dict_keys() -> Iterator[Any]:
    yield from ({number: 0, number + 1: 0} for number in range(8))


def numpy_scalars() -> Iterator[Any]:
    yield from (list(np.arange(number, number + 3)) for number in range(8))


def lists_of_slices() -> Iterator[Any]:
    yield from ([slice(number, number + 2), slice(number, number + 2)] for number in range(8))


class Made:
    """A batch sampler, or a sampler, of a generator."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __len__(self) -> int:
        return sum(1 for _ in self.make())


BATCHES = [
    one_list, growing_list, cleared_after, one_array, one_tensor, one_deque, one_set, inner_lists, tuples_of_lists,
    generators, slices_of_one_iterator, maps, ranges, tuples, texts, dict_keys, numpy_scalars, lists_of_slices,
]  # fmt: skip
