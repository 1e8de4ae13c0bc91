"""Iterators under the names that torch's have for what they keep, which scripts and frameworks use."""

from __future__ import annotations

from typing import Any, NamedTuple

from foreload._torch import TorchIterator

__all__ = ["KEPT_OF_LOADER", "EpochWrapper", "KeptOfLoader", "TorchNames"]


class KeptOfLoader(NamedTuple):
    """Attributes of a loader that torch's iterators keep, under these names with ``_`` before them."""

    num_workers: int
    prefetch_factor: int | None
    drop_last: bool
    pin_memory: bool
    persistent_workers: bool
    timeout: float
    dataset_kind: int
    IterableDataset_len_called: int | None


KEPT_OF_LOADER = {f"_{name}" for name in KeptOfLoader._fields} | {"_base_seed", "_collate_fn", "_auto_collation"}


class TorchNames(TorchIterator):
    """An iterator under names that torch has for itself, and that scripts and frameworks use all the same.

    It is one of torch's by its class alone, by which frameworks know that it cannot be pickled. What torch keeps
    there of its own work (queues, indices on their way) is not there.
    """

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError in Python's words."""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _next_data(self) -> Any:
        return next(self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        # Torch's would return, and the loop would then get no batch.
        raise RuntimeError("an epoch on a device cannot be begun again by _reset(): call iter(loader)")


class EpochWrapper(TorchNames):
    """An iterator that takes the batches of another one ahead of the loop.

    Attributes:
        _source: the other one; those of torch's names that it has not, this has not either.
    """

    _source: Any

    def _count_ahead(self) -> int:
        """Return the number of batches that are ahead of the loop."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Return what the other iterator has under a name of torch's."""
        if name in ("_workers", "_dataset", "_index_sampler", "_shutdown", *KEPT_OF_LOADER):
            return getattr(self._source, name)
        return super().__getattr__(name)

    @property
    def _num_yielded(self) -> int:  # type: ignore[override]
        return int(self._source._num_yielded) - self._count_ahead()

    def close(self) -> None:
        """End the epoch early."""
        raise NotImplementedError

    def _shutdown_workers(self) -> None:
        self.close()
        self._source._shutdown_workers()
