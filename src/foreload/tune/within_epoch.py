"""How many threads, and how many batches ahead: changed while an epoch runs, where the model says that it pays.

Only the loop's own thread decides, between two batches, and only who loads what and when: the order of the
samples and what is in a batch are the same whatever is changed. Why it ends: see
:class:`~foreload.tune.trials.Trials`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from foreload.machine import available_memory, granted_cores, granted_memory
from foreload.nested import tensors
from foreload.record.units import number, percent, quantity
from foreload.tune.costs import LOCK_FULL, WORK, Costs, crew
from foreload.tune.interval import Observed, Reading, between
from foreload.tune.trials import Trial, Trials

__all__ = ["Setting", "Tuner"]

# Seconds and batches for one pace; after a change, batches begun before it are not counted.
_WINDOW, _BATCHES = 0.15, 4

# Seconds for one where nothing is tried any more.
_FROZEN_WINDOW = 1.0

# Between two looks.
_MOST_BATCHES = 1024

# Threads wait without taking a core, so there may be many of them.
_MOST_THREADS = 32

# Batches in the making, and the shares of the memory and of what is left of it that they may take.
_MOST_DEPTH = 128
_SHARE, _SHARE_LEFT = 0.25, 0.5

# Of the time: nothing to be gained, or lost.
_LITTLE = 0.05

# At the interpreter's lock, before their share means anything.
_LOOKS = 10

# Fewer threads will do where they are as fast but for this.
_AS_FAST = 0.98


class Setting(NamedTuple):
    """What is tuned while an epoch runs.

    Attributes:
        threads: that work.
        depth: batches in the making.
    """

    threads: int
    depth: int


class Tuned(Protocol):
    """An epoch, as it is tuned."""

    copies: int

    def resize(self, threads: int, depth: int) -> None:
        """Go on with another number of threads and of batches in the making."""
        ...

    def most_depth(self) -> int | None:
        """Give how many batches the memory budget has room for; None: as many as one likes."""
        ...


class Tuner:
    """Tunes the threads of a loader's epochs, one after the other.

    Args:
        setting: to begin with.
        each: batches in the making per thread; None: their number is the assembly's, whatever the threads.
        changes: where it says what it changed and why.
        deeper: whether more of them may be made ahead.
    """

    def __init__(self, setting: Setting, each: int | None, changes: list[str], *, deeper: bool) -> None:
        self.trials = Trials(setting)
        self.changes = changes
        self._each = each
        self._deeper = deeper
        self._why = ""
        self._batch = 0  # bytes
        self._began: Reading | None = None  # with the present setting
        self._since: tuple[int, float] | None = None  # samples and seconds when the window began
        self._batches = 0  # of the window

    @property
    def setting(self) -> Setting:
        """The present one."""
        return self.trials.setting

    def begin(self) -> int:
        """Begin an epoch; give after how many batches to look, 0 for never."""
        self._began = self._since = None
        return 0 if self.trials.over else _BATCHES

    def look(self, observed: Observed, epoch: Tuned, batch: Any, batches: int) -> int:
        """Look what has become of the pace, and change what is worth it.

        Args:
            observed: the loader, as it runs.
            epoch: the present one.
            batch: the last one given.
            batches: given since the last look.

        Returns:
            After how many batches to look again; 0: never.
        """
        sums = observed.recorder.sums()
        samples, seconds = sums["samples"], (sums["wait"] + sums["loop"]) * 1e-9
        if self._since is None:
            return self._start(observed, samples, seconds)
        self._batches += batches
        took = seconds - self._since[1]
        window = _FROZEN_WINDOW if self.trials.frozen else _WINDOW
        if took < window:
            left = self._batches * (window / max(took, 1e-6) - 1)
            return int(min(_MOST_BATCHES, self._batches, left)) + 1
        self._batch = max(self._batch, sum(each.nbytes for each in tensors(batch)))
        done = len(self.trials.done)
        is_other = self.trials.observe(
            samples - self._since[0], took, lambda setting, tried: self._propose(observed, epoch, setting, tried)
        )
        for trial in self.trials.done[done:]:
            self.changes.append(self._told(trial))
        if is_other:
            setting = self.setting
            epoch.resize(*setting)
            self._began = self._since = None
            # What was begun before is given first.
            return max(_BATCHES, setting.depth)
        if self.trials.over:
            return 0
        following = max(self._fewest, min(_MOST_BATCHES, self._batches))
        self._since, self._batches = (samples, seconds), 0
        return following

    def _start(self, observed: Observed, samples: int, seconds: float) -> int:
        self._since, self._batches = (samples, seconds), 0
        if not self.trials.frozen:
            self._began = Reading.of(observed.recorder)
        return self._fewest

    @property
    def _fewest(self) -> int:
        """Batches that a window has at least: what is made together comes together."""
        return max(_BATCHES, self.setting.depth // 2)

    def _propose(
        self, observed: Observed, epoch: Tuned, setting: Setting, tried: set[Setting]
    ) -> tuple[Setting, float] | None:
        """Give the setting that is best by the model, and how many times as fast it is."""
        assert self._began is not None
        stats = between(observed, self._began, Reading.of(observed.recorder), setting.depth)
        room = self._room(epoch)
        others = self._others(setting, room, stats, epoch.copies) - tried
        if not others:
            return None  # fitting the model takes milliseconds, in which the loop waits
        try:
            costs = Costs.of(stats)
        except ValueError:
            return None  # every batch was empty
        now = costs.pace()
        found = {}
        for other in others:
            changed = _changed(costs, setting, other)
            # (What cannot be, whatever waits for whom, need not be worked out.)
            if changed is not None and min(1.0, changed.gain) * min(changed.limits().values()) > now:
                found[other] = changed.pace() / now
        if not found:
            return None
        most = max(found.values())
        best = min(other for other, gain in found.items() if gain >= _AS_FAST * most)
        self._why = _why(costs)
        return best, found[best]

    def _others(self, setting: Setting, room: int, stats: Any, copies: int = 1) -> set[Setting]:
        """Give the settings that may be better at all."""
        if stats["wait_seconds"] < _LITTLE * stats["seconds"]:
            return set()  # nothing can help a loop that does not wait
        numbers = {1 << power for power in range(_MOST_THREADS.bit_length())} | {granted_cores()}
        lock = stats["lock"]
        # One lock is as much as one core, whoever asks for it.
        is_locked = lock is not None and lock["looks"] >= _LOOKS and lock["held_share"] >= LOCK_FULL
        if is_locked:
            numbers = {number for number in numbers if number < setting.threads}
        elif stats["cpu"]["share"] > 1 - _LITTLE:
            numbers = set()
        else:
            numbers = {number for number in numbers if number > setting.threads}
        others = set()
        for count in numbers - {setting.threads}:
            # Each thread's part of the heap may keep what a batch of samples took; there is room for both only.
            left = room - max(0, count - setting.threads) // copies
            depth = setting.depth if self._each is None else max(1, min(self._each * count, left))
            if count < setting.threads or depth >= setting.depth <= left:
                others.add(Setting(count, depth))
        busy = sum(stats["stages"][name]["seconds"] for name in WORK)
        if self._deeper and setting.depth < room and busy < (1 - _LITTLE) * setting.threads * stats["seconds"]:
            others.add(Setting(setting.threads, min(2 * setting.depth, room)))
        return others

    def _room(self, epoch: Tuned) -> int:
        """Give how many batches may be in the making."""
        most = _MOST_DEPTH
        if self._batch:
            share = min(_SHARE * granted_memory(), _SHARE_LEFT * available_memory())
            most = min(most, int(share / (self._batch * epoch.copies)))
        limit = epoch.most_depth()
        return max(1, most if limit is None else min(most, limit))

    def _told(self, trial: Trial[Setting]) -> str:
        before, tried = trial.before, trial.tried
        what = quantity(tried.threads, "thread", "threads") + f" instead of {before.threads}"
        if tried.threads == before.threads:
            what = quantity(tried.depth, "batch", "batches") + f" made ahead instead of {before.depth}"
        told = f"{what}: {self._why}; {number(trial.predicted)} times the samples/s predicted, "
        told += f"{trial.measured:.2f} times measured"
        return told if trial.kept else f"{told}, and taken back"


def _changed(costs: Costs, setting: Setting, other: Setting) -> Costs | None:
    """Give what samples cost with another setting; None where nothing speaks for it."""
    cores = costs.crew.cores
    # Who finds no sample in the batches that are in the making has nothing to do.
    threads = max(1, min(other.threads, int(other.depth * costs.batch)))
    changed = replace(costs, crew=crew(threads, "threads", cores, other.depth), depth=other.depth)
    if other.threads < setting.threads:
        # All that fewer of them save is what is lost by handing a lock around that is always taken.
        return replace(changed, gain=1.0) if costs.gain < 1 and _by_lock(costs) else None
    if other.threads == setting.threads:
        return costs.deeper(setting.depth, other.depth)
    return changed


def _by_lock(costs: Costs) -> bool:
    limits = costs.limits()
    return limits.get("lock", float("inf")) <= min(limits.values()) / LOCK_FULL


def _why(costs: Costs) -> str:
    demand = costs.demand
    whole = demand.locked + demand.free + demand.blocked
    blocked = demand.blocked / whole if whole else 0.0
    if _by_lock(costs):
        return "the interpreter's lock is always taken"
    where = max(("read", "sample"), key=lambda name: costs.stages[name].share * costs.stages[name].idle)
    what = {"read": "for the disk", "sample": "for something else than a core"}[where]
    return f"samples wait {percent(blocked)} of their time {what}"
