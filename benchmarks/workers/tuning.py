"""The loader that tunes itself, against the best of all fixed settings, on eight datasets.

Threads are among them: the datasets are declared thread-safe. Samples per second after the first 3 seconds; the
number of changes after that; the use of a memory budget.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from datasets import DATASETS

import foreload as fl
from foreload.bench.show import machine
from foreload.record.usage import tree_bytes

sys.path.append(str(Path(__file__).parent.parent))

from common import RESULTS, parser

FILE = RESULTS / "workers_tuning.json"
FIXED = [("threads", number) for number in (0, 1, 2, 4, 8, 16, 32)] + [
    ("processes", number) for number in (1, 2, 4)
]

# Seconds: for the loader to find its settings, of a turn and of what does not count of it, and of the run whose
# changes are counted.
RAMP, TURN, WARM, WHOLE = 3.0, 0.4, 0.1, 20.0

# Turns of each fixed setting, and of the loader with the best of them, each time that it is begun anew.
TURNS, PAIRS = 7, 3

TARGET = 0.95
BUDGET = 256 << 20


def sized(name: str) -> Any:
    """The dataset, so long that an epoch takes about as long as a run."""
    kind, _ = DATASETS[name]
    dataset = kind()
    dataset.thread_safe = True
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < 0.2:
        dataset[done]
        done += 1
    dataset.size = min(20_000_000, int(done / 0.2 * WHOLE * (40 if name == "sleeping" else 2)))
    return dataset


class Turns:
    """A loader that is taken turns with."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._batches = loader, iter(loader)

    def turn(self, warm: float, seconds: float) -> float:
        """Samples per second, after a time that does not count, in which comes what was made ahead."""
        size, began, given = self._loader.batch_size, 0.0, 0
        started = time.perf_counter()
        while True:
            if next(self._batches, None) is None:
                self._batches = iter(self._loader)
            now = time.perf_counter()
            if began:
                given += size
                if now - began >= seconds:
                    return given / (now - began)
            elif now - started >= warm:
                began = now

    def close(self) -> None:
        self._batches.close()


def whole_run(name: str) -> dict[str, Any]:
    """Count the changes of settings in a run, and tell when the last was."""
    loader = fl.DataLoader(sized(name), batch_size=DATASETS[name][1])
    changes: list[float] = []
    started, before = time.perf_counter(), None
    while time.perf_counter() - started < WHOLE:
        for _ in loader:
            now = time.perf_counter() - started
            setting = (loader.num_workers, loader.recorder.last.depth)
            if before is not None and setting != before:
                changes.append(now)
            before = setting
            if now >= WHOLE:
                break
    workers = loader.stats()["workers"]
    return {
        "changes": len(changes),
        "changes_after_3_s": sum(when > RAMP for when in changes),
        "when": changes,
        "workers": {key: workers[key] for key in ("kind", "count", "depth", "why", "tuning")},
    }


def budget_run(name: str) -> dict[str, Any]:
    """Return the memory that a loader with a budget takes at most, beyond what was there before it began."""
    dataset = sized(name)
    loader = fl.DataLoader(dataset, batch_size=DATASETS[name][1], memory=BUDGET)
    before, peak, over = tree_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            peak = max(peak, tree_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    Turns(loader).turn(0.0, 8.0)
    over.set()
    watcher.join()
    return {"budget": BUDGET, "peak": peak - before, "tuning": loader.stats()["workers"]["tuning"]}


def measure(name: str, rounds: int) -> dict[str, Any]:
    dataset = sized(name)
    batch_size = DATASETS[name][1]
    fixed: dict[str, Turns] = {}
    for who, number in FIXED:
        if (number > 4) != (name == "sleeping") and number > 4:
            continue  # more threads than that pay only where samples wait
        if name == "sleeping" and number < 4:
            continue
        loader: Any = fl.DataLoader(dataset, batch_size=batch_size, num_workers=number, workers=who)
        fixed[f"{number} {who}" if number else "none"] = Turns(loader)
    # What a machine does beside this changes by the second: all of them take short turns.
    rates: dict[str, list[float]] = {label: [] for label in fixed}
    for _ in range(TURNS):
        for label, turns in fixed.items():
            rates[label].append(turns.turn(WARM, TURN))
    best = max(rates, key=lambda label: statistics.median(rates[label]))
    for label, turns in fixed.items():
        if label != best:
            turns.close()
    pairs = []
    for _ in range(rounds):
        loader = fl.DataLoader(dataset, batch_size=batch_size)
        tuned = Turns(loader)
        auto = tuned.turn(RAMP, TURN)
        for _ in range(PAIRS):
            pairs.append([auto, fixed[best].turn(WARM, TURN)])
            auto = tuned.turn(WARM, TURN)
        chosen = loader.stats()["workers"]
        tuned.close()
    ratio = statistics.median(auto / other for auto, other in pairs)
    for label, values in rates.items():
        print(f"    {label:14} {statistics.median(values):12,.0f} /s ({min(values):,.0f} to {max(values):,.0f})")
    found = {
        "rates": rates,
        "best": best,
        "pairs": pairs,
        "ratio": ratio,
        "good": ratio >= TARGET,
        "chosen": {key: chosen[key] for key in ("kind", "count", "depth", "why")},
        **whole_run(name),
    }
    print(f"{'reached' if found['good'] else 'MISSED '} {name}: {ratio:.3f} of {best}; {found['chosen']}")
    print(f"    {found['changes']} changes, {found['changes_after_3_s']} after 3 s", flush=True)
    return found


def main() -> None:
    options = parser(__doc__, 3)
    options.add_argument("--part", default="1/1", help="which part of them, such as 2/8; parts are joined")
    chosen = options.parse_args()
    part, parts = map(int, chosen.part.split("/"))
    known = json.loads(FILE.read_text()) if FILE.exists() else {"datasets": {}, "budget": None}
    for number, name in enumerate(DATASETS):
        if number % parts == part - 1:
            known["datasets"][name] = measure(name, chosen.rounds)
            if name == "huge":
                known["budget"] = budget_run(name)
                print(f"    {known['budget']}")
    known |= {"command": "python benchmarks/workers/tuning.py --part N/8", "machine": machine(), "target": TARGET}
    FILE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
