"""Speed and memory of planning `opt`: 1e7 accesses over 1e6 samples, on one thread."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from experiment import Record, draw, median, parser, take_turns

from foreload.cache.plan import compile_plan
from foreload.options import POLICIES

ACCESSES, SAMPLES = 10_000_000, 1_000_000


def accesses(count: int = ACCESSES) -> np.ndarray:
    return np.random.default_rng(0).integers(0, SAMPLES, count)


def peak() -> int:
    # Not ru_maxrss, which a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def peak_of(what: str) -> float:
    """The peak memory of a process of its own."""
    return float(subprocess.run([sys.executable, __file__, what], capture_output=True, check=True).stdout)


def main() -> None:
    options = parser(__doc__, 5).parse_args()
    record = Record("cache_planning")
    known = accesses()

    def speed(policy: str, count: int = ACCESSES) -> float:
        started = time.perf_counter()
        compile_plan(known[:count], SAMPLES, SAMPLES // 2, policy)  # type: ignore[arg-type]
        return count / (time.perf_counter() - started) / 1e6

    speeds = take_turns({policy: lambda policy=policy: speed(policy) for policy in POLICIES}, options.rounds)
    record.samples(speeds, "M/s")
    record.verdict("accesses planned per second and core, million", median(speeds, "opt"), 10)
    bytes_each = (peak_of("plan") - peak_of("inputs")) / ACCESSES
    record.verdict("peak memory beyond the order itself, bytes per access", bytes_each, 40, most=True)
    counts = [ACCESSES // 100, ACCESSES // 30, ACCESSES // 10, ACCESSES // 3, ACCESSES]
    lines = {policy: (counts, [speed(policy, count) for count in counts]) for policy in POLICIES}
    draw("cache_planning", {"planning": lines}, "accesses", "million accesses per second")
    record.write()


if __name__ == "__main__":
    if sys.argv[1:] in (["plan"], ["inputs"]):
        order = accesses()
        if sys.argv[1] == "plan":
            compile_plan(order, SAMPLES, SAMPLES // 2)
        print(peak())
    else:
        main()
