"""A user's sampler that is set to a state, and asked for an iterator that goes on from there."""

from __future__ import annotations

import copy
from typing import Any

from foreload.order.generator_states import sampler_states
from foreload.order.own_state import has_state, is_same_state, state_of

__all__ = ["SamplerSetting"]


class SamplerSetting:
    """Sets a sampler to states that it has saved.

    Args:
        sampler: the sampler.

    Attributes:
        before: the sampler's state when it was asked for its iterator.

    >>> list(SamplerSetting([2, 1]).iterated(None, 0, is_over=False))
    [2, 1]
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.before: Any = None
        # Its state when it was asked for its iterator, after it had been set to one.
        self._when_asked: tuple[Any] | None = None
        # What told another state when it had been set to one, and that state.
        self._behind: list[tuple[Any, Any]] = []

    def set(self, thing: Any, state: Any) -> None:
        """Set the sampler, or its iterator, to a state."""
        thing.load_state_dict(copy.deepcopy(state))
        told = state_of(thing)
        if not is_same_state(told, state):
            self._behind.append((thing, told))

    @property
    def is_behind(self) -> bool:
        """Whether the sampler, or its iterator, still tells another state than the one that it was set to."""
        return any(is_same_state(state_of(thing), told) for thing, told in self._behind)

    @property
    def has_moved(self) -> bool:
        """Whether asking it for its iterator has changed the sampler that was set to a state."""
        return self._when_asked is not None and not is_same_state(state_of(self._sampler), self._when_asked[0])

    def restore(self, state: Any) -> None:
        """Set the sampler to a state, if it has states, and there is one."""
        if state is not None and has_state(self._sampler):
            self.set(self._sampler, state)

    def iterated(self, own: Any, at: int, *, is_over: bool) -> Any:
        """Return the iterator of the sampler, which begins its next epoch or goes on with one.

        Before its first item, and later if its position is in its iterator, one of two states of the sampler leads
        to this epoch: that before it was asked for its iterator, for one that always counts an epoch then; or that
        after it, for one that counts only if it was not set to a state.

        Args:
            own: the saved states of the sampler and its iterator; None: it is as it is.
            at: the number of items before them.
            is_over: whether they are those of the epoch's end.
        """
        sampler = self._sampler
        if not has_state(sampler):
            return iter(sampler)
        if own is None or is_over:
            self.restore(None if own is None else own["sampler"])
            self.before = state_of(sampler)
            return iter(sampler)
        self.before = own.get("before", own["sampler"])
        is_set = at > 0 or not is_same_state(sampler.state_dict(), self.before)
        if is_set:
            self.restore(self.before)
        generators, self._when_asked = sampler_states(sampler), (state_of(sampler),)
        iterator = iter(sampler)
        has_begun = is_same_state(sampler.state_dict(), own["sampler"])
        if "before" in own and not has_begun:
            self.restore(own["sampler"])
            return iter(sampler)
        if "before" in own or at or not (is_set and has_begun):
            return iterator
        # It may not have counted because it was set to a state. (One that draws now would draw twice.)
        return iter(sampler) if sampler_states(sampler) == generators else iterator
