"""What workers need to know of a loader to make its batches, and which of them the native core can make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch.utils.data import Subset, TensorDataset

from foreload.datasets.tensors import tensor_assembly
from foreload.stages.batch import Assembly, SubsetAssembly
from foreload.stages.buffers import Buffers
from foreload.stages.failure import OnError, SampleError

if TYPE_CHECKING:
    from foreload.stages.cache import LoaderCache

__all__ = ["Making", "WorkersMaking", "native_assembly"]


class Making(Protocol):
    """How a loader makes batches: the part of it that workers need."""

    @property
    def batch_size(self) -> int | None: ...
    @property
    def drop_last(self) -> bool: ...
    @property
    def collate_fn(self) -> Callable[[Any], Any]: ...
    @property
    def transform(self) -> Callable[[Any], Any] | None: ...
    @property
    def on_error(self) -> OnError: ...
    @property
    def errors(self) -> list[SampleError]: ...
    @property
    def _auto_collation(self) -> bool: ...
    @property
    def _pin_device(self) -> str | None: ...
    @property
    def _cache(self) -> LoaderCache | None: ...


@dataclass
class WorkersMaking:
    """The same for a worker process, which gets nothing else of the loader."""

    batch_size: int | None
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    transform: Callable[[Any], Any] | None
    on_error: OnError
    _auto_collation: bool
    errors: list[SampleError] = field(default_factory=list)
    _pin_device: str | None = None  # what pins memory is the consumer's process
    _cache: LoaderCache | None = None  # the dataset is seen through the store already

    @classmethod
    def of(cls, making: Making) -> WorkersMaking:
        """Take it from a loader."""
        return cls(
            making.batch_size,
            making.drop_last,
            making.collate_fn,
            making.transform,
            making.on_error,
            making._auto_collation,
        )


def native_assembly(making: Making, dataset: Any, key: tuple[int, int], buffers: Buffers) -> Assembly | None:
    """Give the assembly of a dataset that the native core can load by itself; None for any other."""
    if not making._auto_collation or making.transform is not None:
        return None
    if type(dataset) is Subset:
        whole = native_assembly(making, dataset.dataset, key, buffers)
        return None if whole is None else SubsetAssembly(whole, dataset.indices)
    if type(dataset) is TensorDataset:
        return tensor_assembly(dataset, making, buffers)
    make = getattr(dataset, "__assembly__", None)
    assembly: Assembly | None = None if make is None else make(making, key, buffers)
    return assembly
