"""Samples that could not be loaded, where the loop is to go on without them."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["LOST", "NothingLeft", "OnError", "SampleError", "repair", "stand_ins"]

OnError = Literal["raise", "skip", "replace"]

# Stands where a sample is missing.
LOST = object()


class NothingLeft(Exception):
    """No sample of a batch could be loaded; the loop is given the next batch."""


@dataclass(frozen=True)
class SampleError:
    """A sample that failed, in ``DataLoader.errors``.

    Attributes:
        index: of the sample; a list of them where their batch could not be collated; None in a stream.
        source: the file, where the exception names one.
        error: the exception, as ``"ValueError: what it said"``.
        traceback: where it was raised.
        action: what was done about it: ``"skip"`` or ``"replace"``.
    """

    index: Any
    source: str | None
    error: str
    traceback: str
    action: OnError

    @classmethod
    def of(cls, index: Any, error: BaseException, action: OnError, source: str | None = None) -> SampleError:
        """Describe an exception."""
        return cls(
            index.item() if hasattr(index, "item") and getattr(index, "ndim", 1) == 0 else index,
            source or getattr(error, "filename", None),
            "".join(traceback.format_exception_only(error)).partition("\nforeload:")[0].strip(),
            "".join(traceback.format_exception(error)),
            action,
        )

    def __str__(self) -> str:
        """Say it in a line."""
        return f"sample {self.index!r}{f' ({self.source})' if self.source else ''}: {self.error}"


def stand_ins(lost: Sequence[bool], on_error: OnError) -> list[int]:
    """Tell which samples make up a batch, some of which were lost.

    ``"replace"`` puts the next one that is there in a lost one's place; after the last one the first is next.

    >>> stand_ins([False, True, True, False], "skip")
    [0, 3]
    >>> stand_ins([False, True, False, True], "replace")
    [0, 2, 2, 0]
    """
    there = [position for position, is_lost in enumerate(lost) if not is_lost]
    if on_error == "skip" or not there:
        return there
    next_one = there[0]
    chosen = []
    for position in reversed(range(len(lost))):
        next_one = next_one if lost[position] else position
        chosen.append(next_one)
    return chosen[::-1]


def repair(samples: Sequence[Any], on_error: OnError) -> list[Any]:
    """Make up a batch from samples of which some are ``LOST``."""
    return [samples[position] for position in stand_ins([sample is LOST for sample in samples], on_error)]
