"""Tensors of equal length, whose rows make up samples and batches, and where their memory lies."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from foreload import _native
from foreload.batch.buffers import memory_for_a_batch
from foreload.batch.collate import MIN_BORROWED_BYTES, MIN_LENT_BYTES
from foreload.batch.collated import Collated
from foreload.batch.containers import Container
from foreload.checks import Array, Indices
from foreload.datasets.mapped_files import MappedFile, mapping_of, read_only_file
from foreload.datasets.page_lock import can_page_lock, page_lock
from foreload.nested import bytes_of
from foreload.nested.tensors import is_masked_array

__all__ = ["Rows", "as_tensor", "byte_rows", "check_plain", "from_array", "row_bytes", "without_rows"]


# Of which torch does not read its own pickles.
_UNREADABLE = (torch.uint16, torch.uint32, torch.uint64)


# The classes of tensors of which samples and batches are ordinary tensors.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class _Pickled:
    """The bytes of a contiguous tensor."""

    memory: torch.Tensor
    dtype: torch.dtype
    shape: torch.Size

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Pickled:
        return cls(torch.from_numpy(bytes_of(tensor)), tensor.dtype, tensor.shape)

    def open(self) -> torch.Tensor:
        return self.memory.view(self.dtype).view(self.shape)


def _shared(tensor: torch.Tensor, *, move: bool) -> torch.Tensor:
    """Return a tensor in memory that processes share: itself if it lies there already, otherwise a copy.

    Memory that is mapped from a file counts as shared unless it can only be read: a write would kill the process.

    Args:
        tensor: contiguous.
        move: move its own memory there instead; whoever else has the tensor sees that memory too.
    """
    mapping = mapping_of(tensor)
    if tensor.is_shared() or (mapping is not None and mapping.writable):  # type: ignore[no-untyped-call]
        return tensor
    try:
        return (tensor if move else tensor.clone()).share_memory_()  # type: ignore[no-untyped-call,no-any-return]
    except (RuntimeError, OSError) as error:
        warnings.warn(
            f"CachedDataset: no shared memory for {tensor.nbytes} bytes ({error}); using private memory, which "
            "worker processes started by 'spawn' copy. A larger /dev/shm (docker run --shm-size) avoids this.",
            stacklevel=4,
        )
        return tensor


def as_tensor(name: str, data: Any) -> torch.Tensor:
    """Return a contiguous CPU tensor or array as a tensor; raise TypeError or ValueError if it is none."""
    if isinstance(data, np.ndarray):
        data = from_array(name, data)
    if not isinstance(data, torch.Tensor):
        is_nested = isinstance(data, (tuple, list, Mapping))
        remedy = "; give data, or the samples of a dataset, with tensors side by side" if is_nested else ""
        raise TypeError(f"{name} must be a tensor or an ndarray, got {type(data).__name__}{remedy}")
    if problem := without_rows(data):
        raise ValueError(f"{name} is {problem.format(name=name)}")
    if data.device.type != "cpu" or not data.is_contiguous():
        about = f"the shape {tuple(data.shape)} and the strides {data.stride()} on {data.device}"
        raise ValueError(f"{name} must be contiguous and on the CPU, got {about}; give {name}.cpu().contiguous()")
    # A conjugate or negative may be a mere flag of a view, which its bytes do not show.
    tensor: torch.Tensor = data.detach()
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def without_rows(tensor: torch.Tensor) -> str:
    """Say why a tensor has no rows of plain numbers in memory, and a remedy for ``{name}``; empty if it has."""
    if tensor.is_meta:
        return "on the meta device, and has no numbers; give {name} as it is on the CPU"
    if tensor.is_nested:
        return "a nested tensor; pad it, {name}.to_padded_tensor(0), or give its parts to a dataset of yours"
    if tensor.layout is not torch.strided:
        return f"of the layout {tensor.layout}; give {{name}}.to_dense()"
    return "quantized; give {name}.dequantize(), or {name}.int_repr()" if tensor.is_quantized else ""


def check_plain(name: str, data: Any, *, is_sample: bool = False) -> None:
    """Raise TypeError if a tensor of a sample, or of all samples, is more than the numbers that memory holds.

    Batches in torch's loader would have the gradient, and samples the class, that a copy in memory lacks.

    >>> check_plain("data", (torch.ones(2), {"x": torch.ones(3)}))
    """
    if isinstance(data, Mapping):
        for key, field in data.items():
            check_plain(f"{name}[{key!r}]", field, is_sample=is_sample)
    elif isinstance(data, (tuple, list)):
        for place, field in enumerate(data):
            check_plain(f"{name}[{place}]", field, is_sample=is_sample)
    elif isinstance(data, torch.Tensor):
        if data.requires_grad:
            raise TypeError(f"{name} requires a gradient, which is not kept; give {name}.detach()")
        kind = type(data) if is_sample or not data.ndim or type(data) in _PLAIN else type(data[:0])
        if kind not in _PLAIN:
            remedy = f"give {name}.as_subclass(torch.Tensor)"
            raise TypeError(f"{name} is a {kind.__name__}, of which the class is not kept; {remedy}")


def from_array(name: str, array: Array) -> torch.Tensor:
    """Return a tensor over an array's memory, which need not be writable; a copy if its bytes are swapped.

    Raises:
        TypeError: a tensor cannot hold what is in the array; the message gives it this name, and says what to do.
    """
    if is_masked_array(array):
        raise TypeError(
            f"{name} is a masked array, and a tensor has no mask; give {name}.filled(...), and the mask as an "
            "array of its own if it is needed"
        )
    if not array.dtype.isnative and array.dtype.names is None:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        with warnings.catch_warnings():
            if not array.flags.writeable:  # nothing is written to it here
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)
    except TypeError:
        if array.dtype.names is not None:
            remedy = f"give a dict of its fields, {{field: {name}[field] for field in {name}.dtype.names}}"
        elif array.dtype.kind in "mM":
            remedy = f"give {name}.astype(np.int64), which counts its units"
        else:
            remedy = "convert it to numbers"
        raise TypeError(f"{name} has the dtype {array.dtype}, which torch does not have; {remedy}") from None


def byte_rows(tensor: torch.Tensor) -> Array:
    """View a contiguous tensor as rows x bytes."""
    return bytes_of(tensor).reshape(len(tensor), row_bytes(tensor))


def row_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a row of a contiguous tensor."""
    return math.prod(tensor.shape[1:]) * tensor.element_size()


class Rows:
    """Tensors of equal length, and the form of their samples: a tensor, a (named) tuple or a dict of rows.

    Attributes:
        fields: the tensors.
        count: their length.
        sources: native, over their memory, which :attr:`fields` keep.
        are_tuples: whether samples are plain tuples.

    Args:
        data: the tensors, in the form of a sample.
        container: of samples that are not a plain tuple or dict.
    """

    def __init__(self, data: Any, container: Container | None = None) -> None:
        self.names: list[str] | None = None
        self.single = False
        self._container = container
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
        labels = [f"data[{label!r}]" for label in self.names or range(len(fields))]
        shown = ["data"] if self.single else labels
        self.fields = [as_tensor(label, field) for label, field in zip(shown, fields, strict=True)]
        for label, field in zip(shown, self.fields, strict=True):
            if field.ndim == 0:
                raise ValueError(f"{label} is a scalar; give a tensor with one row per sample")
        lengths = [len(field) for field in self.fields]
        if len(set(lengths)) != 1:
            raise ValueError(f"the tensors in data must have one row per sample each; their lengths are {lengths}")
        self.count = lengths[0]
        self.are_tuples = not self.single and self.names is None and container is None
        self._files: list[MappedFile | None] = [None] * len(fields)
        self._open()

    def _open(self) -> None:
        places = [(field.data_ptr(), row_bytes(field)) for field in self.fields]
        self.sources = _native.RowSources(self.count, places)
        self._forms = [(field, field.data_ptr(), field.dtype, field.dtype.is_complex) for field in self.fields]
        self._likes: tuple[int, list[torch.Tensor], int] = -1, [], 0
        # Torch 2.10 and later show tensors natively, where they are not conjugates that nobody has computed.
        functions = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        is_shown = functions is not None and not any(field.dtype.is_complex for field in self.fields)
        fields = tuple(self.fields)
        self._views = _native.TensorViews(functions, torch.Tensor, fields) if is_shown else None

    def hold(self, *, share: bool, move: Sequence[bool], pin: bool | None) -> None:
        """Put the tensors where they stay.

        Args:
            share: in memory that processes share; those that are there already stay as they are.
            move: for each tensor, whether its own memory may be moved there.
            pin: page-lock it for as long as it is there; None: if there is CUDA, unless it is a file's.
        """
        for i, field in enumerate(self.fields):
            if (file := read_only_file(field)) is not None:
                with suppress(OSError):  # it has been deleted
                    # Whoever writes to a sample writes to a copy of its page, instead of being killed.
                    self.fields[i], self._files[i] = file.open(), file
            if share and self._files[i] is None:
                self.fields[i] = _shared(field, move=move[i])
            if pin or (pin is None and self._files[i] is None and can_page_lock()):
                page_lock(self.fields[i])
        self._open()

    def pack(self, fields: Sequence[Any], *, batch: bool) -> Any:
        """Put one value per field into the form of a sample, or of a batch as ``default_collate`` makes it."""
        if self.single:
            return fields[0]
        if self._container is not None:
            return self._container.batch(fields) if batch else self._container.sample(fields)
        if self.names is not None:
            return dict(zip(self.names, fields, strict=True))
        return list(fields) if batch else tuple(fields)

    def collated(self, batch: Any, count: int) -> Collated:
        """Present a batch as a list of samples, which ``default_collate`` passes through."""
        make = None if self._container is None else self._container.sample
        return Collated(batch, count, make=make)

    def are_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these are still the rows of tensors, which may have been changed in place or replaced since."""
        if self._views is not None and self._views.are_of(tensors):
            return True
        if len(tensors) != len(self._forms):
            return False
        # Written out, since it runs before each batch.
        try:
            for tensor, (field, place, dtype, is_complex) in zip(tensors, self._forms):  # noqa: B905
                if (
                    type(tensor) not in _PLAIN
                    or not tensor.is_set_to(field)  # in the same storage, of the same shape and strides
                    or tensor.data_ptr() != place
                    or tensor.dtype is not dtype
                    or tensor.requires_grad
                    or (is_complex and tensor.is_conj())
                ):
                    return False
        except NotImplementedError:  # a tensor of another layout or device
            return False
        return True

    def likes(self, count: int) -> tuple[list[torch.Tensor], int]:
        """Return a tensor like each field's part of a batch, whose memory is never touched, and the most bytes.

        A tensor like another one is made in half the time.
        """
        size, likes, most = self._likes
        if size != count:
            likes = [
                torch.empty((count, *field.shape[1:]), dtype=field.dtype, device="cpu") for field in self.fields
            ]
            most = max(like.nbytes for like in likes)
            self._likes = count, likes, most
        return likes, most

    def copy_one(self, row: Any) -> Any:
        """Make a batch of one row, faster than by :meth:`gather`; None if that has to do it."""
        is_row = type(row) is int and -self.count <= row < self.count
        # In a worker, and for large rows, there is memory that is used again.
        if not is_row or get_worker_info() is not None or self.likes(1)[1] >= MIN_LENT_BYTES:
            return None
        row %= self.count
        try:
            return self.pack([torch.narrow_copy(field, 0, row, 1) for field in self.fields], batch=True)
        except RuntimeError:  # torch cannot copy this dtype
            return None

    def gather(self, rows: Indices) -> Any:
        """Make a batch of rows in new memory; raise IndexError if one of them is out of range."""
        memory = memory_for_a_batch()
        least = MIN_BORROWED_BYTES if memory.is_shared else MIN_LENT_BYTES
        outs = [
            memory.take(tuple(like.shape), like.dtype) if like.nbytes >= least else torch.empty_like(like)
            for like in self.likes(len(rows))[0]
        ]
        self.sources.gather(rows, [out.data_ptr() for out in outs])
        return self.pack([memory.handed_over(out) for out in outs], batch=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is native; a process that is being spawned maps files itself."""
        left_out = ("sources", "_forms", "_likes", "_views")
        state = {name: value for name, value in vars(self).items() if name not in left_out}
        if get_spawning_popen() is None:
            fields = [_Pickled.of(field) if field.dtype in _UNREADABLE else field for field in self.fields]
            return {**state, "_files": [None] * len(self.fields), "fields": fields}
        return {**state, "fields": [file or field for file, field in zip(self._files, self.fields, strict=True)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open what was left out."""
        vars(self).update(state)
        self.fields = [field if isinstance(field, torch.Tensor) else field.open() for field in self.fields]
        self._open()
