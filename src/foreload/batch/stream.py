"""The batches of one iterator over an iterable dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.collate import collate_into, is_default_collate, lending, pinned
from foreload.batch.failure import SampleError
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
        dataset: what is iterated.
        buffers: where batches are put.
        skip: so many batches were given before.
        state: of the dataset or its iterator after them, if one of them can tell it.

    Attributes:
        samples: of the batch given last.
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
            except Exception:  # it was raised in the loop then, which went on
                continue

    def state(self) -> Any:
        """Give the state of the dataset or its iterator; None where they cannot tell it."""
        if self._counts:
            return {"samples": self._read}
        return None if self._stateful is None else {"state": self._stateful.state_dict(), "ended": self._ended}

    def __next__(self) -> Any:
        """Read the samples of a batch, and collate them."""
        with _native.Measure(Stage.sample, 0) as measure:
            samples = self._samples()
            self.samples = measure.samples = 1 if self._size is None else len(samples)
        with _native.Measure(Stage.batch, self.samples), lending(self._buffers):
            batch = self._collate(samples)
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
        # By next() alone: a dataset that is its own iterator may start over when asked for another.
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
