"""OPTCache for orders and indices of all kinds: loaded as rarely as can be, and never a wrong sample."""

from __future__ import annotations

import random
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset

import foreload as fl
from tests.cache.belady import belady
from tests.cache.foretold import EPOCHS, Base, N, Third, foretell, run


class Rows(Dataset[torch.Tensor]):
    """Takes any index that its array takes."""

    def __init__(self) -> None:
        self.rows = torch.arange(2 * N).view(N, 2)

    def __len__(self) -> int:
        return N

    @fl.OPTCache()
    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.rows[index].clone()


def lru(accesses: list[int], capacity: int) -> int:
    cached: OrderedDict[int, None] = OrderedDict()
    loads = 0
    for sample in accesses:
        loads += sample not in cached
        cached.pop(sample, None)
        cached[sample] = None
        if len(cached) > capacity:
            cached.popitem(last=False)
    return loads


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
@pytest.mark.parametrize("batch_size", [1, 10, 37])
@pytest.mark.parametrize("workers", [0, 3])
def test_any_sequence_is_loaded_as_rarely_as_can_be(seed: int, batch_size: int, workers: int) -> None:
    generator, expected = foretell(seed)
    dataset = Third()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        accesses = run(DataLoader, dataset, generator, batch_size=batch_size, num_workers=workers)
    assert accesses == expected
    assert dataset.calls.sum() == belady(expected, N // 3)
    assert torch.equal(generator.get_state(), after(seed))


def after(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    sampler = RandomSampler(range(N), replacement=True, generator=generator)
    for _ in range(EPOCHS):
        list(sampler)
    return generator.get_state()


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [False, True])
def test_processes_that_begin_empty_share_it(method: str, persistent: bool) -> None:
    generator, expected = foretell(5, 2)
    dataset = Third()
    arguments = {"multiprocessing_context": method, "persistent_workers": persistent, "num_workers": 2}
    assert run(DataLoader, dataset, generator, 2, batch_size=10, **arguments) == expected
    assert dataset.calls.sum() == belady(expected, N // 3)


class Waiting(Base):
    """Reads from something slow, as datasets that are worth a cache do; so threads take turns."""

    @fl.OPTCache(maxsize=N // 3)
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        time.sleep(random.random() * 0.002)
        return self.make(index)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("workers", "batch_size"),
    [
        (0, 8),
        (4, 64),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 8), (8, 32))),
    ],
)
def test_our_threads_load_as_rarely(workers: int, batch_size: int) -> None:
    generator, expected = foretell(6, 6)
    dataset = Waiting()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        accesses = run(fl.DataLoader, dataset, generator, 6, batch_size=batch_size, num_workers=workers)
    assert accesses == expected
    assert dataset.calls.sum() == belady(expected, N // 3)


class Weighted(Sampler[int]):
    """A sampler of somebody's, with the signature that OPTInit asks for."""

    def __init__(self, source: Any, generator: torch.Generator) -> None:
        self.source, self.generator = source, generator

    def __iter__(self) -> Iterator[int]:
        weights = torch.arange(1, len(self.source) + 1.0)
        yield from torch.multinomial(weights, 2 * len(self.source), True, generator=self.generator).tolist()

    def __len__(self) -> int:
        return 2 * len(self.source)


def test_samplers_of_ones_own_are_foreseen() -> None:
    generator = torch.Generator().manual_seed(0)
    fl.OPTInit(Weighted, generator, N, epochs=2)
    dataset = Third()
    sampler = Weighted(dataset, generator)
    accesses = [index for _ in range(2) for _, y in DataLoader(dataset, sampler=sampler) for index in y.tolist()]
    assert len(accesses) == 4 * N
    assert dataset.calls.sum() == belady(accesses, N // 3)


def test_fewer_or_more_samples_than_there_are() -> None:
    for number in (7, 3 * N):
        generator = torch.Generator().manual_seed(0)
        fl.OPTInit(RandomSampler, generator, N, num_samples=number, epochs=2)
        dataset = Third()
        sampler = RandomSampler(dataset, True, number, generator)
        accesses = [i for _ in range(2) for _, y in DataLoader(dataset, 8, sampler=sampler) for i in y.tolist()]
        assert dataset.calls.sum() == belady(accesses, N // 3)


def test_the_warning_says_what_is_wrong_what_happens_now_and_what_to_do() -> None:
    foretell(3)
    with pytest.warns(UserWarning, match="OPT") as warned:
        run(DataLoader, Third(), torch.Generator().manual_seed(99), batch_size=8)
    (text,) = {str(w.message) for w in warned if "OPT" in str(w.message)}
    for words in ("has not drawn", "LRU", "class of the loader's sampler", "before the first epoch"):
        assert words in text


@pytest.mark.parametrize("options", [{}, {"seed": 0}])
def test_the_warning_says_what_to_do_for_a_loader_without_a_generator(options: dict[str, Any]) -> None:
    foretell(3)
    kind = fl.DataLoader if options else DataLoader
    with pytest.warns(UserWarning, match=r"if it has none, give one to the loader too, as generator=, .* seed="):
        loader: Any = kind(Third(), batch_size=8, shuffle=True, num_workers=0, **options)
        for _ in range(3):
            list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_order_that_is_not_observed_is_served_as_lru(workers: int) -> None:
    foretell(3)
    dataset = Third()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = torch.Generator().manual_seed(99)
        accesses = run(DataLoader, dataset, other, batch_size=8, num_workers=workers)
    assert dataset.calls.sum() <= 1.1 * lru(accesses, N // 3)


# Which instance it serves.


def test_the_decorator_may_come_before_or_after_the_future() -> None:
    def make() -> Base:
        class Fresh(Base):
            @fl.OPTCache(maxsize=N // 3)
            def __getitem__(self, index: int) -> Any:
                return self.make(index)

        return Fresh()

    before = make()
    generator, expected = foretell(8)
    after_it = make()
    run(DataLoader, after_it, generator, batch_size=8)
    assert after_it.calls.sum() == belady(expected, N // 3)
    generator, expected = foretell(9)
    run(DataLoader, before, generator, batch_size=8)
    assert before.calls.sum() == belady(expected, N // 3)


def test_without_a_future_nothing_is_cached_and_nothing_is_wrong() -> None:
    latest, fl.OPTInit._latest = fl.OPTInit._latest, None
    try:

        class Alone(Base):
            @fl.OPTCache(maxsize=5)
            def __getitem__(self, index: int) -> Any:
                return self.make(index)

        dataset = Alone()
        for _ in range(2):
            list(DataLoader(dataset, batch_size=8))
        assert (dataset.calls == 2).all()
    finally:
        fl.OPTInit._latest = latest


def test_a_sample_that_fails_fails_each_time_and_the_rest_goes_on() -> None:
    generator, expected = foretell(4)

    class Broken(Base):
        @fl.OPTCache(maxsize=N // 3)
        def __getitem__(self, index: int) -> Any:
            if index % 10 == 0:
                raise LookupError(index)
            return self.make(index)

    dataset = Broken()
    failures = 0
    for index in RandomSampler(dataset, True, EPOCHS * N, generator):
        try:
            x, y = dataset[index]
        except LookupError as error:
            failures += error.args == (index,)
        else:
            assert (x == index).all()
            assert y == index
    assert failures == sum(index % 10 == 0 for index in expected)
    assert dataset.calls.sum() <= belady(expected, N // 3)


# Indices of other kinds.


def test_indices_of_other_kinds_give_what_the_dataset_gives() -> None:
    foretell()
    dataset, plain = Rows(), torch.arange(2 * N).view(N, 2)
    for index in (3, -1, -N, slice(2, 4), True, None, ..., np.int32(7), np.uint8(7), torch.tensor(7), [1, 2]):
        for _ in range(2):
            assert torch.equal(dataset[index], plain[index])
    for wrong in (N, -N - 1, "a", 1.5):
        for _ in range(2):
            with pytest.raises((IndexError, TypeError)):
                dataset[wrong]


@pytest.mark.parametrize(
    "index", [np.array([1, 2]), torch.tensor([1, 2]), torch.zeros(N, dtype=torch.bool), np.arange(0)], ids=str
)
def test_several_indices_give_what_the_dataset_gives(index: Any) -> None:
    foretell()
    assert torch.equal(Rows()[index], torch.arange(2 * N).view(N, 2)[index])


@pytest.mark.parametrize("kind", [fl.OPTCache, fl.cached])
def test_a_list_of_one_index_is_not_that_index(kind: Any) -> None:
    foretell()

    class Others(Dataset[Any]):
        @kind(maxsize=None)
        def __getitem__(self, index: Any) -> torch.Tensor:
            return torch.arange(2 * N).view(N, 2)[index]

    others = Others()
    assert [others[index].shape for index in (3, torch.tensor([3]), 3)] == [(2,), (1, 2), (2,)]


# The classic ones.


class Counted(Base):
    @fl.cached(maxsize=None, policy="lfu")
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.make(index)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_decorated_datasets_go_to_workers_of_all_kinds(method: str) -> None:
    dataset = Counted(40)
    dataset[3]
    loader: Any = DataLoader(
        dataset, batch_size=8, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    for _ in range(3):
        assert [i for _, y in loader for i in y.tolist()] == list(range(40))
    # Batches go to the same worker in each epoch, and each worker has a cache of its own.
    assert dataset.calls.sum() <= 40 + 1 + 40


@pytest.mark.parametrize(
    ("maxsize", "error"),
    [
        (-1, ValueError),
        ("1GiB", TypeError),
        (1.5, TypeError),
        (True, TypeError),
    ],
)
def test_wrong_sizes_are_named(maxsize: Any, error: Any) -> None:
    with pytest.raises(error, match="maxsize must be"):
        fl.cached(maxsize)


def test_forgotten_brackets_are_named() -> None:
    with pytest.raises(TypeError, match="with brackets"):
        fl.cached(lambda x: x)  # type: ignore[arg-type, misc]


def test_epochs_begun_side_by_side_keep_their_orders_without_batches() -> None:
    orders = []
    for cache in (None, fl.Cache("1MiB", policy="lru")):
        loader = fl.DataLoader(range(8), None, shuffle=True, seed=3, num_workers=0, cache=cache)  # type: ignore[arg-type]
        first, second = iter(loader), iter(loader)
        orders.append([list(first), list(second)])
    assert orders[0] == orders[1]


class Looked(list[int]):
    """Indices of a subset, which count how often they were looked through."""

    times = 0

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.times += 1
        return np.array(list(self))


def test_a_subset_is_looked_through_once_per_epoch() -> None:
    indices = Looked(range(8))
    loader = fl.DataLoader(Subset(list(range(10)), indices), num_workers=0, cache="1MiB")  # type: ignore[arg-type]
    list(loader)
    before = indices.times
    list(loader)
    assert indices.times - before == 1
