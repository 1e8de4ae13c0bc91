"""Batches of samples that are rows of tensors in memory, gathered without a call of Python code for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset, default_collate

from foreload._torch import has_plain_tensors, wrapper_kind
from foreload.batch.assembly import SubsetAssembly, note_sample
from foreload.batch.collate import is_default_collate
from foreload.batch.collated import Collated
from foreload.cache.view import holds_values
from foreload.checks import Indices, optional
from foreload.datasets.tensor_rows import Rows
from foreload.datasets.tensors import CachedDataset, TensorAssembly, gather
from foreload.order.index import row_numbers
from foreload.order.own_state import has_state
from foreload.protocol import Assembly, Batch, BatchMemory, BatchOptions, EpochListener

__all__ = ["fields_of", "gather_samples", "is_in_memory", "row_assembly"]


def is_in_memory(dataset: Any) -> bool:
    """Whether loading a sample only indexes values that the dataset holds.

    Such are lists, arrays and tensors, and classes whose ``__getitem__`` is ``return self.data[index]``, or a
    tuple of several of these.

    >>> class Pairs:
    ...     def __init__(self): self.rows, self.labels = [10, 20], np.array([0, 1])
    ...     def __getitem__(self, index): return self.rows[index], self.labels[index]
    >>> is_in_memory(Pairs()), is_in_memory([1, 2]), is_in_memory({0: 1})
    (True, True, False)
    """
    if wrapper_kind(dataset) is Subset:
        return is_in_memory(dataset.dataset)
    if type(dataset) is CachedDataset or holds_values(dataset):
        return True
    fields, _ = fields_of(dataset)
    return len(fields) > 0 and all(type(field) in (list, tuple, np.ndarray, torch.Tensor) for field in fields)


def gather_samples(dataset: Any, indices: Sequence[Any]) -> Sequence[Any] | None:
    """Return the samples of a batch, gathered natively; None if they are not rows of ordinary tensors.

    ``default_collate`` takes the result for a whole batch, any other code for a list of samples.

    >>> gather_samples(TensorDataset(torch.tensor([5, 6, 7])), [2, 0])[0]
    (tensor(7),)
    """
    while wrapper_kind(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[index] for index in indices]
    if type(dataset) is CachedDataset:
        return dataset.__getitems__(indices)
    fields, is_single = fields_of(dataset)
    rows = row_numbers(indices) if fields and has_plain_tensors() and all(map(_is_ordinary, fields)) else None
    if rows is None or not len(rows):
        return None
    try:
        batch = [gather(field, rows) for field in fields]
    except IndexError:  # the dataset's own error says it better
        return None
    return Collated(batch[0] if is_single else batch, len(rows))


def row_assembly(dataset: Any, spec: BatchOptions, buffers: BatchMemory) -> Assembly | None:
    """Return an assembly for a class of the user's whose samples are rows of ordinary tensors; None for any other.

    It is for the thread of the loop, since it loads from the tensors as they are when a batch is requested.
    """
    if wrapper_kind(dataset) is Subset:
        whole = row_assembly(dataset.dataset, spec, buffers)
        return None if whole is None else SubsetAssembly(whole, dataset)
    plain = spec.auto_collation and spec.transform is None and spec.cache is None and spec.on_error == "raise"
    fields, is_single = fields_of(dataset)
    if not (plain and is_default_collate(spec.collate_fn) and _are_rows(fields)) or has_state(dataset):
        return None
    if isinstance(dataset, EpochListener):
        return None

    def collate(indices: Any) -> Any:
        samples = []
        for position, index in enumerate(indices):
            try:
                samples.append(dataset[index])
            except Exception as error:
                note_sample(error, index, position)
                raise
        return default_collate(samples)

    rows = Rows(fields[0] if is_single else tuple(fields))

    def is_same() -> bool:
        return has_plain_tensors() and rows.are_of(fields_of(dataset)[0])

    return _RowAssembly(rows, buffers, collate, is_same)


class _RowAssembly(TensorAssembly):
    """The same rows, but the dataset itself raises the error of an index that it does not have."""

    def start(self, indices: Any) -> Batch:
        indices = list(indices) if isinstance(indices, Iterator) else indices
        try:
            return super().start(indices)
        except IndexError:
            return self.start_collating(indices)

    def gather(self, indices: Any) -> Any:
        indices = list(indices) if isinstance(indices, Iterator) else indices
        try:
            return super().gather(indices)
        except IndexError:
            return self.collate(indices)

    def gather_rows(self, rows: Indices) -> Any:
        try:
            return super().gather_rows(rows)
        except IndexError:
            return self.collate(rows)


def _are_rows(fields: Sequence[Any]) -> bool:
    return len(fields) > 0 and all(map(_is_ordinary, fields)) and len({len(field) for field in fields}) == 1


def _is_ordinary(field: Any) -> bool:
    return (
        type(field) is torch.Tensor
        and field.layout is torch.strided
        and field.device.type == "cpu"
        and field.ndim > 0
        and field.is_contiguous()
        and not (field.requires_grad or field.is_quantized or field.is_conj() or field.is_neg())
    )


def fields_of(dataset: Any) -> tuple[Sequence[Any], bool]:
    """Return what a dataset takes its samples from, and whether a sample is an element, not a tuple of them."""
    kind = type(dataset)
    if kind in (list, tuple):
        return (), False
    if kind is torch.Tensor:
        return (dataset,), True
    if wrapper_kind(dataset) is TensorDataset:
        return dataset.tensors, False
    if getattr(kind, "__getitems__", None) is not None:  # whose batches need not be those of its samples
        return (), False
    method = getattr(kind, "__getitem__", None)
    plain: Any = object.__getattribute__
    if not isinstance(method, FunctionType) or kind.__getattribute__ is not plain:
        return (), False
    code = method.__code__
    form = _FORMS.get(code.co_code)
    if form is None or (code.co_argcount, code.co_kwonlyargcount, code.co_flags & _VARIABLE) != (2, 0, 0):
        return (), False
    own = optional(dataset, "__dict__") or {}
    if "__getitems__" in own or not all(name in own and not hasattr(kind, name) for name in code.co_names):
        return (), False  # properties, or whatever else runs code
    return tuple(own[name] for name in code.co_names), form in (_one, _one_named)


# The methods that are recognised, by their bytecode: it has no names, and anything else that a method does
# would be in it.
def _one(self: Any, index: Any) -> Any:
    return self.a[index]


def _one_named(self: Any, index: Any) -> Any:
    a = self.a[index]
    return a  # noqa: RET504


def _two(self: Any, index: Any) -> Any:
    return self.a[index], self.b[index]


def _two_named(self: Any, index: Any) -> Any:
    a = self.a[index]
    b = self.b[index]
    return a, b


def _three(self: Any, index: Any) -> Any:
    return self.a[index], self.b[index], self.c[index]


_FORMS = {form.__code__.co_code: form for form in (_one, _one_named, _two, _two_named, _three)}

# Flags of code: *args and **kwargs.
_VARIABLE = 0x04 | 0x08
