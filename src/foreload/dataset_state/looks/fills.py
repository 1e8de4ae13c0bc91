"""Values that a dataset makes when they are first needed, and that each copy of it makes for itself.

A file that is opened then is its own in each process. All else must be the same whichever sample is the first, or
copies of the dataset would go on from different values.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from foreload.cache.fingerprint.content import ContentPickler
from foreload.dataset_state.digest import checksum, digest
from foreload.dataset_state.handles import handle_kind
from foreload.dataset_state.sealed import is_made_of_samples, is_sealed

__all__ = ["Fills", "contents_of", "may_fill"]

_LOCKS = (type(threading.Lock()), type(threading.RLock()))

# By name, hashes of what has been made there.
Fills = Mapping[str, frozenset[bytes]]


def contents_of(made: Iterable[tuple[str, Any]]) -> Fills:
    """Return hashes of what has been made, by name, but for what each process opens for itself.

    >>> contents_of([("size", 3)]) == contents_of([("size", 3)])
    True
    >>> contents_of([("size", 3)]) == contents_of([("size", 4)])
    False
    """
    found: dict[str, frozenset[bytes]] = {}
    for name, value in made:
        if not _is_opened(value):
            found[name] = found.get(name, frozenset()) | {_content_of(value)}
    return found


def may_fill(name: str, value: Any, fills: Fills) -> bool:
    """Whether a value may take the place of nothing.

    Args:
        name: the name of its place.
        value: it.
        fills: what is known to be made there, whichever sample is the first.
    """
    return _is_opened(value) or (name in fills and _content_of(value) in fills[name])


def _is_opened(value: Any) -> bool:
    """Whether each process opens it (a file, a connection, another library's decoder), or tells which one did."""
    if type(value) is int and value == os.getpid():
        return True
    return bool(handle_kind(value)) or (is_sealed(value) and not is_made_of_samples(value))


def _content_of(value: Any) -> bytes:
    if digest(value)[0] == "generator" or is_made_of_samples(value):  # which each use of it changes
        return os.urandom(16)
    known = hashlib.blake2b(digest_size=16)
    try:
        _Pickler(known).dump(value)
    except Exception:  # whatever pickling a user's object raises
        return os.urandom(16)
    return known.digest()


class _Pickler(ContentPickler):
    """What nothing is known of is like nothing else."""

    def __init__(self, known: Any) -> None:
        super().__init__(_Written(known), protocol=5, buffer_callback=lambda part: known.update(part.raw()))

    def persistent_id(self, thing: Any) -> Any:
        if type(thing) in (set, frozenset):
            return type(thing).__name__, sorted(map(_content_of, thing))
        return None

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is np.ndarray and not thing.dtype.hasobject:
            return str, (repr((thing.dtype, thing.shape)), checksum(thing))  # files that are mapped, in part
        if isinstance(thing, (MappingProxyType, memoryview)):
            return str, ("view",), dict(thing) if isinstance(thing, MappingProxyType) else thing.tobytes()
        if isinstance(thing, torch.Generator) or is_made_of_samples(thing):
            return bytes, (os.urandom(16),)
        return super().reducer_override(thing)

    def of_failed(self, thing: Any, error: Exception) -> Any:
        if _is_opened(thing) or isinstance(thing, _LOCKS):
            return super().of_failed(thing, error)
        return bytes, (os.urandom(16),)


class _Written:
    """A file that is hashed."""

    def __init__(self, known: Any) -> None:
        self.write = known.update
