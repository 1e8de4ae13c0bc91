"""What is kept for an object as long as it lives."""

from __future__ import annotations

import functools
import secrets
import weakref
from contextlib import suppress
from typing import Any, Generic, TypeVar

__all__ = ["Instances"]

T = TypeVar("T")


class Instances(Generic[T]):
    """Values for objects by who they are: two that are equal are two, and they need no hash.

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
        """Give the object's value, or None."""
        found = self._values.get(id(instance))
        return None if found is None else found[1]

    def put(self, instance: Any, value: T) -> T:
        """Set the object's value, and give it back.

        Raises:
            TypeError: the object cannot be weakly referenced.
        """
        address, values = id(instance), self._values
        reference = weakref.ref(instance, lambda _: values.pop(address, None))
        values[address] = (reference, value)
        return value


_identities: Instances[int] = Instances()


def identify_instances(owner: type) -> None:
    """Give each instance a number that it has in forked processes too; its address may be used again."""
    usual = owner.__init__  # type: ignore[misc]

    @functools.wraps(usual)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        with suppress(TypeError):  # of a class without weak references
            _identities.put(self, secrets.randbits(63) | 1)
        usual(self, *args, **kwargs)

    owner.__init__ = init  # type: ignore[misc]


def identity_of(dataset: Any) -> int:
    return _identities.get(dataset) or id(dataset)
