"""Loaders and loops for a simulated device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from foreload._torch import TorchIterator
from tests.fake_device import FakeDevice

Use = Callable[..., FakeDevice]


class OfTorch(TorchIterator):
    """Batches of torch's loader, whose memory nobody writes to while somebody holds them."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._made = batches

    def __next__(self) -> Any:
        return next(self._made)


class Reusing:
    """A loader that takes a batch's memory back when nobody holds the batch, and writes the next one there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool = [torch.zeros(3)]
        self.given = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        return OfTorch(self._made())

    def _made(self) -> Iterator[torch.Tensor]:
        for number in range(self.count):
            memory = self.pool.pop() if self.pool else torch.zeros(3)
            memory.fill_(number)
            self.given += 1
            batch = memory[:]
            weakref.finalize(batch, self.pool.append, memory)
            yield batch
            del batch


def numbers(count: int) -> list[torch.Tensor]:
    return [torch.tensor([float(i)]) for i in range(count)]


def train(device: FakeDevice, batches: Any, *, switches: bool = False) -> list[list[float]]:
    """Work with each batch on the device without ever waiting for it; what came of it in the end."""
    results: list[torch.Tensor] = []
    for batch in batches:
        step = device.kernel(lambda x: x + 1, batch)
        results.append(device.kernel(lambda x, y: x + y, step, batch))
        del batch, step
        if switches and len(results) % 3 == 2:
            device.switch()
    device.settle()
    return [result.tolist() for result in results]


def wanted(count: int) -> list[list[float]]:
    return [[2.0 * number + 1] * 3 for number in range(count)]
