"""DataLoader(cache=) when transforms, samples, workers or loops fail, stop or are random."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler, Subset

import foreload as fl
from tests.cache.varied import SIZE, Varied, listed, plain, sample_of


def is_random(sample: dict[str, Any]) -> torch.Tensor:
    return sample["x"][:5] + torch.rand(())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", [None, "fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_random_transform_is_random_each_time_and_the_dataset_is_not_asked_again(
    method: str | None, persistent: bool
) -> None:
    dataset = Varied()
    loader: Any = fl.DataLoader(
        dataset,
        batch_size=10,
        transform=is_random,
        cache="1MiB",
        num_workers=2,
        workers="threads" if method is None else "processes",
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    epochs = [torch.cat(list(loader)) for _ in range(3)]
    assert (dataset.calls == 1).all()
    whole = torch.stack([sample_of(index)["x"][:5] for index in range(SIZE)])
    for epoch in epochs:
        assert torch.equal(epoch.floor().long(), whole)
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(epochs, 2))
    loader.close()


def test_a_transform_may_change_what_it_is_given() -> None:
    def in_place(sample: dict[str, Any]) -> torch.Tensor:
        sample["x"] += 1
        return sample["x"][0]

    loader = fl.DataLoader(
        Varied(), batch_size=10, transform=in_place, cache="1MiB", num_workers=2, workers="threads"
    )
    for _ in range(3):
        assert torch.cat(list(loader)).tolist() == [1] * SIZE


def test_seeds_and_epochs_are_those_without_a_cache() -> None:
    def order(cache: Any, workers: int) -> list[list[str]]:
        loader = fl.DataLoader(
            Varied(),
            batch_size=9,
            shuffle=True,
            seed=5,
            cache=cache,
            num_workers=workers,
            workers="threads",
            collate_fn=listed,
        )
        got = []
        for epoch in (None, None, 7, 0, None):
            if epoch is not None:
                loader.set_epoch(epoch)
            got.append([sample["name"] for batch in loader for sample in batch])
        return got

    expected = order(None, 0)
    assert order(40_000, 0) == order(40_000, 3) == order("1MiB", 2) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_raises_does_so_each_time_and_the_others_come(workers: int) -> None:
    class Broken(Varied):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index % 7 == 3:
                self.calls[index] += 1
                raise LookupError(f"no {index}")
            return super().__getitem__(index)

    dataset = Broken()
    loader = fl.DataLoader(dataset, batch_size=None, num_workers=workers, workers="threads", cache="1MiB")
    for epoch in range(3):
        iterator, got, failed = iter(loader), [], 0
        while True:
            try:
                got.append(next(iterator)["name"])
            except StopIteration:
                break
            except LookupError:
                failed += 1
        bad = [index for index in range(SIZE) if index % 7 == 3]
        assert failed == len(bad)
        assert got == [f"sample {index}" for index in range(SIZE) if index not in bad]
        assert all(dataset.calls[index] == (epoch + 1 if index in bad else 1) for index in range(SIZE))


class Many(Varied):
    """Loads several at once, and now and then none."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("it has __getitems__")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.asked.append(list(indices))
        if 13 in indices and sum(13 in batch for batch in self.asked) % 2:
            raise LookupError("13")
        self.calls[torch.tensor(indices)] += 1
        return [sample_of(index) for index in indices]


def test_a_dataset_that_loads_several_at_once_is_asked_for_what_is_missing() -> None:
    dataset = Many()
    loader = fl.DataLoader(dataset, batch_size=10, collate_fn=listed, num_workers=0, cache="1MiB")
    with pytest.raises(LookupError, match="13"):
        list(loader)
    for _ in range(2):
        names = [sample["name"] for batch in loader for sample in batch]
        assert names == [f"sample {index}" for index in range(SIZE)]
    assert (dataset.calls == 1).all()
    assert [len(batch) for batch in dataset.asked] == [10] * 11


class Fewer(Many):
    def __getitems__(self, indices: list[int]) -> Any:
        return (sample_of(index) for index in indices if index != 3)


def test_several_samples_may_be_a_generator_but_none_may_be_left_out() -> None:
    options: Any = {"collate_fn": listed, "num_workers": 0, "cache": "1MiB"}
    (batch,) = fl.DataLoader(Fewer(), batch_sampler=[[1, 2, -1]], **options)
    assert [sample["name"] for sample in batch] == ["sample 1", "sample 2", "sample -1"]
    for batches in ([[1, 2, 3]], [[-1, 3]]):
        with pytest.raises(
            ValueError, match=r"__getitems__\(\) of Fewer returned \d samples for .* leave out cache="
        ):
            list(fl.DataLoader(Fewer(), batch_sampler=batches, **options))


@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("seed", [None, 0])
def test_samples_without_a_place_in_the_cache_are_loaded_together_too(subset: bool, seed: int | None) -> None:
    dataset: Any = Many()
    dataset = Subset(dataset, range(SIZE)) if subset else dataset
    batches = [[1, -1, 2, -SIZE], [-2, -2], [2, 3]]
    stock: Any = torch.utils.data.DataLoader(dataset, batch_sampler=batches, collate_fn=listed)
    expected = [[plain(sample) for sample in batch] for batch in stock]
    loader: Any = fl.DataLoader(
        dataset, batch_sampler=batches, collate_fn=listed, num_workers=0, cache="1MiB", seed=seed
    )
    for _ in range(2):
        assert [[plain(sample) for sample in batch] for batch in loader] == expected
    assert loader.stats()["cache"]["samples"] == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_two_epochs_that_are_open_at_once_and_two_loaders_in_two_threads(workers: int) -> None:
    dataset = Varied()
    sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(0))
    loader = fl.DataLoader(
        dataset,
        batch_size=5,
        collate_fn=listed,
        num_workers=workers,
        workers="threads",
        sampler=sampler,
        cache=50_000,
    )
    others = fl.DataLoader(
        Varied(), batch_size=5, collate_fn=listed, num_workers=workers, workers="threads", cache=50_000
    )
    errors: list[BaseException] = []

    def check(loader: Any) -> None:
        try:
            for _ in range(3):
                for batch in loader:
                    for sample in batch:
                        assert plain(sample) == plain(sample_of(int(sample["name"].split()[1])))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=check, args=(each,)) for each in (loader, others, others)]
    for thread in threads:
        thread.start()
    first, second = iter(loader), iter(loader)
    for batches in itertools.zip_longest(first, second):
        for sample in itertools.chain(*batches):
            assert plain(sample) == plain(sample_of(int(sample["name"].split()[1])))
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert not errors
    for each in (loader, others):
        counts = each.stats()["cache"]
        assert counts["peak"] <= counts["room"] <= 50_000


class Deadly(Varied):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 13 and self.calls[13] == 0:
            self.calls[13] += 1
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("persistent", [False, True])
def test_after_a_killed_worker_the_next_epoch_is_whole(persistent: bool) -> None:
    dataset = Deadly()
    loader: Any = fl.DataLoader(
        dataset,
        batch_size=5,
        collate_fn=listed,
        num_workers=2,
        workers="processes",
        persistent_workers=persistent,
        cache="1MiB",
        max_restarts=0,
    )
    with pytest.raises(RuntimeError, match="killed by signal"):
        list(loader)
    for _ in range(2):
        for number, sample in enumerate(sample for batch in loader for sample in batch):
            assert plain(sample) == plain(sample_of(number))
    assert dataset.calls[13] == 2


def test_a_fork_in_the_middle_of_an_epoch_goes_on_alone() -> None:
    dataset = Varied()
    loader = fl.DataLoader(dataset, batch_size=None, collate_fn=listed, num_workers=0, cache="1MiB")
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)

    def child() -> None:
        for _ in range(2):
            for number, sample in enumerate(loader):
                assert plain(sample) == plain(sample_of(number))

    process: Any = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    for number, sample in enumerate(iterator, 10):
        assert plain(sample) == plain(sample_of(number))
    process.join(300)
    assert process.exitcode == 0
    assert (dataset.calls == 1).all()  # one cache


def test_an_interrupted_loop_can_be_run_again() -> None:
    class Interrupting(Varied):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 50 and self.calls[50] < 2:
                self.calls[50] += 1
                signal.raise_signal(signal.SIGINT)
            return super().__getitem__(index)

    loader = fl.DataLoader(Interrupting(), batch_size=5, collate_fn=listed, num_workers=0, cache="1MiB")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    assert [sample["name"] for batch in loader for sample in batch] == [f"sample {i}" for i in range(SIZE)]


def test_budgets_at_the_edges() -> None:
    for budget in (0, 1, 64, 500):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loader = fl.DataLoader(Varied(), batch_size=None, num_workers=0, cache=budget)
            for _ in range(2):
                assert [sample["name"] for sample in loader] == [f"sample {index}" for index in range(SIZE)]
        said = {str(warning.message) for warning in warned if "budget" in str(warning.message)}
        assert len(said) == 1
        assert f"{budget:,}" in said.pop()
        counts = loader.stats()["cache"]
        assert counts["peak"] <= counts["room"] <= budget


def test_budgets_may_come_from_numpy() -> None:
    assert fl.Cache(np.int64(1000)).bytes == 1000  # type: ignore[arg-type]


def test_the_exception_of_a_sample_is_the_same_with_and_without_a_cache() -> None:
    class Raising(Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            raise [ValueError, KeyError, IndexError, OSError, RuntimeError][index](f"no {index}")

    for index in range(5):
        told = []
        for cache in (None, "1MiB"):
            with pytest.raises(Exception) as caught:
                list(fl.DataLoader(Raising(), batch_size=2, sampler=[index], num_workers=0, cache=cache))
            told.append((caught.type, str(caught.value), getattr(caught.value, "__notes__", None)))
        assert told[0] == told[1]
