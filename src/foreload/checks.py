"""Array types, and checks of arguments, that many classes share."""

from __future__ import annotations

import errno
import functools
import inspect
import numbers
import operator
import os
import stat
from itertools import repeat
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import numpy as np
import torch

__all__ = [
    "Array",
    "Indices",
    "check_bool",
    "check_callable",
    "check_generator",
    "check_index",
    "check_int",
    "check_regular_file",
    "check_seed",
    "check_share",
    "check_state_int",
    "definition_depth",
    "first_beyond_int64",
    "fits_int64",
    "held",
    "inherits",
    "is_instance",
    "known_length",
    "module_of",
    "optional",
    "package_of",
    "tells_class",
]

Array = np.ndarray[Any, Any]
Indices = np.ndarray[Any, np.dtype[np.int64]]


def known_length(thing: Any) -> int | None:
    """Return the length of a dataset or sampler; None if it has none, as ``__len__`` may say by an exception.

    >>> known_length([1, 2]), known_length(iter([1, 2]))
    (2, None)
    """
    try:
        return len(thing)
    except Exception:  # whatever code of the user's raises
        return None


def inherits(thing: Any, kind: type, *methods: str) -> bool:
    """Whether an object has these methods as a class has them: replaced by no subclass, nor on the object itself.

    >>> class Slow(dict):
    ...     def keys(self): return super().keys()
    >>> inherits(Slow(), dict, "keys"), inherits(Slow(), dict, "values", "items")
    (False, True)
    """
    own, present = vars(thing), type(thing)
    return all(not (name in own or getattr(present, name) is not getattr(kind, name)) for name in methods)


def definition_depth(thing: Any, method: str) -> int:
    """Count the classes from an object's own up to the one that defines a method; all of them if none does."""
    kinds = type(thing).__mro__
    for number, kind in enumerate(kinds):
        if method in kind.__dict__:
            return number
    return len(kinds)


def check_bool(name: str, value: Any) -> bool:
    """Return an argument; raise TypeError unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_callable(name: str, value: Any) -> None:
    """Raise TypeError unless a value is callable or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")


def check_generator(generator: Any) -> Any:
    """Return an argument; raise TypeError unless it is a generator of torch's or None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator or None, got {generator!r}")
    return generator


def check_index(index: Any, count: int, noun: str = "samples") -> int:
    """Return which of ``count`` samples an index is, from 0 on; negative ones count from the end.

    Raises:
        TypeError: it is not an integer.
        IndexError: there is no such sample.

    >>> check_index(-1, 3)
    2
    """
    try:
        position = operator.index(index)
    except TypeError:  # of an array of many numbers too
        several = "" if isinstance(index, (str, float)) or index is None else "; for several, use a Subset"
        raise TypeError(
            f"the index of a dataset must be an int, the number of a sample, got {index!r:.80}{several}"
        ) from None
    if not -count <= position < count:
        raise IndexError(f"index {position} is out of range for {count} {noun}")
    return position % count


def check_int(name: str, value: Any, least: int | None = None, *, otherwise: str = "") -> int:
    """Return an argument as an int.

    Args:
        name: the argument's name, for the error.
        value: the argument.
        least: the smallest value that makes sense.
        otherwise: what the argument may be instead, for the error, such as ``" or None"``.

    Raises:
        TypeError: ``value`` is not an integer; a bool does not count as one.
        ValueError: ``value`` is smaller than ``least``.

    >>> check_int("num_samples", np.int64(3), least=1)
    3
    >>> check_int("num_samples", 0, least=1)
    Traceback (most recent call last):
    ValueError: num_samples must be 1 or more, got 0
    """
    try:
        if isinstance(value, bool) or getattr(value, "dtype", None) is torch.bool:  # a mask's entry, not a number
            raise TypeError
        number = operator.index(value)
    except TypeError:  # of an array of many numbers too
        raise TypeError(f"{name} must be an int{otherwise}, got {value!r}") from None
    if least is not None and number < least:
        raise ValueError(f"{name} must be {least} or more, got {number}")
    return number


def fits_int64(value: int) -> bool:
    """Whether int64 holds a number."""
    return -(1 << 63) <= value < 1 << 63


def first_beyond_int64(values: Any, array: Array) -> int | None:
    """Return the position of the first int that int64 does not hold; None if there is none.

    Args:
        values: of one dimension.
        array: what NumPy made of them: of ints that no type holds together, floats or objects.

    >>> first_beyond_int64([5, 2**63, -1], np.asarray([5, 2**63, -1]))
    1
    """
    if array.ndim != 1 or array.dtype.kind in "ibSU":
        return None
    if array.dtype.kind == "u":
        beyond = array > np.iinfo(np.int64).max
        return int(np.argmax(beyond)) if beyond.any() else None
    if not isinstance(values, (list, tuple)):
        values = array
    return next((i for i, value in enumerate(values) if isinstance(value, int) and not fits_int64(value)), None)


def check_regular_file(path: str, remedy: str = "") -> None:
    """Raise an OSError if a path is a FIFO, device or socket, for which reading might wait for ever.

    Raises:
        OSError: it is, or there is nothing. ``remedy`` ends the message.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, f"not a regular file but a FIFO, device or socket{remedy}", path)


def check_state_int(name: str, value: Any, least: int, end: int) -> int:
    """Return a field of a state; raise ValueError unless it is an int from ``least`` to below ``end``.

    >>> check_state_int("turn", [1], 0, 3)
    Traceback (most recent call last):
    ValueError: the state's 'turn' must be an int from 0 to 2, got [1]
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < end:
        raise ValueError(f"the state's {name!r} must be an int from {least} to {end - 1}, got {repr(value)[:100]}")
    return value


def check_seed(seed: Any) -> int:
    """Return ``seed`` as an int; raise TypeError or ValueError unless it is an int from 0 to 2**64 - 1."""
    number = check_int("seed", seed)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}")
    return number


def check_share(share: float) -> float:
    """Return ``max_memory_usage``; raise TypeError or ValueError unless it is a number above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, numbers.Real):
        raise TypeError(f"max_memory_usage must be a number above 0 and at most 1, got {share!r}")
    if not 0 < share <= 1:
        raise ValueError(f"max_memory_usage is a share, above 0 and at most 1, got {share}")
    return float(share)


def is_instance(thing: Any, kinds: Any) -> bool:
    """Return what ``isinstance`` does, which for an abstract class takes several times as long.

    Args:
        thing: of a class that is not registered with ``kinds`` later on.
        kinds: an abstract class, or a tuple of classes.

    >>> from collections.abc import Sized
    >>> is_instance([], Sized), is_instance(3, Sized)
    (True, False)
    """
    kind: Any = type(thing)
    return _is_subclass(kind, kinds) or (thing.__class__ is not kind and isinstance(thing, kinds))


@functools.lru_cache(maxsize=1024)
def _is_subclass(kind: type, kinds: Any) -> bool:
    return issubclass(kind, kinds)


def module_of(thing: Any) -> str:
    """Return the name of the module that a class or function is of.

    >>> module_of(np.random.Generator)
    'numpy.random._generator'
    """
    return str(optional(thing, "__module__"))


def package_of(thing: Any) -> str:
    """Return the name of the package that a class or function is of.

    >>> package_of(np.ndarray)
    'numpy'
    """
    return module_of(thing).partition(".")[0]


def optional(thing: Any, name: str) -> Any:
    """Return an attribute of a user's object; None if it has none, whatever its ``__getattr__`` raises then.

    >>> class Forwards:
    ...     def __getattr__(self, name): raise KeyError(name)
    >>> optional(Forwards(), "transform") is None
    True
    """
    try:
        return getattr(thing, name, None)
    except Exception:  # what torch does not ask for must not fail
        return None


def tells_class(thing: Any) -> bool:
    """Whether ``isinstance`` can be asked about an object.

    Some proxies raise an error until there is something that they stand for; that in numpy's files of several
    arrays has no class at all.

    >>> class Unbound:
    ...     @property
    ...     def __class__(self): raise RuntimeError("working outside of the application's context")
    >>> tells_class(Unbound()), tells_class(1)
    (False, True)
    """
    try:
        return thing.__class__ is not None
    except Exception:  # whatever the object's class may raise
        return False


def held(thing: Any, name: str) -> Any:
    """Return what an object holds as an attribute; None if it has none, or code of its class would have to run.

    A property may open, in the loop's process, what each worker is to open for itself.

    >>> class Opens:
    ...     def __init__(self): self.paths = ["a"]
    ...     @property
    ...     def dataset(self): raise OSError("opened")
    >>> held(Opens(), "paths"), held(Opens(), "dataset")
    (['a'], None)
    """
    # (To ask inspect takes ten times as long, and a loader asks before each epoch.)
    kind = type(thing)
    is_plain = not issubclass(kind, type) and all(map(_leaves_to_instances, kind.__mro__, repeat(name)))
    value = _own(thing, name) if is_plain else inspect.getattr_static(thing, name, None)
    if isinstance(value, MemberDescriptorType):  # of __slots__
        return optional(thing, name)
    return None if hasattr(type(value), "__get__") else value


def _leaves_to_instances(kind: type, name: str) -> bool:
    """Whether a class says nothing about an attribute, nor about where its objects have theirs."""
    own = kind.__dict__
    if name in own:
        return False
    place = own.get("__dict__")
    # (A class made from the attributes of another one may have that one's, which does not take its objects.)
    return place is None or (type(place) is GetSetDescriptorType and place.__objclass__ is kind)


def _own(thing: Any, name: str) -> Any:
    try:
        return dict.get(object.__getattribute__(thing, "__dict__"), name)
    except AttributeError:  # it has none
        return None
