"""A look at what a script sets in its dataset between epochs, which cached samples do not have."""

from __future__ import annotations

import dis
import functools
import inspect
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from foreload._torch import TorchDataLoader
from foreload.checks import module_of, optional, tells_class
from foreload.dataset_state.looks import MISSING, is_same
from foreload.dataset_state.walk import CONTAINERS, is_installed, names_used
from foreload.errors import warn_user

__all__ = ["BetweenEpochs"]

_CHANGED = (
    "{!r} of the dataset was set since its last epoch, so the cache drops its samples: they might not be what the "
    "dataset gives now. What changes with the epoch is best given to DataLoader(transform=...), which is applied "
    "after the cache"
)

# The most objects that are looked at.
_MOST_OBJECTS = 256

_SETS = ("STORE_ATTR", "DELETE_ATTR")

# The methods that load a sample, or are applied to one.
_ENTRIES = {"__getitem__", "__getitems__", "__call__", "__iter__", "__next__", "forward"}


class BetweenEpochs:
    """A look at the attributes of a dataset of the user's class, and of the user's objects in it.

    What loading itself sets (a count, a file that is opened when it is first needed) is no change, nor is what is
    done to a container that loading adds to.

    Args:
        dataset: of any class.

    >>> class Scaled:
    ...     __module__ = "script"
    ...     def __init__(self): self.epoch, self.loads = 0, 0
    ...     def __getitem__(self, index):
    ...         self.loads += 1
    ...         return self.epoch * index
    >>> scaled = Scaled(); look = BetweenEpochs(scaled)
    >>> _ = scaled[3]; scaled.loads = 0; look.changed()
    >>> scaled.epoch = 1; look.changed(), look.changed()
    ('epoch', None)
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._logs: set[str] = set()
        self._note()

    def _note(self) -> None:
        self._before = dict(_attributes(self._dataset))
        self._sizes = _sizes(self._before)

    def changed(self) -> str | None:
        """Return the name of an attribute that has been set since the last look; None if none has."""
        before, now = self._before, dict(_attributes(self._dataset))
        names = (name for name in before | now if name not in self._logs)
        name = next((n for n in names if not is_same(now.get(n, MISSING), before.get(n, MISSING))), None)
        self._note()
        return name

    def are_there(self, *, counts: bool) -> bool:
        """Whether an attribute has been set since the last look, of which a warning tells.

        Args:
            counts: whether it may show in samples; not so if workers keep copies of the dataset.
        """
        name = self.changed()
        if name is not None and counts:
            warn_user(_CHANGED.format(name))
        return name is not None and counts

    def end(self) -> None:
        """Tell that an epoch has ended that this process loaded: what containers have got since is a log of it."""
        sizes = _sizes(dict(_attributes(self._dataset)))
        self._logs |= {name for name, size in self._sizes.items() if sizes.get(name, size) != size}


def _sizes(attributes: dict[str, Any]) -> dict[str, int]:
    return {name: len(value) for name, value in attributes.items() if isinstance(value, CONTAINERS)}


def _attributes(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are not set by loading, with their names."""
    root: Any = type(dataset)
    used = {name for code in _loading_codes(root, frozenset()) for name in names_used(code)}
    seen: set[int] = set()
    left: deque[tuple[str, Any]] = deque([("", dataset)])
    while left and len(seen) < _MOST_OBJECTS:
        prefix, value = left.popleft()
        if not tells_class(value) or id(value) in seen:
            continue
        seen.add(id(value))
        kind: Any = type(value)
        if isinstance(value, CONTAINERS):
            inside = value.values() if isinstance(value, dict) else value
            left += ((prefix, inner) for _, inner in zip(range(_MOST_OBJECTS), inside, strict=False))
        own = optional(value, "__dict__")
        if not isinstance(own, dict) or is_installed(module_of(kind)) or isinstance(value, (type, FunctionType)):
            continue
        set_by_loading = _set_by(_loading_codes(kind, frozenset(used)))
        for name, inner in list(own.items()):
            is_computed = isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)
            if name in set_by_loading or is_computed or isinstance(inner, TorchDataLoader):
                continue
            yield prefix + name, inner
            left.append((f"{prefix}{name}.", inner))


@functools.lru_cache(maxsize=256)
def _loading_codes(kind: Any, used: frozenset[str]) -> tuple[CodeType, ...]:
    """Return the code of a class that loads samples: its methods of these names, and what they call of it."""
    found: dict[str, CodeType] = {}
    left = [*_ENTRIES, *used]
    while left:
        name = left.pop()
        function = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        function = optional(function, "fget") or optional(function, "func") or function
        function = optional(function, "__func__") or function
        function = optional(function, "__wrapped__") or function
        if name not in found and isinstance(function, FunctionType):
            found[name] = function.__code__
            left += names_used(function.__code__)
    return tuple(found.values())


@functools.lru_cache(maxsize=256)
def _set_by(codes: tuple[CodeType, ...]) -> frozenset[str]:
    """Return the names of attributes that code sets."""
    found: set[str] = set()
    left = list(codes)
    while left:
        code = left.pop()
        found |= {step.argval for step in dis.get_instructions(code) if step.opname in _SETS}
        left += (inner for inner in code.co_consts if isinstance(inner, CodeType))
    return frozenset(found)
