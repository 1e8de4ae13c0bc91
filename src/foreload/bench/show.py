"""Results of a comparison as a table, a sentence, JSON and a plot."""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch

import foreload
from foreload import _native
from foreload.bench.contestants import Work
from foreload.bench.measure import ContestantResult
from foreload.machine import granted_cores, granted_memory
from foreload.record.units import quantity

if TYPE_CHECKING:
    from rich.table import Table


__all__ = ["cells", "legend", "machine", "plot", "sentence", "table", "write_json"]


def _best_stock(results: Sequence[ContestantResult]) -> ContestantResult:
    return max((result for result in results if result.stock), key=lambda result: result.speed)


def _best(results: Sequence[ContestantResult]) -> ContestantResult:
    ours = (result for result in results if result.name.startswith("foreload"))
    return max(ours, key=lambda result: result.speed)


def _with_deviation(values: Sequence[float], form: str) -> str:
    middle = f"{statistics.median(values):{form}}"
    return f"{middle} ± {statistics.stdev(values):{form}}" if len(values) > 1 else middle


def _range(values: Sequence[float], form: str) -> str:
    return f"{min(values):{form}} to {max(values):{form}}"


def _form(values: Sequence[float]) -> str:
    return ",.0f" if statistics.median(values) >= 100 else ".1f" if statistics.median(values) >= 1 else ".4f"


def cells(results: Sequence[ContestantResult], unit: str) -> list[list[str]]:
    """Return the results as text: a row of headings, then one for each contestant."""
    rows = [["", f"{unit}/s", "ms per batch", "range", "first batch, ms", "memory, MiB", "speed-up"]]
    stock = _best_stock(results).speed
    for result in results:
        form = _form(result.batch_ms)
        rows.append(
            [
                result.name,
                f"{result.speed:,.0f}",
                _with_deviation(result.batch_ms, form),
                _range(result.batch_ms, form),
                f"{statistics.median(result.first_batch_ms):{_form(result.first_batch_ms)}}",
                f"{result.memory_mib:,.0f}",
                f"{result.speed / stock:.2f}x",
            ]
        )
    return rows


def table(results: Sequence[ContestantResult], unit: str) -> Table:
    """Return the results as a table for the terminal."""
    from rich.table import Table

    head, *rows = cells(results, unit)
    grid = Table(
        title=f"medians over {quantity(len(results[0].batch_ms), 'seed', 'seeds')} ± standard deviation, "
        "contestants in turns",
        title_justify="left",
    )
    for name in head:
        grid.add_column(name, justify="right" if name else "left", no_wrap=not name)
    for result, row in zip(results, rows, strict=True):
        grid.add_row(*row, style="" if result.stock else "bold")
    grid.caption = (
        "speed-up over stock at its best; memory is PSS over all processes, less that of importing torch"
    )
    return grid


def legend(results: Sequence[ContestantResult]) -> Table:
    """Return what each contestant is, a line each."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 3, 0, 0))
    for result in results:
        grid.add_row(result.name, result.about)
    return grid


def sentence(results: Sequence[ContestantResult], unit: str) -> str:
    """Return the result in a sentence."""
    stock, ours = _best_stock(results), _best(results)
    first = statistics.median(ours.first_batch_ms), statistics.median(stock.first_batch_ms)
    # The best one may have all images in memory, which is another thing than to load them.
    same = next((result for result in results if result.name == "foreload, workers"), ours)
    like = (
        ""
        if same is ours or unit != "images"
        else (f" Without keeping images: {same.speed:,.0f} (workers), {same.speed / stock.speed:.1f} times.")
    )
    return (
        f"foreload gave {ours.speed:,.0f} {unit}/s ({ours.name.removeprefix('foreload, ')}), "
        f"{ours.speed / stock.speed:.1f} times what stock torch reached at its best "
        f"({stock.speed:,.0f}, {stock.name.removeprefix('stock, ')}); "
        f"its first batch came after {first[0]:{_form(first)}} ms instead of {first[1]:{_form(first)}} ms.{like}"
    )


def machine() -> dict[str, Any]:
    """Describe where a measurement was made."""
    return {
        "cores": granted_cores(),
        "memory_gib": round(granted_memory() / 2**30, 1),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "foreload": foreload.__version__,
        "simd": _native.simd(),
        "jpeg": _native.jpeg_library(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def write_json(path: Path, results: Sequence[ContestantResult], work: Work) -> None:
    """Write every figure to a JSON file, with the command and the machine."""
    record = {
        "command": " ".join(["foreload", *sys.argv[1:]]),
        "machine": machine(),
        "work": work._asdict(),
        "results": [result._asdict() for result in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def plot(path: Path, results: Sequence[ContestantResult], unit: str) -> None:
    """Plot samples per second and the time to the first batch.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.55 * len(results) + 1.7), layout="constrained")
    FigureCanvasAgg(figure)
    speeds, firsts = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    names = [result.name for result in results]
    colours = ["#9aa5b1" if result.stock else "#1f77b4" for result in results]
    stock = _best_stock(results).speed
    for axis, title, values in (
        (speeds, f"{unit} per second", [result.samples_per_second for result in results]),
        (firsts, "ms to the first batch", [result.first_batch_ms for result in results]),
    ):
        middles = [statistics.median(value) for value in values]
        reach = [
            [m - min(v) for m, v in zip(middles, values, strict=True)],
            [max(v) - m for m, v in zip(middles, values, strict=True)],
        ]
        axis.barh(names, middles, color=colours, xerr=reach, error_kw={"ecolor": "#333", "elinewidth": 1})
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    for position, result in enumerate(results):
        text = f"{result.speed:,.0f}" if result.stock else f"{result.speed:,.0f}  ({result.speed / stock:.1f}x)"
        speeds.annotate(
            text,
            (max(result.samples_per_second), position),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    speeds.set_xlim(0, 1.3 * max(max(result.samples_per_second) for result in results))
    speeds.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
