"""If the loader chooses its number of workers, nothing shows which it has chosen."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, RandomSampler, Sampler, TensorDataset, get_worker_info
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

# Instead of a measurement: the calling thread, or processes.
COUNTS = [0, 2]


class Squares(Dataset[Any]):
    def __init__(self, size: int = 40) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index * index


class DrawsEach(Sampler[int]):
    """Draws each index from the loop's generators, of all three libraries."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(40):
            yield (random.randrange(40) + int(np.random.randint(40)) + int(torch.randint(40, ()))) % 40


class DrawsEpisodes(Sampler[Any]):
    """Draws each batch, as few-shot learning does."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(10):
            yield torch.randperm(40)[:4].tolist()


class DrawsFirst(Sampler[int]):
    """Draws the whole order when it is asked for the first index."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(40).tolist()
        random.shuffle(order)
        yield from order


class DrawsFromItsOwn(Sampler[int]):
    """Draws each index from a generator of its own, which the loop draws from too."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self) -> Iterator[int]:
        for _ in range(40):
            yield int(torch.randint(40, (), generator=self.generator))


class DrawsNowAndThen(Sampler[int]):
    """Draws sixteen indices at a time."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(5):
            yield from torch.randint(40, (16,)).tolist()


class Batches(BatchSampler):
    """A batch sampler of the user's around one of torch's."""


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "each": lambda: {"sampler": DrawsEach(), "batch_size": 4},
    "each alone": lambda: {"sampler": DrawsEach(), "batch_size": 1},
    "each without batches": lambda: {"sampler": DrawsEach(), "batch_size": None},
    "episodes": lambda: {"batch_sampler": DrawsEpisodes()},
    "first": lambda: {"sampler": DrawsFirst(), "batch_size": 4},
    "now and then": lambda: {"sampler": DrawsNowAndThen(), "batch_size": 4},
    "within": lambda: {"batch_sampler": Batches(RandomSampler(range(40)), 4, drop_last=False)},
    "own": lambda: {"sampler": DrawsFromItsOwn(), "batch_size": 4},
    "shuffle": lambda: {"shuffle": True, "batch_size": 4},
    "generator": lambda: {"shuffle": True, "batch_size": 4, "generator": torch.Generator().manual_seed(2)},
}

SOURCES: dict[str, Callable[[], Any]] = {
    "user's": Squares,
    "rows": lambda: TensorDataset(torch.arange(40 * (1 << 17)).view(40, -1)),
}


def drawn(loader: Any) -> list[Any]:
    """Return the batches of two epochs, and what the loop draws before, between and after them."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    generator = getattr(loader.sampler, "generator", None)
    seen: list[Any] = []
    for _ in range(2):
        batches = iter(loader)
        for batch in itertools.chain([None], batches):
            row = batch[0][..., 0] if isinstance(batch, list) else batch
            seen.append(row.tolist() if isinstance(row, torch.Tensor) else row)
            seen += [random.random(), float(np.random.rand()), torch.rand(1).item()]
            if generator is not None:
                seen.append(torch.rand(1, generator=generator).item())
    return seen


@pytest.mark.filterwarnings("error")
def test_a_sampler_that_draws_unexpectedly_while_threads_load_is_named_once() -> None:
    options: dict[str, Any] = {"batch_size": 4, "sampler": DrawsNowAndThen()}
    images = np.arange(40, dtype=np.uint8).repeat(8 * 8 * 3).reshape(40, 8, 8, 3)
    loader = fl.DataLoader(fl.ImageArrayDataset(images, range(40)), **options)
    with pytest.warns(UserWarning, match="DrawsNowAndThen drew random numbers .* generator of its own") as found:
        list(loader)
    assert len(found) == 1
    assert drawn(loader) == drawn(fl.DataLoader(loader.dataset, num_workers=0, **options))


@pytest.mark.sampled(14)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", COUNTS)
def test_samplers_and_loops_draw_as_without_workers(
    order: str, source: str, count: int, choose: Callable[[int], None]
) -> None:
    choose(count)
    if source == "rows" and order == "each without batches":
        pytest.skip("single rows are views")
    loader = fl.DataLoader(SOURCES[source](), **ORDERS[order]())
    assert drawn(loader) == drawn(TorchDataLoader(SOURCES[source](), **ORDERS[order]()))


class Breaks(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(22)
        raise ValueError("the sampler is broken")


@pytest.mark.parametrize("count", COUNTS)
def test_the_error_of_a_sampler_comes_in_its_place(count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    batches = iter(fl.DataLoader(Squares(), batch_size=4, sampler=Breaks()))
    assert [next(batches).tolist()[0] for _ in range(5)] == [0, 16, 64, 144, 256]
    with pytest.raises(ValueError, match="the sampler is broken"):
        next(batches)
    assert list(batches) == []


class Held(Dataset[Any]):
    """Gives what it holds, not copies."""

    def __init__(self) -> None:
        self.rows = [{"x": torch.zeros(2), "y": [np.zeros(2)]} for _ in range(40)]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 2, "collate_fn": list}])
def test_what_the_loop_writes_into_what_the_dataset_holds_is_in_the_next_epoch(
    options: dict[str, Any], choose: Callable[[int], None]
) -> None:
    choose(2)
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        loader, seen = kind(Held(), **options), []
        for _ in range(2):
            for batch in loader:
                sample = batch if isinstance(batch, dict) else batch[0]
                seen.append((sample["x"].tolist(), "y" in sample))
                sample["x"] += 1
                sample.pop("y", None)
        found.append(seen)
    assert found[0] == found[1]


class Tall(Dataset[Any]):
    """Images in the memory format of channels last, and who loads them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        image = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        return image, get_worker_info() is None, multiprocessing.current_process().daemon


@pytest.mark.parametrize("count", COUNTS)
def test_samples_and_strides_do_not_show_a_worker(count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    for image, is_alone, is_daemon in fl.DataLoader(Tall(), batch_size=4):
        assert image.stride() == next(iter(TorchDataLoader(Tall(), batch_size=4)))[0].stride()
        assert is_alone.all()
        assert not is_daemon.any()


def put(results: Any, number: int) -> None:
    results.put(number)


class StartsProcesses(Squares):
    def __getitem__(self, index: int) -> int:
        results = multiprocessing.get_context("fork").SimpleQueue()
        process = multiprocessing.get_context("fork").Process(target=put, args=(results, index))
        process.start()
        number = int(results.get())
        process.join()
        return number


@pytest.mark.parametrize("count", COUNTS)
def test_samples_may_be_loaded_by_processes_of_the_users(count: int, choose: Callable[[int], None]) -> None:
    choose(count)
    loader = fl.DataLoader(StartsProcesses(6), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


class Nested(Squares):
    """Has a loader in it."""

    def __init__(self) -> None:
        super().__init__(4)
        self.loader = fl.DataLoader(Squares(), batch_size=20)

    def __getitem__(self, index: int) -> Any:
        total = sum(int(batch.sum()) for batch in self.loader)
        return total, self.loader.stats()["workers"]["count"]


def test_a_loader_in_a_worker_chooses_the_calling_thread(choose: Callable[[int], None]) -> None:
    choose(2)
    (batch,) = fl.DataLoader(Nested(), batch_size=4)
    assert [part.tolist() for part in batch] == [[sum(index * index for index in range(40))] * 4, [0] * 4]


class Logs(Squares):
    def __getitem__(self, index: int) -> int:
        logging.getLogger("choice").warning("sample %d", index)
        return index


def test_measuring_writes_nothing_into_an_open_log(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    logger = logging.getLogger("choice")
    logger.addHandler(handler)
    try:
        loader = fl.DataLoader(Logs(64), batch_size=4)
        list(loader)
        assert loader.stats()["workers"]["samples_per_second"]  # it was measured
    finally:
        logger.removeHandler(handler)
        handler.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"sample {index}" for index in range(64))
