"""The interpreter's lock (GIL), as a loader's statistics tell of it: how often it is held, and waits for it."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["LOCK_FULL", "LockDelay", "lock_delay", "lock_held_share"]

# The share of looks that found the interpreter's lock taken needs at least this many looks.
_MIN_LOOKS = 20

# Threads starve from this share of their time on, if they asked for the lock often enough and waited for so many
# seconds each time.
_STARVED_SHARE, _MIN_ASKED, _MIN_DELAY = 0.05, 10, 1e-3

# Samples are slowed down by the lock if threads waited so much longer for it each time before they began one, on
# average, than while the loop waited, and if they are slowed down by this share of the threads' time.
_MIN_DELAY_IF_SLOWED, _SLOWED_SHARE = 2e-4, 0.1

# Workers wait for the lock if it is held for this share of the time or more.
LOCK_FULL = 0.85


class LockDelay(NamedTuple):
    """The time that threads waited for the interpreter's lock while the loop worked.

    Attributes:
        asked: how often they asked for it before a sample.
        seconds: the sum of these waits.
        within: the seconds that they waited for it within samples, as far as these were slower than otherwise.
    """

    asked: int = 0
    seconds: float = 0.0
    within: float = 0.0

    @property
    def mean(self) -> float:
        """Seconds of one wait."""
        return self.seconds / self.asked if self.asked else 0.0

    def less(self, seconds: float) -> LockDelay:
        """Return the delay without some of its seconds."""
        return self._replace(seconds=max(0.0, self.seconds - seconds))

    def starves(self, seconds: float) -> bool:
        """Whether this is more, of all the time of the threads, than switching between threads takes."""
        if self.asked < _MIN_ASKED:
            return False
        return self.within > 0 or (self.mean >= _MIN_DELAY and self.seconds >= _STARVED_SHARE * seconds)


def lock_delay(stats: Any) -> LockDelay:
    """Return how long threads that load, or pin memory, waited for the lock while the loop worked."""
    lock = stats.get("lock") or {}
    delay = LockDelay(int(lock.get("asked", 0)), float(lock.get("delay_seconds", 0.0)))
    # Threads that wait for a core are slower too; and the loop cannot keep the lock for longer than it computes.
    count = stats["workers"]["count"]
    within = float(lock.get("slowed_seconds", 0.0)) - float(stats["cpu"].get("queued_seconds", 0.0))
    within = min(within, count * float(stats["loop_cpu_seconds"]))
    least = _SLOWED_SHARE * count * stats["seconds"]
    # While the loop waits, whoever asks for the lock waits for the other threads only.
    by_others = float(lock.get("held_seconds", 0.0)) / max(1, lock.get("looks", 0))
    is_late = delay.mean - by_others >= _MIN_DELAY_IF_SLOWED
    if delay.asked < _MIN_ASKED or not is_late or within < max(least, 1e-9):
        return delay
    return delay._replace(within=within)


def lock_held_share(stats: Any) -> float | None:
    """Return the share of looks that found the interpreter's lock taken by workers; None if there were too few."""
    lock = stats.get("lock")
    return None if not lock or lock["looks"] < _MIN_LOOKS else float(lock["held_share"])
