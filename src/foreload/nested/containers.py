"""Containers: lists, dicts, tuples, dataclasses and the like, and copies of them that hold something else.

No method of a user's class is called for a copy: its ``__setitem__`` may scale what it is given, or refuse it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

__all__ = ["attributes", "is_container", "rebuilt", "reduced"]

_BARE = (dict, list, set, bytearray)  # have no attributes
_BASES = (OrderedDict, defaultdict, *_BARE, deque)

# Besides its base and its slots, an object has its ``__dict__`` and the list of its weak references.
_POINTER = 8
_MOST_HIDDEN = 2 * _POINTER

_HOW = ("__reduce__", "__reduce_ex__")
_STATE = ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def attributes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what is in an object's ``__dict__`` and slots, after its name there or the slot's descriptor."""
    with suppress(AttributeError):
        yield from list(object.__getattribute__(value, "__dict__").items())
    for kind in type(value).__mro__:
        for member in vars(kind).values():  # the names in __slots__ may be one string, or private to the class
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError):  # it has not been set
                    yield member, member.__get__(value)


def is_container(value: Any) -> bool:
    """Whether :func:`rebuilt` can copy an object.

    >>> is_container({"x": 1}), is_container((1, 2)), is_container({1, 2}), is_container(object())
    (True, True, True, False)
    """
    return isinstance(value, tuple) or _base_of(type(value)) is not None


def rebuilt(value: Any, each: Callable[[Any], Any], begun: Callable[[Any], None], *, keys: bool = True) -> Any:
    """Return a container of the same class with ``each(item)`` for each of its items, and of its attributes.

    Args:
        value: of which :func:`is_container` is true.
        each: returns what takes the place of an item.
        begun: called with the copy while it is still empty, since a container may hold itself.
        keys: whether keys are items too.

    >>> class Scaled(dict):
    ...     def __setitem__(self, name, value): super().__setitem__(name, value / 10)
    >>> scaled = Scaled()
    >>> scaled["x"] = 20
    >>> rebuilt(scaled, lambda item: item, lambda copy: None)
    {'x': 2.0}
    """
    if isinstance(value, tuple):
        return _tuple(value, each)
    kind = type(value)
    base = _base_of(kind)
    copied = _empty(kind, base)
    begun(copied)
    items: Any = _items_of(value, base)
    if items is None or base is bytearray:
        pass
    elif issubclass(base, dict):
        items = [(each(name) if keys else name, each(item)) for name, item in items]
    else:
        items = list(map(each, items))
    _fill(copied, (base, items, _length_limit(value, base), []))
    if kind not in _BARE:
        for name, item in attributes(value):
            _set_attribute(copied, name, each(item))
    return copied


def reduced(value: Any, *, whole: bool = False) -> Any:
    """Return how pickle is to make a container of a user's class, so that it is as :func:`rebuilt` makes it.

    Args:
        value: any object.
        whole: with what its class leaves out where it is pickled.

    Returns:
        What ``__reduce__`` returns; None for another object, or if the class itself says how it is pickled.
    """
    kind = type(value)
    base = None if isinstance(value, tuple) else _base_of(kind)
    if base is None or kind is base:
        return None
    if any(
        getattr(kind, name, None) is not getattr(base, name, None) for name in (_HOW if whole else _HOW + _STATE)
    ):
        return None
    state = base, _items_of(value, base), _length_limit(value, base), list(attributes(value))
    return _empty, (kind, base), state, None, None, _fill


def _find_base(kind: type) -> Any:
    """Return the built-in class that holds the items of a container; None for what is none, or holds more."""
    if kind in _BASES:
        return kind
    if issubclass(kind, enum.Enum):  # whose members are known by their identity
        return None
    base: type | None = next((base for base in _BASES if issubclass(kind, base)), None)
    if base is None:
        if not (issubclass(kind, (UserDict, UserList)) or dataclasses.is_dataclass(kind)):
            return None
        base = object
    slots = sum(
        isinstance(member, MemberDescriptorType)
        for parent in kind.__mro__
        if not issubclass(base, parent)
        for member in vars(parent).values()
    )
    # (Some classes that are written in C keep more.)
    most = base.__basicsize__ + _MOST_HIDDEN + _POINTER * slots
    return base if kind.__basicsize__ <= most else None


_base_of: Any = lru_cache(256)(_find_base)


def _empty(kind: type, base: Any) -> Any:
    return base.__new__(kind)


def _items_of(value: Any, base: Any) -> list[Any] | bytes | None:
    if base is object:
        return None
    if base is bytearray:
        return bytes(value)
    return list(base.items(value) if issubclass(base, dict) else base.__iter__(value))


def _length_limit(value: Any, base: Any) -> int | None:
    return deque.maxlen.__get__(value) if base is deque else None


def _fill(copied: Any, state: tuple[Any, Any, int | None, list[tuple[Any, Any]]]) -> None:
    base, items, limit, own = state
    if base is deque:
        deque.__init__(copied, items, limit)
    elif base in (list, bytearray):
        base.extend(copied, items)
    elif base is set:
        set.update(copied, items)
    elif base is not object:
        for name, item in items:
            base.__setitem__(copied, name, item)
    for name, item in own:
        _set_attribute(copied, name, item)


def _set_attribute(value: Any, name: Any, item: Any) -> None:
    if isinstance(name, str):
        object.__getattribute__(value, "__dict__")[name] = item
    else:
        name.__set__(value, item)


def _tuple(value: tuple[Any, ...], each: Callable[[Any], Any]) -> tuple[Any, ...]:
    kind = type(value)
    items = [(each(item), item) for item in tuple.__iter__(value)]
    own = [] if kind is tuple else [(name, each(item), item) for name, item in attributes(value)]
    if all(copied is item for copied, item in items) and all(copied is item for _, copied, item in own):
        return value
    try:
        # The constructor of a user's class, as of a named tuple, may take other arguments.
        other = tuple.__new__(kind, [copied for copied, _ in items])
    except TypeError:  # of a class that is written in C
        return kind(copied for copied, _ in items)
    for name, copied, _ in own:
        _set_attribute(other, name, copied)
    return other
