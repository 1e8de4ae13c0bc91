"""Attention masks and boundaries of packed documents."""

from __future__ import annotations

import math
from typing import Any

import torch

from foreload.checks import check_bool

__all__ = ["attention_mask", "cu_seqlens"]


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

    Raises:
        TypeError: ``document_ids`` is no tensor of ints, or ``causal`` is no bool.
        ValueError: it is a scalar.

    >>> attention_mask(torch.tensor([0, 0, 1])).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    _check_ids(document_ids)
    check_bool("causal", causal)
    same = document_ids[..., :, None] == document_ids[..., None, :]
    return same.tril() if causal else same


def cu_seqlens(document_ids: torch.Tensor) -> torch.Tensor:
    """Return the boundaries of documents in flattened rows, for attention over sequences of many lengths.

    Args:
        document_ids: int, length, or rows x length; each row begins anew. Padding is like a document.

    Returns:
        int32: 0, the ends of all documents, the last of which is the number of all tokens. The longest is
        ``cu_seqlens(ids).diff().max()``.

    Raises:
        TypeError: ``document_ids`` is no tensor of ints.
        ValueError: it is a scalar.

    >>> cu_seqlens(torch.tensor([[0, 0, 1, -1], [2, 2, 2, 2]]))
    tensor([0, 2, 3, 4, 8], dtype=torch.int32)
    """
    _check_ids(document_ids)
    rows = document_ids.reshape(math.prod(document_ids.shape[:-1]), document_ids.shape[-1])
    new = torch.ones_like(rows, dtype=torch.bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    begins = new.reshape(-1).nonzero().reshape(-1)
    return torch.cat([begins, begins.new_tensor([rows.numel()])]).to(torch.int32)


def _check_ids(document_ids: Any) -> None:
    if not isinstance(document_ids, torch.Tensor):
        raise TypeError(
            f"document_ids must be a tensor of ints, got {type(document_ids).__name__}; give "
            "torch.as_tensor(document_ids)"
        )
    if document_ids.is_floating_point() or document_ids.is_complex():
        raise TypeError(f"document_ids must be a tensor of ints, got {document_ids.dtype}")
    if document_ids.ndim == 0:
        raise ValueError("document_ids must be of length, or of rows x length; it is a scalar")
