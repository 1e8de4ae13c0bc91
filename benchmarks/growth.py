"""The growth of cost with the work: samples, batch sizes, workers, sizes of images. Straight lines, or the reason.

Each point is measured in a process of its own (growth_point.py). Memory is what all its processes take beyond the
data (PSS without mapped files), and does not need a quiet machine; times do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import quiet
from common import RESULTS, Record, parser
from lines import Line, fit

from foreload.machine import granted_cores

CORES = granted_cores()
STRAIGHT = 0.25  # the most that a point of a straight line is beside it
MEMORY_NOISE = 8 << 20  # bytes, of which imports and allocators may leave a quarter lying


class Axis(NamedTuple):
    across: str
    points: tuple[int, ...]
    kinds: tuple[str, ...]
    time: str  # which of the measured times is to be a line
    unit: str  # of what grows


AXES = {
    "samples": Axis(
        "samples of the dataset",
        tuple(10**power for power in range(3, 10)),
        ("range", "memory map", "Python rows", "Python rows, cache"),
        "epoch",
        "sample",
    ),
    "batch": Axis(
        "samples per batch",
        tuple(4**power for power in range(7)),
        ("tensors, no workers", "tensors, 2 threads", "Python rows, no workers", "Python rows, 2 processes"),
        "batch",
        "sample",
    ),
    "workers": Axis("workers", tuple(range(5)), ("photos, threads", "photos, processes"), "sample", "worker"),
    "pixels": Axis(
        "pixels of an image",
        tuple(side**2 for side in (64, 128, 256, 512, 1024, 2048)),
        ("random crop", "whole image"),
        "sample",
        "pixel",
    ),
}
PANELS = {"time": ("first batch", "time"), "memory": ("memory",)}

# Why a series is no straight line, by the beginning of its name.
REASONS = {
    "samples: Python rows, cache: ": "up to two million samples, several epochs are planned ahead; beyond, "
    "the cache follows a rule, which takes the same for any number",
    "samples: memory map: time": "the larger the map, the fewer rows lie in pages that are mapped already: at "
    "last each row is a page fault",
    "batch: Python rows, 2 processes: memory": "a few batches of one sample are over before the processes take "
    "all that they do later",
    "workers: photos, threads: memory": "the first worker brings two more batches, made ahead; each further one "
    "brings its buffers",
}


def measure(axis: str, kind: str, point: int, figure: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure a point once per round; return the medians of its panels."""
    program = Path(__file__).with_name("growth_point.py")
    command = [sys.executable, "-W", "ignore", str(program), axis, kind, str(point), figure]
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        said = subprocess.run(
            [*command, "--seconds", str(options.seconds)], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        rounds.append(json.loads(said.splitlines()[-1]))
    names = {panel: AXES[axis].time if panel == "time" else panel for panel in PANELS[figure]}
    return {panel: statistics.median(each[name] for each in rounds) for panel, name in names.items()}


class Series(NamedTuple):
    axis: str
    kind: str
    panel: str
    points: list[int]
    values: list[float]  # seconds or bytes

    @property
    def name(self) -> str:
        return f"{self.axis}: {self.kind}: {self.panel}"

    @property
    def by_core(self) -> bool:
        """Whether the cost should be a line in the share of the work that falls to a core."""
        return self.axis == "workers" and self.panel == "time"

    def line(self) -> Line:
        work = [1 / min(max(point, 1), CORES) if self.by_core else point for point in self.points]
        return fit(work, self.values, MEMORY_NOISE if self.panel == "memory" else 0)

    def row(self) -> list[str]:
        """The line as a row of the table, and whether it is one."""
        line, unit = self.line(), "share of a core" if self.by_core else AXES[self.axis].unit
        cost = f"{shown(line.fixed, self.panel)} + {shown(line.each, self.panel)} per {unit}"
        reason = next((why for start, why in REASONS.items() if self.name.startswith(start)), "no reason is known")
        verdict = "straight" if line.worst <= STRAIGHT else f"not straight: {reason}"
        return [self.name, f"{self.points[0]:,} to {self.points[-1]:,}", cost, f"{line.worst:.0%}", verdict]


def shown(value: float, panel: str) -> str:
    """A cost with its unit."""
    names, step = (("B", "KiB", "MiB", "GiB"), 1024) if panel == "memory" else (("ns", "us", "ms", "s"), 1000)
    value *= 1 if panel == "memory" else 1e9
    for name in names[:-1]:
        if float(f"{value:.3g}") < step:
            return f"{value:.3g} {name}"
        value /= step
    return f"{value:.3g} {names[-1]}"


def draw(path: Path, figure: str, series: list[Series]) -> None:
    """Plot all series: a row of panels for each axis."""
    from matplotlib.figure import Figure

    panels = PANELS[figure]
    plot = Figure(figsize=(6 * len(panels), 14), layout="constrained")
    for row, (axis, about) in zip(plot.subplots(len(AXES), len(panels), squeeze=False), AXES.items(), strict=True):
        for place, panel in zip(row, panels, strict=True):
            for one in series:
                if (one.axis, one.panel) == (axis, panel):
                    place.plot(one.points, one.values, marker=".", label=one.kind)
            up = {"time": f"seconds per {about.time}", "memory": "bytes"}.get(panel, f"seconds to the {panel}")
            place.set(xlabel=about.across, ylabel=up)
            if axis != "workers":
                place.set(xscale="log", yscale="log")
            place.legend(fontsize=7)
            place.grid(alpha=0.3)
    plot.savefig(path)


def grow(figure: str, options: argparse.Namespace) -> tuple[list[Series], dict[str, bool]]:
    """Measure all points; return the series, and whether the machine was quiet, by axis."""
    found: dict[tuple[str, str, str], Series] = {}
    was_quiet: dict[str, bool] = {}
    for axis, about in AXES.items():
        if figure == "time":
            was_quiet[axis] = quiet.wait(options.wait)
        for kind in about.kinds:
            for point in about.points[:: len(about.points) // 2] if options.quick else about.points:
                for panel, value in measure(axis, kind, point, figure, options).items():
                    series = found.setdefault((axis, kind, panel), Series(axis, kind, panel, [], []))
                    series.points.append(point)
                    series.values.append(value)
            print(f"measured {figure}, {axis}: {kind}", flush=True)
    return list(found.values()), was_quiet


def main() -> None:
    options = parser(__doc__, 3)
    options.add_argument(
        "--quick", action="store_true", help="few points, once, to see that it runs; keeps nothing"
    )
    options.add_argument("--figures", nargs="+", choices=PANELS, default=list(PANELS))
    options.add_argument("--seconds", type=float, default=1, help="the longest part of an epoch that is timed")
    options.add_argument("--wait", type=float, default=600, help="seconds to wait, per axis, for a quiet machine")
    chosen = options.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.wait = 1, 0.2, 0
    for figure in chosen.figures:
        series, was_quiet = grow(figure, chosen)
        record = Record(f"growth_{figure}")
        for one in series:
            record.verdict(f"{one.name}: furthest from a straight line", one.line().worst, STRAIGHT, most=True)
        table = [["", "from, to", "cost", "furthest from it", ""], *(one.row() for one in series)]
        print("\n".join(" | ".join(cells) for cells in table))
        record.note("quiet", was_quiet)
        record.note("series", [one._asdict() for one in series])
        record.note("tables", {"lines": table})
        if not chosen.quick:
            record.write()
            draw(RESULTS / f"growth_{figure}.png", figure, series)


if __name__ == "__main__":
    main()
