"""The tables of a run, and their place in docs/benchmarks.md.

python -m benchmarks.storage.page
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.document import DOCUMENT, described, filled
from benchmarks.peers.page import elsewhere, figure
from benchmarks.peers.work import ROOT

RESULT = ROOT / "benchmarks" / "results" / "storage.json"

Row = dict[str, Any]


def words(emulated: bool, one: Row) -> str:
    """A contestant's result in words."""
    if "reason" in one:
        return str(one["reason"])
    cpu = f"{1e6 * one['cpu']:,.0f} us of processor time a sample"
    if "per_core" in one:
        return f"{figure(one['per_core'])} accelerators per core, {figure(one['rate'])} samples/s; {cpu}"
    return f"{figure(one['rate'])} samples/s; {cpu}"


def value(row: Row, one: Row) -> float | None:
    """Return the figure that is compared: accelerators per core, or samples per second where none are emulated."""
    found = one.get("per_core" if row["emulated"] else "rate")
    return None if found is None or "reason" in one else float(found)


def best(row: Row, family: str) -> Row | None:
    """The best contestant of a family; None if it has no result."""
    known = [one for one in row["contestants"] if one["family"] == family and value(row, one) is not None]
    return max(known, key=lambda one: value(row, one) or 0.0, default=None)


def tables(content: dict[str, Any]) -> str:
    """A line per workload, then all contestants of each."""
    lines = [
        "| workload | utilisation | stock torch | foreload | DALI | foreload / stock |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in content["rows"]:
        found = {family: best(row, family) for family in ("torch", "foreload", "dali")}
        cells = [row["work"], f">= {row['threshold']:.0%}" if row["emulated"] else "samples/s"]
        cells += [figure(value(row, one) or 0.0) if one else "" for one in found.values()]
        cells.append(_ratio(row, found))
        lines.append(f"| {' | '.join(cells)} |")
    if restless := [row["work"] for row in content["rows"] if not row["quiet"]]:
        lines += ["", f"The machine was **not quiet** when these were measured: {'; '.join(restless)}."]
    for row in content["rows"]:
        measured = f"{row['date']}: `{row['command']}`.{elsewhere(row, content)}"
        lines += ["", f"**{row['work']}**: {row['about']}. {measured}", "", *_details(row)]
    lines += ["", *(f"- not run: {name}: {reason}" for name, reason in content["missing"].items())]
    return "\n".join(lines).rstrip() + "\n"


def _ratio(row: Row, found: dict[str, Row | None]) -> str:
    theirs, ours = found["torch"], found["foreload"]
    if theirs is None or ours is None:
        return ""
    below, above = value(row, theirs), value(row, ours)
    return f"{above / below:.1f}" if above and below else ""


def _details(row: Row) -> list[str]:
    lines = [
        "| contestant | accelerators per core | samples/s | MB/s | processor time a sample, us |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in row["contestants"]:
        if "reason" not in one:
            cells = [one["contestant"], figure(one["per_core"]) if "per_core" in one else "", figure(one["rate"])]
            cells += [figure(one["rate"] * row["size"] / 1e6), figure(1e6 * one["cpu"])]
            lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        *(f"- {one['contestant']}: {one['reason']}" for one in row["contestants"] if "reason" in one),
    ]


def rendered(text: str) -> str:
    """The document with the tables of today's results in their place."""
    return filled(text, "storage", _generated())


def _generated() -> str:
    if not RESULT.exists():
        return "Not measured yet on a quiet machine; `python -m benchmarks.storage.run` writes the figures.\n"
    content = json.loads(RESULT.read_text())
    each = "Measured row by row: each says the command that repeats it, and the machine if it was another one."
    return f"{each} {described(content['machine'])}\n\n{tables(content)}"


def write() -> None:
    """Write the tables into the document."""
    DOCUMENT.write_text(rendered(DOCUMENT.read_text()))


if __name__ == "__main__":
    write()
