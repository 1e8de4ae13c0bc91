"""Samples that fail: raised, left out, or replaced; and always recorded."""

from __future__ import annotations

import contextlib
import copy
import os
import pathlib
import pickle
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import foreload as fl
from foreload.batch.failure import EpochErrors, SampleError

WORKERS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}
BAD = {3, 8, 9, 10, 11, 17}


class Broken(Dataset[int]):
    def __init__(self, size: int = 19) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index in BAD:
            raise FileNotFoundError(2, "there is no such picture", f"/data/{index}.jpg")
        return index


class BrokenTogether(Broken):
    """One bad sample spoils the batch."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class BrokenStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return BrokenIterator()


class BrokenIterator(Iterator[int]):
    def __init__(self) -> None:
        info = torch.utils.data.get_worker_info()
        self.at, self.step = (-1, 1) if info is None else (info.id - info.num_workers, info.num_workers)

    def __next__(self) -> int:
        self.at += self.step
        if self.at >= 19:
            raise StopIteration
        return Broken()[self.at]


def lists(loader: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", [Broken, BrokenTogether])
def test_samples_are_left_out_or_replaced_and_recorded(workers: str, kind: Any) -> None:
    expected = {
        "skip": [[0, 1, 2], [4, 5, 6, 7], [12, 13, 14, 15], [16, 18]],
        "replace": [[0, 1, 2, 0], [4, 5, 6, 7], [12, 13, 14, 15], [16, 18, 18]],
    }
    for action, batches in expected.items():
        loader: Any = fl.DataLoader(kind(), batch_size=4, on_error=action, **WORKERS[workers])
        for _ in range(2):
            assert lists(loader) == batches
        assert [error.index for error in loader.errors] == sorted(BAD) * 2
        error = loader.errors[0]
        assert error.source == "/data/3.jpg"
        assert error.error == "FileNotFoundError: [Errno 2] there is no such picture: '/data/3.jpg'"
        assert "in __getitem__" in error.traceback
        assert error.action == action
        assert str(error).startswith("sample 3 (/data/3.jpg): FileNotFoundError")


@pytest.mark.parametrize("workers", WORKERS)
def test_single_samples_are_left_out(workers: str) -> None:
    loader: Any = fl.DataLoader(Broken(), batch_size=None, on_error="skip", **WORKERS[workers])
    assert lists(loader) == [index for index in range(19) if index not in BAD]
    assert [error.index for error in loader.errors] == sorted(BAD)


@pytest.mark.parametrize("workers", WORKERS)
def test_streams_go_on(workers: str) -> None:
    loader: Any = fl.DataLoader(BrokenStream(), batch_size=4, on_error="skip", **WORKERS[workers])
    assert sorted(i for batch in lists(loader) for i in batch) == [i for i in range(19) if i not in BAD]
    assert len(loader.errors) == len(BAD)


@pytest.mark.parametrize("workers", WORKERS)
def test_too_many_are_an_error(workers: str) -> None:
    loader: Any = fl.DataLoader(Broken(), batch_size=4, on_error="skip", max_errors=4, **WORKERS[workers])
    with pytest.raises(RuntimeError, match=r"(?s)5 samples failed.*max_errors = 4.*sample 11.*in __getitem__"):
        list(loader)
    loader = fl.DataLoader(Broken(), batch_size=4, on_error="skip", max_errors=6, **WORKERS[workers])
    for _ in range(3):  # each epoch by itself
        list(loader)


@pytest.mark.parametrize("workers", WORKERS)
def test_of_two_loops_over_one_loader_each_has_its_own_failures(workers: str) -> None:
    loader: Any = fl.DataLoader(Broken(), batch_size=4, on_error="skip", max_errors=len(BAD), **WORKERS[workers])
    for one, other in zip(iter(loader), iter(loader), strict=True):
        assert one.tolist() == other.tolist()
    assert sorted(error.index for error in loader.errors) == sorted([*BAD, *BAD])


class Recounting(Broken):
    """Has a state, which a worker that replaces a killed one gets by loading its batches again."""

    loaded = 0

    def __getitem__(self, index: int) -> int:
        self.loaded += 1
        return super().__getitem__(index)

    def state_dict(self) -> dict[str, int]:
        return {"loaded": self.loaded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["loaded"]


@pytest.mark.parametrize("dataset", [Recounting(), BrokenStream()], ids=["map", "stream"])
def test_failures_of_a_killed_worker_are_recorded_once(dataset: Any) -> None:
    loader: Any = fl.DataLoader(
        dataset, batch_size=2, on_error="skip", max_errors=len(BAD), max_restarts=100, **WORKERS["processes"]
    )
    epoch = iter(loader)
    found = []
    for batch in epoch:
        found += batch.tolist()
        for worker in epoch._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
    assert sorted(found) == [index for index in range(19) if index not in BAD]
    assert len(loader.errors) == len(BAD)
    assert loader.restarts


@pytest.mark.parametrize("workers", ["here", "processes"])
@pytest.mark.parametrize("dataset", [Recounting(), BrokenStream()], ids=["map", "stream"])
def test_what_a_resume_passes_over_is_not_recorded_again(dataset: Any, workers: str) -> None:
    how = {"batch_size": 2, "on_error": "skip", "snapshot_every_n_steps": 100, **WORKERS[workers]}
    loader: Any = fl.DataLoader(copy.copy(dataset), **how)
    epoch = iter(loader)
    for _ in range(4):
        next(epoch)
    state = loader.state_dict()
    before = len(loader.errors)
    epoch.close()
    loader = fl.DataLoader(copy.copy(dataset), **how)
    loader.load_state_dict(state)
    list(loader)
    assert before > 0
    assert before + len(loader.errors) == len(BAD)


def test_a_copy_of_the_failures_records_nothing_elsewhere() -> None:
    loader: Any = fl.DataLoader(Broken(), batch_size=4, on_error="skip", num_workers=0)
    epoch = iter(loader)
    list(epoch)
    for copied in (copy.copy(epoch.errors), copy.deepcopy(epoch.errors), pickle.loads(pickle.dumps(epoch.errors))):
        assert list(copied) == list(epoch.errors)
        copied.append(copied[0])
    assert len(loader.errors) == len(epoch.errors) == len(BAD)


def test_only_what_the_thread_itself_loads_again_is_unrecorded() -> None:
    errors = EpochErrors()
    error = SampleError.of(3, ValueError("what?"), "skip")
    with errors.unrecorded():
        errors.append(error)
        thread = threading.Thread(target=errors.append, args=(error,))
        thread.start()
        thread.join()
    assert errors == [error]


@pytest.mark.parametrize("workers", WORKERS)
def test_without_it_the_exception_comes_as_it_is(workers: str) -> None:
    loader: Any = fl.DataLoader(Broken(), batch_size=4, **WORKERS[workers])
    with pytest.raises(FileNotFoundError) as caught:
        list(loader)
    assert caught.value.filename == "/data/3.jpg"
    assert "sample 3 (position 3 of its batch)" in "".join(caught.value.__notes__)
    assert loader.errors == []


def collate_no_seven(samples: list[int]) -> list[int]:
    if 7 in samples:
        raise ValueError("seven cannot be collated")
    return samples


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_that_cannot_be_collated_is_left_out(workers: str) -> None:
    loader: Any = fl.DataLoader(
        range(12), batch_size=4, on_error="replace", collate_fn=collate_no_seven, **WORKERS[workers]
    )
    assert lists(loader) == [[0, 1, 2, 3], [8, 9, 10, 11]]
    (error,) = loader.errors
    assert error.index == [4, 5, 6, 7]
    assert error.error == "ValueError: seven cannot be collated"


@pytest.mark.parametrize("workers", WORKERS)
def test_damaged_pictures_are_left_out_or_replaced(
    workers: str, photos: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    paths = sorted(photos.rglob("*.jpg"))[:10]
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(paths[0].read_bytes()[:200])
    for index in (2, 7):
        paths[index] = damaged
    whole = fl.ImageDataset(paths, labels=list(range(10)), transform=fl.transforms.val(32))
    for action, chosen in (
        ("skip", [[0, 1, 3], [4, 5, 6], [8, 9]]),
        ("replace", [[0, 1, 3, 3], [4, 5, 6, 4], [8, 9]]),
    ):
        loader: Any = fl.DataLoader(whole, batch_size=4, on_error=action, **WORKERS[workers])
        for (images, labels), indices in zip(loader, chosen, strict=True):
            assert labels.tolist() == indices
            assert torch.equal(images, torch.stack([whole[index][0] for index in indices]))
        assert [(error.index, error.source) for error in loader.errors] == [(2, str(damaged)), (7, str(damaged))]


class OnlyTogether(Dataset[int]):
    """Its batches are made as a whole, unlike samples that are asked for one by one."""

    def __len__(self) -> int:
        return 19

    def __getitem__(self, index: int) -> int:
        return -1

    def __getitems__(self, indices: list[int]) -> list[int]:
        if BAD.intersection(indices):
            raise FileNotFoundError(2, "there is no such picture")
        return [100 + index for index in indices if index != 2]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("seed", [None, 0])
def test_the_rest_of_a_batch_that_is_loaded_as_a_whole_is_loaded_as_other_batches_are(
    workers: str, seed: int | None
) -> None:
    dataset = OnlyTogether()
    options: Any = {"batch_size": 4, "seed": seed, **WORKERS[workers]}
    loader: Any = fl.DataLoader(dataset, on_error="skip", **options)
    assert lists(loader) == [[100, 101], [104, 105, 106, 107], [112, 113, 114, 115], [116, 118]]
    assert sorted(error.index for error in loader.errors) == sorted(BAD)
    replaced: Any = fl.DataLoader(dataset, on_error="replace", transform=lambda number: number * 2, **options)
    assert lists(replaced)[0] == [200, 202, 200]  # the first sample follows the last


class Columns(Broken):
    """Its batches are made of columns."""

    def __getitems__(self, indices: list[int]) -> Any:
        column = [self[index] for index in indices]
        return {"a": column, "b": column} if self.size == 19 else (column, column)


@pytest.mark.parametrize("cache", [None, "1MiB"])
@pytest.mark.parametrize("size", [19, 18], ids=["dict", "tuple"])
def test_a_batch_of_columns_that_fails_is_left_out_as_its_samples_cannot_be_told_apart(
    size: int, cache: str | None
) -> None:
    batches, cached = [[0, 1, 2], [4, 3, 5]], cache is not None
    options: Any = {"collate_fn": lambda batch: batch, "num_workers": 0, "cache": cache}
    loader: Any = fl.DataLoader(Columns(size), batch_sampler=batches, on_error="skip", **options)
    assert [len(batch) for batch in loader] == ([] if cached else [2])
    told = [error.index for error in loader.errors if "cannot be told apart" in str(error.error)]
    assert told == ([0, 1, 2, 4, 5] if cached else [4, 5])


def test_a_cache_keeps_what_is_good() -> None:
    loader: Any = fl.DataLoader(
        Broken(), batch_size=4, on_error="skip", cache="1MiB", num_workers=2, workers="threads"
    )
    for _ in range(3):
        assert lists(loader)[0] == [0, 1, 2]
    assert loader.stats()["cache"]["samples"] == 19 - len(BAD)


@pytest.mark.filterwarnings("ignore:.*has no state_dict")
@pytest.mark.parametrize("workers", WORKERS)
def test_an_epoch_goes_on_after_what_was_left_out(workers: str) -> None:
    loader: Any = fl.DataLoader(Broken(), batch_size=4, on_error="skip", **WORKERS[workers])
    iterator = iter(loader)
    assert lists(next(iterator) for _ in range(3))[2] == [12, 13, 14, 15]
    again: Any = fl.DataLoader(Broken(), batch_size=4, on_error="skip", **WORKERS[workers])
    again.load_state_dict(loader.state_dict())
    assert lists(again) == [[16, 18]]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="on_error must be one of raise, skip, replace"):
        fl.DataLoader([1], on_error="ignore")  # type: ignore[arg-type]
    for name in ("max_errors", "max_restarts"):
        with pytest.raises(ValueError, match=f"{name} must be 0 or more"):
            fl.DataLoader([1], **{name: -1})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=f"{name} must be an int"):
            fl.DataLoader([1], **{name: 1.5})  # type: ignore[arg-type]
