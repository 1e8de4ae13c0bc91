"""The time that a GPU takes, by events on its streams, and that in which a loop leaves it idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from typing import Any, NamedTuple

import torch


class Gpu:
    """The device that is measured."""

    device = torch.device("cuda")

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise SystemExit(
                "benchmarks/gpu.py measures a CUDA device, and torch finds none: nothing was measured."
            )
        self.name = torch.cuda.get_device_name()

    def event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1e-3

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def host_memory(self, size: int, *, pin: bool) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.uint8, pin_memory=pin)

    def copy(self, host: torch.Tensor) -> torch.Tensor:
        return host.to(self.device, non_blocking=True)


class Pass(NamedTuple):
    """A loop over some batches.

    Attributes:
        seconds: from the first step's end to the last one's, per step.
        first: seconds from the beginning to the end of the first step.
        idle: the share of the time, from the first step's end on, in which the GPU did no work of a step.
    """

    seconds: float
    first: float
    idle: float


def rate(gpu: Gpu, host: torch.Tensor, repeats: int = 10) -> float:
    """GB/s of copies of some memory to the device."""
    start = gpu.event()
    for _ in range(repeats):
        gpu.copy(host)
    end = gpu.event()
    gpu.synchronize()
    return repeats * host.nbytes / gpu.seconds(start, end) / 1e9


def loop(gpu: Gpu, batches: Iterable[Any], step: Callable[[Any], None], steps: int) -> Pass:
    """Work with batches, as a training loop does: without waiting for the GPU, but once after the first step."""
    began = time.perf_counter()
    first = 0.0
    spans = []
    for batch in islice(batches, steps):
        begin = gpu.event()
        step(batch)
        spans.append((begin, gpu.event()))
        if len(spans) == 1:
            gpu.synchronize()
            first = time.perf_counter() - began
    gpu.synchronize()
    if len(spans) < 2:
        raise ValueError(f"a pass needs two steps, and there were batches for {len(spans)}")
    total = gpu.seconds(spans[0][1], spans[-1][1])
    idle = sum(gpu.seconds(end, begin) for (_, end), (begin, _) in pairwise(spans))
    return Pass(total / (len(spans) - 1), first, idle / total)
