"""The datasets whose batches are made by native code."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from foreload._torch import wrapper_kind
from foreload.batch.assembly import SubsetAssembly
from foreload.batch.spec import BatchSpec
from foreload.batch.unfinished import UnfinishedBatches
from foreload.cache.wrappers import unwrap
from foreload.protocol import Assembly, BatchMemory, NativeBatches

__all__ = ["finishes_on_device", "native_assembly"]

_MAKE_SAMPLES = frozenset({"__getitem__", "prepare_sample", "finish_sample"})


def finishes_on_device(dataset: Any) -> bool:
    """Return whether batches of a dataset may be :class:`foreload.batch.unfinished.UnfinishedBatch` objects."""
    while wrapper_kind(dataset) is Subset:
        dataset = dataset.dataset
    return isinstance(dataset, UnfinishedBatches) and dataset.finishes_on_device


def native_assembly(spec: BatchSpec, dataset: Any, key: tuple[int, int], buffers: BatchMemory) -> Assembly | None:
    """Return the assembly of a dataset that native code can load by itself; None for any other."""
    if not spec.auto_collation or spec.transform is not None:
        return None
    kind = wrapper_kind(dataset)
    if kind is Subset:
        whole = native_assembly(spec, dataset.dataset, key, buffers)
        if whole is None or (spec.has_cache and wrapper_kind(unwrap(dataset)[0]) is Subset):
            return None  # a Subset by negative indices, say, which are no places in a cache
        return SubsetAssembly(whole, dataset)
    is_tensor = type(dataset) is torch.Tensor and spec.on_error == "raise" and not spec.has_cache
    if kind is TensorDataset or is_tensor:
        from foreload.datasets.tensors import tensor_assembly

        return tensor_assembly(dataset, spec, buffers)
    return dataset.batch_assembly(spec, key, buffers) if _makes_batches(dataset) else None


def _makes_batches(dataset: Any) -> bool:
    """Whether a dataset has native batches, and no subclass of the class that defines them makes the samples."""
    for kind in type(dataset).__mro__:
        if "batch_assembly" in kind.__dict__:
            return isinstance(dataset, NativeBatches)
        if not kind.__dict__.keys().isdisjoint(_MAKE_SAMPLES):
            return False
    return False
