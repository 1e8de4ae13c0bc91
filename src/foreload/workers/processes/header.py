"""The memory in which a worker process and the loop tell each other numbers at once."""

from __future__ import annotations

import mmap
import os

from foreload import _native

__all__ = ["SharedHeader"]


class SharedHeader:
    """A page of memory with numbers that both sides see at once.

    Attributes:
        first: the first job whose answer is wanted; jobs before it need not be done.
        position: the position, in its batch, of the sample that the worker is loading.
        started: the nanoseconds on a core that the worker took until it was ready for its first job; so far, until
            then, and 0 if it has not imported and unpickled all that it was sent.
        answered: when it sent its latest answer (``time.monotonic_ns()``); 0 before.
    """

    def __init__(self, file: int) -> None:
        if os.fstat(file).st_size == 0:
            os.ftruncate(file, mmap.PAGESIZE)
        self._numbers = _native.Mapping(file, 0, mmap.PAGESIZE).memory.data.cast("q")

    @property
    def first(self) -> int:
        return self._numbers[0]

    @first.setter
    def first(self, number: int) -> None:
        self._numbers[0] = number

    @property
    def position(self) -> int:
        return self._numbers[1]

    @position.setter
    def position(self, number: int) -> None:
        self._numbers[1] = number

    @property
    def started(self) -> int:
        return self._numbers[2]

    @started.setter
    def started(self, nanoseconds: int) -> None:
        self._numbers[2] = nanoseconds

    @property
    def answered(self) -> int:
        return self._numbers[3]

    @answered.setter
    def answered(self, nanoseconds: int) -> None:
        self._numbers[3] = nanoseconds
