"""Contestants in separate processes, timed in turns."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psutil

from foreload.bench.contestants import IMAGE_CONTESTANTS, TENSOR_CONTESTANTS, Contestant, Work
from foreload.errors import DecodeError
from foreload.record.usage import tree_bytes

__all__ = ["Child", "ContestantResult", "compare"]


class ContestantResult(NamedTuple):
    """The measurements of one contestant; lists have one entry per seed."""

    name: str
    stock: bool
    samples_per_second: list[float]
    batch_ms: list[float]
    first_batch_ms: list[float]
    memory_mib: float  # the largest PSS of its processes, less that of a process which only imports torch
    about: str

    @property
    def speed(self) -> float:
        """The median of samples per second."""
        return statistics.median(self.samples_per_second)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, as do processes that start meanwhile: they get it too, but are ended by this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class Child:
    """A process that runs epochs of one contestant on request; an idle one if ``name`` is empty.

    Contestants must not share a process: one that forks makes the others' memory copy-on-write.

    Attributes:
        memory: the largest PSS seen in bytes, over the process and its children.
    """

    def __init__(self, name: str, work: Work) -> None:
        self.name = name
        with _ignoring_interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "foreload.bench.measure", name, json.dumps(work)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        self.memory = 0

    def epoch(self, seed: int, batches: int | None = None) -> dict[str, Any]:
        """Run an epoch, or its first batches; return ``seconds``, ``first`` (seconds), ``samples``, ``batches``.

        Raises:
            RuntimeError: the process died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([seed, batches]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            code = self._process.wait()
            raise RuntimeError(f"the contestant {self.name!r} failed (exit code {code}); its own error is above")
        result: dict[str, Any] = json.loads(answer)
        return result

    def warm_up(self) -> None:
        """Run an epoch that is not timed, and measure its memory, which would slow down a timed one."""
        done = threading.Event()
        # (Ctrl-C may come while it starts, and nobody would wait for it then.)
        watcher = threading.Thread(target=self._watch, args=(done,), daemon=True)
        try:
            watcher.start()
            self.epoch(0)
        finally:
            done.set()
        watcher.join()

    def _watch(self, done: threading.Event) -> None:
        while True:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                self.memory = max(self.memory, tree_bytes(self._process.pid))
            if done.wait(0.1):
                return

    def close(self, *, now: bool = False) -> None:
        """End the process, after the epoch that it runs unless ``now``."""
        if now:
            self._process.terminate()
        self._process.communicate()


def compare(
    contestants: Sequence[Contestant], work: Work, seeds: int, tell: Callable[[], object] = lambda: None
) -> list[ContestantResult]:
    """Run every contestant once per seed, in turns, after an epoch to warm up.

    ``tell`` is called after each epoch.

    Raises:
        RuntimeError: a contestant died.
    """
    children = [Child(contestant.name, work) for contestant in contestants]
    idle = Child("", work)
    try:
        for child in (idle, *children):
            child.warm_up()
            tell()
        rounds = []
        for seed in range(1, seeds + 1):
            epochs = []
            for child in children:
                epochs.append(child.epoch(seed))
                tell()
            rounds.append(epochs)
    finally:
        for child in [*children, idle]:
            child.close(now=sys.exc_info()[0] is not None)
    results = []
    for position, (contestant, child) in enumerate(zip(contestants, children, strict=True)):
        mine = [epochs[position] for epochs in rounds]
        results.append(
            ContestantResult(
                contestant.name,
                contestant.stock,
                [epoch["samples"] / epoch["seconds"] for epoch in mine],
                [1e3 * epoch["seconds"] / epoch["batches"] for epoch in mine],
                [1e3 * epoch["first"] for epoch in mine],
                max(0, child.memory - idle.memory) / 2**20,
                contestant.about,
            )
        )
    return results


def time_epoch(batches: Iterable[Any]) -> dict[str, Any]:
    """Consume all batches; return times in seconds, that of the first batch from ``iter()`` on."""
    samples = count = 0
    started = time.perf_counter()
    first = None
    for batch in batches:
        if first is None:
            first = time.perf_counter() - started
        samples += len(batch[0])
        count += 1
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "samples": samples, "batches": count, "first": first}


def _serve(name: str, work: Work) -> None:
    everyone = {
        contestant.name: contestant for contestant in (IMAGE_CONTESTANTS if work.folder else TENSOR_CONTESTANTS)
    }
    epoch = everyone[name].make(work) if name else None
    for line in sys.stdin:
        seed, batches = json.loads(line)
        result = None if epoch is None else time_epoch(itertools.islice(epoch(seed), batches))
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    try:
        _serve(sys.argv[1], Work(*json.loads(sys.argv[2])))
    except (DecodeError, PermissionError, FileNotFoundError) as error:
        sys.exit(str(error))  # which names the file; where it was read says nothing more
