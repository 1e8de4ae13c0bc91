"""The states of a sampler around the end of its epoch, one of which leads to the epoch after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreload.order.own_state import is_same_state

__all__ = ["SamplerEnd"]


class SamplerEnd:
    """The last states of a user's sampler in an epoch.

    A sampler may count its epochs after its last item, and keep its position until it is asked for the first item
    of the next one. The state that it has in between leads to that epoch in the loop that goes on, but in another
    loader to the one after it: set to the position of the end, it yields nothing, and counts once more. There the
    state right after the last item leads to the next epoch.

    Args:
        length: the number of items; None if it is not known.
        at: the number of items before this run.
        state: the state then.

    >>> def state(at, epoch): return {"own": {"sampler": {"at": at, "epoch": epoch}, "iterator": None}, "at": at}
    >>> end = SamplerEnd(3, 0, state(0, 0))
    >>> for at in (1, 2, 3): end.after_item(at, lambda: state(at, 0))
    >>> end.over(state(3, 1))["own"]["sampler"]
    {'at': 3, 'epoch': 0}
    >>> end.before_next(state(3, 1)["own"])["sampler"], end.before_next(state(0, 7)["own"])["sampler"]
    ({'at': 3, 'epoch': 0}, {'at': 0, 'epoch': 7})
    """

    def __init__(self, length: int | None = None, at: int = 0, state: dict[str, Any] | None = None) -> None:
        self._length = length
        self._tail: list[Any] = []  # the states after the last item but one, and after the last
        self._over: Any = None  # the sampler's own state at its end
        if length is not None and at >= length:
            self._tail.append(None)
        if length is not None and at >= length - 1:
            self._tail.append(state)

    @classmethod
    def gone_on_from(cls, loaded: dict[str, Any], state: dict[str, Any]) -> SamplerEnd:
        """Return the end that a loaded state is of; the second state is what the sampler has there now."""
        end = cls(0, 0, loaded)
        end._over = state["own"]
        return end

    def after_item(self, at: int, state: Callable[[], dict[str, Any]]) -> None:
        """Note the state after so many items if the end is near; ``state`` returns it."""
        if self._length is not None and at in (self._length - 1, self._length):
            self._tail = [*self._tail[-1:], state()]

    def over(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state to save for the end of the epoch, where the sampler has the given one."""
        self._over = state["own"]
        last = self._last
        return state if last is None or last["at"] != state["at"] else {**last, "over": True}

    def before_next(self, own: Any) -> Any:
        """Return the own state to save for the beginning of the next epoch, where it has the given one."""
        last = self._last if is_same_state(own, self._over) else None
        return own if last is None else last["own"]

    @property
    def _last(self) -> Any:
        """The state after the last item, if the sampler has changed since, but not its position."""
        if len(self._tail) < 2 or self._over is None:
            return None
        before, last = self._tail[0], self._tail[1]["own"]
        if last["iterator"] is not None:
            return None  # of which there is another one in each epoch
        now, then = self._over["sampler"], last["sampler"]
        if not (isinstance(now, dict) and isinstance(then, dict)) or is_same_state(now, then):
            return None
        kept = {key for key in then if key in now and is_same_state(now[key], then[key])}
        earlier = None if before is None else before["own"]["sampler"]
        if isinstance(earlier, dict):
            moved = {key for key in then if key not in earlier or not is_same_state(earlier[key], then[key])}
            return self._tail[1] if moved and moved <= kept else None
        return self._tail[1] if kept else None  # of which the position may be one
