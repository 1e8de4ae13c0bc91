"""Objects of libraries whose attributes show more, or less, than samples are made from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from foreload._libraries import PANDAS_PARTS
from foreload.checks import optional, package_of
from foreload.dataset_state.sealed import SEALED, TOO_LARGE, pickled_state

__all__ = ["columns_of", "is_of_pandas", "rules_of"]

# What each call of a tokenizer of transformers sets in the one of tokenizers that it holds.
_SET_BY_CALLS = ("padding", "truncation")


def is_of_pandas(value: Any) -> bool:
    """Whether an object is of a class of pandas, or of one derived from it."""
    return package_of(type(value)) == "pandas"


def columns_of(table: Any) -> list[Any]:
    """Return what a table of pandas keeps where no attribute of Python's shows it; that of a column, likewise."""
    manager, numbers = (optional(table, name) for name in PANDAS_PARTS)
    own = [numbers] if isinstance(numbers, np.ndarray) else []
    return [*own, *(optional(manager, "arrays") or ()), *(optional(manager, "axes") or ())]


def rules_of(tokenizer: Any) -> Any:
    """Return how a tokenizer of transformers makes tokens, without what each call sets in it for itself."""
    state = pickled_state(tokenizer)
    if state in (None, SEALED, TOO_LARGE):
        return state
    return {name: part for name, part in json.loads(tokenizer.to_str()).items() if name not in _SET_BY_CALLS}
