"""Trial of whether threads may share a dataset: the same samples alone and by threads, compared bit for bit."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset

from foreload.checks import check_callable, check_int
from foreload.workers.thread_check.alone import Alone, load_alone
from foreload.workers.thread_check.isolated import Ending, run_here, run_in_fork
from foreload.workers.thread_check.loading import CurrentSamples, Samples
from foreload.workers.thread_check.sentences import describe_threads, first_error, name_samples
from foreload.workers.thread_check.threads import NUM_PATTERNS, Threads, load_by_threads, patience

__all__ = ["ThreadCheck", "check_threads"]

# More threads than cores, so that they take turns in the middle of anything; fewer if samples are slow.
_MOST_THREADS, _FEWEST_THREADS = 8, 2

# The share of the time for each of two turns alone, and for each pattern of threads. These begin samples in half
# of theirs only: those that have not come back at the end were waited for.
_SHARE, _BEGIN_SHARE = 0.2, 0.1


@dataclass(frozen=True, repr=False)
class ThreadCheck:
    """The result of :func:`check_threads`.

    Attributes:
        findings: what speaks against threads, or why nothing could be tried.
        notes: what else was seen.
        samples: the number of samples that were loaded alone and by threads.
        threads: the number of threads that loaded them.
        seconds: the time that it took.
    """

    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    samples: int = 0
    threads: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether samples were tried and no sign was found that threads are wrong; that is no proof."""
        return not self.findings

    def __str__(self) -> str:
        tried = f"{self.samples} sample{'s' * (self.samples != 1)} alone and by {self.threads} threads"
        tried = f"{tried}, {self.seconds:.1f} s" if self.samples else f"nothing was tried, {self.seconds:.1f} s"
        if self.ok:
            lines = [
                f"No sign that threads are wrong here ({tried}). That is no proof: what happens rarely may not "
                "have happened. If you know that threads may share this dataset, set thread_safe = True on it, "
                'or pass workers="threads".'
            ]
        else:
            lines = [f"Threads should not share this dataset ({tried}):", *map(_listed, self.findings)]
        if self.notes:
            lines += ["Also:", *map(_listed, self.notes)]
        return "\n".join(lines)

    __repr__ = __str__


def _listed(text: str) -> str:
    return "- " + text.replace("\n", "\n  ")


def check_threads(
    dataset: Any,
    *,
    samples: int = 64,
    seconds: float = 10.0,
    transform: Callable[[Any], Any] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> ThreadCheck:
    """Try whether threads may share a dataset, and say what was found.

    Samples are loaded alone, then the same ones by 8 threads (fewer if samples are slow) that the interpreter
    switches between all the time: the same sample at once, different ones, in different orders. They are compared
    bit for bit. Random numbers are the same either way, as in a loader, so that a random dataset is not wrong for
    that. And it looks for known signs: open files and connections, generators, and buffers, attributes and global
    variables that loading changes.

    All of that happens in forks of this process, which may crash or hang: the dataset, and everything else here,
    stays as it is. (What loading writes outside of the process, to files or shared memory, is written.) On a
    system without forks, a pickled copy of the dataset is loaded in this process, which a crash would end.

    That nothing is found is no proof. Only you can know it: then set ``thread_safe = True`` on the dataset, or
    pass ``workers="threads"`` to the loader.

    Args:
        dataset: a map-style dataset.
        samples: the most samples to load, from all over the dataset.
        seconds: the time after which no other sample is begun. Threads that do not come back then are waited for
            until none has loaded a sample for a second, or for three times what one takes.
        transform: as for :class:`foreload.DataLoader`, applied to each sample.
        collate_fn: as for :class:`foreload.DataLoader`, applied to each sample as a batch of one.

    Raises:
        TypeError: the dataset is not map-style, or an argument is of another type.
        ValueError: an argument makes no sense.

    >>> import torch, foreload as fl
    >>> class Lines(torch.utils.data.Dataset):
    ...     __module__ = "__main__"
    ...     file = None
    ...     def __len__(self):
    ...         return 20
    ...     def __getitem__(self, index):
    ...         if self.file is None:
    ...             self.file = open(__file__)
    ...         self.file.seek(index)
    ...         return self.file.read(1)
    >>> check = fl.check_threads(Lines())
    >>> check.ok
    False
    >>> [finding for finding in check.findings if "'file'" in finding]
    ["'file' is an open file, whose position threads share."]
    """
    check_int("samples", samples, 1)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"seconds must be a number, got {seconds!r}")
    if not seconds > 0:
        raise ValueError(f"seconds must be above 0, got {seconds}")
    check_callable("transform", transform)
    check_callable("collate_fn", collate_fn)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"dataset must be map-style, with __getitem__, got {type(dataset).__name__}; of an iterable dataset, "
            "threads read one iterator in turns, or each worker process a copy"
        )
    began = time.monotonic()
    trial = _Check(Samples(dataset, transform, collate_fn), began, seconds)
    trial.run(samples)
    return ThreadCheck(trial.findings, trial.notes, trial.num_samples, trial.num_threads, time.monotonic() - began)


class _Check:
    """One check, step by step."""

    def __init__(self, samples: Samples, began: float, seconds: float) -> None:
        self.findings: list[str] = []
        self.notes: list[str] = []
        self.num_samples = 0
        self.num_threads = 0
        self._samples = samples
        self._began = began
        self._seconds = seconds
        self._progress = CurrentSamples(_MOST_THREADS)
        self._can_fork = "fork" in multiprocessing.get_all_start_methods()

    def run(self, samples: int) -> None:
        """Load alone twice, then by threads."""
        if not self._can_fork and not self._copies():
            return
        first = self._alone(samples)
        if first is None:
            return
        if not first.loaded:
            self.findings.append("The dataset has no samples, so nothing was tried.")
            return
        self._describe_alone(first, samples)
        if all(loaded.sample is None for loaded in first.loaded.values()):
            return
        again = self._alone(sorted(first.loaded, reverse=True))
        if again is None:
            return
        alone = self._comparable(first, again)
        total = Threads()
        self.findings[:0] = self._by_threads(alone, total)  # what happened comes before what might
        self.findings += alone.signs.findings
        self.notes += [
            f"Samples draw from {name} global generator. Each worker thread has one of its own, keyed for each "
            "sample; that was so here too."
            for name in sorted(first.draws - total.leaked)
        ]
        self.notes += alone.signs.notes

    def _copies(self) -> bool:
        """Say that a copy is loaded in this process; return whether there can be one."""
        try:
            pickle.dumps(self._samples)
        except Exception as error:
            self.findings.append(
                "Nothing was tried: this system cannot fork a process, and the dataset cannot be copied to be "
                f"tried in this one ({type(error).__name__}: {error})."
            )
            return False
        self.notes.append(
            "This system cannot fork a process, so a pickled copy of the dataset was tried in this one, which a "
            "crash would have ended."
        )
        return True

    def _call(self, function: Callable[..., Any], *args: Any, more_seconds: float = 0.0) -> Ending:
        """Call a function with the samples as they are, in a process or with a copy of its own."""
        self._progress.clear()
        most = max(0.0, self._deadline() - time.monotonic()) + 1.0 + more_seconds
        if self._can_fork:
            return run_in_fork(partial(function, self._samples, *args), most)
        copy = pickle.loads(pickle.dumps(self._samples))
        return run_here(partial(function, copy, *args), most)

    def _deadline(self) -> float:
        return self._began + self._seconds

    def _until(self, share: float) -> float:
        return min(self._deadline(), time.monotonic() + share * self._seconds)

    def _alone(self, indices: list[int] | int) -> Alone | None:
        """Load samples alone; None if that did not end, which is a finding then."""
        ending = self._call(load_alone, indices, self._progress, self._until(_SHARE))
        if isinstance(ending.value, Alone):
            return ending.value
        at = self._progress.now().get(0)
        what = "asking for its length" if at is None else f"loading sample {at}"
        if ending.is_late:
            trouble = f"{what} alone took longer than seconds={self._seconds:g}"
        else:
            trouble = f"{what} alone ended the process that tried it ({ending.trouble})"
        self.findings.append(f"Nothing was tried with threads: {trouble}.{_at(ending.stack)}")
        return None

    def _describe_alone(self, first: Alone, samples: int) -> None:
        errors = {index: loaded.error for index, loaded in first.loaded.items() if loaded.sample is None}
        if len(errors) == len(first.loaded):
            self.findings.append(
                f"Nothing was tried: no sample can be loaded, alone either: {first_error(errors)}."
            )
        elif errors:
            self.notes.append(
                f"{name_samples(errors, is_first=True)} cannot be loaded, alone either: {first_error(errors)}."
            )
        if first.reused:
            self.findings.append(
                f"{name_samples(first.reused, is_first=True)} changed when the next one was loaded, alone too: "
                "the dataset returns a buffer that it uses again, which is wrong in any batch of two."
            )
        wanted = samples if first.length is None else min(samples, first.length)
        if first.length is not None and len(errors) < len(first.loaded) < wanted:
            self.notes.append(
                f"Only {len(first.loaded)} of {wanted} samples were tried, since one takes up to "
                f"{first.slowest:.2g} s; a larger seconds= (here {self._seconds:g}) allows more."
            )
        opaque = {kind for loaded in first.loaded.values() if loaded.sample for kind in loaded.sample.opaque}
        if opaque:
            self.notes.append(
                f"Parts of samples cannot be compared, since they do not pickle: {', '.join(sorted(opaque))}."
            )

    def _comparable(self, first: Alone, again: Alone) -> Alone:
        """Return the samples that were loaded twice, with those that differed."""
        loaded = {index: first.loaded[index] for index in first.loaded if index in again.loaded}
        unequal = {index for index in loaded if loaded[index].different(again.loaded[index]) is not None}
        if unequal:
            self.notes.append(
                f"{name_samples(unequal, is_first=True)} differ each time they are loaded, alone too, so they "
                "cannot be compared."
            )
        slowest = max(first.slowest, again.slowest)
        return replace(first, loaded=loaded, slowest=slowest, unequal=frozenset(unequal))

    def _by_threads(self, alone: Alone, total: Threads) -> list[str]:
        """Load by threads in each pattern, and add that to ``total``; return what was found."""
        least = _BEGIN_SHARE * self._seconds
        count = int(_SHARE * self._seconds / alone.slowest)
        self.num_samples = len(alone.loaded)
        self.num_threads = count = max(_FEWEST_THREADS, min(_MOST_THREADS, count))
        for pattern in range(NUM_PATTERNS):
            if pattern > 0 and time.monotonic() + least > self._deadline():
                self.notes.append("Time was up before threads had tried several orders; allow more seconds.")
                break
            until = self._until(_BEGIN_SHARE)
            given = alone, pattern, count, self._progress, until, self._deadline()
            ending = self._call(load_by_threads, *given, more_seconds=2 * patience(alone.slowest))
            if not isinstance(ending.value, Threads):
                return [*describe_threads(total, alone.slowest), self._ended(ending)]
            total.add(ending.value)
            if ending.value.stuck:
                break
        return describe_threads(total, alone.slowest)

    def _ended(self, ending: Ending) -> str:
        now = self._progress.now().values()
        what = f"threads loaded {name_samples(now)}" if now else "threads loaded samples"
        if ending.is_late:
            said = f"The process that tried it did not answer any more while {what}, and was killed."
        else:
            said = f"While {what}, the process that tried it ended ({ending.trouble}); alone it did not."
        return f"{said}{_at(ending.stack)}"


def _at(stack: str) -> str:
    return f"\n{stack}" if stack else ""
