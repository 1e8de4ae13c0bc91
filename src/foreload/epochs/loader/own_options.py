"""Options of a loader beyond torch's, kept apart from the attributes of classes derived from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import IterableDataset

from foreload._torch import TorchDataLoader
from foreload.batch.failure import OnError, SampleError
from foreload.options import Cache
from foreload.order.skip import Skip
from foreload.record.recorder import Recorder
from foreload.record.restart import Restart
from foreload.workers.spec import Workers

__all__ = ["OwnOptions", "Shown", "Unlisted", "WithOwnOptions", "check_sample_transform", "is_own", "set_group"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class OwnOptions:
    """The arguments of :class:`foreload.DataLoader` that torch's has not, checked."""

    workers: Workers
    seed: int | None
    distributed: bool
    group: tuple[int, int] | None
    cache: Cache | None
    transform: Callable[[Any], Any] | None
    device: torch.device | None
    device_depth: int
    device_transform: Callable[[Any], Any] | None
    memory: Any
    on_error: OnError
    max_errors: int
    max_restarts: int
    snapshot_every_n_steps: int


_MAY_BE_READ = ("seed", "cache", "transform", "device", "device_transform", "memory", "workers", "skip")
_NAMES = tuple(field.name for field in fields(OwnOptions))


# The classes of foreload's that were met: each epoch asks many times.
_plain: set[type] = set()


def is_own(kind: type) -> bool:
    """Whether a class is foreload's, not derived from one of those by somebody else."""
    return kind.__module__.startswith("foreload.")


class Unlisted(Generic[T]):
    """An attribute that is not among ``vars(loader)`` by its name, but by that with ``_fl_`` before it.

    To build another loader, libraries (Ignite is one) take all that does not begin with ``_`` there for arguments
    of the class. What a derived class sets under the name of the attribute is its own, as for options, before its
    constructor calls the loader's, and after that if it is nothing that the loader could use.

    Args:
        kind: what the loader could use.

    >>> class Loader: errors: Unlisted[list[str]] = Unlisted(list)
    >>> Loader.__module__, loader = "foreload.example", Loader()
    >>> loader.errors = ["lost"]
    >>> loader.errors, vars(loader)
    (['lost'], {'_fl_errors': ['lost']})
    """

    def __init__(self, kind: type | None = None) -> None:
        self._kind = kind

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        """Return the value; None before it is set."""
        own = {} if instance is None else vars(instance)
        value: Any = own[self._name] if self._name in own else own.get(f"_fl_{self._name}")
        return value  # type: ignore[no-any-return]

    def __set__(self, instance: Any, value: T) -> None:
        own, hidden = vars(instance), f"_fl_{self._name}"
        is_used = self._kind is not None and hidden in own and isinstance(value, self._kind)
        own[hidden if is_used or is_own(type(instance)) else self._name] = value
        if is_used:
            own.pop(self._name, None)


class Shown(Generic[T]):
    """A property that gives way to what a derived class, or a user of the loader, keeps under its name.

    >>> class Loader:
    ...     @Shown
    ...     def spans(self): return ["recorded"]
    >>> loader, other = Loader(), Loader()
    >>> other.spans = [(0, 3)]
    >>> loader.spans, other.spans
    (['recorded'], [(0, 3)])
    """

    def __init__(self, get: Callable[[Any], T]) -> None:
        self._get, self.__doc__ = get, get.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        """Return what is shown."""
        return self if instance is None else self._get(instance)  # type: ignore[return-value]


class WithOwnOptions(TorchDataLoader[T_co]):
    """A torch DataLoader with options of foreload's, which are attributes too.

    A class that was derived from torch's loader, and has foreload's in its place, knows nothing of them: what it
    calls ``transform``, ``device`` or ``seed`` is its own, be it an attribute, a property or a method. So options
    of derived classes are what their constructors hand on, and nothing of their own is replaced. For the same
    reason, some private names, as those of a count or an epoch, begin with ``_fl_``.

    Attributes:
        errors: the samples that failed.
        restarts: the worker processes that were replaced.
        recorder: records all epochs.
        published: the loader's name in ``foreload serve`` ("": its dataset's class); None: not published.
    """

    errors: Unlisted[list[SampleError]] = Unlisted(list)
    restarts: Unlisted[list[Restart]] = Unlisted(list)
    recorder: Unlisted[Recorder] = Unlisted(Recorder)
    published: Unlisted[str | None] = Unlisted()
    _fl_errors: list[SampleError]
    _fl_restarts: list[Restart]
    _fl_recorder: Recorder
    _fl_published: str | None = None
    _fl_skip: tuple[Skip, ...]

    workers: Workers
    seed: int | None
    distributed: bool
    group: tuple[int, int] | None
    cache: Cache | None
    transform: Callable[[Any], Any] | None
    device: torch.device | None
    device_depth: int
    device_transform: Callable[[Any], Any] | None
    memory: Any
    on_error: OnError
    max_errors: int
    max_restarts: int
    snapshot_every_n_steps: int

    @property
    def _foreload(self) -> OwnOptions:
        # One name that no other library has, also for where the options are kept. A plain loader's are its
        # attributes, which may be set later; they are not copied, as each epoch reads many.
        if type(self) in _plain or is_own(type(self)):
            _plain.add(type(self))
            return self  # type: ignore[return-value]
        own = vars(self)
        options: Any = own.get("_foreload", self if "_fl_crew" in own else None)  # copied from a plain loader's
        if options is None:  # a wrapper that calls no constructor has a __getattr__ of its own
            raise AttributeError(
                f"{type(self).__name__} has no options, as its constructor did not call the loader's"
            )
        return options  # type: ignore[no-any-return]

    @_foreload.setter
    def _foreload(self, given: OwnOptions) -> None:
        own = vars(self)
        is_derived = not is_own(type(self))
        if is_derived:
            own["_foreload"] = given
        for name in _NAMES:
            if not is_derived or not (name in own or hasattr(type(self), name)):
                own[name] = getattr(given, name)

    def mark_published(self, name: str | None) -> None:
        """Note the name under which this loader is published; None: it is not."""
        self._fl_published = name

    def own_options(self) -> OwnOptions:
        """Return the options as they are now."""
        options = self._foreload
        return OwnOptions(**{name: getattr(options, name) for name in _NAMES})

    def options_for(self, *read: Any) -> list[Any]:
        """Return arguments that may have been read off this loader's attributes, as frameworks read them.

        Where an attribute is a derived class's own, the option is returned in its place.

        Args:
            read: ``seed``, ``cache``, ``transform``, ``device``, ``device_transform``, ``memory``, ``workers`` and
                ``skip``.
        """
        own = {} if is_own(type(self)) else vars(self)
        options = {**vars(self.own_options()), "skip": self._fl_skip}
        return [
            options[name] if name in own and own[name] is value else value
            for name, value in zip(_MAY_BE_READ, read, strict=True)
        ]


def set_group(loader: WithOwnOptions[Any], group: Any) -> None:
    """Replace the option ``group`` of a loader, with which it is not constructed beside a sampler."""
    loader._foreload = replace(loader.own_options(), group=group)


def check_sample_transform(dataset: Any, transform: Any, cache: Any) -> Any:
    """Return the ``transform`` of samples, which goes together with ``cache``, if this dataset can have them."""
    if isinstance(dataset, IterableDataset) and not (cache is None and transform is None):
        raise ValueError("cache and transform need a map-style dataset, whose samples have indices")
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be callable, got {transform!r}")
    return transform
