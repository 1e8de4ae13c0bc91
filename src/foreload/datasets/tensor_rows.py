"""Tensors of equal length, whose rows make up samples and batches."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.checks import Array, Indices
from foreload.datasets.tensor_memory import MappedFile, page_lock, read_only_file, shared

__all__ = ["Rows", "as_tensor", "byte_rows"]


def as_tensor(name: str, data: Any) -> torch.Tensor:
    """Return a contiguous CPU tensor or array as a tensor; raise TypeError or ValueError if it is none."""
    if isinstance(data, np.ndarray):
        data = _from_array(data)
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"{name} must be a tensor or an ndarray, got {type(data).__name__}")
    if data.device.type != "cpu" or data.layout is not torch.strided or not data.is_contiguous():
        raise ValueError(f"{name} must be contiguous and on the CPU, got {data.layout} on {data.device}")
    # A conjugate or negative may be a mere flag of a view, which its bytes do not show.
    return data.detach().resolve_conj().resolve_neg()


def _from_array(array: Array) -> torch.Tensor:
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        # Nothing is written to it here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def byte_rows(tensor: torch.Tensor) -> Array:
    """View a contiguous tensor as rows x bytes."""
    rows = len(tensor)
    flat = tensor.reshape(rows, -1) if tensor.numel() else tensor.reshape(rows, 0)
    return flat.view(torch.uint8).numpy()


class Rows:
    """Tensors of equal length, and the form of their samples: a tensor, a tuple or a dict of rows.

    Attributes:
        fields: the tensors.
        count: their length.
        sources: native, over their memory.
    """

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
        self.fields = [as_tensor(f"data[{label!r}]", field) for label, field in zip(labels, fields, strict=True)]
        lengths = [len(field) if field.ndim else -1 for field in self.fields]
        if min(lengths) < 0 or len(set(lengths)) != 1:
            raise ValueError(f"the tensors in data must have one row per sample each; their lengths are {lengths}")
        self.count = lengths[0]
        self._files: list[MappedFile | None] = [None] * len(fields)
        self._open()

    def _open(self) -> None:
        self.sources = _native.RowSources([byte_rows(field) for field in self.fields])
        self._likes: tuple[int, list[torch.Tensor]] = -1, []

    def hold(self, *, share: bool, move: Sequence[bool], pin: bool | None) -> None:
        """Put the tensors where they stay.

        Args:
            share: in memory that processes share; those that are there already stay as they are.
            move: for each tensor, whether its own memory may be moved there.
            pin: page-lock it; None: if there is CUDA, unless it is a file's.
        """
        for i, field in enumerate(self.fields):
            if (file := read_only_file(field)) is not None:
                with suppress(OSError):  # it has been deleted
                    # Whoever writes to a sample writes to a copy of its page, instead of being killed.
                    self.fields[i], self._files[i] = file.open(), file
            if share and self._files[i] is None:
                self.fields[i] = shared(field, move=move[i])
            if pin or (pin is None and torch.cuda.is_available() and self._files[i] is None):
                page_lock(self.fields[i])
        self._open()

    def pack(self, fields: Sequence[Any], *, batch: bool) -> Any:
        """Put one value per field into the form of a sample, or of a batch as ``default_collate`` makes it."""
        if self.single:
            return fields[0]
        if self.names is not None:
            return dict(zip(self.names, fields, strict=True))
        return list(fields) if batch else tuple(fields)

    def likes(self, count: int) -> list[torch.Tensor]:
        """Return a tensor like each field's part of a batch, whose memory is never touched.

        A tensor like another one is made in half the time.
        """
        size, likes = self._likes
        if size != count:
            likes = [torch.empty((count, *field.shape[1:]), dtype=field.dtype) for field in self.fields]
            self._likes = count, likes
        return likes

    def gather(self, rows: Indices) -> Any:
        """Make a batch of rows in new memory; raise IndexError if one of them is out of range."""
        outs = [torch.empty_like(like) for like in self.likes(len(rows))]
        self.sources.gather(rows, [out.data_ptr() for out in outs])
        return self.pack(outs, batch=True)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is native; a process that is being spawned maps files itself."""
        state = {name: value for name, value in vars(self).items() if name not in ("sources", "_likes")}
        if get_spawning_popen() is None:
            return {**state, "_files": [None] * len(self.fields)}
        return {**state, "fields": [file or field for file, field in zip(self._files, self.fields, strict=True)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open what was left out."""
        vars(self).update(state)
        self.fields = [field.open() if isinstance(field, MappedFile) else field for field in self.fields]
        self._open()
