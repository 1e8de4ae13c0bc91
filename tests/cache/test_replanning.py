"""OPTCache in stock loaders with samplers of any length, over any number of epochs, against Belady's algorithm."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

import foreload as fl
from tests.cache.belady import belady
from tests.cache.stock_loaders import CAPACITY, SAMPLERS, Half, Make, N, is_best


def run(dataset: Any, sampler: Any, epochs: int, **arguments: Any) -> list[int]:
    """Return what a stock loader gives in some epochs, without a warning."""
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


def replayed(make: Make, epochs: int, seed: int, **arguments: Any) -> list[int]:
    """Return what a stock loader of a dataset without a cache gives."""
    generator = torch.Generator().manual_seed(seed)
    sampler = make(generator)
    own = {"generator": generator} if arguments.pop("shared", False) else {}
    loader: Any = DataLoader(range(N), sampler=sampler, batch_size=16, **own, **arguments)  # type: ignore[arg-type]
    return [index for _ in range(epochs) for batch in loader for index in batch.tolist()]


@pytest.mark.sampled(2)
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


@pytest.mark.slow
@pytest.mark.sampled(2)
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
        ("shuffled", {"multiprocessing_context": "forkserver"}),
        # Each of these workers imports everything anew. (In test_foreseen.py they do so in each epoch.)
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


@pytest.mark.sampled(1)
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


def test_what_a_loader_drops_of_each_shuffled_epoch_is_left_out_of_the_next_plans() -> None:
    generator = torch.Generator().manual_seed(4)
    fl.OPTInit(RandomSampler, generator, N)
    dataset = Half()
    loader: Any = DataLoader(
        dataset, 3 * N // 10, sampler=RandomSampler(dataset, generator=generator), drop_last=True
    )
    accesses = [int(y) for _ in range(8) for _, batch in loader for y in batch]
    # That of the first epoch is not known before its end.
    first = 9 * N // 10
    assert dataset.calls.sum() - first <= 1.02 * (belady(accesses, CAPACITY) - first)


@pytest.mark.sampled(2)
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
    assert dataset.calls.sum() <= 1.15 * belady(accesses, CAPACITY) + workers * 3 * 16 * 6


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
    assert dataset.calls.sum() <= 1.15 * belady(accesses, CAPACITY)


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
