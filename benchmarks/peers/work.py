"""A workload: the data to load, the form of a batch, and the check that what a contestant gives is right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
CORES = len(os.sched_getaffinity(0))

Batches = Iterable[Any]


class WrongResult(Exception):
    """Batches of a contestant that are not those of the workload; this is reported, and not timed."""


@dataclass(frozen=True)
class Work:
    """One row of the comparison.

    Attributes:
        name: the row.
        family: the name that adapters register loaders for; they look at the other attributes.
        about: the work in words, with the form of a batch.
        make: writes ``count`` samples into a new folder.
        check: raises :class:`WrongResult` for an epoch that is not right.
        data: the folder's name; workloads may share one.
        count, quick: the samples of an epoch; with ``--quick``.
        batches: how many batches an epoch is stopped after, if not at its end.
        unit: of what is counted.
        workers: how many threads or processes, where an adapter can choose; None: only its defaults.
        shows: the measure that is compared: ``rate``, ``first`` (ms to the first batch, the loader's
            construction included), ``resume`` (ms from a kept state to the next batch) or ``import`` (ms).
        before: called before each epoch, and not timed.
    """

    name: str
    family: str
    about: str
    make: Callable[[Path, int], None]
    check: Callable[[Work, Batches], None]
    data: str
    count: int
    quick: int
    batch_size: int = 64
    batches: int | None = None
    unit: str = "samples/s"
    workers: int | None = CORES
    shows: str = "rate"
    before: Callable[[Work], object] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    is_quick: bool = False

    def shortened(self) -> Work:
        """The same on few samples."""
        return replace(self, count=self.quick, is_quick=True)

    @property
    def folder(self) -> Path:
        return ROOT / "data" / "peers" / f"{self.data}-{self.count}"

    @property
    def files(self) -> list[str]:
        """The samples' files; a sample's number is its place here."""
        return [str(path) for path in sorted((self.folder / "files").glob("*/*"))]

    @property
    def expected(self) -> int:
        """Return the number of samples of an epoch."""
        return min(self.count, self.batches * self.batch_size) if self.batches else self.count

    def prepare(self) -> None:
        """Make the data where it is missing."""
        made(self.folder, lambda folder: self.make(folder, self.count))

    def converted(self, form: str, write: Callable[[Path], None]) -> Path:
        """The data in a contestant's own format, written the first time that it is asked for."""
        return made(self.folder.with_name(f"{self.folder.name}-{form}"), write)


def made(folder: Path, write: Callable[[Path], None]) -> Path:
    """Fill a folder at once or not at all."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        unfinished.rename(folder)
    return folder


def size_of(batch: Any) -> int:
    """The samples of a batch: a list of bytes or texts, or the length of its first part."""
    while isinstance(batch, (tuple, list, dict)):
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        if isinstance(first, (bytes, str)):
            break
        batch = first
    return len(batch)


def array(values: Any) -> np.ndarray[Any, Any]:
    """A batch's part as an array of its own: loaders use the memory of batches again."""
    return values.numpy().copy() if hasattr(values, "numpy") else np.array(values)


def require(condition: Any, problem: str) -> None:
    """Raise :class:`WrongResult` unless the condition holds."""
    if not condition:
        raise WrongResult(problem)


def require_all(work: Work, numbers: list[np.ndarray[Any, Any]], *, shuffled: bool = True) -> np.ndarray[Any, Any]:
    """Check that every sample came exactly once, not in the order of storage if they are to be shuffled."""
    require(numbers, "no batch came")
    together = np.concatenate([np.asarray(part).reshape(-1) for part in numbers]).astype(np.int64)
    require(len(together) == work.expected, f"{len(together):,} samples came, not {work.expected:,}")
    unique = np.unique(together)
    require(len(unique) == len(together), f"{len(together) - len(unique):,} samples came twice")
    require(unique[0] >= 0 and unique[-1] < work.count, f"there is no sample {unique[-1]}")
    if shuffled and len(together) > 16:
        require((np.diff(together) != 1).mean() > 0.25, "the samples are not shuffled")
    return together
