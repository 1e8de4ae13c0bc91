"""Rows of packed documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.collate import is_default_collate
from foreload.batch.collated import Collated, own_getitems
from foreload.batch.columns import ColumnAssembly
from foreload.checks import Array, check_index, inherits
from foreload.datasets.packing.masks import cu_seqlens
from foreload.datasets.packing.pieces import Pieces, ranges
from foreload.order.index import positions_of
from foreload.protocol import BatchMemory, BatchOptions, NativeBatches

__all__ = ["PackedDataset"]


class PackedDataset(Dataset[dict[str, torch.Tensor]], NativeBatches):
    """Rows of packed documents, as :func:`pack_sequences` makes them.

    A sample is a dict of int64 tensors of ``length``: ``input_ids``; ``document_ids``, the number of the document
    that each token is from, -1 for padding; ``position_ids``, from 0 at the first token of each document in the
    row (and of the padding).

    Attributes:
        input_ids: all rows, rows x length, int64.
        documents: how many documents there are.
        efficiency: the share of ``input_ids`` that is not padding.

    >>> from foreload import packing
    >>> packed = packing.pack_sequences([[1, 2, 3], [4, 5], [6]], length=4)
    >>> packed[0]
    {'input_ids': tensor([1, 2, 3, 6]), 'document_ids': tensor([0, 0, 0, 2]), 'position_ids': tensor([0, 1, 2, 0])}
    """

    def __init__(self, input_ids: torch.Tensor, pieces: Pieces, documents: int) -> None:
        self.input_ids = input_ids
        self.documents = documents
        self.efficiency = float(pieces.lengths.sum() / max(1, input_ids.numel()))
        self._pieces = pieces
        self._rows = self._native_rows()

    def _native_rows(self) -> _native.PackedRows:
        rows, length = self.input_ids.shape
        first = np.searchsorted(self._pieces.rows, np.arange(rows + 1))
        pieces = self._pieces
        return _native.PackedRows(pieces.documents, pieces.columns, pieces.lengths, first, length)

    @property
    def document_ids(self) -> torch.Tensor:
        """The document of each token: rows x length, int64, -1 for padding."""
        return self._batch(range(len(self.input_ids)), Buffers())["document_ids"]

    @property
    def position_ids(self) -> torch.Tensor:
        """The position of each token in its document's part of the row: rows x length, int64."""
        return self._batch(range(len(self.input_ids)), Buffers())["position_ids"]

    def cu_seqlens(self, row: SupportsIndex) -> torch.Tensor:
        """Return the boundaries of the documents in one row; see :func:`cu_seqlens`."""
        return cu_seqlens(self[row]["document_ids"])

    def unpack(self) -> list[torch.Tensor]:
        """Return the documents, in their order.

        >>> from foreload import packing
        >>> packing.pack_sequences([[1, 2, 3], [4]], length=2).unpack()
        [tensor([1, 2, 3]), tensor([4])]
        """
        pieces, length = self._pieces, self.input_ids.shape[1]
        order = np.lexsort((pieces.starts, pieces.documents))
        places = ranges((pieces.rows * length + pieces.columns)[order], pieces.lengths[order])
        tokens = self.input_ids.reshape(-1)[torch.from_numpy(places)]
        sizes = np.bincount(pieces.documents, pieces.lengths, self.documents).astype(np.int64)
        return list(torch.split(tokens, sizes.tolist()))

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.input_ids)

    def __getitem__(self, index: SupportsIndex) -> dict[str, torch.Tensor]:
        """Return one row."""
        row = check_index(index, len(self.input_ids))
        return {name: values[0] for name, values in self._batch([row], Buffers()).items()}

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]]:
        """Return a batch, which ``default_collate`` passes through; of a subclass's own rows, a list."""
        return self._load_batch

    def _load_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        if not inherits(self, PackedDataset, "__getitem__"):
            return [self[index] for index in indices]
        return Collated(self._batch(indices, Buffers()), len(indices))

    def _batch(self, indices: Sequence[int], buffers: BatchMemory) -> dict[str, torch.Tensor]:
        rows = positions_of(indices, len(self.input_ids))
        shape = len(rows), self.input_ids.shape[1]
        tokens, documents, positions = (buffers.take(shape, torch.int64) for _ in range(3))
        _native.gather(_bytes_of(self.input_ids), rows, _bytes_of(tokens))
        self._rows.mark(rows, documents.numpy(), positions.numpy())
        return {"input_ids": tokens, "document_ids": documents, "position_ids": positions}

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> ColumnAssembly | None:
        """Make whole batches for foreload's DataLoader, unless a subclass makes them itself."""
        own = inherits(self, PackedDataset, "__getitem__", "__getitems__")
        if not own or spec.cache is not None or not is_default_collate(spec.collate_fn):
            return None
        return _RowAssembly(spec, _Batches(self, buffers), buffers)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the rows; what is native is made again."""
        return {**self.__dict__, "_rows": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """See :meth:`__getstate__`."""
        self.__dict__.update(state)
        self._rows = self._native_rows()


class _RowAssembly(ColumnAssembly):
    in_memory = True


class _Batches:
    """A view of a packed dataset whose batches lie in memory of the loader's."""

    def __init__(self, dataset: PackedDataset, buffers: BatchMemory) -> None:
        self._dataset = dataset
        self._buffers = buffers

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._dataset[index]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        return Collated(self._dataset._batch(indices, self._buffers), len(indices))


def _bytes_of(rows: torch.Tensor) -> Array:
    table: Array = rows.numpy()
    return table.view(np.uint8)
