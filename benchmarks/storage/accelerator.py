"""One emulated accelerator: a process that takes batches from a loader of its own, and sleeps for each.

    python -m benchmarks.storage.accelerator '{"work": ..., "contestant": ..., "rank": 0, "ranks": 1, ...}'

It says that it is ready once the loader is made, and begins when it is told to (a line on its standard input), so
that all accelerators begin together. The answer is one line of JSON after ``MARK``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from benchmarks.peers.work import size_of
from benchmarks.storage import check, contestants, data, work
from benchmarks.storage.work import Work

MARK = "=== "
READY = "ready"
AHEAD = 64  # batches that the order has left at the end, so that loaders work until then


@dataclass
class Emulated:
    """The steps of an accelerator after the first, which does not count: the loader starts up in it.

    Attributes:
        seconds: from the end of the first step to the end of the last.
        cpu: seconds of processor time for a sample, of its process and all that this started, over the last four
            fifths of the steps: by then as many batches are ahead as at the end.
    """

    steps: int
    samples: int
    seconds: float
    cpu: float = 0.0

    def utilisation(self, step: float) -> float:
        """The share of the time for which it computed, as MLPerf Storage defines it: step time x steps / time."""
        return step * self.steps / self.seconds if self.seconds else 0.0


def emulate(
    batches: Iterable[Any],
    step: float,
    steps: int,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
    cpu: Callable[[], float] = lambda: 0.0,
) -> Emulated:
    """Take so many batches after the first, fewer if there are no more, and sleep ``step`` seconds for each."""
    taken = samples = before = 0
    began = worked = 0.0
    for number, batch in enumerate(batches):
        if step:
            sleep(step)
        if number:
            taken += 1
            samples += size_of(batch)
        else:
            began = clock()
        if taken == steps:
            break
        if taken == steps // 5:
            before, worked = samples, cpu()
    seconds = clock() - began
    return Emulated(taken, samples, seconds, (cpu() - worked) / max(1, samples - before))


def together(passes: list[Emulated]) -> Emulated:
    """Several passes over the files as one."""
    samples = sum(one.samples for one in passes)
    cpu = sum(one.cpu * one.samples for one in passes) / max(1, samples)
    return Emulated(sum(one.steps for one in passes), samples, sum(one.seconds for one in passes), cpu)


def tree_cpu() -> float:
    """The processor time of this process and of all that it has started, ended ones included."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # counted as a child of its parent from now on
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def digests(one: Work, batches: Iterable[Any], steps: int) -> list[str]:
    """Names of the samples' bytes, in the order in which they come."""
    found: list[str] = []
    for number, batch in enumerate(batches, 1):
        found += [check.digest(content) for content in check.contents(one, batch)]
        if number == steps:
            break
    return found


def run(one: Work, wanted: dict[str, Any]) -> dict[str, Any]:
    """Make the loader, say so, wait for the word, and take batches; a pass from disk reads no file twice."""
    steps, most = wanted["steps"], one.most_steps(wanted["ranks"])
    batches = steps + 1 + AHEAD if most is None else most
    order = one.order(wanted["rank"], wanted["ranks"], batches * one.batch_size)
    files = one.files if one.source == "disk" else []
    own = files if one.form == "rows" else [files[number] for number in order] if files else []
    data.drop(own)
    loader = contestants.find(wanted["contestant"]).load(one, order, wanted["urls"])
    print(READY, flush=True)
    sys.stdin.readline()
    if wanted["checks"]:
        return {"digests": digests(one, loader, steps)}
    passes = []
    while sum(each.steps for each in passes) < steps:
        data.drop(own)
        passes.append(emulate(loader, wanted["step"], min(steps, batches), cpu=tree_cpu))
        if not passes[-1].steps:
            raise ValueError(f"{batches} batches are too few")
    return asdict(together(passes))


def main() -> None:
    wanted = json.loads(sys.argv[1])
    answer: dict[str, Any]
    try:
        one = work.find(wanted["work"])
        answer = run(one.shortened() if wanted["quick"] else one, wanted)
    except Exception as error:
        traceback.print_exc()
        answer = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)
    os._exit(0)  # the runner ends what the loader has left


if __name__ == "__main__":
    main()
