"""Loops over iterables that are not known loaders, found by samples of the main thread's stack."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from foreload.cli.profile.bytecode import Loop, loops_of_file
from foreload.cli.profile.outside import Tree
from foreload.cli.profile.records import LoaderRecord, machine_stats
from foreload.cli.profile.stacks import Function, StackReader
from foreload.record.spans import SPAN

__all__ = ["LoopSamples", "SampledLoop", "loop_records"]

_INSIDE = str(Path(__file__).with_name("inside"))

# Code below these has measured, and recorded, what its caller waits for.
_KNOWN = (_INSIDE, str(Path(__file__).parents[2] / "epochs"))

# Code below these, or in a folder of installed packages, is not the user's.
_LIBRARIES = ("<", sysconfig.get_path("stdlib"), str(Path(__file__).parents[2]))

# A loop that waits less often, or for a smaller share of its time, has its items at hand.
_MIN_WAITS, _MIN_WAIT = 3, 0.02

# Loops that took a smaller share of the longest one's time are left out.
_MIN_SHARE = 0.1

# Processes whose stacks are read; more than these cost too much time.
_MAX_PROCESSES = 8


@dataclass
class SampledLoop:
    """A loop as seen in samples of the program's stack.

    Attributes:
        path, line: its place.
        seconds: the time in it.
        samples: the number of samples.
        waits: of these, the number at which it waited for its next item.
        known: of these, those in loaders that record themselves.
        at: of ``waits``, the number in each of the user's functions.
        within: of ``samples``, the number in the body of each other loop.
        begin, end: its first and last sample, in ns.
    """

    path: str
    line: int
    begin: int
    end: int = 0
    seconds: float = 0.0
    samples: int = 0
    waits: int = 0
    known: int = 0
    at: dict[str, int] = field(default_factory=dict)
    within: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """File and line."""
        return f"{os.path.basename(self.path)}:{self.line}"

    @property
    def own_share(self) -> float:
        """The share of its time in which it waited, not for a known loader."""
        return (self.waits - self.known) / self.samples if self.samples else 0.0

    @property
    def counts(self) -> bool:
        """Whether it only counts, as by ``range``; fetching its next item is no loading, however often it is."""
        return not self.at and re.search(r"\bin\s+(enumerate\(\s*)?range\(", self._source) is not None

    @property
    def _source(self) -> str:
        return linecache.getline(self.path, self.line).strip()

    @property
    def title(self) -> str:
        """Source and place of the loop."""
        source = self._source.rstrip(":")
        if len(source) > 80:
            source = source[:77] + "..."
        return f"{source or 'the loop'} at {self.where}"


class LoopSamples:
    """Samples of the loops of all Python processes of a script, their own main threads only.

    Args:
        folder: where the processes say where their frames are.

    Attributes:
        problem: why there are no samples, if there are none.
    """

    def __init__(self, folder: Path) -> None:
        self.problem = ""
        self._folder = folder
        self._readers: dict[Path, tuple[int, StackReader | None]] = {}
        self._sources: dict[str, dict[tuple[str, int], list[Loop]]] = {}
        self._found: dict[int, dict[tuple[str, int], SampledLoop]] = {}
        self._last: dict[int, float] = {}

    def look_for_processes(self) -> None:
        """Begin to sample processes that have started since the last call."""
        for path in sorted(self._folder.glob("*.frames"), key=lambda path: path.stat().st_mtime_ns):
            made = path.stat().st_mtime_ns
            known = self._readers.get(path)
            if known is not None and known[0] == made:
                continue
            if known is not None:  # it has replaced itself (exec)
                self._close(path)
            elif sum(reader is not None for _, reader in self._readers.values()) >= _MAX_PROCESSES:
                return
            self._readers[path] = (made, self._open(path))

    def _open(self, path: Path) -> StackReader | None:
        try:
            return StackReader(path)
        except PermissionError:
            self.problem = "the system does not let a process read the memory of those that it has started"
        except OSError:  # it has ended
            pass
        except ValueError as error:
            self.problem = str(error)
        return None

    def _close(self, path: Path) -> None:
        made, reader = self._readers[path]
        if reader is not None:
            reader.close()
        self._readers[path] = (made, None)

    def close(self) -> None:
        """Forget all processes; the samples stay."""
        for path in self._readers:
            self._close(path)

    def sample(self) -> None:
        """Take a sample of each process."""
        for path, (_, reader) in list(self._readers.items()):
            if reader is None:
                continue
            now = time.monotonic()
            seconds = now - self._last.get(reader.process, now)
            self._last[reader.process] = now
            try:
                stack = reader.read()
            except ProcessLookupError:
                self._close(path)
                continue
            except (OSError, OverflowError):  # its stack changed meanwhile
                continue
            if any(_is_worker(function) for function, _ in stack):
                self._close(path)  # a worker's own loops are not the training's
                self._found.pop(reader.process, None)
                continue
            self._count(reader.process, stack, seconds)

    def _count(self, process: int, stack: list[tuple[Function, int]], seconds: float) -> None:
        found = self._found.setdefault(process, {})
        counted: set[tuple[str, int]] = set()
        now = time.monotonic_ns()
        for depth, (function, at) in enumerate(stack):
            for loop in self._loops_of(function):
                if not loop.start <= at < loop.end:
                    continue
                key = function.path, loop.line
                entry = found.setdefault(key, SampledLoop(*key, now - int(seconds * 1e9)))
                if key not in counted:
                    counted.add(key)
                    entry.end = now
                    entry.seconds += seconds
                    entry.samples += 1
                    for outer in counted - {key}:
                        entry.within[outer] = entry.within.get(outer, 0) + 1
                if at in loop.waits:
                    _count_wait(entry, stack[depth + 1 :])
                    return

    def _loops_of(self, function: Function) -> list[Loop]:
        if not _is_users(function):
            return []
        functions = self._sources.get(function.path)
        if functions is None:
            functions = self._sources[function.path] = {}
            with suppress(OSError, SyntaxError, ValueError):
                functions.update(loops_of_file(Path(function.path)))
        return functions.get((function.name, function.line), [])

    def loops(self) -> list[SampledLoop]:
        """Return the loops that wait for their next item, the longest first; none that is part of another one.

        Of the same loop in several processes, the one that took longest.
        """
        found: dict[tuple[str, int], SampledLoop] = {}
        for loops in self._found.values():
            for key, loop in loops.items():
                waits = loop.waits - loop.known >= _MIN_WAITS and loop.own_share >= _MIN_WAIT
                if waits and not loop.counts and (key not in found or loop.seconds > found[key].seconds):
                    found[key] = loop
        outermost = [
            loop
            for loop in found.values()
            if sum(count for outer, count in loop.within.items() if outer in found) < loop.samples / 2
        ]
        outermost.sort(key=lambda loop: -loop.seconds)
        return [loop for loop in outermost if loop.seconds >= _MIN_SHARE * outermost[0].seconds]


def _is_worker(function: Function) -> bool:
    # Its loop, that is: a script that imports torch runs its file as well.
    return function.name == "_worker_loop" and function.path.endswith("torch/utils/data/_utils/worker.py")


def _is_users(function: Function) -> bool:
    path = function.path
    return not path.startswith(_LIBRARIES) and "site-packages" not in path and "dist-packages" not in path


def _count_wait(entry: SampledLoop, above: list[tuple[Function, int]]) -> None:
    """Count a wait for the next item, and in which of the user's functions it was spent."""
    entry.waits += 1
    if any(function.path.startswith(_KNOWN) for function, _ in above):
        entry.known += 1
    for function, _ in reversed(above):
        if _is_users(function):
            where = f"{function.name} ({os.path.basename(function.path)}:{function.line})"
            entry.at[where] = entry.at.get(where, 0) + 1
            return


# Beside loaders that record themselves, a loop is shown if it took this share of the longest one's time.
_MIN_SHARE_BESIDE = 0.5

# A loop that waits less than this beside loaders that record themselves has nothing to add.
_MIN_WAIT_BESIDE = 0.10

_MAX_SHOWN = 3


def loop_records(samples: LoopSamples, loaders: list[LoaderRecord], tree: Tree) -> list[LoaderRecord]:
    """Return records of the loops that waited for something else than the loaders that recorded themselves."""
    found = samples.loops()
    if loaders:
        least = _MIN_SHARE_BESIDE * max(loader.stats["seconds"] for loader in loaders)
        found = [loop for loop in found if loop.seconds >= least and loop.own_share >= _MIN_WAIT_BESIDE]
    return [
        LoaderRecord(loop.title, loop.where, _stats(loop, tree), np.zeros(0, SPAN), [])
        for loop in found[:_MAX_SHOWN]
    ]


def _stats(loop: SampledLoop, tree: Tree) -> dict[str, Any]:
    # Each sample counts the same: those that come late on a busy machine come no later for what they see.
    share = loop.waits / loop.samples
    return {
        "sampled": loop.samples,
        "seconds": loop.seconds,
        "wait_seconds": share * loop.seconds,
        "wait_share": share,
        "loop_seconds": (1 - share) * loop.seconds,
        "waits_in": {where: count / loop.waits for where, count in Counter(loop.at).most_common(5)},
        **machine_stats(tree, [(loop.begin, loop.end)], cuda=True),
    }
