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
    state right after the last item leads to the next epoch, if it has the position.

    Args:
        length: the number of items, if it is known.

    >>> end = SamplerEnd(3)
    >>> def own(at, epoch): return {"sampler": (at, epoch), "iterator": None}
    >>> for at in (1, 2, 3): end.after_item(at, lambda: {"own": own(at, 0), "at": at, "over": False})
    >>> end.over({"own": own(3, 1), "at": 3, "over": True})["own"]["sampler"]
    (3, 0)
    >>> end.before_next(own(3, 1))["sampler"], end.before_next(own(0, 7))["sampler"]
    ((3, 0), (0, 7))
    """

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._tail: list[dict[str, Any]] = []  # the states after the last item but one, and after the last
        self._over: Any = None  # the sampler's own state at its end

    @classmethod
    def gone_on_from(cls, loaded: dict[str, Any], state: dict[str, Any]) -> SamplerEnd:
        """Return the end that a loaded state is of; the second state is what the sampler has there now."""
        end = cls(None)
        end._tail, end._over = [{"own": None}, loaded], state["own"]
        return end

    def after_item(self, at: int, state: Callable[[], dict[str, Any]]) -> None:
        """Note the state after so many items if the end is near; ``state`` returns it."""
        if self._length is not None and at >= self._length - 1:
            self._tail = [*self._tail[-1:], state()]

    def over(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state to save for the end of the epoch, where the sampler has the given one."""
        self._over = state["own"]
        last = self._last
        return state if last is None or last["at"] != state["at"] else {**last, "over": True}

    def before_next(self, own: Any) -> Any:
        """Return the own state to save for the beginning of the next epoch, where it has the given one."""
        last = self._last
        return last["own"] if last is not None and is_same_state(own, self._over) else own

    @property
    def _last(self) -> dict[str, Any] | None:
        before, last = self._tail if len(self._tail) == 2 else (None, None)
        if before is None or last is None or is_same_state(before["own"], last["own"]):
            return None  # its state has no position
        return last if last["own"]["iterator"] is None else None  # of which there is another one in each epoch
