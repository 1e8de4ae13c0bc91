"""The optimal cache as a decorator for a user's own dataset, in any DataLoader."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, Sampler, SequentialSampler

from foreload.cache.budget import make_largest_store
from foreload.cache.foresight import Foresight, source_of
from foreload.cache.instances import identify_instances, identity_of, set_identity
from foreload.cache.replanning import MAX_PLANNED, EpochPlans, fall_back
from foreload.cache.store import SampleStore
from foreload.cache.wrappers import places_of, unwrap
from foreload.checks import Indices, check_bool, check_int
from foreload.forks.fork import call_in_forks
from foreload.order.index import position_of
from foreload.order.lookahead import asks_once
from foreload.order.observed import observe

__all__ = ["OPTCache", "OPTInit"]

# The attribute of a ``__reduce_ex__`` that names the method whose store it sends along.
_SHARED = "_foreload_shared"

_NO_INDEX = object()

# The least number of draws, or requests, between two looks at whether all is as foreseen.
_MIN_CHECK = 64


class OPTInit:
    """The future requests of a DataLoader, for :class:`OPTCache`.

    When the sampler begins an epoch, in a loader of any kind, that epoch's indices and those of later ones are
    drawn ahead with a copy of it. The sequence that the sampler then draws is untouched; it and the requests are
    compared with what was foreseen. It applies to every :func:`OPTCache` in the program that has no ``OPTInit``
    yet, and to later ones.

    Args:
        sampler_class: the class of the loader's sampler, e.g. ``RandomSampler``.
        generator: the generator that the sampler will draw from, or one in the same state, before the first epoch;
            None for a ``SequentialSampler`` or a ``DistributedSampler``, which need none.
        n: the number of samples in the dataset; in the whole of it, if the sampler is that of a ``Subset``. A
            ``WeightedRandomSampler`` or ``SubsetRandomSampler`` knows no dataset: instead of a ``Subset``, give it
            the weights (0: left out) or the indices of the whole.
        replacement, num_samples, epochs: what the sampler will draw. They need not be given, nor be right: the
            sampler itself shows it.

    Raises:
        ValueError, TypeError: an argument is of the wrong type or out of range.

    >>> from torch.utils.data import DataLoader, Dataset, RandomSampler
    >>> generator = torch.Generator().manual_seed(0)
    >>> future = OPTInit(RandomSampler, generator, 100)
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
        check_bool("replacement", replacement)
        if not (isinstance(sampler_class, type) and issubclass(sampler_class, Sampler)):
            raise TypeError(f"sampler_class must be a class of samplers, got {sampler_class!r}")
        if issubclass(sampler_class, BatchSampler) or not hasattr(sampler_class, "__iter__"):
            raise TypeError(
                "sampler_class must be a class of samplers that yield single indices, got "
                f"{sampler_class.__name__}; give the class of the sampler that it takes them from"
            )
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
        if generator is None and not issubclass(sampler_class, (SequentialSampler, DistributedSampler)):
            raise ValueError(
                "generator is None: the sampler's draws cannot be known; give the sampler's own generator"
            )
        self._foresight = Foresight(generator, self.n)
        self._process = os.getpid()
        self._epoch: _Epoch | None = None
        observe(sampler_class, self)
        OPTInit._latest = self
        for method in list(_methods):
            method.follow(self)

    def begin(self, sampler: Any, draw: Callable[[Any], Iterator[Any]]) -> Callable[[Any], None] | None:
        """Plan for an epoch that a sampler is about to draw (an :class:`~foreload.order.observed.Observer`)."""
        followed = [(each, each.plans) for each in _methods if each.future is self and each.plans is not None]
        if not followed or os.getpid() != self._process or not self._foresight.is_of(sampler):
            return None
        last, self._epoch = self._epoch, None
        for _, plans in followed:
            plans.end(0 if last is None else last.num_drawn)
        try:
            root, places = unwrap(source_of(sampler))
            once = asks_once(sampler) and (places is None or len(np.unique(places)) == len(places))
            later = not once or any(plans.drops for _, plans in followed)
            was_foreseen = self._foresight.begin(sampler, draw, later=later)
        except Exception:  # the sampler's own, which the loop is about to get from the sampler itself
            return None
        epochs = [self._foresight.now, *self._foresight.later]
        self._epoch = _Epoch(self, [plans for _, plans in followed], epochs[0])
        for method, plans in followed:
            now, *later_ones = [places_of(drawn, places) for drawn in epochs] if method.is_of(root) else epochs
            plans.begin(now, later_ones, was_foreseen=was_foreseen, asks_once=once)
        return self._epoch.note

    def is_at(self, epoch: _Epoch) -> bool:
        """Whether this is the epoch that was begun last."""
        return self._epoch is epoch


class _Epoch:
    """Compares what a sampler draws in an epoch, and what is requested then, with what was foreseen."""

    def __init__(self, future: OPTInit, plans: list[EpochPlans], indices: Indices) -> None:
        self.num_drawn = 0
        self._future = future
        self._plans = plans
        self._indices = memoryview(indices)  # type: ignore[arg-type]
        self._step = max(_MIN_CHECK, future.n // 8)
        self._next_check = min(self._step, len(indices))

    def note(self, index: Any) -> None:
        """Record an index that the sampler has drawn."""
        at = self.num_drawn
        self.num_drawn = at + 1
        if at == self._next_check and not self._check(at):
            return
        if at < self._next_check and self._indices[at] != index:
            self._give_up(f"the sampler drew {index} where {self._indices[at]} was foreseen")

    def _check(self, at: int) -> bool:
        """Compare the requests with the draws; return whether the epoch is still followed."""
        if not self._future.is_at(self):
            self._next_check = -1
        elif at == len(self._indices):
            self._give_up("the sampler draws more than was foreseen")
        elif not all(plans.follows(at) for plans in self._plans):
            self._give_up("samples are requested that the sampler has not drawn")
        else:
            self._next_check = min(at + self._step, len(self._indices))
        return self._next_check >= 0

    def _give_up(self, why: str) -> None:
        self._next_check = -1
        for plans in self._plans:
            plans.give_up(why)


def OPTCache(maxsize: int | None = None) -> Callable[[Callable[[Any, int], Any]], Any]:
    """Decorate a dataset's ``__getitem__`` with the optimal cache for a known order.

    All workers of a stock or a foreload DataLoader share one cache, forked or spawned. The order comes from
    :class:`OPTInit`. If other samples are requested, a warning says so once, and the cache goes on as LRU until
    the sampler begins another epoch. Each hit is a copy, so it may be changed. The cache serves one dataset: the
    first that is used. Others, also copies of it, and objects without weak references (``__slots__``) load their
    samples themselves. What is kept is not loaded again, whatever the dataset's attributes are set to later.

    Args:
        maxsize: the most samples to keep; None: as many as memory allows.

    Raises:
        ValueError, TypeError: ``maxsize`` is not a number of samples.

    >>> class Squares(torch.utils.data.Dataset):
    ...     def __len__(self): return 100
    ...     @OPTCache(maxsize=50)
    ...     def __getitem__(self, i): return i * i
    >>> squares = Squares()
    >>> future = OPTInit(torch.utils.data.RandomSampler, torch.Generator(), len(squares))
    >>> squares[3]
    9
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
        self.future: OPTInit | None = None
        self.plans: EpochPlans | None = None
        self._function = function
        self._maxsize = maxsize
        self._store: SampleStore | None = None
        self._until_check = _MIN_CHECK  # requests of this process
        self._own_future = OPTInit._latest
        if self._own_future is not None:
            self.follow(self._own_future)
            # The latest future was made for this method, then, not for those before it.
            for other in list(_methods):
                if other.future is self._own_future and other._own_future is not None and not other.is_used:
                    other.follow(other._own_future)
        _methods.add(self)

    def follow(self, future: OPTInit) -> None:
        """Create the store for a future, in the process that will start the workers."""
        most = future.n if self._maxsize is None else min(self._maxsize, future.n)
        self.future = future
        self.plans = None
        self.share(None)
        if most == 0:
            return
        store = make_largest_store(future.n, 0 if most == future.n else MAX_PLANNED, most)
        self.share(store)
        if most == future.n:
            store.native.due = 1 << 62  # no request could change what is kept
            store.native.follow_rule("all")
        else:
            store.native.follow_rule("recent")  # until the sampler begins
            self.plans = EpochPlans(store, most)

    def share(self, store: SampleStore | None) -> None:
        """Use a store, perhaps that of another process."""
        self._store = store

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        identify_instances(owner)
        _share_when_spawned(owner, self)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, dataset: Any, index: Any = _NO_INDEX) -> Any:
        if index is _NO_INDEX:
            raise TypeError(f"OPTCache is for a dataset's __getitem__(self, index), not for {self.name}()")
        store = self._store
        position = position_of(index)
        if store is None or position is None or not 0 <= position < len(store):
            return self._function(dataset, index)
        identity = identity_of(dataset)
        if identity is None or not store.native.belongs_to(identity):
            return self._function(dataset, index)
        self._until_check -= 1
        if self._until_check <= 0:
            self._until_check = _MIN_CHECK
            if store.num_requests() > store.native.due + len(store):
                fall_back(store, "samples are requested that the sampler has not drawn")
        return store.load(position, lambda _: self._function(dataset, index))

    def is_of(self, dataset: Any) -> bool:
        """Whether this is the method of a dataset's class."""
        return any(base.__dict__.get(self.name) is self for base in type(dataset).__mro__)

    @property
    def is_used(self) -> bool:
        """Whether there has been any request."""
        return self._store is not None and self._store.num_requests() > 0

    def stats(self) -> dict[str, int]:
        """Return hits, misses and bytes in use, of all workers together."""
        return {} if self._store is None else self._store.native.counts()


_methods: weakref.WeakSet[_Method] = weakref.WeakSet()


def leave_stores() -> None:
    """Let this process load every sample without a cache, so that it does not advance the plan of others."""
    for method in list(_methods):
        method.share(None)


call_in_forks(leave_stores)


def _share_when_spawned(owner: type, method: _Method) -> None:
    """Send the store along with an instance that is pickled for a process that is being spawned."""
    own = owner.__dict__.get("__reduce_ex__")
    if getattr(own, "__dict__", {}).get(_SHARED) is method:
        return  # the class is a copy, such as dataclass(slots=True) makes

    def reduce(self: Any, protocol: Any) -> Any:
        # The class that has the method; not the one that it was written in, if that was replaced by a copy.
        holder: Any = next(
            (base for base in type(self).__mro__ if base.__dict__.get(method.name) is method), owner
        )
        reduced: Any = super(holder, self).__reduce_ex__(protocol) if own is None else own(self, protocol)
        identity = identity_of(self)
        if get_spawning_popen() is None or method._store is None or identity is None or isinstance(reduced, str):
            return reduced
        make, arguments, *rest = reduced
        return (_revive, (holder, method.name, method._store, identity, make, arguments), *rest)

    vars(reduce)[_SHARED] = method
    owner.__reduce_ex__ = reduce  # type: ignore[method-assign, assignment]


def _revive(owner: type, name: str, store: SampleStore, identity: int, make: Any, arguments: Any) -> Any:
    method = owner.__dict__.get(name)
    if isinstance(method, _Method):
        method.share(store)
    instance = make(*arguments)
    with suppress(TypeError):
        set_identity(instance, identity)
    return instance
