"""The optimal cache as a decorator for a user's own dataset, in any DataLoader."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from foreload.cache.drift import DriftWatch
from foreload.cache.instances import identify_instances, identity_of, set_identity
from foreload.cache.plan import compile_plan
from foreload.cache.store import SampleStore
from foreload.checks import Array, check_int
from foreload.machine import granted_memory
from foreload.order.index import position_of

__all__ = ["OPTCache", "OPTInit"]

# The share of memory that a cache with a limit in samples may use.
_ROOM_SHARE = 0.8
_MIN_ROOM = 1 << 24


class OPTInit:
    """The future requests of a DataLoader, for :class:`OPTCache`.

    They are drawn from a copy of the generator's state, so the sequence that the sampler then draws is untouched.
    They apply to every :func:`OPTCache` in the program that has no ``OPTInit`` yet, and to later ones.

    Args:
        sampler_class: the class of the loader's sampler, e.g. ``RandomSampler``.
        generator: the generator that the sampler will draw from, in its state before the first epoch.
        n: the number of samples in the dataset.
        replacement, num_samples: as given to the sampler.
        epochs: the number of epochs to look ahead.

    Raises:
        ValueError, TypeError: an argument is of the wrong type or out of range.

    >>> from torch.utils.data import DataLoader, Dataset
    >>> generator = torch.Generator().manual_seed(0)
    >>> future = OPTInit(RandomSampler, generator, 100, epochs=2)
    >>> class Squares(Dataset):
    ...     calls = 0
    ...     def __len__(self): return 100
    ...     @OPTCache(maxsize=50)
    ...     def __getitem__(self, i): Squares.calls += 1; return i * i
    >>> squares = Squares()
    >>> loader = DataLoader(squares, sampler=RandomSampler(squares, replacement=True, generator=generator))
    >>> all(len(list(loader)) == 100 for epoch in range(2)), Squares.calls
    (True, 81)
    """

    _latest: OPTInit | None = None

    def __init__(
        self,
        sampler_class: type[Sampler[int]],
        generator: torch.Generator | None,
        n: int,
        *,
        replacement: bool = True,
        num_samples: int | None = None,
        epochs: int = 1,
    ) -> None:
        self.n = check_int("n", n, 1)
        if num_samples is not None:
            check_int("num_samples", num_samples, 1)
        check_int("epochs", epochs, 1)
        if not (isinstance(sampler_class, type) and issubclass(sampler_class, Sampler)):
            raise TypeError(f"sampler_class must be a class of samplers, got {sampler_class!r}")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
        self.once = not replacement and num_samples in (None, n)
        self.accesses = _future(sampler_class, generator, self.n, replacement, num_samples, epochs)
        OPTInit._latest = self
        for method in list(_methods):
            method.look_ahead(self)


def _future(
    sampler_class: type[Sampler[int]],
    generator: torch.Generator | None,
    n: int,
    replacement: bool,
    num_samples: int | None,
    epochs: int,
) -> Array:
    if generator is None and not issubclass(sampler_class, SequentialSampler):
        raise ValueError(
            "generator is None: the sampler's draws cannot be known; give the sampler's own generator"
        )
    ahead = torch.Generator()
    if generator is not None:
        ahead.set_state(generator.get_state())
    sampler: Any
    if issubclass(sampler_class, RandomSampler):
        sampler = sampler_class(range(n), replacement=replacement, num_samples=num_samples, generator=ahead)
    elif issubclass(sampler_class, SequentialSampler):
        sampler = sampler_class(range(n))
    else:
        try:
            sampler = sampler_class(range(n), generator=ahead)  # type: ignore[call-arg]
        except TypeError as error:
            raise TypeError(
                f"{sampler_class.__name__} cannot be made from (range(n), generator=...) ({error}); OPTInit knows "
                "RandomSampler, SequentialSampler and samplers with that signature"
            ) from None
    accesses = np.concatenate([np.fromiter(iter(sampler), np.int64) for _ in range(epochs)])
    if len(accesses) and not 0 <= accesses.min() <= accesses.max() < n:
        raise ValueError(f"{sampler_class.__name__} yields indices that are out of range for n = {n} samples")
    return accesses


def OPTCache(maxsize: int | None = None) -> Callable[[Callable[[Any, int], Any]], Any]:
    """Decorate a dataset's ``__getitem__`` with the optimal cache for a known order.

    All workers of a stock or a foreload DataLoader share one cache, forked or spawned. The order comes from
    :class:`OPTInit`. If other samples are requested, a warning says so once, and the cache goes on as LRU. Each
    hit is a copy, so it may be changed. The cache serves one dataset: the first that is used.

    Args:
        maxsize: the most samples to keep; None: as many as memory allows.

    Raises:
        ValueError, TypeError: ``maxsize`` is not a number of samples.
    """
    most = check_maxsize(maxsize, "OPTCache")
    return lambda function: _Method(function, most)


def check_maxsize(maxsize: Any, decorator: str) -> int | None:
    """Return ``maxsize`` as an int or None; raise TypeError or ValueError if it is neither."""
    if maxsize is None:
        return None
    if callable(maxsize):
        raise TypeError(f"write @{decorator}() or @{decorator}(maxsize=...), with brackets")
    return check_int("maxsize", maxsize, 0, otherwise=" or None")


class _Method:
    """A dataset's ``__getitem__`` with a cache."""

    def __init__(self, function: Callable[[Any, int], Any], maxsize: int | None) -> None:
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__name__", "__getitem__")
        self._function = function
        self._maxsize = maxsize
        self._future: OPTInit | None = None
        self._store: SampleStore | None = None
        self._watch: DriftWatch | None = None
        self._own_future = OPTInit._latest
        if self._own_future is not None:
            self.look_ahead(self._own_future)
            # The latest future was made for this method, then, not for those before it.
            for other in list(_methods):
                if other._future is self._own_future and other._own_future is not None and not other.is_used:
                    other.look_ahead(other._own_future)
        _methods.add(self)

    def look_ahead(self, future: OPTInit) -> None:
        """Create and plan the store for a future, in the process that will start the workers."""
        most = future.n if self._maxsize is None else min(self._maxsize, future.n)
        self._future = future
        self._store = None
        self._watch = None
        if most == 0:
            return
        self._store = make_largest_store(future.n, len(future.accesses), most)
        self._begin_watch(self._store, future)
        if most == future.n:
            self._store.native.follow_rule("all")
        elif future.once:
            # With each sample once per epoch, no set of samples is better than another of the same size.
            members = np.zeros(future.n, np.bool_)
            members[future.accesses[:most]] = True
            self._store.native.follow_members(members.view(np.uint8))
        else:
            plan = compile_plan(future.accesses, future.n, most)
            self._store.native.follow_accesses(
                future.accesses, plan.keep.view(np.uint8), plan.retained.view(np.uint8)
            )

    def _begin_watch(self, store: SampleStore, future: OPTInit) -> None:
        self._watch = None if future.once else DriftWatch(future.accesses, future.n, store.asked)

    def __set_name__(self, owner: type, name: str) -> None:
        identify_instances(owner)
        _share_when_spawned(owner, self)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, dataset: Any, index: Any) -> Any:
        store = self._store
        position = position_of(index)
        if store is None or position is None or not 0 <= position < len(store):
            return self._function(dataset, index)
        if not store.native.belongs_to(identity_of(dataset)):
            return self._function(dataset, index)
        if self._watch is not None and self._watch.is_surprised(position):
            self._fall_back_to_lru(store)
        return store.load(position, lambda _: self._function(dataset, index))

    def _fall_back_to_lru(self, store: SampleStore) -> None:
        self._watch = None
        store.native.follow_rule("recent")
        if store.native.first_to_tell():
            warnings.warn(
                "OPTCache: the requests are not what OPTInit foresaw; from now on the cache keeps the samples "
                "that were used last (LRU). Give OPTInit the sampler's class, arguments and generator, in its "
                "state before the first epoch, and epochs= as many as there will be",
                stacklevel=3,
            )

    @property
    def is_used(self) -> bool:
        """Whether there has been any request."""
        counts = self.stats()
        return bool(counts) and counts["hits"] + counts["misses"] > 0

    def stats(self) -> dict[str, int]:
        """Return hits, misses and bytes in use, of all workers together."""
        return {} if self._store is None else self._store.native.counts()


def make_largest_store(samples: int, accesses: int, most: int) -> SampleStore:
    """Return a store with as much room as memory allows; it takes only what it uses."""
    room = int(_ROOM_SHARE * granted_memory())
    while True:
        try:
            return SampleStore(samples, room, accesses=accesses, most=most)
        except OSError:  # a limit on the address space
            if room < _MIN_ROOM:
                raise
            room //= 2


_methods: weakref.WeakSet[_Method] = weakref.WeakSet()


def leave_stores() -> None:
    """Let this process load every sample without a cache, so that it does not advance the plan of others."""
    for method in list(_methods):
        method._store = None


def _share_when_spawned(owner: type, method: _Method) -> None:
    """Send the store along with an instance that is pickled for a process that is being spawned."""
    usual = owner.__reduce_ex__

    def reduce(self: Any, protocol: Any) -> Any:
        reduced: Any = usual(self, protocol)  # type: ignore[call-arg]
        if get_spawning_popen() is None or method._store is None or isinstance(reduced, str):
            return reduced
        make, arguments, *rest = reduced
        return (
            _revive,
            (owner, method.name, method._store, method._future, identity_of(self), make, arguments),
            *rest,
        )

    owner.__reduce_ex__ = reduce  # type: ignore[method-assign, assignment]


def _revive(
    owner: type, name: str, store: SampleStore, future: OPTInit, identity: int, make: Any, arguments: Any
) -> Any:
    method = owner.__dict__.get(name)
    if isinstance(method, _Method):
        method._store = store
        method._future = future
        method._begin_watch(store, future)
    instance = make(*arguments)
    with suppress(TypeError):
        set_identity(instance, identity)
    return instance
