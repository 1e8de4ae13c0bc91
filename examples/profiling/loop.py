"""A timed loop over batches, and its arguments, shared by the scripts of this folder."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foreload.machine import granted_cores


@dataclass(frozen=True)
class Epoch:
    """One pass over the data.

    Attributes:
        samples: how many images came.
        seconds: how long it took, from ``iter()`` on.
        wait_seconds: how long the loop waited for batches.
        step_seconds: how long it worked with them.
        cpu_seconds: CPU time of the process, and of its worker processes where those have ended.
    """

    samples: int
    seconds: float
    wait_seconds: float
    step_seconds: float
    cpu_seconds: float

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds

    @property
    def data_share(self) -> float:
        """The share of the time that goes into waiting for data."""
        return self.wait_seconds / self.seconds

    @property
    def idle_share(self) -> float:
        """The share of the time in which the model does not compute, whatever the reason."""
        return 1 - self.step_seconds / self.seconds

    @property
    def cpu_share(self) -> float:
        """Return how busy the cores are that this process may use."""
        return self.cpu_seconds / self.seconds / granted_cores()

    def __str__(self) -> str:
        return (
            f"{self.samples} images in {self.seconds:.2f} s, {self.samples_per_second:,.0f} images/s; waiting for "
            f"data {self.data_share:.0%}, model idle {self.idle_share:.0%}, cores busy {self.cpu_share:.0%}"
        )

    def to_dict(self) -> dict[str, float]:
        names = ("samples_per_second", "data_share", "idle_share", "cpu_share")
        return asdict(self) | {name: getattr(self, name) for name in names}


def watch(batches: Iterable[Any], step: Callable[[Any, Any], object]) -> Epoch:
    """Call ``step(images, labels)`` with every batch, and see where the time goes."""
    samples, waited, worked, cpu = 0, 0.0, 0.0, _cpu_seconds()
    began = asked = time.perf_counter()
    for images, labels in batches:
        came = time.perf_counter()
        waited += came - asked
        step(images, labels)
        samples += len(labels)
        asked = time.perf_counter()
        worked += asked - came
    ended = time.perf_counter()
    return Epoch(samples, ended - began, waited + ended - asked, worked, _cpu_seconds() - cpu)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def parser(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    """Make a parser of what all scripts are called with."""
    made = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    made.add_argument("data", type=images_in, metavar="DATA", help="what synthetic_dataset.py made")
    made.add_argument("--epochs", type=positive, default=defaults.get("epochs", 3))
    made.add_argument("--batch-size", type=positive, default=defaults.get("batch_size", 32))
    made.add_argument("--json", type=Path, help="keep the figures here")
    return made


def images_in(text: str) -> Path:
    """Check that there are images."""
    folder = Path(text)
    if next(folder.glob("*/*.jpg"), None) is None:
        raise argparse.ArgumentTypeError(f"no images in {text!r}; make some: python synthetic_dataset.py {text}")
    return folder


def positive(text: str) -> int:
    """Read a number of 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, got {text!r}")
    return int(text)


def milliseconds(text: str) -> float:
    """Read a time of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"must be milliseconds, 0 or more, got {text!r}")
    return value


def report(epochs: list[Epoch], path: Path | None, **more: Any) -> None:
    """Keep the figures of all epochs."""
    if path is not None:
        path.write_text(json.dumps(more | {"epochs": [epoch.to_dict() for epoch in epochs]}, indent=1) + "\n")
