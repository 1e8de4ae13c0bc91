"""Many ranks and many samples: simulated traffic of 8 to 4,096 ranks, and what planning costs each rank."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

from common import Record, Samples, median, parser
from layouts import CACHES, Layout, hits, traffic

RANKS = (8, 64, 512, 4096)
SAMPLES, EPOCHS = 1 << 20, 10
SHARES = {"1/64": 64, "1/8": 8, "1/2": 2}

# A title, a cache, and the ranks that share one: 8 are a machine's.
CONTESTANTS = [
    *((name, name, 8) for name in CACHES),
    *((f"{name}, a cache per rank", name, 1) for name in ("LRU", "foreload, planned", "foreload, routed")),
]

# (kind, ranks): what it is called, and the most samples that it is measured with.
KINDS: dict[tuple[str, int], tuple[str, int]] = {
    ("order", 8): ("shuffled, 8 ranks", 10**10),
    ("order", 4096): ("shuffled, 4096 ranks", 10**10),
    ("unshuffled", 8): ("not shuffled, 8 ranks", 10**10),
    ("cache", 1): ("cache, one rank", 10**10),
    ("cache", 8): ("cache, 8 ranks", 10**10),
    ("routed", 8): ("routed cache, 8 ranks", 10**10),
    ("routed", 4096): ("routed cache, 4096 ranks", 10**10),
    ("resumed", 8): ("resumed in the middle, 8 ranks after 11", 10**10),
    ("resumed, routed", 8): ("the same, routed cache", 10**10),
    ("torch", 8): ("torch's DistributedSampler, 8 ranks", 10**8),
    ("repeats", 1): ("planned cache, with replacement", 10**7),
}
SIZES = (10**6, 10**7, 10**8, 10**9, 10**10)


def simulate(record: Record) -> list[list[str]]:
    """Simulate all caches on all clusters; return a row per cache, ranks and share."""
    rows = []
    samples: Samples = {}
    for (share, part), (title, cache, per_cache) in product(SHARES.items(), CONTESTANTS):
        row = [share, title]
        for ranks in RANKS:
            layout = Layout(ranks, SAMPLES, SAMPLES // part * per_cache // 8, per_machine=per_cache)
            rates = hits(cache, layout, layout.machines // 2, EPOCHS)
            moved = traffic(cache, layout, rates[-1])
            name = f"{title}, {ranks} ranks, {share} per machine"
            samples |= {f"{name}: hits in epoch {epoch + 1}": [rates[epoch]] for epoch in (1, EPOCHS - 1)}
            samples[f"{name}: storage"], samples[f"{name}: between machines"] = [moved.storage], [moved.between]
            sent = f" + {moved.between:.2f}" if moved.between else ""
            row.append(f"{moved.storage:.2f}{sent}")
        rows.append(row)
    record.samples(samples, "of all")
    return rows


def plan_costs(record: Record, rounds: int, most: int) -> list[list[str]]:
    """Measure the first batch in fresh processes; return a row per kind."""
    rows = []
    for (kind, ranks), (name, limit) in KINDS.items():
        row = [name]
        for size in SIZES:
            if size > min(limit, most):
                row.append("")
                continue
            found: dict[str, list[float]] = {}
            for _ in range(rounds):
                for figure, value in measured(kind, size, ranks).items():
                    found.setdefault(figure, []).append(value)
            key = f"{name}, {size:.0e} samples".replace("e+0", "e").replace("e+", "e")
            for figure, values in found.items():
                record.samples({f"{key}: {figure}": values}, figure.split()[-1])
            first, peak = median(found, "first batch, ms"), median(found, "peak, MiB")
            row.append(f"{first:,.0f} ms, {peak:,.0f} MiB")
            if size == 10**9:
                record.verdict(f"{name}, 1e9 samples: first batch, ms", first, 5000, most=True)
                record.verdict(f"{name}, 1e9 samples: peak, MiB", peak, 200, most=True)
        rows.append(row)
    return rows


def measured(kind: str, samples: int, ranks: int) -> dict[str, float]:
    """Run planner.py."""
    program = Path(__file__).with_name("planner.py")
    command = [sys.executable, "-W", "ignore", str(program), "--kind", kind, "--samples", str(samples)]
    said = subprocess.run([*command, "--ranks", str(ranks)], capture_output=True, text=True, check=True).stdout
    figures: dict[str, float] = json.loads(said)
    return figures


def main() -> None:
    options = parser(__doc__, 3)
    options.add_argument("--most", type=int, default=10**10, help="the most samples to plan for")
    arguments = options.parse_args()
    record = Record("scale")
    tables: dict[str, Any] = {
        "traffic": [["a machine keeps", "cache", *(f"{ranks:,} ranks" for ranks in RANKS)], *simulate(record)],
        "costs": [["", *(f"{size:.0e}".replace("e+0", "e").replace("e+", "e") for size in SIZES)]],
    }
    tables["costs"] += plan_costs(record, arguments.rounds, arguments.most)
    record.note("tables", tables)
    record.write()


if __name__ == "__main__":
    main()
