"""The choices of ``workers="auto"``, against all fixed choices, on eight datasets.

Each dataset is loaded twice: as users write it, where processes or the calling thread may load, and with
``thread_safe = True``, where threads may as well.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from datasets import DATASETS, Sized, Sleeping

import foreload as fl

sys.path.append(str(Path(__file__).parent.parent))

from common import Record, parser

FIXED = [("threads", number) for number in (0, 1, 2, 4, 8, 16, 32)] + [
    ("processes", number) for number in (1, 2, 4)
]

# Epochs so long that starting does not count, and choices that would take minutes are left out.
TIMES = {
    "sleeping": 8,
    "Pillow": 2,
    "native": 3,
    "huge": 6,
    "tiny": 20,
    "numpy": 10,
    "pure Python": 12,
    "uneven": 16,
}
SECONDS = 30.0


def epoch(loader: Any) -> float:
    """Samples per second."""
    started = time.perf_counter()
    for _ in loader:
        pass
    return len(loader.dataset) / (time.perf_counter() - started)


def main() -> None:
    options = parser(__doc__, 3).parse_args()
    record = Record("workers_choice")
    worst = 1.0
    for (name, (kind, batch_size)), is_thread_safe in itertools.product(DATASETS.items(), (False, True)):
        dataset: Sized = kind()
        dataset.size *= TIMES[name]
        if is_thread_safe:
            dataset.thread_safe = True
            name = f"{name}, thread-safe"
        rates: dict[str, list[float]] = {}
        # What it chooses is asked for once per round; it then has its turn beside the others.
        for _ in range(options.rounds):
            chosen = fl.DataLoader(dataset, batch_size=batch_size)
            chosen.choose_workers()
            workers = chosen.stats()["workers"]
            for who, number in FIXED:
                if number and who == "threads" and not is_thread_safe:
                    continue
                if kind is Sleeping and 0.005 * dataset.size / max(1, number) > SECONDS:
                    continue
                label = f"{number} {who}" if number else "none"
                loader = fl.DataLoader(dataset, batch_size=batch_size, num_workers=number, workers=who)  # type: ignore[arg-type]
                rates.setdefault(label, []).append(epoch(loader))
            label = f"auto: {workers['count']} {workers['kind']}"
            print(f"  {name}: {label}, as {workers['why']}")
            rates.setdefault("auto", []).append(epoch(chosen))
        record.samples({f"{name}: {label}": values for label, values in rates.items()}, "samples/s")
        middles = {label: statistics.median(values) for label, values in rates.items()}
        auto = middles.pop("auto")
        best = max(middles, key=middles.__getitem__)
        record.verdict(f"{name}: auto, of the best fixed choice ({best})", auto / middles[best], 0.9)
        worst = min(worst, auto / middles[best])
    record.verdict("the worst of them", worst, 0.9)
    record.write()


if __name__ == "__main__":
    main()
