"""What recording costs the workers, in one process: the same threads with and without a lane to write to.

Beside an earlier version (overhead.py) each process lies differently in memory, which alone makes one a tenth
faster than the next; here nothing differs but the recording. What the loop's own thread records is not in it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from overhead import loaders, make_data

from foreload.workers.threads import ThreadPool

sys.path.append(str(Path(__file__).resolve().parent.parent))
from common import Record

# Epochs per turn.
TURNS = {"photos, 2 threads": 1, "48 x 48 images, 2 threads": 4, "8 KB files, 2 threads": 8}
PAIRS = 50


def seconds(loader: Any, epochs: int) -> float:
    began = time.perf_counter()
    for _ in range(epochs):
        for _ in loader:
            pass
    return time.perf_counter() - began


def main() -> None:
    records = ThreadPool._work
    record = Record("observe_recording")
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        known = loaders(Path(folder))
        for name, epochs in TURNS.items():
            loader, ratios = known[name], []
            seconds(loader, 1)
            for number in range(PAIRS):
                took = {}
                for quiet in (True, False) if number % 2 else (False, True):
                    ThreadPool._work = _quietly if quiet else records  # type: ignore[method-assign]
                    took[quiet] = seconds(loader, epochs)
                ratios.append(took[True] / took[False])
            record.samples({f"{name}: with, of without": ratios}, "ratio")
            record.verdict(f"{name}: recording, of none", statistics.median(ratios), 0.99)
    record.write()


def _quietly(pool: ThreadPool, worker: int, identity: Any, lane: Any) -> None:
    identity.assume(worker)
    pool._native.work(worker, None)


if __name__ == "__main__":
    main()
