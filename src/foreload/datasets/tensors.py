"""Tensors in memory."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from foreload import _native
from foreload.batch.collate import MIN_BORROWED_BYTES, Collated, is_default_collate
from foreload.checks import Array
from foreload.order.index import as_indices, positions_of, require_nonempty, row_numbers
from foreload.protocol import Batch, BatchMemory, BatchOptions, NativeBatches
from foreload.record.progress import track

__all__ = ["CachedDataset", "gather", "tensor_assembly"]


def gather(
    source: torch.Tensor | Array,
    indices: slice | Sequence[int] | torch.Tensor | Array,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copy rows of a contiguous tensor, natively and without the GIL.

    Args:
        source: a contiguous CPU tensor or array of any dtype; its rows are ``source[i]``.
        indices: int64 row numbers, negative ones counting from the end; or a slice, which gives a view.
        out: a contiguous CPU tensor for the result, of shape ``(len(indices), *source.shape[1:])``, possibly
            page-locked; by default a new one.

    Raises:
        IndexError: an index is out of range; nothing has been written.
        ValueError, TypeError: ``source`` or ``out`` does not fit.

    >>> gather(torch.tensor([[1, 2], [3, 4], [5, 6]]), [2, 0])
    tensor([[5, 6],
            [1, 2]])
    """
    tensor = _as_tensor("source", source)
    if tensor.ndim == 0:
        raise ValueError("source must have rows; it is a scalar")
    if isinstance(indices, slice):
        view = tensor[indices]
        return view if out is None else out.copy_(view)
    rows = as_indices(indices)
    shape = (len(rows), *tensor.shape[1:])
    if out is None:
        out = torch.empty(shape, dtype=tensor.dtype)
    elif out.shape != shape or out.dtype != tensor.dtype or not out.is_contiguous() or out.device.type != "cpu":
        raise ValueError(
            f"out must be a contiguous CPU tensor of shape {tuple(shape)} and {tensor.dtype}, got "
            f"{tuple(out.shape)}, {out.dtype} on {out.device}"
        )
    if out.numel() == 0:
        _native.gather(np.empty((len(tensor), 0), np.uint8), rows, np.empty((len(rows), 0), np.uint8))
    else:
        _native.gather(_byte_rows(tensor), rows, _byte_rows(out))
    return out


def _as_tensor(name: str, data: Any) -> torch.Tensor:
    if isinstance(data, np.ndarray):
        data = torch.from_numpy(data)
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"{name} must be a tensor or an ndarray, got {type(data).__name__}")
    if data.device.type != "cpu" or data.layout is not torch.strided or not data.is_contiguous():
        raise ValueError(f"{name} must be contiguous and on the CPU, got {data.layout} on {data.device}")
    # A conjugate or negative may be a mere flag of a view, which its bytes do not show.
    return data.detach().resolve_conj().resolve_neg()


def _byte_rows(tensor: torch.Tensor) -> Array:
    """View a contiguous tensor as rows x bytes."""
    rows = len(tensor)
    flat = tensor.reshape(rows, -1) if tensor.numel() else tensor.reshape(rows, 0)
    return flat.view(torch.uint8).numpy()


class _Rows:
    """Tensors of equal length, and the form of their samples: a tensor, a tuple or a dict of rows."""

    def __init__(self, data: Any) -> None:
        self.names: list[str] | None = None
        self.single = False
        if isinstance(data, Mapping):
            self.names = list(data)
            fields = list(data.values())
        elif isinstance(data, (tuple, list)):
            fields = list(data)
        else:
            self.single = True
            fields = [data]
        if not fields:
            raise ValueError("data is empty; give at least one tensor")
        labels = self.names or range(len(fields))
        self.fields = [_as_tensor(f"data[{label!r}]", field) for label, field in zip(labels, fields, strict=True)]
        lengths = [len(field) if field.ndim else -1 for field in self.fields]
        if min(lengths) < 0 or len(set(lengths)) != 1:
            raise ValueError(f"the tensors in data must have one row per sample each; their lengths are {lengths}")
        self.count = lengths[0]

    def pack(self, fields: Sequence[Any], *, batch: bool) -> Any:
        """Put one value per field into the form of a sample, or of a batch as ``default_collate`` makes it."""
        if self.single:
            return fields[0]
        if self.names is not None:
            return dict(zip(self.names, fields, strict=True))
        return list(fields) if batch else tuple(fields)


def _are_samples(data: Any) -> bool:
    """Whether a list is one of samples, not of tensors."""
    return isinstance(data, list) and len(data) > 0 and isinstance(data[0], (tuple, Mapping))


class CachedDataset(Dataset[Any], NativeBatches):
    """A dataset held once, in shared memory: samples are views, and a batch is one native gather.

    Fast in a stock DataLoader too: its ``__getitems__`` gathers the whole batch and ``default_collate`` passes
    it through. Worker processes map the memory, they do not copy it.

    Args:
        data: a tensor, an ndarray, a tuple or dict of them, all of one length; or a map-style dataset (a
            list of tuples or dicts is one), which is loaded as a whole (its samples must collate to tensors).
        pin: page-lock the memory for fast copies to the GPU; by default if CUDA is available.
        share: put it into shared memory (if /dev/shm is too small: private memory, with a warning).

    Raises:
        ValueError, TypeError: ``data`` is empty, ragged, or not made of tensors.

    >>> data = CachedDataset((torch.arange(6.).view(3, 2), torch.tensor([0, 1, 2])))
    >>> data[1]
    (tensor([2., 3.]), tensor(1))
    >>> data[1][0].data_ptr() == data[1][0].data_ptr()   # a view, not a copy
    True
    """

    def __init__(self, data: Any, *, pin: bool | None = None, share: bool = True) -> None:
        if not isinstance(data, (torch.Tensor, np.ndarray, tuple, list, Mapping)) or _are_samples(data):
            data = _preload(data)
        rows = _Rows(_contiguous(data))
        rows.fields = [_shared(field) if share else field for field in rows.fields]
        if pin if pin is not None else torch.cuda.is_available():
            for field in rows.fields:
                _page_lock(field)
        self._rows = rows

    def __len__(self) -> int:
        """Count the samples."""
        return self._rows.count

    def __getitem__(self, index: Any) -> Any:
        """Return a sample as views, no copy; for a slice, a batch of them."""
        if not isinstance(index, slice):
            index = operator.index(index)
        return self._rows.pack([field[index] for field in self._rows.fields], batch=False)

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Gather a batch, which ``default_collate`` passes through."""
        rows = positions_of(indices, len(self)) if isinstance(indices, slice) else row_numbers(indices)
        if rows is None:
            return [self[index] for index in indices]
        batch = self._rows.pack([gather(field, rows) for field in self._rows.fields], batch=True)
        return Collated(batch, len(rows))

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> TensorAssembly | None:
        """Gather whole batches for foreload's DataLoader, unless a subclass loads samples itself."""
        own = (
            type(self).__getitem__ is CachedDataset.__getitem__
            and type(self).__getitems__ is CachedDataset.__getitems__
        )
        if not own or not is_default_collate(spec.collate_fn):
            return None

        def collate(indices: Any) -> Any:
            samples: Any = self.__getitems__(indices)
            return default_collate(samples)

        return TensorAssembly(self._rows, buffers, collate)


def tensor_assembly(
    dataset: TensorDataset | torch.Tensor, spec: BatchOptions, buffers: BatchMemory
) -> TensorAssembly | None:
    """Gather the rows of a tensor, or of torch's ``TensorDataset``; None unless its tensors are ordinary ones."""
    if not is_default_collate(spec.collate_fn) or not all(map(_is_ordinary, _tensors_of(dataset))):
        return None
    rows = _Rows(dataset.tensors if isinstance(dataset, TensorDataset) else dataset)

    def collate(indices: Any) -> Any:
        return default_collate([dataset[index] for index in indices])

    def is_same() -> bool:
        tensors = _tensors_of(dataset)
        return len(tensors) == len(rows.fields) and all(
            tensor.data_ptr() == field.data_ptr()
            and tensor.shape == field.shape
            and tensor.dtype is field.dtype
            and not tensor.requires_grad
            for tensor, field in zip(tensors, rows.fields, strict=True)
        )

    return TensorAssembly(rows, buffers, collate, is_same)


def _tensors_of(dataset: TensorDataset | torch.Tensor) -> tuple[torch.Tensor, ...]:
    return dataset.tensors if isinstance(dataset, TensorDataset) else (dataset,)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.ndim > 0
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


class TensorAssembly:
    """Batches of rows; an :class:`~foreload.protocol.Assembly`.

    Args:
        rows: the tensors.
        buffers: memory for the batches.
        collate: makes a batch as torch does, of indices that are not plain row numbers.
        is_same: tells whether the dataset still has these tensors.
    """

    depth: int | None = None

    def __init__(
        self,
        rows: _Rows,
        buffers: BatchMemory,
        collate: Callable[[Any], Any],
        is_same: Callable[[], bool] = lambda: True,
    ) -> None:
        self._rows = rows
        self._collate = collate
        self._is_same = is_same
        self._buffers = buffers
        self._sources = [_byte_rows(field) for field in rows.fields]
        self._native = _native.RowSources(self._sources)
        self._likes: tuple[int, list[torch.Tensor]] = -1, []
        self.sample_bytes = sum(source.shape[1] for source in self._sources)

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        indices = _listed(indices)
        rows = row_numbers(indices)
        if rows is None or not self._is_same():
            return Batch(_native.PythonJob(1, 1, lambda *_: None, lambda: None), lambda: self._collate(indices))
        where = require_nonempty(rows)
        outs = [self._buffers.take((len(where), *field.shape[1:]), field.dtype) for field in self._rows.fields]
        job = _native.GatherJob(self._sources, where, [_byte_rows(out) for out in outs], len(where))
        return Batch(job, lambda: self._rows.pack(outs, batch=True))

    def gather(self, indices: Any) -> Any:
        """Make a batch at once, in the calling thread."""
        indices = _listed(indices)
        rows = row_numbers(indices)
        if rows is None or not self._is_same():
            return self._collate(indices)
        where = require_nonempty(rows)
        outs = self._allocate(len(where))
        self._native.gather(where, [out.data_ptr() for out in outs])
        return self._rows.pack(outs, batch=True)

    def _allocate(self, count: int) -> list[torch.Tensor]:
        size, likes = self._likes
        if size != count:
            # A tensor like another one is made in half the time.
            likes = [_like(field, count) for field in self._rows.fields]
            self._likes = count, likes
        return [
            torch.empty_like(like)
            if like.nbytes < MIN_BORROWED_BYTES
            else self._buffers.take(tuple(like.shape), like.dtype)
            for like in likes
        ]


def _listed(indices: Any) -> Any:
    return list(indices) if isinstance(indices, (Iterator, set, frozenset)) else indices


def _like(field: torch.Tensor, count: int) -> torch.Tensor:
    """Return a tensor of the form of ``count`` rows of a field, whose memory is never touched."""
    return torch.empty((count, *field.shape[1:]), dtype=field.dtype)


def _contiguous(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data)
    if isinstance(data, torch.Tensor) and data.layout is torch.strided:
        return data.detach().cpu().contiguous()
    if isinstance(data, Mapping):
        return {name: _contiguous(field) for name, field in data.items()}
    if isinstance(data, (tuple, list)):
        return tuple(_contiguous(field) for field in data)
    return data


def _preload(dataset: Any) -> Any:
    """Load a map-style dataset and collate it to tensors."""
    try:
        count = len(dataset)
    except TypeError:
        raise TypeError(
            "data must be a tensor, an ndarray, a tuple or dict of them, or a map-style dataset with a length, "
            f"got {type(dataset).__name__}"
        ) from None
    if count == 0:
        raise ValueError("data is an empty dataset")
    return default_collate([dataset[i] for i in track(range(count), "preloading", total=count, after=1)])


def _shared(field: torch.Tensor) -> torch.Tensor:
    try:
        # A copy, so that the caller's own tensor stays where it is.
        return field.clone().share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except (RuntimeError, OSError) as error:
        warnings.warn(
            f"CachedDataset: no shared memory for {field.nbytes} bytes ({error}); using private memory, which "
            "worker processes started by 'spawn' copy. A larger /dev/shm (docker run --shm-size) avoids this.",
            stacklevel=3,
        )
        return field


def _page_lock(field: torch.Tensor) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError("pin=True needs CUDA, and there is none; leave pin=None to pin only if it helps")
    code = int(torch.cuda.cudart().cudaHostRegister(field.data_ptr(), field.nbytes, 0))  # type: ignore[no-untyped-call]
    if code != 0:
        warnings.warn(f"CachedDataset: memory could not be page-locked (CUDA error {code})", stacklevel=3)
