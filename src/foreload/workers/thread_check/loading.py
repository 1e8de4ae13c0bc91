"""The samples that are loaded to try threads, what each came out as, and which thread is loading which."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foreload.batch.generators.keyed import global_trio
from foreload.cache.view import CachedView
from foreload.workers.thread_check.fingerprint import Fingerprint, sample_fingerprint

__all__ = ["KEY", "CurrentSamples", "Loaded", "Samples", "global_states", "load"]

# The seed and epoch of the random numbers that samples draw.
KEY = (0, 0)

_GENERATORS = ("Python's", "NumPy's", "torch's")


@dataclass(frozen=True)
class Samples:
    """The samples to load, as a loader's workers would.

    Attributes:
        dataset: the user's dataset.
        transform: applied to each sample; None: nothing is.
        collate_fn: applied to a list of each sample; None: nothing is.
    """

    dataset: Any
    transform: Callable[[Any], Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    def get(self, index: int) -> Any:
        """Load one sample."""
        view = CachedView(self.dataset, None, self.transform)
        many = view.__getitems__
        sample = view[index] if many is None else many([index])[0]
        return sample if self.collate_fn is None else self.collate_fn([sample])

    def roots(self) -> list[tuple[str, Any]]:
        """Return the objects that load, with their names; the dataset has none."""
        return [("", self.dataset), ("transform", self.transform), ("collate_fn", self.collate_fn)]


@dataclass(frozen=True)
class Loaded:
    """A sample that was loaded, or the exception that came instead.

    Attributes:
        sample: its fingerprint; None for an exception.
        error: the type of the exception, and its message.
    """

    sample: Fingerprint | None
    error: str = ""

    def different(self, other: Loaded) -> list[str] | None:
        """Return the fields in which two samples differ, none if they differ as a whole; None: they are equal."""
        if self.sample is None or other.sample is None:
            same = self.sample is other.sample and self.error.partition(":")[0] == other.error.partition(":")[0]
            return None if same else []
        return self.sample.different(other.sample)


class CurrentSamples:
    """The sample that each thread is loading, in memory that is shared with forks.

    Args:
        threads: the number of threads.
    """

    def __init__(self, threads: int) -> None:
        self._indices = memoryview(mmap.mmap(-1, 8 * threads)).cast("q")
        self.clear()

    def clear(self) -> None:
        """Note that nothing is being loaded."""
        for thread in range(len(self._indices)):
            self._indices[thread] = -1

    def begin(self, thread: int, index: int) -> None:
        """Note that a thread loads a sample."""
        self._indices[thread] = index

    def end(self, thread: int) -> None:
        """Note that a thread loads nothing."""
        self._indices[thread] = -1

    def now(self) -> dict[int, int]:
        """Return the sample that is being loaded, by thread."""
        return {thread: index for thread, index in enumerate(self._indices) if index >= 0}


def load(samples: Samples, index: int) -> tuple[Any, Loaded]:
    """Load one sample; return it, None if there is an exception, and what it came out as."""
    try:
        sample = samples.get(index)
        return sample, Loaded(sample_fingerprint(sample))
    except BaseException as error:
        return None, Loaded(None, f"{type(error).__name__}: {error}".splitlines()[0][:300])


def global_states() -> dict[str, Any]:
    """Return the states of the global random generators, by name."""
    python, numpy, generator = global_trio()
    state: Any = numpy.get_state(legacy=False)
    return dict(
        zip(_GENERATORS, (python.getstate(), repr(state), generator.get_state().numpy().tobytes()), strict=True)
    )
