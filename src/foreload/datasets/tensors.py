"""Tensors in memory."""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate

from foreload import _native
from foreload._torch import has_plain_tensors
from foreload.batch.collate import MIN_LENT_BYTES, is_default_collate
from foreload.batch.collated import own_getitems
from foreload.batch.containers import Container
from foreload.checks import Array, Indices, check_bool, check_index, inherits
from foreload.datasets.preload import preload
from foreload.datasets.tensor_rows import Rows, as_tensor, byte_rows, check_plain, row_bytes, without_rows
from foreload.order.index import as_indices, positions_of, require_nonempty, row_numbers
from foreload.protocol import Batch, BatchMemory, BatchOptions, NativeBatches

__all__ = ["CachedDataset", "TensorAssembly", "gather", "tensor_assembly"]

# Mappings of tensors whose samples are such mappings too; those of any other are dicts.
_KEPT = (OrderedDict, defaultdict)

_data_ptr, _empty_like = torch.Tensor.data_ptr, torch.empty_like


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
            page-locked, in memory of its own; by default a new one.

    Raises:
        IndexError: an index is out of range; nothing has been written.
        ValueError, TypeError: ``source`` or ``out`` does not fit.

    >>> gather(torch.tensor([[1, 2], [3, 4], [5, 6]]), [2, 0])
    tensor([[5, 6],
            [1, 2]])
    """
    tensor = as_tensor("source", source)
    if tensor.ndim == 0:
        raise ValueError("source must have rows; it is a scalar")
    if isinstance(indices, slice):
        view = tensor[indices]
        return view if out is None else _checked_out(out, tensor, len(view)).copy_(view)
    rows = as_indices(indices)
    if out is None:
        out = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, device="cpu")
    else:
        _checked_out(out, tensor, len(rows))
    if out.numel() == 0:
        _native.gather(np.empty((len(tensor), 0), np.uint8), rows, np.empty((len(rows), 0), np.uint8))
    else:
        _native.gather(byte_rows(tensor), rows, byte_rows(out))
    return out


def _checked_out(out: torch.Tensor, source: torch.Tensor, count: int) -> torch.Tensor:
    """Return the tensor that ``count`` rows are to be copied to; raise ValueError unless it fits them."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be a tensor or None, got {type(out).__name__}")
    shape = (count, *source.shape[1:])
    if out.shape != shape or out.dtype != source.dtype or not out.is_contiguous() or out.device.type != "cpu":
        raise ValueError(
            f"out must be a contiguous CPU tensor of shape {tuple(shape)} and {source.dtype}, got "
            f"{tuple(out.shape)}, {out.dtype} on {out.device}"
        )
    first, begin = source.data_ptr(), out.data_ptr()
    # (Rows would be overwritten before they are read.)
    if out.nbytes and source.nbytes and begin < first + source.nbytes and first < begin + out.nbytes:
        raise ValueError("out shares memory with source; give a tensor of its own, or out=None")
    return out


def _are_samples(data: Any) -> bool:
    """Whether this is a list, which is a dataset to a loader too: columns are in a tuple or dict."""
    return isinstance(data, list) and len(data) > 0


class CachedDataset(Dataset[Any], NativeBatches):
    """A dataset held once, in shared memory: samples are views, and a batch is one native gather.

    Fast in a stock DataLoader too: its ``__getitems__`` gathers the whole batch and ``default_collate`` passes
    it through. Worker processes map the memory, they do not copy it. Batches are copies; what changes a sample in
    place changes the dataset, as with torch's ``TensorDataset``: clone it first.

    Args:
        data: a tensor, an ndarray, a (named) tuple or dict of them, all of one length; or a map-style dataset (any
            list is one), which is loaded as a whole (its samples must collate to tensors).
            Arrays of the other byte order are converted. A dataset's samples keep their types; those of a mapping
            of tensors are dicts, unless it is an ``OrderedDict`` or ``defaultdict``.
        pin: page-lock the memory for fast copies to the GPU; by default if CUDA is available, except a file's.
        share: put it into shared memory (if /dev/shm is too small: private memory, with a warning). What lies in
            shared memory already, or is mapped from a file (``np.load(path, mmap_mode="r")``), is not copied, so
            changes of it show.
        move: move the tensors into shared memory instead of copying them: they and the dataset are then the same
            memory, and there is never a second copy of more than one of them. (An ndarray cannot be moved.)

    Raises:
        ValueError, TypeError: ``data`` is empty, ragged, or not made of ordinary tensors without a gradient; or
            its samples have different keys or containers, or hold more than tensors in one, or are of different
            types, and that of all together does not hold a number of one.

    >>> data = CachedDataset((torch.arange(6.).view(3, 2), torch.tensor([0, 1, 2])))
    >>> data[1]
    (tensor([2., 3.]), tensor(1))
    >>> data[1][0].data_ptr() == data[1][0].data_ptr()   # a view, not a copy
    True
    """

    def __init__(self, data: Any, *, pin: bool | None = None, share: bool = True, move: bool = False) -> None:
        is_loaded = not isinstance(data, (torch.Tensor, np.ndarray, tuple, list, Mapping)) or _are_samples(data)
        if pin is not None:
            check_bool("pin", pin)
        check_bool("share", share)
        check_bool("move", move)
        if not is_loaded:
            check_plain("data", data)
        whole, container = preload(data) if is_loaded else (data, _container_of(data))
        rows = Rows(_contiguous(whole), None if container is None or container.is_plain else container)
        given = {_address(field) for field in _fields(data)} if not is_loaded else set()
        rows.hold(share=share, move=[move or _address(field) not in given for field in rows.fields], pin=pin)
        self._rows = rows

    def __len__(self) -> int:
        """Count the samples."""
        return self._rows.count

    def __getitem__(self, index: Any) -> Any:
        """Return a sample as views, no copy; for a slice, a list or an array of indices, a batch of them."""
        if not isinstance(index, (slice, list)) and not getattr(index, "ndim", 0):
            index = check_index(index, self._rows.count)
        return self._rows.pack([field[index] for field in self._rows.fields], batch=False)

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]]:
        """Gather a batch, which ``default_collate`` passes through."""
        return self._load_batch

    def _load_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        if type(indices) is list and len(indices) == 1 and type(self) is CachedDataset:
            batch = self._rows.copy_one(indices[0])
            if batch is not None:
                return self._rows.collated(batch, 1)
        rows = positions_of(indices, len(self)) if isinstance(indices, slice) else row_numbers(indices)
        if rows is None or not inherits(self, CachedDataset, "__getitem__"):
            return [self[index] for index in indices]
        return self._rows.collated(self._rows.gather(rows), len(rows))

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> TensorAssembly | None:
        """Gather whole batches for foreload's DataLoader, unless a subclass loads samples itself."""
        own = inherits(self, CachedDataset, "__getitem__", "__getitems__")
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
    rows = _rows_of(dataset) if isinstance(dataset, TensorDataset) else Rows(dataset)

    def collate(indices: Any) -> Any:
        return default_collate([dataset[index] for index in indices])

    if isinstance(dataset, TensorDataset):  # which may be given other tensors
        return TensorAssembly(rows, buffers, collate, lambda: has_plain_tensors() and rows.are_of(dataset.tensors))
    tensors = (dataset,)
    return TensorAssembly(rows, buffers, collate, lambda: has_plain_tensors() and rows.are_of(tensors))


# The rows of datasets, for their next epochs. A tensor may be replaced to free its memory, so a weak
# reference to each tensor takes them out.
_known: weakref.WeakKeyDictionary[TensorDataset, tuple[Rows, list[Any]]] = weakref.WeakKeyDictionary()


def _rows_of(dataset: TensorDataset) -> Rows:
    rows, _ = _known.get(dataset, (None, None))
    if rows is not None and rows.are_of(dataset.tensors):
        return rows
    owner = weakref.ref(dataset)

    def forget(_: Any) -> None:
        if (gone := owner()) is not None:
            _known.pop(gone, None)

    rows = Rows(tuple(dataset.tensors))
    _known[dataset] = rows, [weakref.ref(tensor, forget) for tensor in dataset.tensors]
    return rows


def _tensors_of(dataset: TensorDataset | torch.Tensor) -> tuple[torch.Tensor, ...]:
    return dataset.tensors if isinstance(dataset, TensorDataset) else (dataset,)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.ndim > 0
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_neg()
    )


class TensorAssembly:
    """Batches of rows; an :class:`~foreload.protocol.Assembly`.

    Args:
        rows: the tensors.
        buffers: memory for the batches.
        collate: makes a batch as torch does, of indices that are not plain row numbers.
        is_same: tells whether the dataset still has these tensors.

    Attributes:
        sample_bytes: of all fields together.
        collate: as given.
    """

    depth: int | None = None

    def __init__(
        self,
        rows: Rows,
        buffers: BatchMemory,
        collate: Callable[[Any], Any],
        is_same: Callable[[], bool] = lambda: True,
    ) -> None:
        self._rows = rows
        self._gather, self._is_list = rows.sources.gather, rows.are_tuples
        self._count, self._likes, self._most = -1, list[torch.Tensor](), 0  # of the last batch
        self.collate = collate
        self._is_same = is_same
        self._buffers = buffers
        self._sources: list[Array] | None = None  # of jobs
        self.sample_bytes = sum(map(row_bytes, rows.fields))

    def start(self, indices: Any) -> Batch:
        """See :class:`~foreload.protocol.Assembly`."""
        indices = _listed(indices)
        rows = row_numbers(indices)
        if rows is None or not self._is_same():
            return self.start_collating(indices)
        where = require_nonempty(rows)
        outs = [self._buffers.take((len(where), *field.shape[1:]), field.dtype) for field in self._rows.fields]
        if self._sources is None:
            self._sources = [byte_rows(field) for field in self._rows.fields]
        job = _native.GatherJob(self._sources, where, [byte_rows(out) for out in outs], len(where))
        return Batch(job, lambda: self._rows.pack(outs, batch=True))

    def start_collating(self, indices: Any) -> Batch:
        """Prepare a batch that is made as torch does, when it is taken."""
        return Batch(_native.PythonJob(1, 1, lambda *_: None, lambda: None), lambda: self.collate(indices))

    def gather(self, indices: Any) -> Any:
        """Make a batch at once, in the calling thread."""
        indices = _listed(indices)
        rows = row_numbers(indices)
        return self.collate(indices) if rows is None else self.gather_rows(require_nonempty(rows))

    def gather_rows(self, rows: Indices) -> Any:
        """Make a batch of these rows, of which there is one at least, at once, in the calling thread."""
        if not self._is_same():
            return self.collate(rows)
        if len(rows) != self._count:
            self._count, (self._likes, self._most) = len(rows), self._rows.likes(len(rows))
        is_small = self._most < MIN_LENT_BYTES
        outs = list(map(_empty_like, self._likes)) if is_small else self._allocate(self._likes)
        # As torch's own functions do, several threads copy what is large.
        self._gather(rows, list(map(_data_ptr, outs)), torch.get_num_threads())
        # (A list of its parts is what a batch of tuples is.)
        return outs if self._is_list else self._rows.pack(outs, batch=True)

    def _allocate(self, likes: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.empty_like(like)
            if like.nbytes < MIN_LENT_BYTES
            else self._buffers.take(tuple(like.shape), like.dtype)
            for like in likes
        ]


def _listed(indices: Any) -> Any:
    if type(indices) is np.ndarray:  # as most are, and to ask for an Iterator takes longer
        return indices
    return list(indices) if isinstance(indices, (Iterator, set, frozenset)) else indices


def _contiguous(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        # (ascontiguousarray would drop a mask, and make a sample of a scalar.)
        return np.asanyarray(data, order="C")
    if isinstance(data, torch.Tensor) and not without_rows(data):
        return data.detach().cpu().contiguous()
    if isinstance(data, Mapping):
        return {name: _contiguous(field) for name, field in data.items()}
    if isinstance(data, (tuple, list)):
        return tuple(_contiguous(field) for field in data)
    return data


def _container_of(data: Any) -> Container | None:
    """Return the container of samples that are rows of tensors; None for plain tuples and dicts."""
    has_kind = isinstance(data, _KEPT) or (isinstance(data, tuple) and hasattr(data, "_fields"))
    return Container(data) if has_kind and len(data) else None


def _fields(data: Any) -> Iterator[Any]:
    if isinstance(data, Mapping):
        yield from data.values()
    elif isinstance(data, (tuple, list)):
        yield from data
    else:
        yield data


def _address(field: Any) -> int | None:
    """Return where a tensor or an array lies in memory."""
    if isinstance(field, torch.Tensor):
        return field.data_ptr() if field.layout is torch.strided else None
    return int(field.ctypes.data) if isinstance(field, np.ndarray) else None
