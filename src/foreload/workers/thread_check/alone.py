"""Samples loaded without other threads, and what that changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foreload._torch import compute_alone
from foreload.workers.surroundings import ProcessSurroundings
from foreload.workers.thread_check.fingerprint import sample_fingerprint
from foreload.workers.thread_check.loading import KEY, CurrentSamples, Loaded, Samples, global_states, load
from foreload.workers.thread_check.signs import Signs, find_signs, seen_by_name

__all__ = ["Alone", "load_alone"]


@dataclass
class Alone:
    """The result of loading without other threads.

    Attributes:
        loaded: each sample, by index.
        slowest: the seconds that the slowest sample took.
        draws: the global generators that samples draw from.
        reused: samples that changed when the next one was loaded.
        signs: what the dataset holds and changes.
        length: of the dataset; None: it has none.
        unequal: samples that differ each time they are loaded, which cannot be compared.
    """

    loaded: dict[int, Loaded] = field(default_factory=dict)
    slowest: float = 0.0
    draws: set[str] = field(default_factory=set)
    reused: list[int] = field(default_factory=list)
    signs: Signs = field(default_factory=Signs)
    length: int | None = None
    unequal: frozenset[int] = frozenset()


def load_alone(samples: Samples, indices: Sequence[int] | int, progress: CurrentSamples, until: float) -> Alone:
    """Load samples by the calling thread of a fork, until time is up.

    Args:
        samples: what to load.
        indices: of the samples; a number: that many from all over the dataset.
        progress: notes what is being loaded.
        until: when (``time.monotonic()``) no other sample is begun.
    """
    compute_alone()  # the threads that torch computes with did not survive the fork
    found = Alone()
    found.length = _length(samples.dataset)
    if isinstance(indices, int):
        indices = _spread(indices, found.length)
    generators = ProcessSurroundings(KEY, is_pure=False).generators()
    before = first = seen_by_name(samples.roots())
    held: Any = None
    for index in indices:
        progress.begin(0, index)
        started = time.monotonic()

        def keyed(key: Any, index: int = index) -> tuple[Any, Loaded]:
            key(index)
            states = global_states()
            try:
                return load(samples, index)
            finally:
                after = global_states()
                found.draws.update(name for name in states if states[name] != after[name])

        sample, loaded = generators.run(keyed)
        if found.length is None and loaded.error.startswith("IndexError"):
            break  # the end of a dataset that has no length
        found.slowest = max(found.slowest, time.monotonic() - started)
        if held is not None and held[1].different(sample_fingerprint(held[2])) is not None:
            found.reused.append(held[0])
        held = None if loaded.sample is None else (index, loaded.sample, sample)
        if not found.loaded:
            first = seen_by_name(samples.roots())
        found.loaded[index] = loaded
        if time.monotonic() > until:
            break
    progress.end(0)
    found.signs = find_signs(before, first, seen_by_name(samples.roots()))
    return found


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # as of torch's Dataset, which has no default
        return None


def _spread(count: int, length: int | None) -> list[int]:
    """Return at most ``count`` indices: the first and the last of a dataset, and some from all over it."""
    if length is None or length <= count:
        return list(range(count if length is None else length))
    return sorted({at * (length - 1) // max(1, count - 1) for at in range(count)})
