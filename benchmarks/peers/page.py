"""docs/benchmarks.md and the plot, from benchmarks/results/peers.json.

python -m benchmarks.peers.page
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.document import DOCUMENT, described, filled
from benchmarks.peers.work import ROOT

RESULT = ROOT / "benchmarks" / "results" / "peers.json"
PLOT = ROOT / "docs" / "assets" / "peers.png"
OURS = "foreload"

Row = dict[str, Any]


def best(row: Row, *, ours: bool) -> Row | None:
    """The best contestant of foreload, or of all others; None if none was timed."""
    timed = [one for one in row["contestants"] if "value" in one and (one["adapter"] == OURS) == ours]
    pick = max if row["shows"] == "rate" else min
    return pick(timed, key=lambda one: float(one["value"]), default=None)


def ratio(row: Row) -> float | None:
    """The times that foreload is ahead of the best peer; below 1 it is behind."""
    ours, theirs = best(row, ours=True), best(row, ours=False)
    if ours is None or theirs is None:
        return None
    found = ours["value"] / theirs["value"]
    return float(found if row["shows"] == "rate" else 1 / found)


def figure(value: float) -> str:
    """Three digits, with commas."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def tables(content: dict[str, Any]) -> str:
    """The comparison row by row, the losses by themselves, then all contestants of each row."""
    rows = content["rows"]
    lines = ["| workload | foreload | best peer | | foreload is ahead by |", "| --- | --- | --- | --- | --- |"]
    lines += [_compared(row) for row in rows]
    behind = [f"{row['work']} ({found:.2f})" for row in rows if (found := ratio(row)) is not None and found < 1]
    lines += [
        "",
        f"foreload is behind in {len(behind)} of {len(rows)} rows{': ' if behind else ''}{'; '.join(behind)}.",
    ]
    if restless := [row["work"] for row in rows if not row["quiet"]]:
        lines += ["", f"The machine was **not quiet** when these were measured: {'; '.join(restless)}."]
    for row in rows:
        lines += [
            "",
            f"### {row['work'].capitalize()}",
            "",
            f"{_sentence(row['about'].strip())}. {row['samples']:,} samples; "
            f"{row['rounds']} rounds on {row['date']}: `{row['command']}`.{elsewhere(row, content)}",
            "",
        ]
        lines += _details(row)
    lines += ["", "## Not run", ""]
    lines += [f"- {name}: {reason}" for name, reason in content["missing"].items()] or [
        "All contestants could be installed."
    ]
    return "\n".join(lines) + "\n"


def elsewhere(row: Row, content: dict[str, Any]) -> str:
    """The machine of a row that was not measured on the same one as most."""
    own = row.get("machine", content["machine"])
    return "" if own == content["machine"] else f" {described(own).replace('The machine:', 'Another machine:')}"


def _compared(row: Row) -> str:
    ours, theirs, found = best(row, ours=True), best(row, ours=False), ratio(row)
    unit = row["unit"]
    cells = [row["work"], f"{figure(ours['value'])} {unit}" if ours else "not timed"]
    cells += [f"{figure(theirs['value'])} {unit}", theirs["contestant"]] if theirs else ["not timed", ""]
    cells.append("" if found is None else f"{found:.2f}" if found >= 1 else f"**{found:.2f}**, behind")
    return f"| {' | '.join(cells)} |"


def _details(row: Row) -> list[str]:
    measures = {"rate": row["unit"] if row["shows"] == "rate" else "samples/s", "first": "first batch, ms"}
    measures |= {
        "second": "second epoch's first batch, ms",
        "memory": "memory, MiB",
        "resume": "ms",
        "import": "ms",
    }
    used = [key for key in measures if any(key in one.get("measures", {}) for one in row["contestants"])]
    lines = [
        f"| {' | '.join(['contestant', *(measures[key] for key in used)])} |",
        f"|{' --- |' * (len(used) + 1)}",
    ]
    order = sorted(row["contestants"], key=lambda one: one.get("value", math.inf), reverse=row["shows"] == "rate")
    lines += [
        f"| {' | '.join([one['contestant'], *(_spread(one, key) for key in used)])} |"
        for one in order
        if "value" in one
    ]
    lines += ["", *(f"- {one['contestant']}: {one['reason']}" for one in row["contestants"] if "reason" in one)]
    return lines


def _spread(one: Row, key: str) -> str:
    measure = one["measures"].get(key)
    if measure is None:
        return ""
    low, high = min(measure["all"]), max(measure["all"])
    return figure(measure["median"]) + (f" ({figure(low)} to {figure(high)})" if low != high else "")


def plot(content: dict[str, Any], path: Path) -> None:
    """A bar per workload: how far foreload is ahead of the best peer, or behind."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [(row["work"], found) for row in content["rows"] if (found := ratio(row)) is not None]
    figure_, axes = plt.subplots(figsize=(9, 1.2 + 0.3 * len(rows)))
    names, ratios = [name for name, _ in rows][::-1], [found for _, found in rows][::-1]
    axes.barh(names, ratios, color=["#4051b5" if found >= 1 else "#d9822b" for found in ratios])
    axes.axvline(1, color="black", linewidth=1)
    if rows:
        axes.set_xscale("log")
    axes.set_xlabel("foreload against the best peer (1: equal; left of it: behind)")
    figure_.tight_layout()
    figure_.savefig(path, dpi=110)
    plt.close(figure_)


def rendered(text: str) -> str:
    """The document with the tables of today's results in their place."""
    return filled(text, "peers", _generated())


def _generated() -> str:
    if not RESULT.exists():
        return "Not measured yet on a quiet machine; `make bench-peers` writes the figures.\n"
    content = json.loads(RESULT.read_text())
    return (
        "Measured row by row: each says the command that repeats it, and the machine if it was another one. "
        f"{described(content['machine'])}\n\n"
        f"![foreload against the best peer of each workload](assets/{PLOT.name})\n\n{tables(content)}"
    )


def write() -> None:
    """Write both."""
    DOCUMENT.write_text(rendered(DOCUMENT.read_text()))
    if RESULT.exists():
        plot(json.loads(RESULT.read_text()), PLOT)


if __name__ == "__main__":
    write()
