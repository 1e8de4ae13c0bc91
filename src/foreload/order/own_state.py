"""The states that datasets, samplers and iterators of the user's save and load themselves."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foreload.checks import optional

__all__ = ["UntakenState", "has_state", "is_same_state", "require_taken", "state_of"]


def has_state(thing: object) -> bool:
    """Whether an object saves and restores its state by ``state_dict()`` and ``load_state_dict(state)``."""
    save, restore = optional(thing, "state_dict"), optional(thing, "load_state_dict")
    if not (callable(save) and callable(restore)):
        return False
    try:
        inspect.signature(save).bind()
    except TypeError:
        return False  # it has required arguments: another protocol
    except ValueError:
        pass  # a builtin without a signature
    return True


@dataclass(frozen=True)
class UntakenState:
    """Stands for a state that an object of the user's could not give, which only those need know who ask for it.

    Attributes:
        why: the object's class, and the error.
    """

    why: str


def state_of(thing: Any) -> Any:
    """Return a copy of an object's state, which later samples do not change."""
    try:
        return copy.deepcopy(thing.state_dict())
    except Exception as error:  # of the user's code
        return UntakenState(
            f"the state of {type(thing).__name__} cannot be taken: {type(error).__name__}: {error}"
        )


def require_taken(states: Any) -> None:
    """Raise RuntimeError if one of the states that a dict has was not taken.

    >>> require_taken({"dataset": UntakenState("the state of Clips cannot be taken: OSError: gone")})
    Traceback (most recent call last):
    RuntimeError: the state of Clips cannot be taken: OSError: gone
    """
    for state in states.values() if isinstance(states, dict) else ():
        if isinstance(state, UntakenState):
            raise RuntimeError(state.why)


def is_same_state(one: Any, other: Any) -> bool:
    """Whether two states are equal, as far as that can be told; ``json`` makes lists of tuples.

    >>> is_same_state({"at": (1, torch.arange(2))}, {"at": [1, torch.arange(2)]}), is_same_state(1, 1.5)
    (True, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_state(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_same_state, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    try:
        return bool(one == other)
    except Exception:  # of a class of the user's
        return False
