"""Datasets as people write them load as torch loads them, by all kinds of workers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as Stock
from torch.utils.data import Dataset, get_worker_info

import foreload as fl
from tests.workers.order_dependent_datasets import RANDOM, STATEFUL, Counted, Drawn, OpenFile
from tests.workers.ordinary_datasets import DETERMINISTIC, SIZE, LazyFile, Sized, as_tensor, write_files

Make = Callable[[Path], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all datasets."""
    made = tmp_path_factory.mktemp("ordinary")
    write_files(made)
    return made


def seed_all(seed: int = 11) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def loop_numbers() -> tuple[Any, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def run(kind: Any, dataset: Any, epochs: int = 2, **options: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the batches of some epochs, and what the loop draws afterwards."""
    seed_all()
    options = {"batch_size": 7, "shuffle": True, **options}
    loader = kind(dataset, **options)
    batches = [batch for _ in range(epochs) for batch in loader]
    return batches, loop_numbers()


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_equal(found[name], value)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", DETERMINISTIC)
@pytest.mark.parametrize(
    ("ours", "stocks"),
    [
        ({}, {}),
        ({"num_workers": 0}, {}),
        ({"num_workers": 2}, {"num_workers": 2}),
        (
            {"num_workers": 2, "workers": "processes", "persistent_workers": True},
            {"num_workers": 2, "persistent_workers": True},
        ),
        ({"seed": 3}, None),
    ],
    ids=["default", "none", "two", "processes", "seed"],
)
def test_samples_are_stocks(make: Make, ours: dict[str, Any], stocks: dict[str, Any] | None, folder: Path) -> None:
    """Samples, their order and the numbers that the loop draws afterwards are those of stock torch."""
    if stocks is None:
        batches, _ = run(fl.DataLoader, make(folder), **ours)
        alone, _ = run(fl.DataLoader, make(folder), num_workers=0, **ours)
        assert_equal(batches, alone)
        return
    expected, numbers = run(Stock, make(folder), **stocks)
    found, after = run(fl.DataLoader, make(folder), **ours)
    assert_equal(found, expected)
    assert after == numbers


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", RANDOM)
@pytest.mark.parametrize("workers", ["auto", "processes"])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_random_numbers_are_stocks(make: Make, workers: Any, num_workers: int, folder: Path) -> None:
    """With a number of workers, samples and loop draw what they draw in torch."""
    expected, numbers = run(Stock, make(folder), num_workers=num_workers)
    found, after = run(fl.DataLoader, make(folder), num_workers=num_workers, workers=workers)
    assert_equal(found, expected)
    assert after == numbers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", RANDOM)
@pytest.mark.parametrize("options", [{}, {"seed": 9}], ids=["default", "seed"])
@pytest.mark.parametrize("batch_size", [7, None])
def test_random_numbers_do_not_depend_on_who_loads(
    make: Make, options: dict[str, Any], batch_size: int | None, folder: Path
) -> None:
    """With an open number of workers, or a seed, random numbers are keyed; runs repeat bit for bit."""
    options = {**options, "batch_size": batch_size}
    expected, numbers = run(fl.DataLoader, make(folder), **options)
    assert_equal(run(fl.DataLoader, make(folder), **options), (expected, numbers))
    counts = [0, 1, 2, 4] if "seed" in options else []
    for count in counts:
        for workers in ("threads", "processes"):
            found, after = run(fl.DataLoader, make(folder), num_workers=count, workers=workers, **options)
            assert_equal(found, expected)
            assert after == numbers
    first, second = expected[: len(expected) // 2], expected[len(expected) // 2 :]
    assert not all(torch.equal(torch.as_tensor(a[-1]), torch.as_tensor(b[-1])) for a, b in zip(first, second))


@pytest.mark.parametrize("make", STATEFUL)
def test_what_loading_changes_is_loaded_by_the_loops_thread(make: Make, folder: Path) -> None:
    """By default, a dataset with a state gives what it gives in torch by default."""
    expected, _ = run(Stock, make(folder))
    found, _ = run(fl.DataLoader, make(folder))
    assert_equal(found, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", STATEFUL)
def test_copies_have_a_state_each(make: Make, folder: Path) -> None:
    """With workers, each has a copy with the state of the beginning, as in torch."""
    if make is OpenFile:
        pytest.skip("stock's processes share the position of its file too, and give wrong samples")
    expected, _ = run(Stock, make(folder), num_workers=2, shuffle=False)
    found, _ = run(fl.DataLoader, make(folder), num_workers=2, shuffle=False)
    assert_equal(found, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [*DETERMINISTIC, *RANDOM])
def test_user_code_is_loaded_by_no_thread_unless_asked(make: Make, folder: Path) -> None:
    """The kind of workers is a rule, not a measurement."""
    loader = fl.DataLoader(make(folder), 10, num_workers=2)
    list(loader)
    assert loader.stats()["workers"]["kind"] == "processes"
    loader = fl.DataLoader(make(folder), 10)
    list(loader)
    workers = loader.stats()["workers"]
    assert workers["kind"] == "processes" or workers["count"] == 0


class Opened(Sized):
    """Torch's recipe: a worker_init_fn gives each copy its own file."""

    file: Any = None

    def __getitem__(self, index: int) -> torch.Tensor:
        self.file.seek(index * 16)
        return as_tensor(self.file.read(16))


def open_in_worker(worker: int) -> None:
    """Open the file of the worker's copy."""
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    dataset: Any = info.dataset
    dataset.file = open(dataset.folder / "records.bin", "rb")  # noqa: SIM115


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
def test_worker_init_fn_has_a_copy(options: dict[str, Any], folder: Path) -> None:
    """A worker_init_fn prepares a worker's own copy of the dataset, and leads to processes."""
    expected = torch.cat(list(Stock(LazyFile(folder), 7)))
    loader = fl.DataLoader(Opened(folder), 7, worker_init_fn=open_in_worker, **options)
    assert torch.equal(torch.cat(list(loader)), expected)
    assert loader.stats()["workers"]["kind"] == "processes"


class Failing(Sized):
    """Fails at one sample."""

    def __getitem__(self, index: int) -> int:
        if index == 23:
            raise LookupError("no sample 23")
        return index


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 2}])
def test_exceptions_are_stocks(options: dict[str, Any], folder: Path) -> None:
    """The same exception at the same batch, after the same batches."""
    stock_batches: list[Any] = []
    with pytest.raises(LookupError, match="no sample 23"):
        stock_batches += (batch for batch in Stock(Failing(folder), 5))
    batches = []
    with pytest.raises(LookupError, match="no sample 23") as caught:
        batches.extend(fl.DataLoader(Failing(folder), 5, **options))
    assert len(batches) == 4
    assert torch.equal(torch.cat(batches), torch.arange(20))
    assert any("sample 23" in note for note in caught.value.__notes__)


def double(sample: Any) -> Any:
    """Return twice a sample."""
    return sample * 2


@pytest.mark.parametrize("place", ["transform", "collate_fn", "dataset"])
def test_code_of_the_users_is_found_wherever_it_is(place: str) -> None:
    """A transform or a collate function of the user's keeps threads away, and thread_safe lets them in."""

    class Numbers(Dataset[int]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            return index

    dataset: Any = Numbers() if place == "dataset" else list(range(40))
    options = {} if place == "dataset" else {place: double if place == "transform" else torch.tensor}
    if place == "collate_fn":
        options = {"collate_fn": lambda samples: torch.tensor(samples)}
    loader = fl.DataLoader(dataset, 8, num_workers=2, **options)
    list(loader)
    assert loader.stats()["workers"]["kind"] == "processes"
    if place == "dataset":
        dataset.thread_safe = True
        loader = fl.DataLoader(dataset, 8, num_workers=2)
        list(loader)
        assert loader.stats()["workers"]["kind"] == "threads"


@pytest.mark.parametrize(
    "dataset",
    [
        list(range(SIZE)),
        [(index, f"{index}", torch.tensor(index)) for index in range(SIZE)],
        [{"x": np.arange(3) + index} for index in range(SIZE)],
        np.arange(SIZE * 2).reshape(SIZE, 2),
        torch.arange(SIZE),
        torch.utils.data.TensorDataset(torch.arange(SIZE), torch.rand(SIZE, 2)),
        torch.utils.data.Subset(torch.utils.data.TensorDataset(torch.arange(SIZE)), range(0, SIZE, 2)),
        torch.utils.data.ConcatDataset([list(range(SIZE)), torch.utils.data.Subset([1, 2, 3], [2, 0])]),
        torch.utils.data.StackDataset(list(range(SIZE)), torch.arange(SIZE)),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_values_in_memory_are_shared_by_threads(dataset: Any) -> None:
    """Lists, arrays and tensors are known to be right for threads, and torch's combinations of them."""
    loader = fl.DataLoader(dataset, 7, num_workers=2)
    assert_equal(list(loader), list(Stock(dataset, 7)))
    assert loader.stats()["workers"]["kind"] == "threads"
    assert_equal(list(fl.DataLoader(dataset, 7)), list(Stock(dataset, 7)))


class Stranger:
    """Something that may do anything when it is looked at."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_a_list_of_anything_is_not_known() -> None:
    """A list of objects of the user's is loaded by processes."""
    loader = fl.DataLoader([Stranger(n) for n in range(20)], 5, num_workers=2, collate_fn=len)
    assert list(loader) == [5] * 4
    assert loader.stats()["workers"]["kind"] == "processes"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", ["auto", "threads", "processes"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loops_generators_are_never_drawn_from(workers: Any, num_workers: int, folder: Path) -> None:
    """Numbers that the loop draws between batches do not depend on what loads in the background."""
    if num_workers == 0:
        pytest.skip("without workers, samples and loop draw from the same generators, as in torch")

    def numbers(kind: Any, **options: Any) -> list[Any]:
        seed_all()
        return [loop_numbers() for _ in kind(Drawn(folder), 7, num_workers=num_workers, **options)]

    assert numbers(fl.DataLoader, workers=workers) == numbers(Stock)


def test_a_counter_stays_in_the_loops_process_by_default(folder: Path) -> None:
    """By default, what loading changes in a dataset is there afterwards, as in torch."""
    dataset = Counted(folder)
    list(fl.DataLoader(dataset, 7))
    assert dataset.calls == SIZE


def doubled(sample: torch.Tensor) -> torch.Tensor:
    """A transform of the user's."""
    return sample * 2


def test_a_transform_set_between_epochs_is_found(tmp_path: Path) -> None:
    """The workers that may share a dataset are looked at for each epoch."""
    for index in range(8):
        (tmp_path / f"{index}.bin").write_bytes(bytes([index] * 4))
    dataset = fl.FileDataset(tmp_path)
    loader = fl.DataLoader(dataset, 4, num_workers=2)
    expected = torch.cat([batch[0] if isinstance(batch, list) else batch for batch in loader])
    assert loader.stats()["workers"]["kind"] == "threads"
    dataset.transform = doubled
    found = torch.cat([batch[0] if isinstance(batch, list) else batch for batch in loader])
    assert torch.equal(found, expected * 2)
    assert loader.stats()["workers"]["kind"] == "processes"


class Numbering:
    """A callable of the user's that counts its calls."""

    calls = 0

    def __call__(self, sample: Any) -> int:
        time.sleep(0.012)
        self.calls += 1
        return self.calls


@pytest.mark.parametrize("place", ["transform", "collate_fn"])
def test_what_a_transform_or_collate_function_changes_counts_too(place: str, folder: Path) -> None:
    """By default, code with a state gives what it gives in one thread, wherever it is."""
    loader = fl.DataLoader(LazyFile(folder), 1, **{place: Numbering()})
    assert [int(batch) for batch in loader] == list(range(1, SIZE + 1))
