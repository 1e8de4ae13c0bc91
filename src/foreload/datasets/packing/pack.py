"""Documents packed into rows: best fit, the longest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from foreload import _native
from foreload.checks import Array, check_int, first_beyond_int64, fits_int64
from foreload.datasets.packing.dataset import PackedDataset
from foreload.datasets.packing.pieces import Pieces, ranges

__all__ = ["pack_sequences"]

# Packing takes memory by the length of a row: a mistyped one is to be an error, not the end of the process.
_LONGEST = 1 << 30


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
    if length > _LONGEST:
        raise ValueError(f"length must be at most {_LONGEST:,}, got {length:,}")
    size = None if window is None else check_int("window", window, 1)
    if not fits_int64(check_int("pad", pad)):
        raise ValueError(f"pad does not fit into int64: {pad}")
    documents = _documents(sequences)
    numbered = 0
    parts: list[tuple[Array, Pieces]] = []
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
    return PackedDataset(torch.from_numpy(input_ids), Pieces(*map(np.concatenate, columns)), numbered)


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
    if type(document) is np.ndarray and document.dtype == np.int64 and document.ndim == 1:
        return np.ascontiguousarray(document)
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
    return np.ascontiguousarray(tokens, np.int64)


def _pack(documents: list[Array], first: int, length: int, pad: int, split: bool) -> tuple[Array, Pieces]:
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
    starts = ranges(np.zeros(len(sizes), np.int64), cuts) * length
    lengths = np.minimum(sizes[number] - starts, length)
    rows = np.empty(len(lengths), np.int64)
    _native.best_fit(lengths, length, rows)
    order = np.argsort(rows, kind="stable")
    number, starts, lengths, rows = number[order], starts[order], lengths[order], rows[order]
    count = int(rows[-1]) + 1 if len(rows) else 0
    begins = np.searchsorted(rows, np.arange(count + 1))  # of each row's pieces
    before = np.cumsum(lengths) - lengths
    columns = before - before[begins[rows]]
    tokens = np.empty((count, length), np.int64)
    _native.PackedRows(number, columns, lengths, begins, length).copy(documents, starts, tokens, pad)
    return tokens, Pieces(number + first, starts, lengths, rows, columns)
