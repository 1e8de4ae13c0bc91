"""Values attached to objects for as long as these live."""

from __future__ import annotations

import functools
import secrets
import weakref
from contextlib import suppress
from typing import Any, Generic, TypeVar

__all__ = ["Instances", "identify_instances", "identity_of", "set_identity"]

T = TypeVar("T")


class Instances(Generic[T]):
    """Values of objects by identity: equal objects have separate values, and need no hash.

    >>> class Dataset: pass
    >>> one, other = Dataset(), Dataset()
    >>> names = Instances(); names.put(one, "train")
    'train'
    >>> names.get(one), names.get(other)
    ('train', None)
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, instance: Any) -> T | None:
        """Return the object's value, or None."""
        found = self._values.get(id(instance))
        return None if found is None else found[1]

    def put(self, instance: Any, value: T) -> T:
        """Set the object's value, and return it.

        Raises:
            TypeError: the object cannot be weakly referenced.
        """
        address, values = id(instance), self._values
        reference = weakref.ref(instance, lambda _: values.pop(address, None))
        values[address] = (reference, value)
        return value


_identities: Instances[int] = Instances()


def identify_instances(owner: type) -> None:
    """Let each new instance of a class have an identity that it keeps in forked and spawned processes.

    Its address would not do: it may be reused.
    """
    usual = owner.__init__  # type: ignore[misc]

    @functools.wraps(usual)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with suppress(TypeError):  # of a class without weak references
            set_identity(self, secrets.randbits(63) | 1)
        usual(self, *args, **kwargs)

    owner.__init__ = init  # type: ignore[misc]


def identity_of(dataset: Any) -> int:
    """Return an instance's identity; its address if it has none."""
    return _identities.get(dataset) or id(dataset)


def set_identity(instance: Any, identity: int) -> None:
    """Set an instance's identity; raise TypeError if it cannot be weakly referenced."""
    _identities.put(instance, identity)
