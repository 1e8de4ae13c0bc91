"""Batches of an iterable dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.collate import collate_into, is_default_collate, lending, pinned
from foreload.batch.failure import SampleError, stop_error
from foreload.order.mosaic import is_streaming
from foreload.order.resume import has_state
from foreload.record.spans import Stage

if TYPE_CHECKING:
    from foreload.batch.spec import BatchSpec

__all__ = ["StreamBatches"]


class StreamBatches(Iterator[Any]):
    """The batches of one iterator over a dataset.

    Args:
        spec: how batches are made.
        dataset: the dataset to iterate over.
        buffers: memory for the batches.
        skip: the number of batches that were delivered before.
        state: of the dataset or its iterator after them, if one of them has ``state_dict``.

    Attributes:
        samples: the number of samples in the latest batch.
        may_change: whether batches may hold memory that the dataset writes again.
    """

    def __init__(self, spec: BatchSpec, dataset: Any, buffers: Buffers, skip: int = 0, state: Any = None) -> None:
        if state is not None and has_state(dataset):
            dataset.load_state_dict(state["state"])
            skip = 0
        self._items = iter(dataset)
        self._stateful = next((part for part in (self._items, dataset) if has_state(part)), None)
        self._counts = is_streaming(dataset)
        self._read = self.samples = 0
        if state is not None and has_state(self._items):
            self._items.load_state_dict(state["state"])
            skip = 0
        self._size = spec.batch_size if spec.auto_collation else None
        self._drop_last = spec.drop_last
        collate = spec.collate_fn
        self._collate = collate_into(buffers) if is_default_collate(collate) else collate
        self.may_change = self._size is None or not is_default_collate(collate)
        self._buffers = buffers
        self._pin_device = spec.pin_device
        self._on_error = spec.on_error
        self._errors = spec.errors
        self._ended = state is not None and state["ended"]
        for _ in range(skip):
            try:
                self._samples()
            except StopIteration:
                break
            except Exception:  # the loop got it at the time, and went on
                continue

    def state(self) -> Any:
        """Return the state of the dataset or its iterator; None if neither has ``state_dict``."""
        if self._counts:
            return {"samples": self._read}
        return None if self._stateful is None else {"state": self._stateful.state_dict(), "ended": self._ended}

    def __next__(self) -> Any:
        """Return the next batch."""
        with _native.Measure(Stage.sample, 0) as measure:
            samples = self._samples()
            self.samples = measure.samples = 1 if self._size is None else len(samples)
        with _native.Measure(Stage.batch, self.samples), lending(self._buffers):
            try:
                batch = self._collate(samples)
            except StopIteration as error:
                error.add_note("foreload: while collating a batch of the iterable dataset")
                raise stop_error(error) from error
            return pinned(batch, self._pin_device)

    def _item(self) -> Any:
        while True:
            try:
                return next(self._items)
            except StopIteration:
                raise
            except Exception as error:
                if self._on_error == "raise":
                    raise
                self._errors.append(SampleError.of(None, error, "skip"))

    def _samples(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._size is None:
            item = self._item()
            self._read += 1
            return item
        # Only next() is called: a dataset that is its own iterator may start over if iter() is called again.
        samples = []
        for _ in range(self._size):
            try:
                samples.append(self._item())
            except StopIteration:
                break
        self._read += len(samples)
        self._ended = len(samples) < self._size
        if not samples or (self._ended and self._drop_last):
            raise StopIteration
        return samples
