"""OPTCache in stock loaders with samplers of any length, over any number of epochs, against Belady's algorithm."""

from __future__ import annotations

import heapq
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import foreload as fl

N, CAPACITY = 400, 200


class Base(Dataset[Any]):
    """Counts its loads, over all processes."""

    def __init__(self) -> None:
        self.calls = torch.zeros(N, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return N

    def make(self, index: int) -> tuple[torch.Tensor, int]:
        self.calls[index] += 1
        return torch.full((4,), float(index)), int(index)


class Half(Base):
    @fl.OPTCache(maxsize=CAPACITY)
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.make(index)


def belady(accesses: list[int], capacity: int = CAPACITY) -> int:
    """The loads of Belady's MIN with bypass, which knows the whole future."""
    following, ahead = [1 << 60] * len(accesses), {}
    for t in reversed(range(len(accesses))):
        following[t] = ahead.get(accesses[t], 1 << 60)
        ahead[accesses[t]] = t
    cached: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    loads = 0
    for t, sample in enumerate(accesses):
        loads += sample not in cached
        cached[sample] = following[t]
        heapq.heappush(latest, (-following[t], sample))
        while len(cached) > capacity:
            use, other = heapq.heappop(latest)
            if cached.get(other) == -use:
                del cached[other]
    return loads


def run(dataset: Any, sampler: Any, epochs: int, **arguments: Any) -> list[int]:
    """What a stock loader gives in some epochs, without a warning."""
    accesses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        loader: Any = DataLoader(dataset, sampler=sampler, **{"batch_size": 16, **arguments})
        for _ in range(epochs):
            for x, y in loader:
                assert (x == y[:, None]).all()
                accesses += y.tolist()
    return accesses


def is_best(dataset: Base, accesses: list[int]) -> bool:
    """Whether there are at most 0.5 % more loads than there have to be."""
    return int(dataset.calls.sum()) <= 1.005 * belady(accesses)


Make = Callable[[torch.Generator], Any]
SAMPLERS: dict[str, Make] = {
    "replacement": lambda g: RandomSampler(range(N), replacement=True, generator=g),
    "three times": lambda g: RandomSampler(range(N), replacement=True, num_samples=3 * N, generator=g),
    "ten times": lambda g: RandomSampler(range(N), replacement=True, num_samples=10 * N, generator=g),
    "odd": lambda g: RandomSampler(range(N), replacement=True, num_samples=N // 2 + 7, generator=g),
    "few": lambda g: RandomSampler(range(N), replacement=True, num_samples=19, generator=g),
    "shuffled": lambda g: RandomSampler(range(N), generator=g),
    "shuffled, twice and a bit": lambda g: RandomSampler(range(N), num_samples=2 * N + 50, generator=g),
    "weighted": lambda g: WeightedRandomSampler(torch.arange(N) ** 2.0, 2 * N, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(0, N, 1), generator=g),
    "small subset": lambda g: SubsetRandomSampler(range(50, N - 50), generator=g),
}


def replayed(make: Make, epochs: int, seed: int, **arguments: Any) -> list[int]:
    """What a stock loader of a dataset without a cache gives."""
    generator = torch.Generator().manual_seed(seed)
    sampler = make(generator)
    own = {"generator": generator} if arguments.pop("shared", False) else {}
    loader: Any = DataLoader(range(N), sampler=sampler, batch_size=16, **own, **arguments)  # type: ignore[arg-type]
    return [index for _ in range(epochs) for batch in loader for index in batch.tolist()]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("epochs", [1, 4, 11])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_any_sampler_over_any_number_of_epochs_is_loaded_as_rarely_as_can_be(kind: str, epochs: int) -> None:
    make, generator = SAMPLERS[kind], torch.Generator().manual_seed(1)
    sampler = make(generator)
    fl.OPTInit(type(sampler), generator, N)
    dataset = Half()
    accesses = run(dataset, sampler, epochs)
    assert accesses == replayed(make, epochs, 1)
    assert is_best(dataset, accesses)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *itertools.product(
            ["three times", "shuffled", "weighted"],
            [
                {},
                {"persistent_workers": True},
                {"multiprocessing_context": "forkserver", "persistent_workers": True},
            ],
        ),
        # Each of these workers imports everything anew.
        pytest.param("shuffled", {"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
        pytest.param(
            "three times", {"multiprocessing_context": "spawn", "persistent_workers": True}, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_so_it_is_with_workers_of_any_kind(kind: str, arguments: dict[str, Any]) -> None:
    make, generator = SAMPLERS[kind], torch.Generator().manual_seed(2)
    sampler = make(generator)
    fl.OPTInit(type(sampler), generator, N)
    dataset = Half()
    accesses = run(dataset, sampler, 3, num_workers=2, **arguments)
    assert accesses == replayed(make, 3, 2)
    assert is_best(dataset, accesses)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str
)
@pytest.mark.parametrize("kind", ["replacement", "three times", "shuffled", "weighted"])
def test_the_loader_may_draw_its_base_seeds_from_the_same_generator(kind: str, workers: dict[str, Any]) -> None:
    make, generator = SAMPLERS[kind], torch.Generator().manual_seed(3)
    sampler = make(generator)
    fl.OPTInit(type(sampler), generator, N)
    dataset = Half()
    accesses = run(dataset, sampler, 5, generator=generator, **workers)
    assert accesses == replayed(make, 5, 3, shared=True, **workers)
    assert is_best(dataset, accesses)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("batch_size", [16, 64, 150, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_any_size_whole_or_not(workers: int, batch_size: int | None) -> None:
    for drop_last in [False, True][: 1 + (batch_size is not None)]:
        generator = torch.Generator().manual_seed(4)
        fl.OPTInit(RandomSampler, generator, N)
        dataset = Half()
        sampler = RandomSampler(dataset, replacement=True, generator=generator)
        loader: Any = DataLoader(dataset, batch_size, sampler=sampler, num_workers=workers, drop_last=drop_last)
        accesses = []
        for _ in range(4):
            accesses += [int(i) for _, y in loader for i in torch.as_tensor(y).reshape(-1)]
        assert is_best(dataset, accesses)


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_that_are_left_early(workers: int) -> None:
    generator = torch.Generator().manual_seed(5)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    sampler = RandomSampler(dataset, replacement=True, generator=generator)
    accesses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(6):
            for step, (x, y) in enumerate(DataLoader(dataset, 16, sampler=sampler, num_workers=workers)):
                assert (x == y[:, None]).all()
                accesses += y.tolist()
                if step == 9:
                    break
    # Where the loop will be left is not known, and workers load ahead of it.
    assert dataset.calls.sum() <= 1.15 * belady(accesses) + workers * 3 * 16 * 6


def test_a_generator_in_the_same_state_does_as_well() -> None:
    fl.OPTInit(RandomSampler, torch.Generator().manual_seed(6), N)
    dataset = Half()
    make = SAMPLERS["three times"]
    accesses = run(dataset, make(torch.Generator().manual_seed(6)), 3)
    assert is_best(dataset, accesses)


def test_a_generator_that_is_seeded_anew_is_followed() -> None:
    generator = torch.Generator().manual_seed(6)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    sampler = SAMPLERS["three times"](generator)
    accesses = []
    for epoch in range(3):
        generator.manual_seed(100 + epoch)
        accesses += run(dataset, sampler, 1)
    # What follows an epoch is not known before it begins.
    assert dataset.calls.sum() <= 1.15 * belady(accesses)


def test_the_loaders_own_shuffle_is_observed() -> None:
    generator = torch.Generator().manual_seed(7)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    loader = DataLoader(dataset, 16, shuffle=True, generator=generator)
    for _ in range(4):
        assert sorted(i for _, y in loader for i in y.tolist()) == list(range(N))
    assert dataset.calls.sum() == 4 * N - 3 * CAPACITY


def test_an_epoch_over_something_else_in_between_is_no_harm() -> None:
    generator = torch.Generator().manual_seed(8)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    sampler = SAMPLERS["replacement"](generator)
    for _ in range(4):
        run(dataset, sampler, 1)
        assert run(dataset, SequentialSampler(dataset), 1) == list(range(N))
        held = dataset.__getitem__.__func__._store.residents().sum()  # type: ignore[attr-defined]
        assert held <= CAPACITY + CAPACITY // 8 + 1024


class Eager(Sampler[int]):
    """Draws a whole epoch when it is asked for an iterator."""

    def __init__(self, source: Any, rng: torch.Generator) -> None:
        self.source, self.rng = source, rng

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(len(self.source), (2 * len(self.source),), generator=self.rng).tolist())


class Unsteady(Sampler[int]):
    """Draws what nobody can know."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        chance = random.SystemRandom()
        yield from (chance.randrange(N) for _ in range(3 * N))


@pytest.mark.parametrize("batch_size", [16, None])
def test_samplers_that_draw_at_once(batch_size: int | None) -> None:
    generator = torch.Generator().manual_seed(9)
    fl.OPTInit(Eager, generator, N)
    dataset = Half()
    loader: Any = DataLoader(dataset, batch_size, sampler=Eager(dataset, generator))
    accesses = [int(i) for _ in range(4) for _, y in loader for i in torch.as_tensor(y).reshape(-1)]
    other = torch.Generator().manual_seed(9)
    plain: Any = DataLoader(range(N), batch_size, sampler=Eager(dataset, other))  # type: ignore[arg-type]
    assert accesses == [int(i) for _ in range(4) for y in plain for i in torch.as_tensor(y).reshape(-1)]
    assert torch.equal(generator.get_state(), other.get_state())
    assert is_best(dataset, accesses)


class Endless(Sampler[int]):
    """Has one epoch, which does not end."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randint(N, (N,), generator=self.generator).tolist()


@pytest.mark.slow
def test_a_sampler_without_an_end() -> None:
    generator = torch.Generator().manual_seed(9)
    fl.OPTInit(Endless, generator, N)
    dataset = Half()
    accesses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _, (x, y) in zip(
            range(20 * N // 16), DataLoader(dataset, 16, sampler=Endless(generator)), strict=False
        ):
            assert (x == y[:, None]).all()
            accesses += y.tolist()
    assert is_best(dataset, accesses)


def test_a_sampler_that_draws_something_else_is_noticed_at_once_and_changes_no_sample() -> None:
    generator = torch.Generator().manual_seed(10)
    fl.OPTInit(Unsteady, generator, N)
    dataset = Half()
    loader = DataLoader(dataset, 16, sampler=Unsteady(generator))
    with pytest.warns(UserWarning, match="not what OPTInit foresaw.*LRU") as warned:
        for _ in range(3):
            for x, y in loader:
                assert (x == y[:, None]).all()
    assert len([w for w in warned if "OPTInit" in str(w.message)]) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_requests_that_the_sampler_has_not_drawn_are_noticed(workers: int) -> None:
    generator = torch.Generator().manual_seed(11)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    part = Subset(dataset, list(range(N - 1, -1, -1)))
    sampler = SAMPLERS["three times"](generator)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for x, y in DataLoader(part, 16, sampler=sampler, num_workers=workers):
            assert (x == y[:, None]).all()
    assert sum("samples are requested that the sampler has not drawn" in str(w.message) for w in warned) == 1


def test_a_sampler_that_never_draws_is_noticed() -> None:
    fl.OPTInit(RandomSampler, torch.Generator().manual_seed(12), N)
    dataset = Half()
    with pytest.warns(UserWarning, match="has not drawn"):
        for _ in range(3):
            for x, y in DataLoader(dataset, 16, shuffle=True):
                assert (x == y[:, None]).all()


def test_drawing_ahead_leaves_all_generators_and_the_sampler_as_they_are() -> None:
    generator = torch.Generator().manual_seed(13)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    sampler = SAMPLERS["odd"](generator)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    seen = []
    for index in sampler:
        dataset[index]
        seen.append(torch.equal(torch.get_rng_state(), state))
    plain = torch.Generator().manual_seed(13)
    list(SAMPLERS["odd"](plain))
    assert all(seen)
    assert torch.equal(generator.get_state(), plain.get_state())


class WithRandom(Sampler[int]):
    def __init__(self, size: int) -> None:
        self.size, self.random = size, random.Random(0)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(self.size), self.size))


class WithNumPy(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.numbers = size, np.random.default_rng(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.permutation(self.size).tolist())


class WithSecondGenerator(WithRandom):
    def __init__(self, size: int) -> None:
        self.size = size
        self.generators = {"own": torch.Generator().manual_seed(1)}

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size, generator=self.generators["own"]).tolist())


class InPlace(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.order, self.epoch = size, list(range(size)), [0]

    def __iter__(self) -> Iterator[int]:
        self.epoch[0] += 1
        random.Random(self.epoch[0]).shuffle(self.order)
        return iter(list(self.order))


class OneIterator(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.all = size, itertools.cycle(range(0, 7 * size, 7))

    def __iter__(self) -> Iterator[int]:
        return (next(self.all) % self.size for _ in range(self.size))


class OneGenerator(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.all = size, (index * 3 % size for index in itertools.count())

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self.all, self.size)


class OfItsClass(WithRandom):
    epochs: list[int] = []  # noqa: RUF012

    def __init__(self, size: int) -> None:
        self.size = size
        self.epochs.clear()

    def __iter__(self) -> Iterator[int]:
        self.epochs.append(len(self.epochs))
        return iter(range(len(self.epochs), self.size + len(self.epochs)))

    def __len__(self) -> int:
        return self.size


class Around(WithRandom):
    def __init__(self, size: int) -> None:
        self.size, self.inner = size, WithNumPy(size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


class ByFunction(WithRandom):
    def __init__(self, size: int) -> None:
        numbers = random.Random(3)
        self.size, self.draw = size, lambda: numbers.sample(range(size), size)

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw())


STATEFUL = [
    WithRandom,
    WithNumPy,
    WithSecondGenerator,
    InPlace,
    OneIterator,
    OneGenerator,
    OfItsClass,
    Around,
    ByFunction,
]


@pytest.mark.filterwarnings("ignore:OPTCache")
@pytest.mark.parametrize("kind", STATEFUL)
@pytest.mark.parametrize("loader", [DataLoader, fl.DataLoader])
def test_samplers_with_a_state_of_their_own_draw_what_they_draw_unobserved(kind: Any, loader: Any) -> None:
    expected = kind(8)
    epochs = [[int(index) for index in expected] for _ in range(4)]

    class Known(kind):  # type: ignore[misc]
        pass

    fl.OPTInit(Known, torch.Generator(), 8)

    class Data(Dataset[int]):
        def __len__(self) -> int:
            return 8

        @fl.OPTCache(maxsize=3)
        def __getitem__(self, index: int) -> int:
            return index % 8

    sampler = Known(8)
    batches = loader(Data(), batch_size=2, sampler=sampler)
    found = [[int(index) for batch in batches for index in batch] for _ in range(4)]
    assert found == [[index % 8 for index in epoch] for epoch in epochs]
