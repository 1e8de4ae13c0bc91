"""What is kept for an object as long as it lives."""

from __future__ import annotations

import weakref
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
