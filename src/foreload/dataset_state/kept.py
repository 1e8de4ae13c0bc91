"""Functions that keep what they return, as those of ``functools.lru_cache`` do."""

from __future__ import annotations

import functools
import gc
import sys
from typing import Any

from foreload.checks import module_of, optional
from foreload.dataset_state.installed import is_installed

__all__ = ["LRU_CACHE", "is_of_library", "kept_values"]

# What functions become that keep what they have returned, which is nothing until they are first called.
LRU_CACHE: Any = type(functools.lru_cache(len))


def is_of_library(function: Any) -> bool:
    """Whether such a function is an installed library's own, whose state is in no sample."""
    module = module_of(function)
    found: Any = sys.modules.get(module)
    for name in str(optional(function, "__qualname__")).split("."):
        found = optional(found, name)
    return is_installed(module) and found is function


def kept_values(function: Any) -> list[Any]:
    """Return what a function that keeps what it returns has kept.

    >>> import functools
    >>> @functools.cache
    ... def settings(): return {"scale": 1}
    >>> kept_values(settings), settings(), kept_values(settings)
    ([], {'scale': 1}, [{'scale': 1}])
    """
    _, _, limit, size = function.cache_info()
    held = gc.get_referents(function) if size else []
    if limit is not None and [type(each).__name__ for each in held[3 : 3 * size + 1 : 3]] == ["type"] * size:
        return held[2 : 3 * size + 1 : 3]  # the key, the value and the type of each entry
    own = {id(function.__wrapped__), id(vars(function))}
    found: list[Any] = []
    for part in held:
        if id(part) in own or type(part) in (type, object):  # (an object marks where its key's names begin)
            continue
        if type(part) is not dict or limit is not None:
            found.append(part)
        else:
            found += part.values()
    return [part for part in found if not _holds_links(part)]


def _holds_links(part: Any) -> bool:
    """Whether this is how a cache of a limited size finds what it keeps, which it refers to itself too."""
    return type(part) is dict and any(type(value).__name__ == "_lru_list_elem" for value in part.values())
