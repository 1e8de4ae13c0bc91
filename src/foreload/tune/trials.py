"""Trials of settings: find a better one by measuring, with few changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from foreload.record.units import number

__all__ = ["Trial", "Trials"]

S = TypeVar("S")

# The least predicted gain for which a setting is tried, and the least measured gain for which it is kept.
_MIN_PREDICTED, _MIN_MEASURED = 1.05, 1.03

# Windows in a measurement; one is enough if this gain is predicted or measured.
_WINDOWS, _CONFIDENT_GAIN = 3, 1.5

# The model is consulted after these numbers of windows; it has more data each time.
_CONSULTED_AFTER = (1, 3, 6, 12)

# The most trials before the setting is frozen, and how often it is unfrozen: when the pace has differed by this
# share for this many windows in a row.
_MAX_TRIALS, _MAX_REOPENINGS = 4, 2
_DRIFT, _DRIFT_WINDOWS = 0.3, 25


class Trial(NamedTuple, Generic[S]):
    """A setting that was tried.

    Attributes:
        before, tried: the settings.
        predicted, measured: the pace with ``tried`` over the pace with ``before``; it may not have been predicted.
        kept: whether ``tried`` was kept.
    """

    before: S
    tried: S
    predicted: float | None
    measured: float
    kept: bool

    @property
    def outcome(self) -> str:
        """The result of the trial, in words."""
        measured = f"{self.measured:.2f} times"
        if self.predicted is None:
            text = f"{measured} the samples/s measured"
        else:
            text = f"{number(self.predicted)} times the samples/s predicted, {measured} measured"
        return text if self.kept else f"{text}, and taken back"


class Trials(Generic[S]):
    """Tries settings, each once, and keeps one only if it is faster than the one before.

    It has neither a clock nor a loader: it observes the work done in windows of time, and answers with settings.
    At most 4 settings are tried, each followed by at most one step back; then the setting is frozen. A pace that
    changes greatly for long unfreezes it, at most twice. There are never more than 24 changes, so it cannot
    oscillate. After a prediction that did not come true, later ones are discounted by as much.

    Args:
        setting: the present setting.
        windows: number of windows in a measurement.

    Attributes:
        setting: the present setting.
        frozen: whether no setting is tried for now.
        done: the finished trials.

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
        self._left = _MAX_REOPENINGS
        self._begin()

    def _begin(self) -> None:
        self.frozen = False
        self._tried = {self.setting}
        self._trials = 0
        self._trust = 1.0  # the share of a predicted gain that came true
        self._forget()
        # The setting before, its pace, the predicted gain.
        self._trial: tuple[S, float, float | None] | None = None
        self._reference = self._others = 0.0

    def _forget(self) -> None:
        self._windows = 0
        self._samples = self._seconds = 0.0

    @property
    def _pace(self) -> float:
        return self._samples / self._seconds if self._seconds > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether no setting will ever be tried again, so that observing can stop."""
        return self.frozen and self._left == 0

    def observe(
        self, samples: float, seconds: float, propose: Callable[[S, set[S]], tuple[S, float | None] | None]
    ) -> bool:
        """Take in the work done with the present setting in a window of time.

        Args:
            samples: samples delivered.
            seconds: length of the window.
            propose: called with the present setting and the set of those already tried; returns another setting
                and its predicted gain (None: it cannot be predicted, but is worth a try), or None.

        Returns:
            Whether :attr:`setting` has changed. Work begun before the change must then not be observed.
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
        if seen not in _CONSULTED_AFTER and seen != self._needed:
            return False
        proposal = None if self._trials == _MAX_TRIALS else propose(self.setting, self._tried)
        if proposal is not None and self._is_promising(proposal[1], seen) and proposal[0] not in self._tried:
            other, predicted = proposal
            self._trial = self.setting, self._pace, predicted
            self._tried.add(other)
            self._trials += 1
            self._forget()
            self.setting = other
            return True
        if self._trials == _MAX_TRIALS or (seen >= _CONSULTED_AFTER[-1] or self._needed == 1):
            self.frozen = True
            self._reference = self._pace
        return False

    def _is_promising(self, predicted: float | None, seen: int) -> bool:
        least = _MIN_PREDICTED if seen >= self._needed else _CONFIDENT_GAIN
        return predicted is None or self._trust * predicted >= least

    def _judge(self, before: S, pace: float, predicted: float | None) -> bool:
        # A measurement must be complete, unless the gain is beyond doubt.
        if self._windows < self._needed and self._pace < _CONFIDENT_GAIN * pace:
            return False
        measured = self._pace / pace if pace > 0 else float("inf")
        kept = measured >= _MIN_MEASURED
        self.done.append(Trial(before, self.setting, predicted, measured, kept))
        self._trial = None
        self._forget()
        if not kept:
            self.setting = before
            self._trust = min(self._trust, 1.0 if predicted is None else measured / predicted)
        return not kept

    def _watch(self, pace: float) -> None:
        if self._left == 0:
            return
        is_other = abs(pace - self._reference) > _DRIFT * self._reference
        self._others = self._others + 1 if is_other else 0
        if self._others >= _DRIFT_WINDOWS:
            self._left -= 1
            self._begin()
