"""Records and plots of the experiments on the cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from common import RESULTS, Record, Samples, images, median, parser, take_turns

__all__ = ["RESULTS", "Record", "Samples", "draw", "images", "median", "parser", "take_turns"]

Lines = dict[str, tuple[Sequence[float], Sequence[float]]]


def draw(name: str, panels: dict[str, Lines], across: str, up: str) -> None:
    """Draw a plot with one panel per title; a line is (values across, values up)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for label, (xs, ys) in lines.items():
            axis.plot(xs, ys, marker=".", label=label)
        axis.set_title(title)
        axis.set_xlabel(across)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(up)
    axes[0].legend()
    figure.savefig(RESULTS / f"{name}.png")
