"""Loaders and iterators that a framework holds, ends or pickles."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import foreload as fl
from tests import leftovers
from tests.frameworks.parts import Regression
from tests.frameworks.reset import reset


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(1000)


LOADERS: dict[str, Any] = {
    "threads": (Regression(), {"num_workers": 2, "workers": "threads"}),
    "tuned threads": (Regression(), {"workers": "threads"}),
    "persistent threads": (Regression(), {"num_workers": 2, "workers": "threads", "persistent_workers": True}),
    "processes": (Regression(), {"num_workers": 2, "workers": "processes"}),
    "persistent processes": (Regression(), {"num_workers": 2, "workers": "processes", "persistent_workers": True}),
    "stream": (Stream(), {"num_workers": 1, "workers": "threads"}),
    "persistent stream": (Stream(), {"num_workers": 1, "workers": "threads", "persistent_workers": True}),
    "no workers": (Regression(), {"num_workers": 0}),
    "rows": (TensorDataset(torch.arange(64)), {"num_workers": 0}),
}


@pytest.mark.parametrize("name", LOADERS)
def test_an_epoch_ends_when_the_loader_is_reset_whoever_holds_it(name: str) -> None:
    data, options = LOADERS[name]
    before = leftovers.processes()
    loader: Any = fl.DataLoader(data, batch_size=4, **options)
    held = [iter(loader)]
    next(held[0])
    if not options.get("persistent_workers"):
        held.append(iter(loader))
        next(held[1])
    reset(loader)
    assert not leftovers.threads()
    assert not leftovers.running(before)
    # The loader is as good as new.
    assert len([*zip(loader, range(5))]) == 5
    reset(loader)
    assert not leftovers.threads()
    assert not leftovers.running(before)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_an_exception_that_is_kept_holds_no_workers_of_a_loader_that_is_reset(workers: Any) -> None:
    before = leftovers.processes()
    loader: Any = fl.DataLoader(Regression(bad=frozenset({9})), batch_size=4, num_workers=2, workers=workers)
    with pytest.raises(ValueError, match="sample 9 is bad") as kept:
        list(loader)
    reset(loader)
    assert not leftovers.threads()
    assert not leftovers.running(before)
    assert kept.value is not None


def test_workers_that_were_ended_are_seeded_anew_as_torchs_are() -> None:
    def drawn(make: Any, **options: Any) -> tuple[int, ...]:
        loader = make(Regression(), batch_size=32, num_workers=1, persistent_workers=True, **options)
        states = []
        torch.manual_seed(0)
        for is_reset in (False, True, False):
            list(loader)
            if is_reset:
                if loader._iterator is not None and hasattr(loader._iterator, "_shutdown_workers"):
                    loader._iterator._shutdown_workers()
                reset(loader)
            states.append(int(torch.get_rng_state().sum()))
        reset(loader)
        return tuple(states)

    assert drawn(fl.DataLoader, workers="processes") == drawn(DataLoader)


@pytest.mark.parametrize("name", LOADERS)
def test_iterators_are_no_more_pickled_than_torchs(name: str) -> None:
    data, options = LOADERS[name]
    loader: Any = fl.DataLoader(data, batch_size=4, **options)
    batches = iter(loader)
    next(batches)
    assert isinstance(batches, _BaseDataLoaderIter)  # by which Lightning's combined loaders leave it out
    theirs = iter(DataLoader(TensorDataset(torch.arange(4))))
    for iterator in (batches, theirs):
        with pytest.raises(NotImplementedError):
            pickle.dumps(iterator)
        with pytest.raises(NotImplementedError):
            copy.deepcopy(iterator)
    reset(loader)


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_with_an_open_iterator_is_pickled(name: str) -> None:
    data, options = LOADERS[name]
    loader: Any = fl.DataLoader(data, batch_size=4, **options)
    batches = iter(loader)
    first = next(batches)
    other = pickle.loads(pickle.dumps(loader))
    again = iter(other)
    assert str(next(again)) == str(first)
    for each in (loader, other, copy.deepcopy(loader)):
        reset(each)
    assert not leftovers.threads()
