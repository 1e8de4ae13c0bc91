"""Turns, medians and records, for all benchmarks."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foreload.bench.show import machine
from foreload.bench.synth import synth_images

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"

Samples = dict[str, list[float]]


def parser(description: str | None, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--rounds", type=int, default=rounds, help="how often each contestant has its turn")
    return options


def images(count: int = 2000) -> Path:
    """The JPEGs that all image benchmarks use: made once, then read once, so that the page cache is warm."""
    folder = ROOT / "data" / f"bench{count}"
    if len(list(folder.glob("*/*.jpg"))) != count:
        print(f"making {count} images in {folder}")
        synth_images(folder, count, force=True)
    for file in folder.glob("*/*.jpg"):
        file.read_bytes()
    return folder


def take_turns(contestants: dict[str, Callable[[], float]], rounds: int) -> Samples:
    """Run all contestants once per round, after a round that does not count; what each returned."""
    samples: Samples = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            value = run()
            if number:
                samples[name].append(value)
    return samples


def _command() -> str:
    """Return the command that has started this program."""
    spec = sys.modules["__main__"].__spec__  # None unless it was started by -m
    program = sys.argv[:1] if spec is None else ["-m", spec.name]
    return " ".join(["python", *program, *sys.argv[1:]])


class Record:
    """The results of one program, shown and kept as JSON."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._content: dict[str, Any] = {
            "command": _command(),
            "machine": machine(),
            "verdicts": [],
            "samples": {},
        }

    def note(self, name: str, value: Any) -> None:
        """Keep what else is to be known of the run."""
        self._content[name] = value

    def samples(self, samples: Samples, unit: str) -> None:
        """Show and keep what the contestants reached."""
        for name, values in samples.items():
            low, middle, high = min(values), statistics.median(values), max(values)
            print(f"  {name:42} {middle:12,.4g} {unit:10} ({low:,.4g} to {high:,.4g})")
            self._content["samples"][name] = {"unit": unit, "median": middle, "all": values}

    def verdict(self, what: str, reached: float, target: float, *, most: bool = False) -> None:
        """Hold a figure against what it should reach (or stay under)."""
        good = reached <= target if most else reached >= target
        sign = "<=" if most else ">="
        print(f"{'reached' if good else 'MISSED '}  {what}: {reached:.3g} (target {sign} {target})")
        entry = {"what": what, "reached": reached, "target": target, "sign": sign, "good": good}
        self._content["verdicts"].append(entry)

    def write(self) -> None:
        """Keep it."""
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{self._name}.json").write_text(json.dumps(self._content, indent=1) + "\n")


def median(samples: Samples, name: str) -> float:
    """The middle of what one contestant reached."""
    return statistics.median(samples[name])
