"""Samples draw numbers that are named by seed, epoch and index, whoever loads them."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import foreload as fl
from foreload.batch.generators.keyed import KeyedGenerators

KINDS = [{"num_workers": 0}, {"num_workers": 2, "workers": "threads"}, {"num_workers": 2, "workers": "processes"}]


class RareDraw(Dataset[Any]):
    """Short samples of which a late one draws first; counts how often each is loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> float:
        self.loaded.append(index)
        return random.random() if index >= 2000 else 0.0


def test_a_first_draw_after_many_samples_is_keyed_too() -> None:
    """Samples that draw for the first time late in an epoch draw what they would have drawn from the first on."""
    dataset = RareDraw()
    found = torch.cat(list(fl.DataLoader(dataset, 100, num_workers=0, seed=2)))
    keyed = KeyedGenerators((2, 0))
    for index in (2000, 2001, 2555, 2999):
        with keyed.kept():
            keyed.key(index)
            assert found[index].item() == random.random()
    assert dataset.loaded == list(range(3000))


class PureRareDraw(Dataset[Any]):
    """The same, and nothing in it changes."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> float:
        return random.random() if index >= 2000 else 0.0


@pytest.mark.parametrize("kind", [PureRareDraw, RareDraw])
def test_by_default_a_late_draw_is_keyed_and_a_state_is_loaded_once(kind: Any) -> None:
    """By default samples draw what they would with a key each; what has a state is asked once for each."""
    dataset = kind()
    torch.manual_seed(4)
    found = torch.cat(list(fl.DataLoader(dataset, 100)))
    torch.manual_seed(4)
    keyed = KeyedGenerators((int(torch.empty((), dtype=torch.int64).random_()), 0))
    for index in (0, 2000, 2099, 2100, 2999):
        with keyed.kept():
            keyed.key(index)
            assert found[index].item() == (random.random() if index >= 2000 else 0.0)
    if kind is RareDraw:
        assert dataset.loaded == list(range(3000))


def mixed_up(samples: list[Any]) -> torch.Tensor:
    """A collate function that draws."""
    return torch.tensor(samples)[torch.randperm(len(samples))] + random.random() + np.random.rand()


@pytest.mark.parametrize("options", [{}, {"seed": 5}])
def test_collate_functions_draw_keyed_numbers(options: dict[str, Any]) -> None:
    """A collate function draws the same numbers for a batch, whichever worker makes it."""

    def batches(**kind: Any) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.cat(
            list(fl.DataLoader(list(range(40)), 8, shuffle=True, collate_fn=mixed_up, **options, **kind))
        )

    expected = batches()
    assert torch.equal(batches(), expected)
    if options:
        for kind in KINDS:
            assert torch.equal(batches(**kind), expected)


class Noise(IterableDataset[Any]):
    """A stream that draws."""

    def __iter__(self) -> Any:
        for index in range(20):
            yield index, random.gauss(0, 1), np.random.randn(), torch.randn(()).item()


def test_streams_draw_by_seed_apart_from_the_loop() -> None:
    """With seed=, a stream's numbers are the same for none and one worker, and the loop's are not touched."""

    def samples(**kind: Any) -> tuple[list[Any], Any]:
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        drawn = []
        found = []
        for batch in fl.DataLoader(Noise(), 4, seed=8, collate_fn=list, **kind):
            found += batch
            drawn.append((random.gauss(0, 1), np.random.randn(), torch.randn(()).item()))
        return found, drawn

    expected = samples(num_workers=0)
    for kind in ({"num_workers": 1, "workers": "threads"}, {"num_workers": 1, "workers": "processes"}, {}):
        assert samples(**kind) == expected


class Reads(Dataset[Any]):
    """Samples that are read on and on, of which only later ones draw random numbers."""

    def __init__(self) -> None:
        self.lines = iter(range(1_000))

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[int, float]:
        line = next(self.lines)
        return line, random.random() if line >= 30 else 0.0


@pytest.mark.parametrize("options", [{}, {"seed": 0}, {"seed": 0, "num_workers": 0}])
def test_a_sample_that_draws_first_in_the_middle_is_loaded_once(options: Any) -> None:
    lines = [line for batch in fl.DataLoader(Reads(), batch_size=8, **options) for line in batch[0].tolist()]
    assert lines == list(range(64))


class DrawsLate(Dataset[Any]):
    """Samples of which only later ones draw random numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        return random.random() if index >= 30 else 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_keeps_keyed_samples(kind: Any) -> None:
    epochs = []
    for state in range(2):
        random.seed(state)
        loader = fl.DataLoader(DrawsLate(), batch_size=8, seed=0, cache="1MiB", **kind)
        epochs.append([torch.cat(list(loader)).tolist() for _ in range(2)])
    assert epochs[0] == epochs[1]
    assert epochs[0][0] == epochs[0][1]


class Nested(Dataset[Any]):
    """Samples from a loader within."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> list[float]:
        return [*torch.cat(list(fl.DataLoader(DrawsLate(), batch_size=32))).tolist(), random.random()]


@pytest.mark.slow
def test_a_loader_within_a_worker_thread_draws_from_the_threads_generators() -> None:
    epochs = [list(fl.DataLoader(Nested(), batch_size=None, seed=0, **kind)) for kind in KINDS]
    assert epochs[0] == epochs[1] == epochs[2]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_loads_ahead_is_keyed_in_processes(persistent: bool) -> None:
    def epochs(**kind: Any) -> list[list[float]]:
        loader = fl.DataLoader(fl.AsyncPrefetchDataset(DrawsLate()), batch_size=8, seed=0, **kind)
        return [torch.cat(list(loader)).tolist() for _ in range(2)]

    expected = epochs(num_workers=0)
    assert epochs(num_workers=2, workers="processes", persistent_workers=persistent) == expected
    assert expected[0] != expected[1]


class SeedsTorch(Dataset[Any]):
    """Samples that are a function of their index because they seed torch's generator themselves."""

    def __init__(self, forks: bool) -> None:
        self.forks = forks

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng(enabled=self.forks):
            torch.manual_seed(index)
            held = torch.get_rng_state()
            first = torch.rand(2)
            torch.set_rng_state(held)
            assert torch.equal(first, torch.rand(2))
            return first, torch.initial_seed()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("kind", [{}, {"seed": 0}, *KINDS], ids=["auto", "seed", "none", "threads", "processes"])
def test_samples_may_seed_torch_in_any_thread(kind: dict[str, Any], forks: bool) -> None:
    """``torch.manual_seed()`` is about the generator that the sample draws from, in the main thread or another."""
    dataset = SeedsTorch(forks)
    expected = [list(map(torch.Tensor.tolist, batch)) for batch in torch.utils.data.DataLoader(dataset, 4)]
    found: list[Any] = []

    def load() -> None:
        found.append([list(map(torch.Tensor.tolist, batch)) for batch in fl.DataLoader(dataset, 4, **kind)])

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    load()
    assert found == [expected, expected]


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: Any) -> list[float]:
        return [float(index), random.random()]


class DrawnTogether(Drawn):
    def __getitems__(self, indices: Any) -> list[list[float]]:
        return [self[index] for index in indices]


def with_a_draw(samples: list[Any]) -> Any:
    return [*samples, random.random()]


@pytest.mark.parametrize("kind", [Drawn, DrawnTogether])
def test_an_index_is_the_same_one_in_every_type_and_every_container_of_a_batch(kind: Any) -> None:
    options: Any = {"num_workers": 0, "seed": 3, "collate_fn": with_a_draw}
    (expected,) = fl.DataLoader(kind(), batch_sampler=[[3, 1, 2]], **options)
    orders: list[Any] = [torch.tensor([3, 1, 2]), np.array([3, 1, 2], np.uint8)]
    for order in orders:
        assert list(fl.DataLoader(kind(), 3, sampler=order, **options)) == [expected]
        assert list(fl.DataLoader(kind(), batch_sampler=[order], **options)) == [expected]
    many = np.arange(2000)
    for batches in (many, torch.from_numpy(many), range(2000)):
        (found,) = fl.DataLoader(kind(), batch_sampler=[batches], **options)  # type: ignore[list-item]
        assert [found] == list(fl.DataLoader(kind(), 2000, sampler=range(2000), **options))


class DrawnByMask(Drawn):
    def __getitems__(self, mask: Any) -> list[list[float]]:
        return [self[index] for index in range(len(mask)) if mask[index]]


def test_each_mask_of_a_batch_draws_other_numbers_whatever_its_type() -> None:
    masks = [[True, False] * 1000, [True] * 2000]
    masks[1][1000] = False
    options: Any = {"num_workers": 0, "seed": 3, "collate_fn": list}
    drawn = [
        [batch[0] for batch in fl.DataLoader(DrawnByMask(), batch_sampler=batches, **options)]  # type: ignore[arg-type]
        for batches in (masks, list(map(np.array, masks)), list(map(torch.tensor, masks)))
    ]
    assert drawn[0][0] != drawn[0][1]
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_batch_with_labels_is_named_by_its_first_index() -> None:
    series = pytest.importorskip("pandas").Series
    options: Any = {"num_workers": 0, "seed": 3, "collate_fn": list}
    expected = list(fl.DataLoader(DrawnTogether(), batch_sampler=[[3, 1], [2, 4]], **options))
    batches = [series([3, 1], index=[7, 8]), series([2, 4], index=[1, 0])]
    assert list(fl.DataLoader(DrawnTogether(), batch_sampler=batches, **options)) == expected


class DrawnAtOnce(Drawn):
    def __getitem__(self, index: Any) -> list[float]:
        return [random.random()]


@pytest.mark.parametrize("of", [np.array, torch.tensor])
def test_a_long_array_as_an_index_draws_as_the_same_list(of: Any) -> None:
    orders = [list(range(2000)), [*range(1000), 0, *range(1001, 2000)]]
    options: Any = {"num_workers": 0, "seed": 3, "batch_size": None}
    first, second = (list(fl.DataLoader(DrawnAtOnce(), sampler=[order], **options)) for order in orders)  # type: ignore[list-item]
    assert first != second
    assert list(fl.DataLoader(DrawnAtOnce(), sampler=list(map(of, orders)), **options)) == [*first, *second]
