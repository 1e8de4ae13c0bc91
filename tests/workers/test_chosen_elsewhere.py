"""Workers that were chosen in one process are no choice for another, nor for a dataset with other code."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler, TensorDataset

import foreload as fl
from foreload.machine import granted_cores


def busy(index: int) -> int:
    return index + 0 * sum(range(2000))


class Busy(Dataset[int]):
    """Costs enough for processes to be worth it, and uses a function of this module."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return busy(index)


def values(loader: Any) -> list[int]:
    return torch.cat(list(loader)).tolist()


@pytest.mark.parametrize("more", [{}, {"cache": "1MiB"}], ids=["plain", "cache"])
def test_a_loader_that_was_used_loads_in_a_daemonic_child(
    more: dict[str, Any], choose: Callable[[int], None]
) -> None:
    choose(2)
    loader: Any = fl.DataLoader(Busy(), batch_size=8, **more)
    assert values(loader) == list(range(64))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(values(loader)), daemon=True)
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert answers.get() == list(range(64))


class Nested(Dataset[int]):
    """Loads through another loader, which the main process has used before."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return sum(values(self.inner))


def test_a_loader_that_was_used_loads_in_a_worker_of_another(choose: Callable[[int], None]) -> None:
    choose(2)
    inner: Any = fl.DataLoader(Busy(), batch_size=8)
    assert values(inner) == list(range(64))
    assert values(fl.DataLoader(Nested(inner), num_workers=2)) == [2016, 2016]


def test_a_loader_pickles_after_its_first_epoch() -> None:
    loader: Any = fl.DataLoader(Busy(), batch_size=8)
    assert values(loader) == list(range(64))
    assert values(pickle.loads(pickle.dumps(loader))) == list(range(64))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def seed_worker(worker: int) -> None:
    np.random.seed(worker)


@pytest.mark.parametrize("size", [None, 4])
def test_a_stream_with_a_worker_init_fn_is_read_once(size: int | None) -> None:
    found, stock = (
        [np.asarray(batch).tolist() for batch in kind(Stream(), batch_size=size, worker_init_fn=seed_worker)]
        for kind in (fl.DataLoader, TorchDataLoader)
    )
    assert found == stock


@pytest.mark.sampled(6)
@pytest.mark.parametrize("write", ["numpy", "torch", "data"])
@pytest.mark.parametrize("wrap", ["dataset", "subset", "list", "cached"])
@pytest.mark.parametrize("batch_size", [2, 16])
def test_large_batches_show_what_the_loop_has_just_written(wrap: str, write: str, batch_size: int) -> None:
    """As in torch without workers, whatever the size of a batch."""
    found = []
    for kind in (fl.DataLoader, TorchDataLoader):
        array = np.zeros((64, 128, 1024), np.float32)
        tensor = torch.from_numpy(array)
        if wrap == "cached":  # which shares what is in shared memory already
            tensor = tensor.share_memory_()
            array = tensor.numpy()
        rows = {"list": [(row,) for row in tensor], "cached": fl.CachedDataset((tensor,))}
        whole: Any = rows.get(wrap, TensorDataset(tensor))
        data = torch.utils.data.Subset(whole, range(64)) if wrap == "subset" else whole
        seen = []
        for step, (batch,) in enumerate(kind(data, batch_size=batch_size)):
            seen.append(batch[:, 5, 7].tolist())
            target = {"numpy": array, "torch": tensor, "data": tensor.data}[write]
            target[:, 5, 7] = step + 1
        found.append(seen)
    assert found[0] == found[1]


def test_the_choice_says_who_loads_values_in_memory() -> None:
    for data in (fl.CachedDataset(torch.zeros(64, 1 << 16)), TensorDataset(torch.zeros(64, 1 << 16))):
        for how, count in (({}, 0), ({"workers": "threads"}, granted_cores())):
            loader: Any = fl.DataLoader(data, batch_size=8, **how)
            list(loader)
            assert loader.stats()["workers"]["count"] == count
            assert (loader.stats()["workers"]["depth"] > 0) == (count > 0)


class FailsAtFirst(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        raise ValueError("no order today")
        yield 0


def test_a_sampler_that_raises_at_once_leaves_a_state_that_can_be_loaded() -> None:
    data = TensorDataset(torch.arange(8))
    loader: Any = fl.DataLoader(data, batch_size=2, num_workers=2, sampler=FailsAtFirst())
    with pytest.raises(ValueError, match="no order today"):
        next(iter(loader))
    state = loader.state_dict()
    again: Any = fl.DataLoader(data, batch_size=2, num_workers=2, sampler=range(8))
    again.load_state_dict({**state, **{key: again.state_dict()[key] for key in ("sampler",) if key in state}})


class Scaled(Dataset[int]):
    factor = 1

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        return index * self.factor


def scale(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.factor = 10


@pytest.mark.parametrize("more", [{"num_workers": 2}, {}], ids=["two", "auto"])
@pytest.mark.parametrize("view", [{}, {"cache": "1MiB"}, {"transform": int}], ids=["plain", "cache", "transform"])
def test_a_child_loads_by_workers_that_were_asked_for(more: dict[str, Any], view: dict[str, Any]) -> None:
    loader: Any = fl.DataLoader(Scaled(), batch_size=4, worker_init_fn=scale, **view, **more)
    assert values(loader) == [10 * index for index in range(32)]
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(values(loader)))
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert answers.get() == [10 * index for index in range(32)]
