"""The report on a loader: where the time went, the bottleneck, what to change and the predicted gain."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from foreload.record.units import number, percent, quantity, seconds, size, workers
from foreload.report.stages import stage_times
from foreload.report.verdict import Verdict, verdict

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from foreload.record.stats import Stats


__all__ = ["Report"]

_WIDTH = 100

_HEADS = ("stage", "of the time", "seconds", "on a core", "per sample", "bytes")

# Stages in words that users know.
_NAMES = {
    "order": "drawing the order",
    "read": "reading",
    "decode": "decoding",
    "cache": "cache",
    "sample": "your dataset",
    "transform": "transforms",
    "batch": "collating",
    "wait": "the loop, waiting",
    "device": "copying to the device",
    "loop": "the loop, working",
}


class Report:
    """A readable report on a loader: print it, show it with rich, or display it in a notebook.

    Args:
        stats: from ``loader.stats()``.

    Attributes:
        stats: the same.
        verdict: the bottleneck, and what to change.

    >>> print(Report({"samples": 0, "batches": 0, "seconds": 0.0}))
    too-short: Too little has been loaded to say what is slow.
    ...
    """

    def __init__(self, stats: Stats | Mapping[str, Any]) -> None:
        self.stats = stats
        self.verdict: Verdict = verdict(stats)

    def to_dict(self) -> dict[str, Any]:
        """Return ``stats`` and ``verdict`` as plain values, for JSON."""
        own = asdict(self.verdict)
        own["advice"] = [advice._asdict() for advice in self.verdict.advice]
        return {"verdict": own, "stats": dict(self.stats)}

    def __repr__(self) -> str:
        """Return a short form with the kind of verdict."""
        return f"<Report: {self.verdict.kind}>"

    def __str__(self) -> str:
        """Return plain text, at most 100 columns wide."""
        lines = _wrapped(f"{self.verdict.kind}: {self.verdict.sentence}", "")
        for title, points in (("Why:", self.verdict.evidence), ("What to change:", self._changes())):
            if points:
                lines += ["", title, *(line for point in points for line in _wrapped(point, "  "))]
        facts = self._facts()
        if facts:
            width = max(len(name) for name, _ in facts)
            lines += ["", *(f"{name:{width}}  {value}" for name, value in facts)]
        rows = self._rows()
        if rows:
            lines += ["", *_wrapped(self._whole(), ""), *_aligned([_HEADS, *rows])]
        return "\n".join(lines)

    def _changes(self) -> list[str]:
        return [
            advice.change if advice.gain is None else f"{advice.change}: {_gain(advice.gain)}"
            for advice in self.verdict.advice
        ]

    def _facts(self) -> list[tuple[str, str]]:
        stats = self.stats
        if not stats["samples"]:
            return []
        times = stats["batch_seconds"]
        memory, restarts, pool = stats["memory"], len(stats["restarts"]), stats["workers"]
        facts = [
            (
                "speed",
                f"{number(stats['samples_per_second'])} samples/s, "
                f"{number(stats['batches_per_second'])} batches/s",
            ),
            ("first batch", f"{seconds(stats['first_batch_seconds'])} after the start of the epoch"),
            ("waited", f"{percent(stats['wait_share'])} of {seconds(stats['seconds'])}"),
            ("CPU", f"{percent(stats['cpu']['share'])} of {number(stats['cpu']['cores'])} cores"),
            ("memory", f"{size(memory['tree_bytes'])} in use, {size(memory['granted_bytes'])} granted"),
            ("read", size(stats["bytes_read"])),
            ("workers", f"{workers(pool['count'], pool['kind'])}, {pool['why']}"),
        ]
        if times["p99"] > 0:  # otherwise there was one batch
            text = f"{seconds(times['median'])} median, {seconds(times['p95'])} p95, {seconds(times['p99'])} p99"
            facts.insert(1, ("batch time", text))
        if stats["gpu"]:
            facts.append(("GPU", f"idle {percent(stats['gpu']['idle_share'])} of the time"))
        if stats["cache"]:
            facts.append(("cache", f"{percent(stats['cache']['hit_rate'])} hits"))
        if problem := stats["loader"].get("direct_problem"):
            facts.append(("direct_io", problem))
        if stats["errors"]:
            facts.append(("failed", f"{number(stats['errors'])} samples; see loader.errors"))
        if restarts:
            facts.append(
                (
                    "restarts",
                    f'{quantity(restarts, "process", "processes")} replaced; see stats()["restarts"]',
                )
            )
        return facts

    def _whole(self) -> str:
        """Say what the shares in the table are shares of."""
        count = self.stats["workers"]["count"]
        text = f"Of the loop's {seconds(self.stats['seconds'])}"
        return f"{text} (a worker's stages: the mean of {number(count)} workers)" if count > 1 else text

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                _NAMES.get(time.stage, time.stage),
                percent(time.share),
                seconds(time.seconds),
                seconds(time.cpu_seconds) if time.cpu_seconds else "",
                seconds(time.seconds / time.samples) if time.samples else "",
                size(time.bytes) if time.bytes else "",
            )
            for time in (stage_times(self.stats) if self.stats["samples"] else ())
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render with rich: the verdict first, in colour if the terminal has colours."""
        from rich.padding import Padding
        from rich.text import Text

        colour = {"consumer-bound": "green", "too-short": "cyan"}.get(self.verdict.kind, "yellow")
        yield Text.assemble((self.verdict.kind, f"bold {colour}"), ": ", self.verdict.sentence)
        for title, points in (("Why", self.verdict.evidence), ("What to change", self._changes())):
            if points:
                yield Text(f"\n{title}", style="bold")
                for point in points:
                    yield Padding(Text(point), (0, 0, 0, 2))
        if self._facts():
            yield Text()
            yield self._fact_table()
        if self._rows():
            yield Text(f"\n{self._whole()}", style="bold")
            yield self._stage_table()

    def _fact_table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        grid = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in self._facts():
            grid.add_row(Text(name, style="dim"), Text(value))
        return grid

    def _stage_table(self) -> Table:
        from rich.table import Table

        grid = Table(box=None, padding=(0, 2, 0, 0))
        for name in _HEADS:
            grid.add_column(name, justify="left" if name == "stage" else "right")
        for row in self._rows():
            grid.add_row(*row)
        return grid

    def _repr_html_(self) -> str:
        """Render as HTML, for notebooks."""
        safe = html.escape
        parts = [f"<p><b>{safe(self.verdict.kind)}</b>: {safe(self.verdict.sentence)}</p>"]
        for title, points in (("Why", self.verdict.evidence), ("What to change", self._changes())):
            if points:
                items = "".join(f"<li>{safe(point)}</li>" for point in points)
                parts.append(f"<p><b>{title}</b></p><ul>{items}</ul>")
        if self._facts():
            parts.append(_html_table(self._facts()))
        if self._rows():
            heads = "".join(f"<th>{name}</th>" for name in _HEADS)
            parts.append(f"<p>{safe(self._whole())}</p>")
            parts.append(_html_table(self._rows(), f"<tr>{heads}</tr>"))
        return f"<div>{''.join(parts)}</div>"


def _gain(gain: float) -> str:
    return f"about {number(gain)} times as fast" if gain >= 1.95 else f"about {gain - 1:.0%} faster"


def _wrapped(text: str, indent: str) -> list[str]:
    mark = f"{indent[:-2]}- " if indent else ""
    return textwrap.wrap(
        text, _WIDTH, initial_indent=mark, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            f"{cell:<{width}}" if column == 0 else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _html_table(rows: list[Any], head: str = "") -> str:
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{head}{body}</table>"
