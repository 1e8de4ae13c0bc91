"""Caches with the classic policies: ``LRUCache``, and the ``cached`` decorator for functions and methods."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any, Generic, Literal, TypeVar, overload

import cachetools
import numpy as np
import torch
from cachetools.keys import typedkey

from foreload.cache.instances import Instances
from foreload.cache.opt import OPTCache, check_maxsize
from foreload.checks import check_int
from foreload.order.index import position_of

__all__ = ["LRUCache", "cached"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Default = TypeVar("Default")

Classic = cachetools.Cache[Any, Any]

_POLICIES: dict[str, type[Classic]] = {
    "lru": cachetools.LRUCache,
    "lfu": cachetools.LFUCache,
    "fifo": cachetools.FIFOCache,
    "random": cachetools.RRCache,
}


class LRUCache(Generic[K, V]):
    """A cache of the ``capacity`` most recently used entries, safe to use from several threads.

    Args:
        capacity: the largest number of entries; 0 keeps nothing.

    Raises:
        TypeError: ``capacity`` is not an int.
        ValueError: ``capacity`` is negative.

    >>> cache = LRUCache(2)
    >>> cache.put("a", 1); cache.put("b", 2); cache.get("a"); cache.put("c", 3)
    1
    >>> "b" in cache, len(cache), cache.stats()["evictions"]
    (False, 2, 1)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = check_int("capacity", capacity, 0)
        self._entries: cachetools.LRUCache[K, V] = cachetools.LRUCache(self.capacity)
        self._lock = threading.Lock()
        self._hits = self._misses = self._evictions = 0

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: Default) -> V | Default: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the entry, which becomes the most recently used one, or ``default``."""
        with self._lock:
            try:
                value = self._entries[key]
            except KeyError:
                self._misses += 1
                return default
            self._hits += 1
            return value

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry; the least recently used one is evicted if there are too many."""
        if not self.capacity:
            return
        with self._lock:
            self._evictions += len(self._entries) == self.capacity and key not in self._entries
            self._entries[key] = value

    def __len__(self) -> int:
        """Return the number of entries."""
        with self._lock:
            return len(self._entries)

    def __contains__(self, key: object) -> bool:
        """Return whether there is an entry; this does not count as a use of it."""
        with self._lock:
            return key in self._entries

    def clear(self) -> None:
        """Drop all entries; the statistics stay."""
        with self._lock:
            self._entries.clear()

    def stats(self) -> dict[str, float]:
        """Return ``hits``, ``misses``, ``evictions``, ``hit_rate``, ``size`` and ``capacity``."""
        with self._lock:
            requests = self._hits + self._misses
            return {
                "hits": self._hits,
                "misses": self._misses,
                "evictions": self._evictions,
                "hit_rate": self._hits / requests if requests else 0.0,
                "size": len(self._entries),
                "capacity": self.capacity,
            }

    def __copy__(self) -> LRUCache[K, V]:
        """Return a separate cache with the same entries and statistics."""
        other: LRUCache[K, V] = LRUCache(self.capacity)
        with self._lock:
            entries = [self._entries.popitem() for _ in range(len(self._entries))]
            for key, value in entries:
                self._entries[key] = value
                other._entries[key] = value
            other._hits, other._misses, other._evictions = self._hits, self._misses, self._evictions
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the entries; each process then has its own."""
        with self._lock:
            return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the entries, with a new lock."""
        self.__dict__.update(state, _lock=threading.Lock())


def cached(
    maxsize: int | None = 128, policy: Literal["lru", "lfu", "fifo", "random", "opt"] = "lru"
) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function, or a dataset's ``__getitem__``, so that its results are cached.

    With a classic policy, each instance in each process has a cache of its own. The cached object itself is
    returned, so do not change it. ``"opt"`` is :class:`~foreload.OPTCache`.

    Args:
        maxsize: the largest number of results to keep; None keeps all of them.
        policy: which result is evicted first when there are too many.

    Raises:
        ValueError: the policy is unknown, or ``maxsize`` is negative.

    >>> @cached(maxsize=2, policy="fifo")
    ... def double(x):
    ...     print("at work")
    ...     return 2 * x
    >>> double(4), double(4)
    at work
    (8, 8)
    """
    if policy == "opt":
        return OPTCache(maxsize)
    if not (isinstance(policy, str) and policy in _POLICIES):
        raise ValueError(f"policy must be one of {', '.join(_POLICIES)}, opt, got {policy!r}")
    most = check_maxsize(maxsize, "cached")
    return lambda function: _Cached(function, float("inf") if most is None else most, _POLICIES[policy])


class _Cached:
    """A function with a cache, or a method with one for each instance.

    Args:
        function: what is cached.
        maxsize: the largest number of results to keep.
        kind: the class of the caches.
        is_method: whether its first argument is an instance, however it is called.
    """

    def __init__(
        self, function: Callable[..., Any], maxsize: float, kind: type[Classic], is_method: bool = False
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._kind = kind
        self._maxsize = maxsize
        self._of_function = None if is_method else self._make()
        self._of_instances: Instances[tuple[Classic, threading.Lock]] = Instances()
        # What a class has that the function is put into.
        self._method = None if is_method else _Cached(function, maxsize, kind, is_method=True)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        method = self if self._method is None else self._method
        return method if instance is None else MethodType(method, instance)

    def __set_name__(self, owner: type, name: str) -> None:
        # One that is defined elsewhere may be called as a function too.
        if self.__dict__.get("__qualname__") == f"{owner.__qualname__}.{name}":
            self._of_function = self._method = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._of_function is not None:
            entries, lock = self._of_function
            arguments = args
        else:
            caches = self._of_instances
            try:
                entries, lock = caches.get(args[0]) or caches.put(args[0], self._make())
            except (TypeError, IndexError):  # an instance that cannot be weakly referenced, or is not given
                return self._function(*args, **kwargs)
            arguments = args[1:]
        try:
            name = typedkey(*map(_plain, arguments), **{key: _plain(value) for key, value in kwargs.items()})
            hash(name)
        except TypeError:
            return self._function(*args, **kwargs)
        with lock:
            if name in entries:
                return entries[name]
        result = self._function(*args, **kwargs)
        with lock:
            if entries.maxsize >= 1:
                entries[name] = result
        return result

    def _make(self) -> tuple[Classic, threading.Lock]:
        return self._kind(self._maxsize), threading.Lock()

    def __reduce__(self) -> str:
        """Pickle by name, as functions are."""
        return str(self._function.__qualname__)


def _plain(argument: Any) -> Any:
    """Return what stands for an argument in the name of a result.

    Raises:
        TypeError: it is a tensor, or holds one: its hash stays the same if its elements change.
    """
    if isinstance(argument, (tuple, frozenset)):
        parts = (typedkey(_plain(part)) for part in argument)
        return type(argument), tuple(parts) if isinstance(argument, tuple) else frozenset(parts)
    if not isinstance(argument, (torch.Tensor, np.generic, np.ndarray)):
        return argument
    # A sampler may yield an index as a tensor or a numpy integer.
    position = position_of(argument)
    if position is None and isinstance(argument, torch.Tensor):
        raise TypeError("a tensor may change")
    return argument if position is None else position
