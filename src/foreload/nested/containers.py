"""Containers: lists, dicts, dataclasses and the like, and copies of them that hold something else.

A user's ``__setitem__`` may scale what it is given, or refuse it, so neither it nor ``__init__`` is called.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import weakref
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any

import torch

__all__ = [
    "attributes",
    "has_own_rules",
    "is_container",
    "is_image",
    "is_kept_whole",
    "rebuilt",
    "rebuilt_tuple",
    "reduced",
    "set_attribute",
]

_BARE = (dict, list, set, bytearray)  # have no attributes
_BUILT_IN = (OrderedDict, defaultdict, *_BARE, deque)
_POINTER = 8

# A class that has one of these of its own says how it is copied, which objects of it there are, or how they end.
_RULES = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__new__", "__del__")
_STATE = ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")

# Libraries whose classes keep all that they hold, whatever they keep it in.
_KEPT_WHOLE = {"builtins", "datetime", "decimal", "fractions", "numpy", "pandas", "pathlib", "pyarrow", "torch"}
_KEPT_WHOLE |= {"uuid", "PIL.ImagePalette"}

# What pickle calls of a class to read or to fill an object of it.
_CALLED: dict[Any, tuple[str, ...]] = {
    dict: ("__setitem__", "items"),
    list: ("__iter__", "append", "extend"),
    deque: ("__iter__", "__init__", "append", "extend"),
    set: ("__iter__", "__init__", "add", "update"),
    bytearray: ("__init__",),
    object: (),
}


def attributes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what is in an object's ``__dict__`` and slots, after its name there or the slot's descriptor."""
    own = _dict_of(value)
    if own is not None and own is not value:
        yield from list(own.items())
    for member in _slots_of(type(value)):
        with suppress(AttributeError):  # it has not been set
            yield member, member.__get__(value)


def is_container(value: Any) -> bool:
    """Whether :func:`rebuilt` can copy an object.

    >>> is_container({"x": 1}), is_container(deque()), is_container({1, 2}), is_container(object())
    (True, True, True, False)
    """
    return _base_of(type(value)) is not None


def rebuilt(
    value: Any,
    each: Callable[[Any], Any],
    begun: Callable[[Any], None],
    own: Callable[[Any, Any], Any] | None = None,
) -> Any:
    """Return a container of the same class with ``each(item)`` for each of its items; its keys are the same.

    Args:
        value: of which :func:`is_container` is true.
        each: returns what takes the place of an item; of a set, it is only called with the members.
        begun: called with the copy while it is still empty, since a container may hold itself.
        own: the same for an attribute; called with its name, or the descriptor of its slot, and what it holds;
            None: attributes are items too.

    >>> class Scaled(dict):
    ...     def __setitem__(self, name, value): super().__setitem__(name, value / 10)
    >>> scaled = Scaled()
    >>> scaled["x"] = 20
    >>> rebuilt(scaled, lambda item: item, lambda copy: None)
    {'x': 2.0}
    """
    kind = type(value)
    base = _base_of(kind)
    copied = _empty(kind, base)
    begun(copied)
    items: Any = _items_of(value, base)
    if issubclass(base, dict):
        items = [(name, each(item)) for name, item in items]
    elif base is set:
        for item in items:
            each(item)
    elif base is not bytearray:
        items = [each(item) for item in items]
    _fill(copied, (base, items, _length_limit(value, base), False, []))
    if kind not in _BARE:
        if _dict_of(value) is value:
            object.__setattr__(copied, "__dict__", copied)
        for name, item in attributes(value):
            set_attribute(copied, name, each(item) if own is None else own(name, item))
    return copied


def rebuilt_tuple(
    value: tuple[Any, ...], each: Callable[[Any], Any], own: Callable[[Any, Any], Any] | None = None
) -> tuple[Any, ...]:
    """Do the same for a tuple; it stays the same if all of its items do."""
    kind = type(value)
    items = [(each(item), item) for item in tuple.__iter__(value)]
    held = [(name, each(item) if own is None else own(name, item), item) for name, item in attributes(value)]
    if all(copied is item for copied, item in items) and all(copied is item for _, copied, item in held):
        return value
    try:
        # The constructor of a user's class, as of a named tuple, may take other arguments.
        other = tuple.__new__(kind, [copied for copied, _ in items])
    except TypeError:  # of a class that is written in C
        return kind(copied for copied, _ in items)
    for name, copied, _ in held:
        set_attribute(other, name, copied)
    return other


def reduced(value: Any, *, whole: bool = False) -> Any:
    """Return how pickle is to make a container of a user's class, where pickle itself would make it another one.

    Args:
        value: any object.
        whole: with what its class leaves out where it is pickled.

    Returns:
        What ``__reduce__`` returns; None for what pickle makes right.
    """
    kind = type(value)
    base = _base_of(kind)
    if base is None or kind is base:
        return None
    is_its_dict = base is not object and _dict_of(value) is value
    if not _is_made_otherwise(kind, base, is_its_dict, whole):
        return None
    held = list(attributes(value))
    if base is defaultdict and not whole:  # which pickles no attributes
        held = [(name, item) for name, item in held if not isinstance(name, str)]
    state = base, _items_of(value, base), _length_limit(value, base), is_its_dict, held
    return _empty, (kind, base), state, None, None, _fill


def has_own_rules(kind: type) -> bool:
    """Whether objects of a class are pickled by rules of its own, which may leave out a part of them.

    >>> class Left:
    ...     def __getstate__(self): return {}
    >>> has_own_rules(dict), has_own_rules(Left), has_own_rules(type("Plain", (), {}))
    (False, True, False)
    """
    try:
        if (known := _have_rules.get(kind)) is None:
            known = _have_rules[kind] = _find_rules(kind)
    except TypeError:  # its metaclass cannot be hashed
        return True
    return known


def is_kept_whole(kind: type) -> bool:
    """Whether a class is of a library whose objects keep all that they hold where they are pickled."""
    module = str(kind.__module__)
    return module.partition(".")[0] in _KEPT_WHOLE or module in _KEPT_WHOLE or is_image(kind)


def is_image(kind: type) -> bool:
    """Whether a class is that of images of Pillow that are not open files."""
    return kind.__module__ == "PIL.Image" and kind.__name__ == "Image"


def _find_rules(kind: type) -> bool:
    if is_kept_whole(kind) or issubclass(kind, enum.Enum) or _base_of(kind) is not None:
        return False
    if kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and kind.__dictoffset__ == 0:  # a named tuple
        rules = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
        return any(getattr(kind, name, None) is not getattr(tuple, name, None) for name in rules)
    base = next(each for each in (torch.Tensor, object) if issubclass(kind, each))
    return kind in copyreg.dispatch_table or any(
        getattr(kind, name, None) is not getattr(base, name, None) for name in (*_RULES, *_STATE)
    )


def _is_made_otherwise(kind: type, base: Any, is_its_dict: bool, whole: bool) -> bool:
    """Whether pickle makes an object another one, and is not told to by its class."""
    asked = is_its_dict, whole
    known = _answers.setdefault(kind, {})
    if asked not in known:
        standard = _standard_of(kind)
        has_state = any(getattr(kind, name, None) is not getattr(standard, name, None) for name in _STATE)
        called = _CALLED[dict if issubclass(base, dict) else base]
        calls_own = any(getattr(kind, name) is not getattr(base, name) for name in called)
        known[asked] = whole if has_state else is_its_dict or calls_own
    return known[asked]


_bases: weakref.WeakKeyDictionary[type, Any] = weakref.WeakKeyDictionary()
_answers: weakref.WeakKeyDictionary[type, dict[tuple[bool, bool], bool]] = weakref.WeakKeyDictionary()
_have_rules: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_slots: weakref.WeakKeyDictionary[type, list[MemberDescriptorType]] = weakref.WeakKeyDictionary()


def _slots_of(kind: type) -> list[MemberDescriptorType]:
    """Return the slots of objects of a class; their names may be one string, or private to the class."""
    try:
        if (known := _slots.get(kind)) is not None:
            return known
    except TypeError:  # its metaclass cannot be hashed
        return _find_slots(kind)
    found = _slots[kind] = _find_slots(kind)
    return found


def _find_slots(kind: type, base: type = object) -> list[MemberDescriptorType]:
    parents = (parent for parent in kind.__mro__ if not issubclass(base, parent))
    return [
        member
        for parent in parents
        for member in vars(parent).values()
        if isinstance(member, MemberDescriptorType)
    ]


def _base_of(kind: type) -> Any:
    """Return the built-in class that holds the items of a container; None for what is none, or has rules."""
    if kind in _BUILT_IN:
        return kind
    try:
        if (known := _bases.get(kind, _bases)) is not _bases:
            return known
        base = _bases[kind] = _find_base(kind)
    except TypeError:  # its metaclass cannot be hashed
        return None
    return base


def _standard_of(kind: type) -> Any:
    return next(parent for parent in (*_BUILT_IN, UserDict, UserList, object) if issubclass(kind, parent))


def _find_base(kind: type) -> Any:
    if issubclass(kind, (tuple, enum.Enum)) or kind in copyreg.dispatch_table:
        return None
    standard = _standard_of(kind)
    if standard is object and not dataclasses.is_dataclass(kind):
        return None
    if any(getattr(kind, name, None) is not getattr(standard, name, None) for name in _RULES):
        return None
    base = object if standard in (UserDict, UserList) else standard
    hidden = sum(
        getattr(kind, name) > 0 and getattr(base, name) == 0 for name in ("__dictoffset__", "__weakrefoffset__")
    )
    # (Some classes that are written in C keep more.)
    return (
        base
        if kind.__basicsize__ <= base.__basicsize__ + _POINTER * (len(_find_slots(kind, base)) + hidden)
        else None
    )


def _dict_of(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _empty(kind: type, base: Any) -> Any:
    return base.__new__(kind)


def _items_of(value: Any, base: Any) -> list[Any] | bytes:
    if base is object:
        return []
    if base is bytearray:
        return bytes(memoryview(value))
    return list(base.items(value) if issubclass(base, dict) else base.__iter__(value))


def _length_limit(value: Any, base: Any) -> int | None:
    return deque.maxlen.__get__(value) if base is deque else None


def _fill(copied: Any, state: tuple[Any, Any, int | None, bool, list[tuple[Any, Any]]]) -> None:
    base, items, limit, is_its_dict, held = state
    if base is deque:
        deque.__init__(copied, items, limit)
    elif base in (list, bytearray):
        base.extend(copied, items)
    elif base is set:
        set.update(copied, items)
    elif base is not object:
        for name, item in items:
            base.__setitem__(copied, name, item)
    if is_its_dict:
        object.__setattr__(copied, "__dict__", copied)
    for name, item in held:
        set_attribute(copied, name, item)


def set_attribute(value: Any, name: Any, item: Any) -> None:
    """Set what :func:`attributes` yields, without a method of the user's class."""
    if isinstance(name, str):
        object.__getattribute__(value, "__dict__")[name] = item
    else:
        name.__set__(value, item)
