"""Token sequences packed into rows of one length, with the documents kept apart."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from foreload.batch.collate import Collated
from foreload.checks import Array, check_int, first_beyond_int64, fits_int64
from foreload.order.index import positions_of

__all__ = ["PackedDataset", "attention_mask", "cu_seqlens", "pack_sequences"]


class _Pieces(NamedTuple):
    """The pieces of documents in the rows, in the order of rows and columns."""

    documents: Array
    starts: Array  # in the document
    lengths: Array
    rows: Array
    columns: Array


class PackedDataset(Dataset[dict[str, torch.Tensor]]):
    """Rows of packed documents, as :func:`pack_sequences` makes them.

    A sample is a dict of int64 tensors of ``length``: ``input_ids``; ``document_ids``, the number of the document
    that each token is from, -1 for padding; ``position_ids``, from 0 at the first token of each document in the
    row (and of the padding).

    Attributes:
        input_ids: all rows, rows x length, int64.
        documents: how many documents there are.
        efficiency: the share of ``input_ids`` that is not padding.

    >>> packed = pack_sequences([[1, 2, 3], [4, 5], [6]], length=4)
    >>> packed[0]
    {'input_ids': tensor([1, 2, 3, 6]), 'document_ids': tensor([0, 0, 0, 2]), 'position_ids': tensor([0, 1, 2, 0])}
    """

    def __init__(self, input_ids: torch.Tensor, pieces: _Pieces, documents: int) -> None:
        self.input_ids = input_ids
        self.documents = documents
        self.efficiency = float(pieces.lengths.sum() / max(1, input_ids.numel()))
        self._pieces = pieces
        self._first = np.searchsorted(pieces.rows, np.arange(len(input_ids) + 1))

    @property
    def document_ids(self) -> torch.Tensor:
        """The document of each token: rows x length, int64, -1 for padding."""
        return self._marks(np.arange(len(self)))[0]

    @property
    def position_ids(self) -> torch.Tensor:
        """The position of each token in its document's part of the row: rows x length, int64."""
        return self._marks(np.arange(len(self)))[1]

    def cu_seqlens(self, row: SupportsIndex) -> torch.Tensor:
        """Return the boundaries of the documents in one row; see :func:`cu_seqlens`."""
        return cu_seqlens(self[row]["document_ids"])

    def unpack(self) -> list[torch.Tensor]:
        """Return the documents, in their order.

        >>> pack_sequences([[1, 2, 3], [4]], length=2).unpack()
        [tensor([1, 2, 3]), tensor([4])]
        """
        pieces, length = self._pieces, self.input_ids.shape[1]
        order = np.lexsort((pieces.starts, pieces.documents))
        places = _ranges((pieces.rows * length + pieces.columns)[order], pieces.lengths[order])
        tokens = self.input_ids.reshape(-1)[torch.from_numpy(places)]
        sizes = np.bincount(pieces.documents, pieces.lengths, self.documents).astype(np.int64)
        return list(torch.split(tokens, sizes.tolist()))

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.input_ids)

    def __getitem__(self, index: SupportsIndex) -> dict[str, torch.Tensor]:
        """Return one row."""
        row = operator.index(index)
        return {name: values[0] for name, values in self._batch([row]).items()}

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return a batch, which ``default_collate`` passes through."""
        return Collated(self._batch(indices), len(indices))

    def _batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        rows = positions_of(indices, len(self))
        documents, positions = self._marks(rows)
        tokens = self.input_ids[torch.from_numpy(rows)]
        return {"input_ids": tokens, "document_ids": documents, "position_ids": positions}

    def _marks(self, rows: Array) -> tuple[torch.Tensor, torch.Tensor]:
        pieces, length = self._pieces, self.input_ids.shape[1]
        counts = self._first[rows + 1] - self._first[rows]
        which = _ranges(self._first[rows], counts)
        begins = np.repeat(np.arange(len(rows)) * length, counts) + pieces.columns[which]
        lengths = pieces.lengths[which]
        documents = np.full(len(rows) * length, -1, np.int64)
        places = _ranges(begins, lengths)
        documents[places] = np.repeat(pieces.documents[which], lengths)
        table = documents.reshape(len(rows), length)
        at = np.arange(length)
        new = np.ones(table.shape, np.bool_)
        new[:, 1:] = table[:, 1:] != table[:, :-1]
        positions = at - np.maximum.accumulate(np.where(new, at, 0), axis=1)
        return torch.from_numpy(table), torch.from_numpy(positions)


def pack_sequences(
    sequences: Iterable[Any],
    length: int,
    *,
    pad: int = 0,
    split: bool = True,
    window: int | None = None,
) -> PackedDataset:
    """Pack documents into rows of exactly ``length`` tokens; no token is lost, none comes twice.

    Best fit, the longest first: at most 11/9 of the fewest rows that are possible, and 4 (Johnson et al., SIAM
    Journal on Computing 3(4), 1974); of ordinary text a few rows more than the fewest. Within a row, and from row
    to row by their first, documents are in their order.

    Args:
        sequences: an iterable, or a map-style dataset, of documents: int tensors, arrays or lists of one
            dimension, or dicts with such ``"input_ids"``.
        length: tokens per row.
        pad: the token that fills up a row.
        split: cut documents of more than ``length`` tokens: whole rows, and the rest as a piece of its own, whose
            positions begin at 0 again.
        window: how many documents to pack at a time, so that neighbours stay near; by default all of them.

    Raises:
        ValueError, TypeError: a document is too long and ``split`` is False, or is not made of ints that fit into
            int64; its number is in the message.

    >>> packed = pack_sequences([[1, 2, 3, 4, 5, 6], [7, 8], [9]], length=4, pad=-1)
    >>> packed.input_ids.tolist()
    [[1, 2, 3, 4], [5, 6, 7, 8], [9, -1, -1, -1]]
    """
    length = check_int("length", length, 1)
    size = None if window is None else check_int("window", window, 1)
    if not fits_int64(check_int("pad", pad)):
        raise ValueError(f"pad does not fit into int64: {pad}")
    documents = _documents(sequences)
    numbered = 0
    parts: list[tuple[Array, _Pieces]] = []
    rows = 0
    while len(together := list(islice(documents, size))) or not parts:
        tokens, pieces = _pack(together, numbered, length, pad, split)
        parts.append((tokens, pieces._replace(rows=pieces.rows + rows)))
        numbered += len(together)
        rows += len(tokens)
        if not together:
            break
    input_ids = parts[0][0] if len(parts) == 1 else np.concatenate([tokens for tokens, _ in parts])
    columns = zip(*(pieces for _, pieces in parts), strict=True)
    return PackedDataset(torch.from_numpy(input_ids), _Pieces(*map(np.concatenate, columns)), numbered)


def attention_mask(document_ids: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
    """Return the mask by which a token attends only to its own document; in causal models to earlier tokens.

    Padding is like a document of its own: nothing else attends to it, and no row of the mask is all False, of
    which a softmax would make NaN.

    Args:
        document_ids: int, ... x length, as :class:`PackedDataset` gives them.
        causal: mask later tokens.

    Returns:
        bool, ... x length (of the token that attends) x length (of the one attended to), as
        ``scaled_dot_product_attention`` takes it; with heads, add their dimension: ``mask[:, None]``.

    >>> attention_mask(torch.tensor([0, 0, 1])).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    same = document_ids[..., :, None] == document_ids[..., None, :]
    return same.tril() if causal else same


def cu_seqlens(document_ids: torch.Tensor) -> torch.Tensor:
    """Return the boundaries of documents in flattened rows, for attention over sequences of many lengths.

    Args:
        document_ids: int, length, or rows x length; each row begins anew. Padding is like a document.

    Returns:
        int32: 0, the ends of all documents, the last of which is the number of all tokens. The longest is
        ``cu_seqlens(ids).diff().max()``.

    >>> cu_seqlens(torch.tensor([[0, 0, 1, -1], [2, 2, 2, 2]]))
    tensor([0, 2, 3, 4, 8], dtype=torch.int32)
    """
    rows = document_ids.reshape(-1, document_ids.shape[-1])
    new = torch.ones_like(rows, dtype=torch.bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    begins = new.reshape(-1).nonzero().reshape(-1)
    return torch.cat([begins, begins.new_tensor([rows.numel()])]).to(torch.int32)


def _documents(sequences: Any) -> Iterator[Array]:
    """Iterate over the documents as arrays."""
    if isinstance(sequences, (str, bytes, Mapping)) or not (
        hasattr(sequences, "__iter__") or hasattr(sequences, "__getitem__")
    ):
        raise TypeError(f"sequences must be an iterable of token sequences, got {type(sequences).__name__}")
    if isinstance(sequences, Dataset) and not isinstance(sequences, IterableDataset):
        # Iterating over a torch dataset need not end.
        sequences = map(sequences.__getitem__, range(len(sequences)))  # type: ignore[arg-type]
    return (_tokens(document, number) for number, document in enumerate(sequences))


def _tokens(document: Any, number: int) -> Array:
    if not isinstance(document, (np.ndarray, torch.Tensor, list)) and isinstance(document, Mapping):
        if "input_ids" not in document:
            raise ValueError(f"document {number} has no 'input_ids', only {', '.join(map(repr, document))}")
        document = document["input_ids"]
    if isinstance(document, torch.Tensor):
        document = document.detach().cpu().numpy()
    try:
        tokens = np.asarray(document)
    except ValueError as error:
        raise ValueError(f"document {number} is not a flat sequence of tokens: {error}") from None
    if tokens.ndim != 1:
        raise ValueError(f"document {number} must have one dimension, got shape {tokens.shape}")
    if (beyond := first_beyond_int64(document, tokens)) is not None:
        raise ValueError(f"document {number}: its token {document[beyond]} does not fit into int64")
    if tokens.size and tokens.dtype.kind not in "iu":
        raise TypeError(f"document {number} must be made of ints, got {tokens.dtype}; tokenize it first")
    return tokens.astype(np.int64, copy=False)


def _pack(documents: list[Array], first: int, length: int, pad: int, split: bool) -> tuple[Array, _Pieces]:
    """Pack documents, numbered from ``first`` on; return rows x length tokens, and the pieces."""
    sizes = np.array([len(document) for document in documents], np.int64)
    if not split and len(sizes) and sizes.max() > length:
        long = int(np.argmax(sizes > length))
        raise ValueError(
            f"document {first + long} has {sizes[long]} tokens, more than length = {length}; pass split=True, "
            "or a larger length"
        )
    cuts = -(-sizes // length)
    number: Array = np.repeat(np.arange(len(sizes)), cuts)
    starts = _ranges(np.zeros(len(sizes), np.int64), cuts) * length
    lengths = np.minimum(sizes[number] - starts, length)
    rows = _in_order(_best_fit(lengths, length))
    order = np.argsort(rows, kind="stable")
    number, starts, lengths, rows = number[order], starts[order], lengths[order], rows[order]
    before = np.cumsum(lengths) - lengths
    columns = before - before[np.searchsorted(rows, rows)]
    count = int(rows[-1]) + 1 if len(rows) else 0
    room = length - np.bincount(rows, lengths, count).astype(np.int64)
    padding = np.full(length, pad, np.int64)
    parts = [np.zeros(0, np.int64)]
    ends = np.append(rows[1:] != rows[:-1], True)
    for document, start, size, left in zip(
        number.tolist(), starts.tolist(), lengths.tolist(), (room[rows] * ends).tolist(), strict=True
    ):
        tokens = documents[document]
        parts.append(tokens if size == len(tokens) else tokens[start : start + size])
        if left:
            parts.append(padding[:left])
    tokens = np.concatenate(parts).reshape(count, length)
    return tokens, _Pieces(number + first, starts, lengths, rows, columns)


def _best_fit(lengths: Array, length: int) -> Array:
    """Choose a row for each piece: the longest first, each into the row where it leaves the least room."""
    chosen = np.empty(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    with_room: list[list[int]] = [[] for _ in range(length + 1)]
    some = 0  # a bit for each amount of room that some row has
    rows = 0
    result = []
    for size in lengths[order].tolist():
        fitting = some >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                some ^= 1 << room
        else:
            room, row = length, rows
            rows += 1
        left = room - size
        if left:
            with_room[left].append(row)
            some |= 1 << left
        result.append(row)
    chosen[order] = result
    return chosen


def _in_order(rows: Array) -> Array:
    """Number rows in the order in which they first appear."""
    _, first, which = np.unique(rows, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    return numbers[which]


def _ranges(begins: Array, lengths: Array) -> Array:
    """Concatenate the ranges ``begin, begin + 1, ...`` of these lengths.

    >>> _ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()))
