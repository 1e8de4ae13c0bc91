"""Which of several settings is best, found by trying them, with as few changes as can be."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Trial", "Trials"]

S = TypeVar("S")

# A change that is predicted to give less is not worth one; one that gives less is taken back.
_WORTH, _KEPT = 1.05, 1.03

# How many paces make a measurement; one is enough where this much more is predicted.
_PACES, _MUCH = 3, 1.5

# After so many paces the model is asked. It learns more meanwhile.
_ASKED = (1, 3, 6, 12)

# Trials, until it is left at that; and how often that is opened again, where the pace is another one by this much
# for so many paces on end.
_TRIALS, _REOPENED = 4, 2
_OTHER, _LONG = 0.3, 25


class Trial(NamedTuple, Generic[S]):
    """A setting that was tried.

    Attributes:
        before, tried: the settings.
        predicted, measured: how many times as fast the one is as the other.
        kept: whether it stayed.
    """

    before: S
    tried: S
    predicted: float
    measured: float
    kept: bool


class Trials(Generic[S]):
    """Tries settings, each once, and keeps one only if it is faster than the one before.

    It knows neither clocks nor loaders: it is told paces, and answers with settings. At most 4 settings are tried,
    each followed by at most one step back; then it stays as it is, unless the pace changes greatly for long, twice
    at most: no more than 24 changes, whatever it is told. So it cannot oscillate.

    Args:
        setting: the present one.
        paces: how many of them make a measurement.

    Attributes:
        setting: the present one.
        frozen: whether nothing is tried any more.
        done: what was tried.

    >>> trials = Trials(2)
    >>> paces = {2: 100.0, 8: 390.0}
    >>> for _ in range(20):
    ...     change = trials.saw(paces[trials.setting], lambda setting, tried: (8, 4.0) if 8 not in tried else None)
    >>> trials.setting, trials.frozen, trials.done
    (8, True, [Trial(before=2, tried=8, predicted=4.0, measured=3.9, kept=True)])
    """

    def __init__(self, setting: S, *, paces: int = _PACES) -> None:
        self.setting = setting
        self.frozen = False
        self.done: list[Trial[S]] = []
        self._needed = paces
        self._left = _REOPENED
        self._begin()

    def _begin(self) -> None:
        self.frozen = False
        self._tried = {self.setting}
        self._trials = 0
        self._paces: list[float] = []
        self._trial: tuple[S, float, float] | None = None  # what was before, its pace, what was predicted
        self._reference = self._others = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing will be tried ever again, so that nobody needs to tell it anything."""
        return self.frozen and self._left == 0

    def saw(self, pace: float, propose: Callable[[S, set[S]], tuple[S, float] | None]) -> bool:
        """Take note of the pace of the present setting.

        Args:
            pace: samples per second.
            propose: is given the present setting and those that need not be proposed; gives another one, and how
                many times as fast that is, or None.

        Returns:
            Whether :attr:`setting` is another one now. The pace right after that is not to be told.
        """
        if self.frozen:
            self._watch(pace)
            return False
        self._paces.append(pace)
        if self._trial is not None:
            return self._judge(*self._trial)
        seen = len(self._paces)
        if seen not in _ASKED and seen != self._needed:
            return False
        proposal = None if self._trials == _TRIALS else propose(self.setting, self._tried)
        if proposal is not None and proposal[1] >= (_WORTH if seen >= self._needed else _MUCH):
            other, predicted = proposal
            if other not in self._tried:
                self._trial = self.setting, statistics.median(self._paces[-self._needed :]), predicted
                self._tried.add(other)
                self._trials += 1
                self._paces = []
                self.setting = other
                return True
        if self._trials == _TRIALS or (seen >= _ASKED[-1] or self._needed == 1):
            self.frozen = True
            self._reference = statistics.median(self._paces)
        return False

    def _judge(self, before: S, pace: float, predicted: float) -> bool:
        # A measurement must be whole, unless it leaves no doubt.
        if len(self._paces) < self._needed and self._paces[0] < _MUCH * pace:
            return False
        measured = statistics.median(self._paces) / pace if pace > 0 else float("inf")
        kept = measured >= _KEPT
        self.done.append(Trial(before, self.setting, predicted, measured, kept))
        self._trial = None
        self._paces = []
        if not kept:
            self.setting = before
        return not kept

    def _watch(self, pace: float) -> None:
        if self._left == 0:
            return
        is_other = abs(pace - self._reference) > _OTHER * self._reference
        self._others = self._others + 1 if is_other else 0
        if self._others >= _LONG:
            self._left -= 1
            self._begin()
