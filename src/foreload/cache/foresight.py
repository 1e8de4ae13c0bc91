"""The indices that a sampler is about to draw, in this epoch and in later ones."""

from __future__ import annotations

import copy
import functools
import operator
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Generic

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler, Sampler

from foreload._torch import draw_seed
from foreload.cache.wrappers import root_of
from foreload.checks import Indices
from foreload.order.generator_states import kept_generators, sampler_states, set_sampler_states
from foreload.order.known import KNOWN_SAMPLERS

__all__ = ["Foresight", "source_of"]

# How far to look ahead: so many accesses per sample, so many in all.
_HORIZON = 8
_MAX_HORIZON = 1 << 22

# The most epochs to draw ahead, however short they are.
_MAX_EPOCHS = 4096


class Foresight:
    """Draws the epochs of a sampler ahead of it, and leaves it and all generators as they are.

    The epoch that begins is drawn with the very state that the sampler has then. Later ones are known if nothing
    else draws from its generator but the base seeds of the loader; :meth:`begin` tells if they were right. The
    order of a ``DistributedSampler`` is a function of its epoch, which is taken to go on as it has gone so far.

    Args:
        generator: of the sampler, in its state before the first epoch; None if it has none.
        samples: the number of samples in the dataset.

    Attributes:
        horizon: how many accesses to know beyond the epoch that begins; at least half as many are known.
        now: the indices of the epoch that begins.
        later: those of later ones.
    """

    def __init__(self, generator: torch.Generator | None, samples: int) -> None:
        self._told = self._generator = generator
        self._has_told_drawn = False
        self._samples = samples
        self.horizon = max(samples, min(_HORIZON * samples, _MAX_HORIZON))
        # The state of the generator at the end of an epoch, before a loader may draw a base seed.
        self._after = None if generator is None else generator.get_state()
        self._draws_seed = False
        self._number: int | None = None  # of the epoch that begins, where the sampler numbers them
        self._stride = 1
        self.now: Indices = np.zeros(0, np.int64)
        self.later: list[Indices] = []

    def is_of(self, sampler: Any) -> bool:
        """Whether a sampler draws from the generator, or else from one that begins in the same state."""
        own = None if isinstance(sampler, DistributedSampler) else _generator_of(sampler)
        if isinstance(sampler, DistributedSampler) or (own is None and self._told is None):
            source = source_of(sampler)
            return len(sampler if source is None else root_of(source)) == self._samples
        if own is None:  # what a sampler of the user's draws from, it need not say
            return type(sampler) not in KNOWN_SAMPLERS
        if own is self._told:
            self._has_told_drawn = True
        elif own is not self._generator and (self._has_told_drawn or _is_seed_between(self._after, own) is None):
            return False
        self._generator = own
        return True

    def begin(self, sampler: Any, draw: Callable[[Any], Iterator[Any]], *, later: bool = True) -> bool:
        """Draw ahead of a sampler that is about to begin an epoch.

        Args:
            sampler: one that :meth:`is_of`.
            draw: returns its iterator.
            later: whether later epochs are drawn too.

        Returns:
            Whether this epoch was foreseen, so that what was said of later ones holds too.
        """
        if isinstance(sampler, DistributedSampler):
            self._stride = 1 if self._number is None else sampler.epoch - self._number
            self._number = sampler.epoch
        generator = self._generator
        draws_seed = None if generator is None else _is_seed_between(self._after, generator)
        was_foreseen = draws_seed in (None, self._draws_seed)
        if draws_seed is not None:
            self._draws_seed = draws_seed
        with _kept(sampler, generator):
            ahead = _independent(sampler, {id(generator): generator})
            has_length = hasattr(sampler, "__len__")  # without one, there may be no end
            most = max(self.horizon, len(sampler) if has_length else _MAX_HORIZON)
            self.now = _listed(draw(ahead), most)
            self._after = None if generator is None else generator.get_state()
            foreseen = self.later.pop(0) if self.later else None
            was_foreseen = was_foreseen and foreseen is not None and np.array_equal(self.now, foreseen)
            if not was_foreseen:
                self.later = []
            known = sum(map(len, self.later))
            is_over = has_length or len(self.now) < most
            if later and is_over and known < self.horizon // 2:
                self.later = self._draw_later(ahead, draw, most)
        return was_foreseen

    def _draw_later(self, ahead: Any, draw: Callable[[Any], Iterator[Any]], most: int) -> list[Indices]:
        later: list[Indices] = []
        known = 0
        while known < self.horizon and len(later) < _MAX_EPOCHS and len(self.now):
            if self._draws_seed:
                draw_seed(self._generator)
            if isinstance(ahead, DistributedSampler):
                ahead.epoch += self._stride
            later.append(_listed(draw(ahead), most))
            known += len(later[-1])
        return later


# What a sampler may share with its copy: drawing does not change it.
_FIXED = (int, float, complex, str, bytes, type(None), range, type, BuiltinFunctionType, ModuleType)


@functools.cache
def _states() -> tuple[type, ...]:
    """Return the classes of what drawing may change; NumPy imports its generators only when asked for them."""
    containers = (list, dict, set, bytearray, deque, np.ndarray, torch.Tensor, Iterator)
    return (*containers, random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def _independent(sampler: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of a sampler; drawing from it changes nothing that the sampler draws from.

    Args:
        sampler: to copy.
        memo: by their ids, objects that both may share.

    Raises:
        TypeError: there is no such copy.
    """
    kind = type(sampler)
    ahead = copy.copy(sampler)
    if kind in KNOWN_SAMPLERS:
        return ahead
    own = [cls for cls in kind.__mro__ if cls not in KNOWN_SAMPLERS and cls not in (Sampler, Generic, object)]
    for cls in own:
        shared = [value for name, value in vars(cls).items() if not name.startswith("__")]
        if "__slots__" in vars(cls) or any(isinstance(value, _states()) for value in shared):
            raise TypeError(f"samplers of {cls.__name__} share what they draw from")
    for name, value in vars(sampler).items():
        if id(value) in memo or isinstance(value, _FIXED) or _is_dataset(value):
            continue
        if isinstance(value, (FunctionType, MethodType, Iterator)):
            raise TypeError(f"{name} of a {kind.__name__} may change anything")
        vars(ahead)[name] = _independent(value, memo) if isinstance(value, Sampler) else copy.deepcopy(value, memo)
    return ahead


def source_of(sampler: Any) -> Any:
    """Return the dataset whose samples a sampler numbers; None if it does not say."""
    return getattr(sampler, "data_source", getattr(sampler, "dataset", None))


def _is_dataset(value: Any) -> bool:
    return isinstance(value, Dataset) or (hasattr(value, "__getitem__") and not isinstance(value, _states()))


def _generator_of(sampler: Any) -> torch.Generator | None:
    attributes = getattr(sampler, "__dict__", {}).values()
    return next((value for value in attributes if isinstance(value, torch.Generator)), None)


def _is_seed_between(before: torch.Tensor | None, generator: torch.Generator) -> bool | None:
    """Whether a base seed was drawn since the state ``before``; None if something else was, or it was set."""
    if before is None:
        return None
    now = generator.get_state()
    if torch.equal(before, now):
        return False
    with kept_generators(generator):
        generator.set_state(before)
        draw_seed(generator)
        return True if torch.equal(generator.get_state(), now) else None


def _kept(sampler: Any, generator: torch.Generator | None) -> AbstractContextManager[None]:
    """Set back in the end what the drawing of a sampler may change: for samplers of the user's, any generator."""
    return kept_generators(generator) if type(sampler) in KNOWN_SAMPLERS else _all_kept(sampler, generator)


@contextmanager
def _all_kept(sampler: Any, generator: torch.Generator | None) -> Iterator[None]:
    states = sampler_states(sampler)
    with kept_generators(generator):
        try:
            yield
        finally:
            set_sampler_states(sampler, states)


def _listed(indices: Iterator[Any], most: int) -> Indices:
    return np.fromiter(map(operator.index, islice(indices, most)), np.int64)
