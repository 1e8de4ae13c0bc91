"""What workers need to know of a loader to make its batches, and which of them the native core can make."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset, TensorDataset

from foreload.batch.assembly import Assembly, SubsetAssembly
from foreload.batch.buffers import Buffers
from foreload.batch.spec import BatchSpec
from foreload.datasets.tensors import tensor_assembly

__all__ = ["native_assembly"]


def native_assembly(spec: BatchSpec, dataset: Any, key: tuple[int, int], buffers: Buffers) -> Assembly | None:
    """Give the assembly of a dataset that the native core can load by itself; None for any other."""
    if not spec.auto_collation or spec.transform is not None:
        return None
    if type(dataset) is Subset:
        whole = native_assembly(spec, dataset.dataset, key, buffers)
        return None if whole is None else SubsetAssembly(whole, dataset.indices)
    if type(dataset) is TensorDataset:
        return tensor_assembly(dataset, spec, buffers)
    make = getattr(dataset, "batch_assembly", None)
    assembly: Assembly | None = None if make is None else make(spec, key, buffers)
    return assembly
