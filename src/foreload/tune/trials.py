"""Which of several settings is best, found by trying them, with as few changes as can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Trial", "Trials"]

S = TypeVar("S")

# A change that is predicted to give less is not worth one; one that gives less is taken back.
_WORTH, _KEPT = 1.05, 1.03

# How many windows make a measurement; one is enough where this much more is predicted.
_WINDOWS, _CONFIDENT_GAIN = 3, 1.5

# After so many windows the model is asked. It learns more meanwhile.
_ASKED = (1, 3, 6, 12)

# Trials, until it is left at that; and how often that is opened again, where the pace is another one by this much
# for so many windows on end.
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

    It knows neither clocks nor loaders: it is told what was done in windows of time, and answers with settings. At
    most 4 settings are tried, each followed by at most one step back; then it stays as it is, unless the pace
    changes greatly for long, twice at most: no more than 24 changes, whatever it is told. So it cannot oscillate.
    Where a prediction did not come true, later ones are believed as much less.

    Args:
        setting: the present one.
        windows: how many of them make a measurement.

    Attributes:
        setting: the present one.
        frozen: whether nothing is tried any more.
        done: what was tried.

    >>> trials = Trials(2)
    >>> paces = {2: 100.0, 8: 390.0}
    >>> for _ in range(20):
    ...     _ = trials.observe(paces[trials.setting], 1.0, lambda now, tried: (8, 4.0) if 8 not in tried else None)
    >>> trials.setting, trials.frozen, trials.done
    (8, True, [Trial(before=2, tried=8, predicted=4.0, measured=3.9, kept=True)])
    """

    def __init__(self, setting: S, *, windows: int = _WINDOWS) -> None:
        self.setting = setting
        self.frozen = False
        self.done: list[Trial[S]] = []
        self._needed = windows
        self._left = _REOPENED
        self._begin()

    def _begin(self) -> None:
        self.frozen = False
        self._tried = {self.setting}
        self._trials = 0
        self._trust = 1.0  # what of a prediction comes true
        self._forget()
        self._trial: tuple[S, float, float] | None = None  # what was before, its pace, what was predicted
        self._reference = self._others = 0.0

    def _forget(self) -> None:
        self._windows = 0
        self._samples = self._seconds = 0.0

    @property
    def _pace(self) -> float:
        return self._samples / self._seconds if self._seconds > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether nothing will be tried ever again, so that nobody needs to tell it anything."""
        return self.frozen and self._left == 0

    def observe(
        self, samples: float, seconds: float, propose: Callable[[S, set[S]], tuple[S, float] | None]
    ) -> bool:
        """Take note of what was done with the present setting in a window of time.

        Args:
            samples: how many.
            seconds: in how many.
            propose: is given the present setting and those that need not be proposed; gives another one, and how
                many times as fast that is, or None.

        Returns:
            Whether :attr:`setting` is another one now. What comes right after that is not to be told.
        """
        if self.frozen:
            self._watch(samples / seconds if seconds > 0 else 0.0)
            return False
        self._windows += 1
        self._samples += samples
        self._seconds += seconds
        if self._trial is not None:
            return self._judge(*self._trial)
        seen = self._windows
        if seen not in _ASKED and seen != self._needed:
            return False
        proposal = None if self._trials == _TRIALS else propose(self.setting, self._tried)
        if proposal is not None and self._trust * proposal[1] >= (
            _WORTH if seen >= self._needed else _CONFIDENT_GAIN
        ):
            other, predicted = proposal
            if other not in self._tried:
                self._trial = self.setting, self._pace, predicted
                self._tried.add(other)
                self._trials += 1
                self._forget()
                self.setting = other
                return True
        if self._trials == _TRIALS or (seen >= _ASKED[-1] or self._needed == 1):
            self.frozen = True
            self._reference = self._pace
        return False

    def _judge(self, before: S, pace: float, predicted: float) -> bool:
        # A measurement must be whole, unless it leaves no doubt.
        if self._windows < self._needed and self._pace < _CONFIDENT_GAIN * pace:
            return False
        measured = self._pace / pace if pace > 0 else float("inf")
        kept = measured >= _KEPT
        self.done.append(Trial(before, self.setting, predicted, measured, kept))
        self._trial = None
        self._forget()
        if not kept:
            self.setting = before
            self._trust = min(self._trust, measured / predicted)
        return not kept

    def _watch(self, pace: float) -> None:
        if self._left == 0:
            return
        is_other = abs(pace - self._reference) > _OTHER * self._reference
        self._others = self._others + 1 if is_other else 0
        if self._others >= _LONG:
            self._left -= 1
            self._begin()
