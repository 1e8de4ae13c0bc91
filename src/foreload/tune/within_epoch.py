"""Tuning of the threads and the depth of prefetching while an epoch runs, if the queueing model says that it pays.

Only the thread of the loop decides, between two batches, and only which thread loads what and when: the order of
samples and the contents of batches stay the same. :class:`~foreload.tune.trials.Trials` says why tuning ends.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from foreload.machine import available_memory, granted_cores, granted_memory
from foreload.nested import tensors
from foreload.record.units import percent, quantity
from foreload.tune.costs import WORK, Costs, make_servers
from foreload.tune.gil import LOCK_FULL
from foreload.tune.interval import CounterReading, Observed, between
from foreload.tune.trials import Trial, Trials

__all__ = ["Setting", "Tuner", "most_ahead"]

# The least seconds and batches of a window, over which the pace is measured. After a change, batches that were
# begun before it are not counted.
_WINDOW_SECONDS, _MIN_WINDOW_BATCHES = 0.15, 4

# The seconds of a window when no setting is tried any more.
_FROZEN_WINDOW_SECONDS = 1.0

# The most batches between two looks.
_MAX_BATCHES = 1024

# Threads wait without taking a core, so there may be many of them.
_MAX_THREADS = 32

# The most batches made ahead, and the shares of the memory, and of the available memory, that they may take.
_MAX_DEPTH = 128
_MEMORY_SHARE, _AVAILABLE_SHARE = 0.25, 0.5

# A share of the time too small to matter.
_NEGLIGIBLE_SHARE = 0.05

# The fewest looks at the interpreter's lock from which a share is taken.
_MIN_LOCK_LOOKS = 10

# Fewer threads are preferred if their gain is at least this share of the best.
_AS_GOOD = 0.98

# The calling thread may be faster than threads are if the loop waits for this share of the time, and batches come
# in fewer seconds than this, or the lock is taken for this share of the time, by so many looks at it.
_WAITING_SHARE, _SHORT_BATCH = 0.5, 5e-4
_PASSED_AROUND, _MIN_PASSED_LOOKS = 0.4, 5


def most_ahead(batch: int, limit: int | None) -> int:
    """Return how many batches of so many bytes may be made ahead, in this machine's memory.

    Args:
        batch: bytes; 0: not known yet.
        limit: the number that the user's limit has room for; None: there is none.

    >>> most_ahead(1, None), most_ahead(1, 7), most_ahead(1 << 50, 7)
    (128, 7, 1)
    """
    depth = _MAX_DEPTH
    if batch:
        share = min(_MEMORY_SHARE * granted_memory(), _AVAILABLE_SHARE * available_memory())
        depth = min(depth, int(share / batch))
    return max(1, depth if limit is None else min(depth, limit))


class Setting(NamedTuple):
    """A setting that can change while an epoch runs.

    Attributes:
        threads: the number of threads; 0: the calling thread makes each batch when it is requested.
        depth: the number of batches made ahead.
    """

    threads: int
    depth: int


class Tuned(Protocol):
    """An epoch, as tuning sees it."""

    copies: int  # of a batch while it is made

    def resize(self, threads: int, depth: int) -> None:
        """Go on with another number of threads and of batches made ahead."""
        ...

    def most_depth(self) -> int | None:
        """Return the number of batches that the memory budget has room for; None: no limit."""
        ...


class Tuner:
    """Tunes the threads of a loader's epochs, one after the other.

    Args:
        setting: the first setting.
        each: batches made ahead per thread; None: the depth does not depend on the number of threads.
        changes: the list for the changes that it makes and their reasons, in words.
        deeper: whether more batches may be made ahead.

    Attributes:
        may_be_alone: whether the calling thread may make batches.
    """

    def __init__(self, setting: Setting, each: int | None, changes: list[str], *, deeper: bool) -> None:
        self.trials = Trials(setting)
        self.changes = changes
        self._each = each
        self._first = setting.threads
        self._deeper = deeper
        self.may_be_alone = False
        self._why = ""
        self._batch = 0  # bytes of the largest batch
        self._began: CounterReading | None = None  # with the present setting
        self._since: tuple[int, float] | None = None  # samples and seconds when the window began
        self._batches = 0  # of the window

    @property
    def setting(self) -> Setting:
        """The present setting."""
        return self.trials.setting

    def begin(self) -> int:
        """Begin an epoch; return after how many batches to look, 0 for never."""
        self._began = self._since = None
        return 0 if self.trials.over else _MIN_WINDOW_BATCHES

    def look(self, observed: Observed, epoch: Tuned, batch: Any, batches: int) -> int:
        """Measure the pace, and change the setting if that is worth it.

        Args:
            observed: the running loader.
            epoch: the present epoch.
            batch: the last batch.
            batches: the number of batches since the last look.

        Returns:
            The number of batches until the next look; 0: never.
        """
        sums = observed.recorder.sums()
        samples, seconds = sums["samples"], (sums["wait"] + sums["loop"]) * 1e-9
        if self._since is None:
            return self._start(observed, samples, seconds)
        self._batches += batches
        took = seconds - self._since[1]
        window = _FROZEN_WINDOW_SECONDS if self.trials.frozen else _WINDOW_SECONDS
        if took < window:
            left = self._batches * (window / max(took, 1e-6) - 1)
            return int(min(_MAX_BATCHES, self._batches, left)) + 1
        self._batch = max(self._batch, sum(each.nbytes for each in tensors(batch)))
        done, depth = len(self.trials.done), self.setting.depth
        is_other = self.trials.observe(
            samples - self._since[0], took, lambda setting, tried: self._propose(observed, epoch, setting, tried)
        )
        for trial in self.trials.done[done:]:
            self.changes.append(self._describe(trial))
        if is_other:
            setting = self.setting
            epoch.resize(*setting)
            self._began = self._since = None
            # Batches that were begun before come first.
            return max(_MIN_WINDOW_BATCHES, depth, setting.depth)
        if self.trials.over:
            return 0
        following = max(self._fewest, min(_MAX_BATCHES, self._batches))
        self._since, self._batches = (samples, seconds), 0
        return following

    def _start(self, observed: Observed, samples: int, seconds: float) -> int:
        self._since, self._batches = (samples, seconds), 0
        if not self.trials.frozen:
            self._began = CounterReading.of(observed.recorder)
        return self._fewest

    @property
    def _fewest(self) -> int:
        """The fewest batches of a window: batches that are made together come together."""
        return max(_MIN_WINDOW_BATCHES, self.setting.depth // 2)

    def _propose(
        self, observed: Observed, epoch: Tuned, setting: Setting, tried: set[Setting]
    ) -> tuple[Setting, float | None] | None:
        """Return the best setting by the model, and the gain in pace that it predicts."""
        assert self._began is not None
        stats = between(observed, self._began, CounterReading.of(observed.recorder), setting.depth)
        if self.may_be_alone and _ALONE not in tried and (why := _why_alone(stats)) is not None:
            self._why = why
            return _ALONE, None  # what it saves, no stage tells
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
        best = min(other for other, gain in found.items() if gain >= _AS_GOOD * most)
        self._why = _why(costs)
        return best, found[best]

    def _others(self, setting: Setting, room: int, stats: Any, copies: int = 1) -> set[Setting]:
        """Return the settings that may be better."""
        # What the loop's thread computes meanwhile, no others save.
        computed = stats["stages"].get("wait", {"cpu_seconds": 0.0})["cpu_seconds"] if setting.threads else 0.0
        if stats["wait_seconds"] - computed < _NEGLIGIBLE_SHARE * stats["seconds"]:
            return set()  # a loop that does not wait cannot get faster
        numbers = {1 << power for power in range(_MAX_THREADS.bit_length())} | {granted_cores()}
        lock = stats["lock"]
        # However many threads there are, one lock is no more than one core.
        is_locked = lock is not None and lock["looks"] >= _MIN_LOCK_LOOKS and lock["held_share"] >= LOCK_FULL
        if is_locked:
            numbers = {number for number in numbers if number < setting.threads}
        elif stats["cpu"]["share"] > 1 - _NEGLIGIBLE_SHARE:
            numbers = set()
        else:
            numbers = {number for number in numbers if number > setting.threads}
        others = set()
        for count in numbers - {setting.threads}:
            left = self._left(room, count, copies)
            depth = setting.depth if self._each is None else max(1, min(self._each * count, left))
            if count < setting.threads or depth >= setting.depth <= left:
                others.add(Setting(count, depth))
        busy = sum(stats["stages"][name]["seconds"] for name in WORK)
        left = self._left(room, setting.threads, copies)
        if (
            self._deeper
            and setting.depth < left
            and busy < (1 - _NEGLIGIBLE_SHARE) * setting.threads * stats["seconds"]
        ):
            others.add(Setting(setting.threads, min(2 * setting.depth, left)))
        return others

    def _left(self, room: int, count: int, copies: int) -> int:
        """Return how much of the room for batches is left with so many threads.

        Each new thread's heap may keep the memory of a batch of samples.
        """
        return room - max(0, count - self._first) // copies

    def _room(self, epoch: Tuned) -> int:
        """Return the number of batches that may be made ahead."""
        return most_ahead(self._batch * epoch.copies, epoch.most_depth())

    def _describe(self, trial: Trial[Setting]) -> str:
        before, tried = trial.before, trial.tried
        change = f"{_threads(tried.threads)} instead of {before.threads or _threads(0)}"
        if tried.threads == before.threads:
            change = quantity(tried.depth, "batch", "batches") + f" made ahead instead of {before.depth}"
        return f"{change}: {self._why}; {trial.outcome}"


# The calling thread makes each batch when it is requested.
_ALONE = Setting(0, 1)


def _threads(count: int) -> str:
    return quantity(count, "thread", "threads") if count else "the calling thread"


def _why_alone(stats: Any) -> str | None:
    """Return why the calling thread may be faster than threads are; None if it is not likely."""
    if stats["wait_seconds"] < _WAITING_SHARE * stats["seconds"]:
        return None
    if stats["seconds"] < _SHORT_BATCH * stats["batches"]:
        return "to hand a batch over may take longer than to make it"
    lock = stats["lock"]
    is_taken = lock["looks"] >= _MIN_PASSED_LOOKS and lock["held_share"] >= _PASSED_AROUND
    return "the interpreter's lock is passed around" if is_taken else None


def _changed(costs: Costs, setting: Setting, other: Setting) -> Costs | None:
    """Return the costs of samples with another setting; None if it cannot be better."""
    cores = costs.servers.cores
    # More threads than samples in unfinished batches would be idle.
    threads = max(1, min(other.threads, int(other.depth * costs.batch)))
    changed = replace(costs, servers=make_servers(threads, "threads", cores, other.depth), depth=other.depth)
    if other.threads < setting.threads:
        # All that fewer threads save is the loss by passing around a lock that is always taken.
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
