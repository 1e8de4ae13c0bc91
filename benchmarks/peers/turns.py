"""Turns of contestants, each in a fresh process: first the check, then rounds of timed ones."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.contestant import MARK
from benchmarks.peers.install import packages
from benchmarks.peers.work import ROOT, Work

SECONDS = 600  # that a turn may take
FAR = 3  # times slower than the best after the first round: one timed turn is enough


@dataclass
class Contestant:
    """A loader at one setting, and what it reached on one workload.

    Attributes:
        turns: the answers of timed turns.
        reason: why it is not timed: a wrong result, or an error.
        memory: MiB at most over its processes, in the turn that is not timed.
    """

    adapter: str
    settings: str
    python: Path
    turns: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    memory: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.adapter}: {self.settings}" if self.settings else self.adapter

    def run(self, work: Work, what: str) -> dict[str, Any]:
        """One turn in a process of its own."""
        if work.shows == "import":
            before = packages()[self.adapter].get("before")
            return _import(self.python, self.settings.removeprefix("import "), f", {before}" if before else "")
        wanted = {"work": work.name, "quick": work.is_quick, "settings": self.settings}
        answer, memory = ask(self.python, self.adapter, what, json.dumps(wanted), watch=what == "check")
        self.memory = max(self.memory, memory)
        return answer


def ask(python: Path, adapter: str, *arguments: str, watch: bool = False) -> tuple[dict[str, Any], float]:
    """Start a contestant's process; return its answer, and the MiB that it took at most if that is watched."""
    command = [python, "-W", "ignore", "-m", "benchmarks.peers.contestant", adapter, *arguments]
    # Files, not pipes: a loader's processes that outlive the contestant would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, cwd=ROOT, start_new_session=True)
        done, peak = threading.Event(), [0.0]
        watcher = threading.Thread(target=_watch, args=(process.pid, done, peak))
        if watch:
            watcher.start()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return {"failed": f"it took more than {SECONDS} s"}, peak[0]
        finally:
            done.set()
            _end(process)
            if watch:
                watcher.join()
        return _answer(process, out, errors), peak[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _answer(process: subprocess.Popen[bytes], out: IO[str], errors: IO[str]) -> dict[str, Any]:
    out.seek(0)
    lines = [line for line in out.read().splitlines() if line.startswith(MARK)]
    if lines:
        answer: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
        return answer
    errors.seek(0)
    last = [line for line in errors.read().splitlines() if line.strip()][-1:] or ["no word"]
    return {"failed": f"it ended with exit code {process.returncode}: {last[0]}"}


def _watch(pid: int, done: threading.Event, peak: list[float]) -> None:
    import psutil

    from foreload.record.usage import tree_bytes

    while not done.wait(0.1):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            peak[0] = max(peak[0], tree_bytes(pid) / 2**20)


def _import(python: Path, module: str, before: str) -> dict[str, Any]:
    timed = "import torch, time{}; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    done = subprocess.run(
        [python, "-W", "ignore", "-c", timed.format(before, module)], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    return {"import": float(done.stdout.split()[-1]), "epochs": []}


def check(work: Work, contestants: Iterable[Contestant], tell: Callable[[str], object] = print) -> None:
    """Let each contestant show that what it gives is right; note the reason where it is not."""
    for contestant in contestants:
        answer = contestant.run(work, "check")
        _note(contestant, answer)
        tell(f"  {contestant.name}: {contestant.reason or 'right'}")


def time_turns(work: Work, contestants: Iterable[Contestant], rounds: int) -> None:
    """Time those that are right, in turns, so that what disturbs the machine disturbs all of them.

    Those that are far behind after the first round have no further turns.
    """
    racing = list(contestants)
    for _ in range(rounds):
        racing = [contestant for contestant in racing if contestant.reason is None]
        for contestant in racing:
            answer = contestant.run(work, "time")
            _note(contestant, answer)
            if contestant.reason is None:
                contestant.turns.append(answer)
        racing = near(work, racing)


def near(work: Work, contestants: list[Contestant]) -> list[Contestant]:
    """Those that are not far behind the best of them."""
    values = {one.name: entry["value"] for one in contestants if "value" in (entry := summary(work, one))}
    more_is_better = work.shows == "rate"
    best = (max if more_is_better else min)(values.values(), default=0.0)
    behind = {name: best / value if more_is_better else value / best for name, value in values.items()}
    return [one for one in contestants if behind.get(one.name, FAR) < FAR]


def _note(contestant: Contestant, answer: dict[str, Any]) -> None:
    for key in ("wrong", "failed"):
        if key in answer:
            contestant.reason = f"{key}: {answer[key]}"


def summary(work: Work, contestant: Contestant) -> dict[str, Any]:
    """Return what is kept of a contestant: medians, and all values."""
    entry: dict[str, Any] = {"contestant": contestant.name, "adapter": contestant.adapter}
    if contestant.reason is not None or not contestant.turns:
        return {**entry, "reason": contestant.reason or "not timed"}
    turns = contestant.turns
    passes = [turn["epochs"] for turn in turns if turn["epochs"]]
    values = {
        "rate": [epochs[-1]["samples"] / epochs[-1]["seconds"] for epochs in passes],
        "first": [1e3 * epochs[0]["first"] for epochs in passes],
        "second": [1e3 * epochs[-1]["first"] for epochs in passes],
        "resume": [1e3 * turn["resume"] for turn in turns if "resume" in turn],
        "import": [1e3 * turn["import"] for turn in turns if "import" in turn],
    }
    measures = {key: {"median": statistics.median(all_), "all": all_} for key, all_ in values.items() if all_}
    if contestant.memory:
        measures["memory"] = {"median": contestant.memory, "all": [contestant.memory]}
    return {**entry, "value": measures[work.shows]["median"], "measures": measures}
