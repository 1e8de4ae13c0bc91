"""Datasets, samplers and iterators with states of their own, and loaders of them.

Spawned workers import this module, so it leaves out pytest, whose import took most of their time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import foreload as fl

SIZE = 41


class Counting(Dataset[Any]):
    """Map-style; each copy counts what it has loaded, and a sample depends on that."""

    asked = 0

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.loaded = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> list[int]:
        self.loaded += 1
        return [int(index), self.loaded]

    def state_dict(self) -> dict[str, int]:
        Counting.asked += 1
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["loaded"]


class Drawing(Counting):
    """Draws from torch's global generator, whose state is its own."""

    def __getitem__(self, index: int) -> list[int]:
        return [int(index), int(torch.randint(1 << 30, ()))]

    def state_dict(self) -> dict[str, Any]:
        return {"generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


def _part(size: int) -> range:
    info = get_worker_info()
    return range(size) if info is None else range(info.id, size - 3 * info.id, info.num_workers)


class Passes(IterableDataset[Any]):
    """A stream with a state, which counts its passes."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self.at = self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        part = _part(self.size)
        while self.at < len(part):
            self.at += 1
            yield [part[self.at - 1], self.passes]
        self.at = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes = state["at"], state["passes"]


class Reader(Iterator[Any]):
    def __init__(self, part: range) -> None:
        self.part, self.at = part, 0

    def __next__(self) -> Any:
        if self.at == len(self.part):
            raise StopIteration
        self.at += 1
        return [self.part[self.at - 1], 0]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class OfReaders(IterableDataset[Any]):
    """A stream without a state, whose iterator has one."""

    def __iter__(self) -> Iterator[Any]:
        return Reader(_part(SIZE))


class Itself(IterableDataset[Any]):
    """A stream that is its own iterator, and begins anew when it is asked for one."""

    def __iter__(self) -> Iterator[Any]:
        self.part, self.at = _part(SIZE), 0
        return self

    def __next__(self) -> Any:
        if self.at == len(self.part):
            raise StopIteration
        self.at += 1
        return [self.part[self.at - 1], 0]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Plain(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([[index, 0] for index in _part(SIZE)])


class Live(Passes):
    """Gives away, and takes, the very dict that it goes on to change."""

    def __init__(self) -> None:
        super().__init__()
        self.own = {"at": 0}

    def __iter__(self) -> Iterator[Any]:
        part = _part(self.size)
        while self.own["at"] < len(part):
            self.own["at"] += 1
            yield [part[self.own["at"] - 1], 0]
        self.own["at"] = 0

    def state_dict(self) -> dict[str, int]:
        return self.own

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.own = state


class Numbers(Dataset[Any]):
    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> list[int]:
        return [int(index), 0]


class Places(Sampler[int]):
    """A sampler whose iterator has the state."""

    def __iter__(self) -> Iterator[int]:
        return PlacesIterator()

    def __len__(self) -> int:
        return SIZE


class PlacesIterator(Iterator[int]):
    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        if self.at == SIZE:
            raise StopIteration
        self.at += 1
        return (self.at * 5) % SIZE

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Turning(Sampler[int]):
    """A sampler with a state, whose order depends on the passes that were made."""

    def __init__(self) -> None:
        self.at = self.passes = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < SIZE:
            self.at += 1
            yield (self.at * 3 + self.passes) % SIZE
        self.at = 0
        self.passes += 1

    def __len__(self) -> int:
        return SIZE

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes = state["at"], state["passes"]


class Resuming(Turning):
    """Goes on only once from where a state says, as torchdata's StatefulDistributedSampler."""

    def __init__(self) -> None:
        super().__init__()
        self.next: int | None = None

    def __iter__(self) -> Iterator[int]:
        self.at, self.next = self.next or 0, None
        while self.at < SIZE:
            self.at += 1
            yield (self.at * 3) % SIZE

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["at"]


class Batches(Sampler[list[int]]):
    """A batch sampler with a state, whose batches grow."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < 8:
            self.at += 1
            yield list(range(self.at))
        self.at = 0

    def __len__(self) -> int:
        return 8

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Eager(Sampler[int]):
    """Draws as soon as it is asked for an iterator, from all global generators."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(SIZE).tolist()
        random.shuffle(order)
        np.random.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return SIZE


class Lazy(Eager):
    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


Made = tuple[Any, dict[str, Any]]
DATA: dict[str, Callable[[], Made]] = {
    "counting": lambda: (Counting(), {"shuffle": True}),
    "drawing": lambda: (Drawing(), {"shuffle": True}),
    "counting, generator": lambda: (Counting(), {"shuffle": True, "generator": _generator()}),
    "passes": lambda: (Passes(), {}),
    "readers": lambda: (OfReaders(), {}),
    "itself": lambda: (Itself(), {}),
    "plain": lambda: (Plain(), {}),
    "live": lambda: (Live(), {}),
}
ORDERS: dict[str, Callable[[], Made]] = {
    "sequential": lambda: (Numbers(), {}),
    "shuffled": lambda: (Numbers(), {"shuffle": True}),
    "seed": lambda: (Numbers(), {"shuffle": True, "seed": 3}),
    "generator": lambda: (Numbers(), {"shuffle": True, "generator": _generator()}),
    "own generator": lambda: (Numbers(), {"sampler": RandomSampler(range(SIZE), generator=_generator())}),
    "replacement": lambda: (Numbers(), {"sampler": RandomSampler(range(SIZE), True, 70)}),
    "weighted": lambda: (Numbers(), {"sampler": WeightedRandomSampler([1.0] * SIZE, 30)}),
    "subset": lambda: (Numbers(), {"sampler": SubsetRandomSampler(range(5, 30))}),
    "subset, generator": lambda: (Numbers(), {"sampler": SubsetRandomSampler(range(5, 30), _generator())}),
    "ranks": lambda: (Numbers(), {"sampler": DistributedSampler(range(SIZE), 3, 1, seed=2)}),  # type: ignore[arg-type]
    "places": lambda: (Numbers(), {"sampler": Places()}),
    "turning": lambda: (Numbers(), {"sampler": Turning()}),
    "resuming": lambda: (Numbers(), {"sampler": Resuming()}),
    "eager": lambda: (Numbers(), {"sampler": Eager()}),
    "lazy": lambda: (Numbers(), {"sampler": Lazy()}),
    "batches": lambda: (Numbers(), {"batch_sampler": Batches()}),
    "torch's batches": lambda: (
        Numbers(),
        {"batch_sampler": BatchSampler(SequentialSampler(range(SIZE)), 5, True)},
    ),
}
WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "persistent": {"num_workers": 3, "workers": "processes", "persistent_workers": True},
    "pickled": {"num_workers": 2, "workers": "processes", "multiprocessing_context": "forkserver"},
}
# Workers that pickle what they get come from a server that has imported torch, but for these kinds: elsewhere the
# import would take most of the time.
SPAWNED = ("counting", "shuffled")


def as_it_is(samples: Any) -> Any:
    return samples


def make(kind: str, workers: str, **options: Any) -> fl.DataLoader[Any]:
    data, arguments = {**DATA, **ORDERS}[kind]()
    size = {} if "batch_sampler" in arguments else {"batch_size": 4}
    start = {"multiprocessing_context": "spawn"} if workers == "pickled" and kind in SPAWNED else {}
    how = {**WORKERS[workers], **start}
    return fl.DataLoader(data, **{"collate_fn": as_it_is, **size, **how, **arguments, **options})


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [next(iterator) for _ in range(count)]
