#!/usr/bin/env python3
"""Draw a flame graph from the output of ``perf script``:  perf script | flame_graph.py OUTPUT.html"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

# A frame of a stack: the address, the function with its offset, and the file that it is from.
_FRAME = re.compile(r"\s+[0-9a-f]+ (?P<function>.*?)(?:\+0x[0-9a-f]+)? \((?P<file>[^()]*(?: \(deleted\))?)\)$")

# Its own frames, dozens for each call of a function, are drawn as one: perf does not know Python's functions.
_INTERPRETER = re.compile(r"(lib)?python3")

# Frames with a smaller share than this are not drawn.
_SMALLEST_SHARE = 0.001

Stack = tuple[str, ...]


def read_stacks(lines: Iterable[str]) -> Iterator[Stack]:
    r"""Yield the stack of each sample, from the process's name to the innermost function.

    >>> list(read_stacks(["python 7 1.5: 1 cpu-clock:", "\t 1a f+0x2 (/lib/a.so)", "\t 2b main (/bin/b)", ""]))
    [('python', 'main', 'f')]
    """
    process, frames = "", list[str]()
    for line in [*lines, ""]:
        if frame := _FRAME.match(line.rstrip()):
            function, file = frame["function"], Path(frame["file"]).name
            if _INTERPRETER.match(file):
                function = "Python"
            elif function == "[unknown]":
                function = f"({file})"
            if frames[-1:] != ["Python"] or function != "Python":
                frames.append(function)
        elif line.strip():
            process = line.split()[0]
        elif process:
            yield (process, *reversed(frames))
            process, frames = "", []


def count_prefixes(stacks: Iterable[Stack]) -> Counter[Stack]:
    """Count the samples below each frame; ``()`` counts all of them.

    >>> sorted(count_prefixes([("a", "b"), ("a",)]).items())
    [((), 2), (('a',), 2), (('a', 'b'), 1)]
    """
    counts: Counter[Stack] = Counter()
    for stack in stacks:
        counts.update(stack[:depth] for depth in range(len(stack) + 1))
    return counts


def draw(counts: Counter[Stack], path: Path) -> None:
    """Write a page that shows the frames as boxes as wide as their share; a click enlarges one."""
    import plotly.graph_objects as go

    shown = [stack for stack, count in counts.items() if count >= _SMALLEST_SHARE * counts[()]]
    number = {stack: place for place, stack in enumerate(shown)}
    boxes = go.Icicle(
        ids=[str(number[stack]) for stack in shown],
        labels=[stack[-1] if stack else "all samples" for stack in shown],
        parents=[str(number[stack[:-1]]) if stack else "" for stack in shown],
        values=[counts[stack] for stack in shown],
        branchvalues="total",
        tiling={"orientation": "v"},
        hovertemplate="%{label}<br>%{value} samples, %{percentRoot:.1%}<extra></extra>",
    )
    figure = go.Figure(boxes)
    figure.update_layout(margin={"t": 10, "l": 10, "r": 10, "b": 10}, height=900)
    figure.write_html(path)


def main() -> None:
    """Read samples from standard input, and draw them into the file that is named."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    counts = count_prefixes(read_stacks(sys.stdin))
    if not counts[()]:
        sys.exit("flame_graph.py: perf script gave no samples")
    draw(counts, Path(sys.argv[1]))
    print(f"{counts[()]} samples: {sys.argv[1]}")


if __name__ == "__main__":
    main()
