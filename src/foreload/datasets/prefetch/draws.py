"""Keys of the random numbers of samples that are loaded ahead, and the tasks that load these."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from foreload.batch.generators.keyed import loading
from foreload.batch.generators.threads import keyed_generators, run_keyed

__all__ = ["Draws", "Places", "Request", "Task"]


class Places:
    """Tells datasets apart that are built before any of them is asked for a sample, such as the parts of one.

    In a stock DataLoader nothing else does, and two parts may be asked for samples of the same index at once.
    """

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        """Return the number of datasets built since one was asked."""
        place, self._next = self._next, self._next + 1
        return place

    def begin(self) -> None:
        """Note that one is asked."""
        self._next = 0


class Draws(NamedTuple):
    """The key of a sample's random numbers.

    Attributes:
        key: (seed, epoch) of its generators.
        number: distinguishes it from the others with this key.
        epoch: what a dataset within it finds as ``loading.epoch``.
    """

    key: tuple[int, int]
    number: int
    epoch: tuple[int, int]


class Request(NamedTuple):
    """A request for one sample or several: besides their indices, it decides their random numbers.

    Attributes:
        epoch: (seed, epoch); None if no foreload loader has asked.
        turn: how many requests came before this one for the same sample or batch of the loader; None if the loader
            asks for its samples itself.
        sample: the number of the loader's sample; None if it asked for a whole batch.
        origin: the index asked for, if the index is expected to change as the number does.
        place: which of several parts is asked, where no foreload loader has asked.
    """

    epoch: tuple[int, int] | None
    turn: int | None = None
    sample: int | None = None
    origin: int | None = None
    place: int = 0

    def number_of(self, index: int) -> int:
        """Return what keys the random numbers of a sample."""
        if self.turn is None:
            return index
        # Not the number of the loader's sample itself, from which a dataset around this one may draw.
        sample = -1 if self.sample is None else self.sample + (0 if self.origin is None else index - self.origin)
        digest = hashlib.blake2b(f"{sample} {index} {self.turn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little")


class Task(Future[Any]):
    """A sample to load, with random numbers of its own.

    Attributes:
        draws: what keys them.
        seconds: how long the dataset took.
    """

    def __init__(self, dataset: Any, index: int, draws: Draws) -> None:
        super().__init__()
        self._dataset = dataset
        self._index = index
        self.draws = draws
        self.seconds = 0.0

    def load(self) -> Any:
        """Load it in the calling thread."""
        return run_keyed(self.draws.key, self._load)

    def load_in_own_thread(self) -> Any:
        """Load it in a thread that has generators of its own."""
        return keyed_generators(self.draws.key).run(self._load)

    def _load(self, key: Callable[[Any], None]) -> Any:
        key(self.draws.number)
        loading.epoch = self.draws.epoch
        begun = time.perf_counter()
        try:
            return self._dataset[self._index]
        finally:
            self.seconds = time.perf_counter() - begun
