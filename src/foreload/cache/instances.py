"""Values attached to objects for as long as these live."""

from __future__ import annotations

import inspect
import secrets
import weakref
from collections.abc import Callable
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
        return found[1] if found is not None and found[0]() is instance else None

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

    Its address would not do: it may be reused. Copies, and what is unpickled, are instances of their own.
    """
    own = owner.__dict__.get("__new__")
    if not isinstance(own, _IdentifyingNew):  # else the class is a copy, such as dataclass(slots=True) makes
        owner.__new__ = _IdentifyingNew(owner, None if own is None else owner.__new__)  # type: ignore[method-assign]


class _IdentifyingNew:
    """The ``__new__`` of a class, whose instances have identities.

    (Not every instance is made by an ``__init__``, and ``dataclass`` makes none for a class that has one.)

    Args:
        owner: the class.
        own: what it had as ``__new__``; None: it inherited that.
    """

    def __init__(self, owner: type, own: Callable[..., Any] | None) -> None:
        self._owner = owner
        self._own = own

    def __call__(self, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
        new = self._next(kind) if self._own is None else self._own
        if new is not object.__new__:
            instance = new(kind, *args, **kwargs)
        elif (args or kwargs) and kind.__init__ is object.__init__:
            raise TypeError(f"{kind.__name__}() takes no arguments")
        else:
            instance = new(kind)
        with suppress(TypeError):  # of a class without weak references
            if _identities.get(instance) is None:
                set_identity(instance, _new_identity())
        return instance

    def _next(self, kind: type) -> Callable[..., Any]:
        """Return the ``__new__`` that comes after this one in the order of a class's bases."""
        bases = iter(kind.__mro__)
        for base in bases:
            if base.__dict__.get("__new__") is self:
                break
        return next((base.__new__ for base in bases if "__new__" in base.__dict__), object.__new__)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature for ``inspect``, which reads a class's off its ``__new__`` if there is one."""
        if self._own is not None:
            return inspect.signature(self._own)
        if self._owner.__init__ is object.__init__:  # type: ignore[misc]
            return inspect.Signature([inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)])
        return inspect.signature(self._owner.__init__)  # type: ignore[misc]


def _new_identity() -> int:
    return secrets.randbits(63) | 1


def identity_of(dataset: Any) -> int | None:
    """Return an instance's identity; None if it can have none, since it cannot be weakly referenced."""
    identity = _identities.get(dataset)
    if identity is None:
        with suppress(TypeError):
            identity = _identities.put(dataset, _new_identity())
    return identity


def set_identity(instance: Any, identity: int) -> None:
    """Set an instance's identity; raise TypeError if it cannot be weakly referenced."""
    _identities.put(instance, identity)
