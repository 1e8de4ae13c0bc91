"""A state that cannot be taken is an error for those who ask for one; loops load as they do in torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler

import foreload as fl

PARENT = os.getpid()


class Elsewhere:
    """Can be unpickled in workers only."""

    def __reduce__(self) -> Any:
        return make_elsewhere, ()


def make_elsewhere() -> Elsewhere:
    if os.getpid() == PARENT:
        raise TypeError("not in this process")
    return Elsewhere()


class Stateless:
    """Has a state by its methods' names, of another kind: an error, or what cannot be copied, sent or received."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def state_dict(self) -> Any:
        if self.kind == "raises":
            raise NotImplementedError("not before fit()")
        states = {"uncopied": memoryview(b""), "unpickled": lambda: None, "unreceived": Elsewhere()}
        return {"part": states[self.kind]}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError(state)


class Tens(Stateless, Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return 10 * index


class Stream(Stateless, IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


class Backwards(Stateless, Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5, -1, -1))

    def __len__(self) -> int:
        return 6


def made(part: str, kind: str) -> tuple[Any, dict[str, Any]]:
    if part == "sampler":
        return list(range(6)), {"sampler": Backwards(kind)}
    return (Tens if part == "dataset" else Stream)(kind), {}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["raises", "uncopied", "unpickled", "unreceived"])
@pytest.mark.parametrize("part", ["dataset", "stream", "sampler"])
def test_a_state_that_cannot_be_taken_keeps_no_loop_from_its_batches(part: str, kind: str, workers: int) -> None:
    dataset, options = made(part, kind)
    stock = TorchDataLoader(dataset, 2, num_workers=workers, **options)
    loader = fl.DataLoader(dataset, 2, num_workers=workers, **options)
    assert torch.cat(list(loader)).tolist() == torch.cat(list(stock)).tolist()


@pytest.mark.parametrize(("kind", "why"), [("unpickled", "be pickled"), ("unreceived", "be unpickled")])
def test_a_state_that_cannot_be_sent_is_said_when_it_is_wanted(kind: str, why: str) -> None:
    loader = fl.DataLoader(Tens(kind), 2, num_workers=2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match=f"the state of the dataset cannot {why}: "):
        loader.state_dict()
    assert len(list(batches)) == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("part", ["dataset", "stream", "sampler"])
def test_a_state_that_cannot_be_taken_is_said_when_it_is_wanted(part: str, workers: int) -> None:
    dataset, options = made(part, "raises")
    loader = fl.DataLoader(dataset, 2, num_workers=workers, **options)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match=r"cannot be taken: NotImplementedError: not before fit\(\)"):
        loader.state_dict()
    assert len(list(batches)) == (5 if part == "stream" and workers else 2)


@pytest.mark.parametrize("wrap", [False, True])
def test_so_it_is_if_batches_are_moved_to_a_device(wrap: bool) -> None:
    how: Any = {"device_transform": torch.clone}
    loader: Any = fl.DataLoader(Tens("raises"), 2, num_workers=0, **({} if wrap else {"device": "cpu", **how}))
    loader = fl.PrefetchLoader(loader, "cpu", **how) if wrap else loader
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match=r"cannot be taken: NotImplementedError: not before fit\(\)"):
        loader.state_dict()
    assert len(list(batches)) == 2
