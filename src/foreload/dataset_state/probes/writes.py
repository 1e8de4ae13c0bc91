"""Writes to arrays: where the system tells of them, arrays need not be compared each time."""

from __future__ import annotations

from collections.abc import Callable

from foreload import _native
from foreload.checks import Array
from foreload.dataset_state.probes.probe import IsSame

__all__ = ["MIN_WATCHED_BYTES", "Unwritten"]

# To compare fewer bytes takes little longer than to ask the system, which watches so many arrays only.
MIN_WATCHED_BYTES = 1 << 18


class Unwritten:
    """A comparison of an array with what it was, made only if it has been written to.

    Args:
        flat: its bytes, one after the other.
        compared: returns what compares the array with what it is when that is made, or some of it.
        is_whole: whether it compares all of it; if not, what has been written to counts as changed.

    >>> import numpy as np
    >>> array = np.zeros(1 << 20, np.uint8)
    >>> is_same = Unwritten(array, lambda: lambda: not array.any(), is_whole=True)
    >>> before = is_same(); array[100_000] = 1
    >>> before, is_same(), is_same()
    (True, False, False)
    """

    def __init__(self, flat: Array, compared: Callable[[], IsSame], *, is_whole: bool) -> None:
        self._is_whole, self._is_same = is_whole, True
        place, size = flat.__array_interface__["data"][0], flat.size
        self._watch = _native.watch_writes(place, size)
        if self._watch is not None:  # which leaves out the pages that other memory is in, too
            self._ends = flat[: self._watch.begin - place], flat[self._watch.end - place :]
            self._before = self._at_ends()
        self._compare = compared()  # last: another thread may write to it meanwhile

    def begin(self) -> None:
        """Begin to watch in a process that has been forked since; what was written before that is compared."""
        if self._watch is not None:
            self._watch.look()
            self._is_same = self._is_same and not self._is_whole

    def __call__(self) -> bool:
        was_same, self._is_same = self._is_same, False  # in case that it is interrupted
        is_written = self._is_written()
        if self._is_whole:
            self._is_same = (was_same and is_written is False) or self._compare()
        else:
            self._is_same = was_same and not is_written and self._compare()
        return self._is_same

    def _is_written(self) -> bool | None:
        """Whether it has been written to since the last time; None: nobody knows."""
        if self._watch is None:
            return None
        is_written: bool | None = self._watch.look()
        return self._at_ends() != self._before if is_written is False else is_written

    def _at_ends(self) -> tuple[bytes, bytes]:
        first, last = self._ends
        return first.tobytes(), last.tobytes()
