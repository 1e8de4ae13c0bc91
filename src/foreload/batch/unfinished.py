"""Batches that are finished on a device, after they have been moved there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreload.batch.failure import SampleError
from foreload.options import OnError
from foreload.protocol import NativeBatches

__all__ = ["UnfinishedBatch", "UnfinishedBatches", "finisher"]


class UnfinishedBatch:
    """A batch that is made in two parts, of which the second is done on a device.

    A dataset makes such batches only if :attr:`foreload.protocol.BatchOptions.device` says where that is.
    """

    __slots__ = ()

    def finish(self, on_error: OnError, errors: list[SampleError]) -> Any:
        """Return the batch, made where its tensors are; called on the stream of the copies.

        Args:
            on_error: what to do about samples that cannot be loaded.
            errors: where they are recorded.

        Raises:
            EmptyBatch: none of its samples could be loaded.
            Exception: the first failure, naming the sample, if ``on_error`` is ``"raise"``.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method finish(on_error, errors)")


class UnfinishedBatches(NativeBatches):
    """A dataset whose own batches may be :class:`UnfinishedBatch` objects, if ``finishes_on_device``."""

    finishes_on_device: bool = False


def finisher(
    on_error: OnError, errors: list[SampleError], transform: Callable[[Any], Any] | None
) -> Callable[[Any], Any]:
    """Return what finishes batches that are unfinished; ``transform`` is then called with each batch."""

    def finish(batch: Any) -> Any:
        if isinstance(batch, UnfinishedBatch):
            batch = batch.finish(on_error, errors)
        return batch if transform is None else transform(batch)

    return finish
