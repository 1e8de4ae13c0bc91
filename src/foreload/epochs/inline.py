"""Epochs without workers: the calling thread makes each batch when it is requested."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from foreload.batch.worker_progress import BEGUN, StatefulSamples
from foreload.datasets.tensors import TensorAssembly
from foreload.epochs.base import Epoch, EpochSpec
from foreload.protocol import Assembly

__all__ = ["GatherEpoch", "InlineEpoch"]


class InlineEpoch(Epoch):
    """Makes each batch in the calling thread, when it is requested."""

    def __init__(self, spec: EpochSpec, assembly: Assembly) -> None:
        super().__init__(spec)
        self._assembly = assembly
        cursor = spec.cursor
        progress, arrays = cursor.streams.get(0, BEGUN), cursor.order.is_array
        errors = spec.batches.errors
        source = cursor.restore(
            lambda: StatefulSamples.of(spec.dataset, progress, self._load, arrays=arrays, errors=errors)
        )
        if source is not None:
            cursor.live, cursor.moving = source.state, self._turn

    def _load(self, indices: Any) -> Any:
        batch = self._assembly.start(indices)
        batch.job.run_here()
        return batch.take()

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        indices = self._draw()
        number = self._order.num_drawn - 1

        def make() -> Any:
            batch = self._assembly.start(indices)
            batch.job.run_in(self._lane, number)
            return batch.take()

        return number, self._samples_of(indices), make


class GatherEpoch(Epoch):
    """Gathers each batch of rows in the calling thread, when it is requested, with as few calls as possible.

    Never ahead of the loop, which may change the tensors: the next batch has what they hold when it is requested.
    """

    def __init__(self, spec: EpochSpec, assembly: TensorAssembly) -> None:
        super().__init__(spec)
        self._assembly = assembly
        self._is_plain = self._order.is_array and not self._watches_memory
        self._make = assembly.gather_rows if self._order.is_array else assembly.gather

    def _deliver(self) -> Any:
        order = self._order
        if not (self._is_plain and order.ready):
            return super()._deliver()
        # The same for the batches that are drawn already: of small ones, most of the time is spent on calls.
        loop = self._loop
        loop.mark_requested()
        indices = next(order)
        samples, number = len(indices), order.num_drawn - 1
        try:
            batch = self._make(indices)
            loop.gathered(samples, samples * self._assembly.sample_bytes)
        except Exception:
            self._mark_delivered(number)
            raise
        self._mark_delivered(number)
        loop.mark_delivered(samples)
        return batch

    def _next(self) -> tuple[int, int, Callable[[], Any]]:
        indices = self._draw()
        samples = self._samples_of(indices)
        return self._order.num_drawn - 1, samples, partial(self._gather, indices, samples)

    def _gather(self, indices: Any, samples: int) -> Any:
        batch = self._make(indices)
        self._loop.gathered(samples, samples * self._assembly.sample_bytes)
        return batch
