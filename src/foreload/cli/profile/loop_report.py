"""Reports on loops over loaders whose inside is unknown: what the loop waits, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foreload.record.units import number, percent, quantity, seconds, size
from foreload.report.advice import Advice

__all__ = ["LoopReport", "LoopVerdict"]

# A verdict needs at least this many seconds, and batches if they were counted, or else samples.
_MIN_SECONDS, _MIN_BATCHES, _MIN_SAMPLES = 0.5, 4, 25

# A loop that waits for a smaller share of its time has its data in time.
_MAX_WAIT_IN_TIME = 0.10

# From this share of the cores on, work in the background has to share them with the loop.
_CORES_USED_UP = 0.8

# Functions are named that make up this share of the waiting.
_MIN_PART_SHOWN = 0.1

_OWN_SETTINGS = {
    "nvidia": "raise its pipelines' num_threads and prefetch_queue_depth, decode on the GPU if the CPU is busy",
    "ffcv": "raise the loader's num_workers and batches_ahead",
}
_WORKERS = (
    "load the samples in a Dataset, and loop over a foreload.DataLoader of it: its workers load while the loop "
    "works (and this report then tells reading, decoding and collating apart)"
)


@dataclass(frozen=True)
class LoopVerdict:
    """The verdict on a loop: it waits for its data, or it does not.

    Attributes:
        kind: ``"consumer-bound"``: the data is there in time; ``"loader-bound"``: the loop waits for it;
            ``"too-short"``.
        sentence: the same in plain words.
        evidence: the measurements behind it.
        advice: what to change, best first.
    """

    kind: str
    sentence: str
    evidence: list[str]
    advice: list[Advice]


class LoopReport:
    """A readable report on a loop.

    Args:
        stats: seconds in all (``seconds``), waiting and working; ``batches`` and ``samples`` if they were counted,
            or else ``sampled``, the number of samples of its stack; use of cores, memory and GPUs.
        foreign: the package of its loader, if that is known.

    Attributes:
        stats: the same.
        verdict: whether it waits for its data.
    """

    def __init__(self, stats: Mapping[str, Any], foreign: str = "") -> None:
        self.stats = stats
        self.verdict = _verdict(stats, foreign)

    def to_dict(self) -> dict[str, Any]:
        """Return ``stats`` and ``verdict`` as plain values, for JSON."""
        own = {**vars(self.verdict), "advice": [advice._asdict() for advice in self.verdict.advice]}
        return {"verdict": own, "stats": dict(self.stats)}

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        """Render with rich: the verdict first."""
        colour = {"consumer-bound": "green", "too-short": "cyan"}.get(self.verdict.kind, "yellow")
        yield Text.assemble((self.verdict.kind, f"bold {colour}"), ": ", self.verdict.sentence)
        changes = [
            advice.change
            if advice.gain is None
            else f"{advice.change}: at most {number(advice.gain)} times as fast with one worker, more with several"
            for advice in self.verdict.advice
        ]
        for title, points in (("Why", self.verdict.evidence), ("What to change", changes)):
            if points:
                yield Text(f"\n{title}", style="bold")
                for point in points:
                    yield Padding(Text(point), (0, 0, 0, 2))
        yield Text()
        grid = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, value in self._facts():
            grid.add_row(Text(name, style="dim"), Text(value))
        yield grid

    def _facts(self) -> Iterator[tuple[str, str]]:
        stats = self.stats
        if stats.get("batches"):
            batches = f"{number(stats['batches_per_second'])} batches/s"
            samples = f"{number(stats['samples_per_second'])} samples/s, " if stats["samples"] else ""
            yield "speed", samples + batches
            times = stats["batch_seconds"]
            if times["p99"] > 0:  # otherwise there was one batch
                yield (
                    "batch time",
                    f"{seconds(times['median'])} median, {seconds(times['p95'])} p95, {seconds(times['p99'])} p99",
                )
            yield "first batch", f"{seconds(stats['first_batch_seconds'])} after it was asked for"
        yield "waited", f"{percent(stats['wait_share'])} of {seconds(stats['seconds'])}"
        yield "CPU", f"{percent(stats['cpu']['share'])} of {number(stats['cpu']['cores'])} cores"
        memory = stats["memory"]
        yield "memory", f"{size(memory['tree_bytes'])} in use, {size(memory['granted_bytes'])} granted"
        if stats["gpu"]:
            yield "GPU", f"idle {percent(stats['gpu']['idle_share'])} of the time"


def _verdict(stats: Mapping[str, Any], foreign: str) -> LoopVerdict:
    counted = stats.get("batches")
    evidence = _evidence(stats)
    is_short = stats["sampled"] < _MIN_SAMPLES if counted is None else counted < _MIN_BATCHES
    if is_short or stats["seconds"] < _MIN_SECONDS:
        sentence = "Too little has been loaded to say what is slow."
        return LoopVerdict("too-short", sentence, evidence, [Advice("let it run longer, and ask again")])
    share, item = percent(stats["wait_share"]), "next item" if counted is None else "batches"
    if stats["wait_share"] < _MAX_WAIT_IN_TIME:
        sentence = (
            f"All is well: this loop waits for its {item} only {share} of the time, so faster loading would gain "
            "almost nothing. The loop's own work takes the time."
        )
        return LoopVerdict("consumer-bound", sentence, evidence, [])
    sentence = f"This loop waits for its {item} {share} of the time."
    return LoopVerdict("loader-bound", sentence, evidence, _advice(stats, foreign))


def _evidence(stats: Mapping[str, Any]) -> list[str]:
    waited, worked = seconds(stats["wait_seconds"]), seconds(stats["loop_seconds"])
    lines = [f"the loop waited for {waited} and worked for {worked}"]
    if stats.get("batches") is None:
        share, count = stats["wait_share"], stats["sampled"]
        # Two standard deviations of a share of so many samples.
        margin = 2 * (share * (1 - share) / max(1, count)) ** 0.5
        lines[0] += f" (from {count:,} samples of its stack: give or take {100 * margin:.0f}% of the time)"
        places = [(where, part) for where, part in stats["waits_in"].items() if part >= _MIN_PART_SHOWN]
        lines += [f"{percent(part)} of the waiting was in {where}" for where, part in places[:3]]
    cores = stats["cpu"]["cores"]
    lines.append(f"{percent(stats['cpu']['share'])} of {quantity(cores, 'core', 'cores')} in use")
    if stats["gpu"]:
        lines.append(f"the GPU was idle {percent(stats['gpu']['idle_share'])} of the time")
    lines.append("what the loader does inside is not known, so neither is what part of it is slow")
    return lines


def _advice(stats: Mapping[str, Any], foreign: str) -> list[Advice]:
    if foreign in _OWN_SETTINGS:
        return [Advice(_OWN_SETTINGS[foreign])]
    # Loading at the same time as the loop's work takes as long as the longer of the two.
    gain = stats["seconds"] / max(stats["wait_seconds"], stats["loop_seconds"])
    if stats["cpu"]["share"] >= _CORES_USED_UP:
        return [
            Advice("load less per batch, or give the script more cores: those it has are in use"),
            Advice(_WORKERS),
        ]
    return [Advice(_WORKERS, gain if gain >= 1.05 else None)]
