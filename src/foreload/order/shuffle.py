"""A shuffle buffer over samples that are read one after the other.

The data is split among ranks and workers. Each reads its own part, holds a buffer of samples and yields a random
one of them at a time. Everything random is a function of (seed, epoch, reader, number of the sample), so that a
state consists of the place of reading and the names of the samples held, without the samples themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.context import get_spawning_popen
from typing import Any, Protocol, Self, SupportsIndex

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from foreload import _native
from foreload._torch import draw_seed
from foreload.checks import Array, Indices, check_int, check_seed, check_state_int
from foreload.order.ranks import present_rank

__all__ = ["ReaderSpec", "Shuffled", "ShuffledState", "ShuffledStream", "Source", "order_of"]

_UINT64_MAX = (1 << 64) - 1
_UINT32_MAX = (1 << 32) - 1

# Random numbers that are drawn at a time.
_NUM_DRAWN = 1024


@dataclass(frozen=True)
class ReaderSpec:
    """A reader, and what its order depends on.

    Attributes:
        seed, epoch: what random numbers are made from.
        rank, ranks, worker, workers: the part of the data that is this reader's.
        buffer: the number of samples to hold.
        shuffle: whether the order is random at all.
    """

    seed: int
    epoch: int
    rank: int
    ranks: int
    worker: int
    workers: int
    buffer: int
    shuffle: bool


class Source(Protocol):
    """Data that is read one sample after the other. Each sample has a number of its own.

    Attributes:
        finishes: whether ``finish`` does anything.
        names: returns what samples of these numbers are called in a state, in plain values; a function that does
            without the data, and is pickled.
    """

    finishes: bool
    names: Callable[[Sequence[int]], list[Any]]

    def read(self) -> tuple[Sequence[int], list[Any]]:
        """Return the numbers and samples that come next, as many as are at hand but at least one; none at the end.

        An exception means that one sample failed, or a part; the next call goes on after it.
        """

    def finish(self, number: int, sample: Any) -> Any:
        """Return the sample as it leaves the buffer, after random transforms for instance."""

    def state(self, left: int) -> Any:
        """Return the place of reading before the last ``left`` samples that were read, in plain values."""

    def restore(self, state: Any, names: list[Any]) -> tuple[list[int], list[Any]]:
        """Go on from where ``state`` was taken; return the numbers and samples of these names, read again."""


def order_of(reading: ReaderSpec, count: int) -> Indices:
    """Return the order of ``count`` parts (int64): random by (seed, epoch), or as they are."""
    order = np.arange(count, dtype=np.int64)
    if reading.shuffle and count:
        _native.permute(count, reading.seed, reading.epoch & _UINT32_MAX, 0, order)
    return order


@dataclass(frozen=True)
class ShuffledState:
    """The state of a :class:`Shuffled`, which is written out when it is asked for: loaders take one per batch.

    Attributes:
        fields: all but the names of the samples in the buffer.
        numbers: of these samples.
        names: as :class:`Source` has it.
    """

    fields: dict[str, Any]
    numbers: tuple[int, ...]
    names: Callable[[Sequence[int]], list[Any]]

    def written(self) -> dict[str, Any]:
        """Return the state in plain values."""
        return {**self.fields, "held": self.names(self.numbers)}


class Shuffled(Iterator[Any]):
    """One pass of one reader, which can be interrupted after any sample.

    Args:
        open_source: opens the data.
        reading: the reader.
    """

    def __init__(self, open_source: Callable[[ReaderSpec], Source], reading: ReaderSpec) -> None:
        self._open = open_source
        self._reading = reading
        self._source = open_source(reading)
        self._room = reading.buffer if reading.shuffle else 1
        self._numbers: list[int] = []
        self._held: list[Any] = []
        # What was read, but is not in the buffer yet.
        self._new_numbers: Sequence[int] = ()
        self._new: list[Any] = []
        self._num_given = 0
        self._is_over = False
        self._random: list[int] = []

    def __next__(self) -> Any:
        """Fill the buffer, and return a random one of the samples in it."""
        while len(self._held) < self._room and self._has_more():
            numbers, samples = self._take_new(self._room - len(self._held))
            self._numbers += numbers
            self._held += samples
        if not self._held:
            raise StopIteration
        at = self._draw() % len(self._held)
        self._held[at], self._held[-1] = self._held[-1], self._held[at]
        self._numbers[at], self._numbers[-1] = self._numbers[-1], self._numbers[at]
        return self._source.finish(self._numbers.pop(), self._held.pop())

    def take(self, count: int) -> tuple[list[Any], Exception | None]:
        """Return what so many calls of ``next`` would, up to the first that fails, and its error."""
        samples: list[Any] = []
        try:
            while len(samples) < count:
                if self._source.finishes or len(self._held) != self._room - 1 or not self._has_more():
                    samples.append(next(self))
                else:
                    samples += self._exchange(count - len(samples))
        except Exception as error:
            return samples, error
        return samples, None

    def _has_more(self) -> bool:
        """Whether there are samples to put into the buffer."""
        if not self._new and not self._is_over:
            self._new_numbers, self._new = self._source.read()
            self._is_over = not self._new
        return bool(self._new)

    def _take_new(self, most: int) -> tuple[list[int], list[Any]]:
        numbers, samples = list(self._new_numbers[:most]), self._new[:most]
        self._new_numbers = self._new_numbers[most:]
        del self._new[:most]
        return numbers, samples

    def _exchange(self, most: int) -> list[Any]:
        """Replace up to ``most`` samples of the buffer, which lacks one to be full, by new ones; return them."""
        self._have_random()
        at = self._num_given % _NUM_DRAWN
        numbers, samples = self._take_new(min(most, _NUM_DRAWN - at))
        drawn = self._raw[at : at + len(samples)]
        _native.exchange(self._numbers, numbers, drawn)
        self._num_given += len(samples)
        return _native.exchange(self._held, samples, drawn)

    def _draw(self) -> int:
        self._have_random()
        self._num_given += 1
        return self._random[(self._num_given - 1) % _NUM_DRAWN]

    def _have_random(self) -> None:
        """Have the run of random numbers of which the next sample's is one."""
        if self._num_given % _NUM_DRAWN == 0 or not self._random:
            self._raw = self._drawn_in(self._num_given // _NUM_DRAWN)
            self._random = self._raw.tolist()

    def _drawn_in(self, run: int) -> Array:
        reading = self._reading
        reader = reading.rank * reading.workers + reading.worker
        key = np.array([reading.seed, (reading.epoch & _UINT32_MAX) | (reader & _UINT32_MAX) << 32], np.uint64)
        bits = np.random.Philox(key=key, counter=np.array([0, 0, run, 0], np.uint64))
        return bits.random_raw(_NUM_DRAWN)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on from here: plain numbers, a few per sample in the buffer."""
        return self.present_state().written()

    def present_state(self) -> ShuffledState:
        """Return the same, to be written out later."""
        fields = {
            **asdict(self._reading),
            "given": self._num_given,
            "over": self._is_over,
            "at": self._source.state(len(self._new)),
        }
        return ShuffledState(fields, tuple(self._numbers), self._source.names)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; the samples that were in the buffer are read again.

        Raises:
            ValueError: the state is of another reader, or of other data.
        """
        self._check(state)
        self._reading = replace(self._reading, seed=state["seed"], epoch=state["epoch"])
        self._source = self._open(self._reading)
        self._new_numbers, self._new = (), []
        self._numbers, self._held = self._source.restore(state["at"], state["held"])
        self._num_given, self._is_over = state["given"], state["over"]
        self._random = []

    def _check(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError(f"the state of a stream must be a dict, got {type(state).__name__}")
        for name in (*asdict(self._reading), "given", "over", "at", "held"):
            if name not in state:
                raise ValueError(f"the state of a stream has no field {name!r}")
        for name in ("rank", "ranks", "worker", "workers", "buffer", "shuffle"):
            own = getattr(self._reading, name)
            if type(state[name]) is not type(own) or state[name] != own:
                raise ValueError(
                    f"the state is of a stream with {name} = {state[name]!r}, but this one has {own!r}"
                )
        for name, least, end in (("seed", 0, 1 << 64), ("epoch", -(1 << 63), 1 << 63), ("given", 0, 1 << 63)):
            check_state_int(name, state[name], least, end)
        if not isinstance(state["over"], bool):
            raise ValueError(f"the state's 'over' must be True or False, got {state['over']!r}")
        if not isinstance(state["held"], (list, tuple)) or len(state["held"]) > self._reading.buffer:
            shown = repr(state["held"])[:100]
            raise ValueError(
                f"the state's 'held' must be a list of up to {self._reading.buffer} samples, got {shown}"
            )


class ShuffledStream(IterableDataset[Any]):
    """A dataset that is streamed through a shuffle buffer, each rank and worker reading its own part."""

    def __init__(
        self,
        buffer: SupportsIndex,
        seed: SupportsIndex | None,
        shuffle: bool,
        num_replicas: int | None,
        rank: int | None,
    ) -> None:
        self.buffer = check_int("buffer", buffer)
        if self.buffer < 1:
            raise ValueError(f"buffer must be 1 or more, got {buffer}; shuffle=False gives samples in their order")
        if not isinstance(shuffle, bool):
            raise TypeError(f"shuffle must be True or False, got {shuffle!r}")
        if (num_replicas is None) != (rank is None):
            raise ValueError("num_replicas and rank must be given together")
        if num_replicas is not None:
            num_replicas = check_int("num_replicas", num_replicas, 1)
        if num_replicas is not None and rank is not None and not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be from 0 to {num_replicas - 1}, got {rank}")
        self.seed = None if seed is None else check_seed(seed)
        self.shuffle = shuffle
        self._replicas = None if num_replicas is None or rank is None else (rank, num_replicas)
        # Shared memory, so that persistent workers see it too.
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, in workers too, also persistent ones."""
        self._epoch.fill_(check_int("epoch", epoch, least=0))

    def of_all_ranks(self) -> Self:
        """Return this stream for a tool that splits samples among ranks itself, unless its ranks were given."""
        whole = copy.copy(self)  # set_epoch() reaches both
        whole._replicas = (0, 1) if self._replicas is None else self._replicas
        return whole

    def _ranks(self) -> tuple[int, int]:
        return present_rank() if self._replicas is None else self._replicas

    def _reading(self) -> ReaderSpec:
        rank, ranks = self._ranks()
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        seed = self.seed
        if seed is None and (ranks > 1 or not self.shuffle):
            seed = 0
        elif seed is None:
            seed = draw_seed() if info is None else info.seed - info.id
        return ReaderSpec(seed & _UINT64_MAX, self.epoch, rank, ranks, worker, workers, self.buffer, self.shuffle)

    def _open(self, reading: ReaderSpec) -> Source:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this reader's part."""
        return Shuffled(self._open, self._reading())

    def __getstate__(self) -> dict[str, Any]:
        """Give a process that is being spawned its rank, which it has no other way to know."""
        return {**self.__dict__, "_replicas": self._ranks() if get_spawning_popen() else self._replicas}
