"""Changes that a loop makes to a sampler after it has asked for an iterator take effect as in torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

SIZE = 40


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


class Own(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from reversed(range(SIZE))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(range(SIZE)),
    "random": lambda: RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(1)),
    "distributed": lambda: DistributedSampler(Numbers(), num_replicas=2, rank=1),
    "own": Own,
}


def ramp(loader: Any, sizes: dict[int, int]) -> list[Any]:
    found = []
    for step, batch in enumerate(loader):
        found.append(batch.tolist())
        if step in sizes:
            loader.batch_sampler.batch_size = sizes[step]
    return found


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {}, {"num_workers": 2, "workers": "processes"}], ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_batch_size_may_change_within_an_epoch(name: str, drop_last: bool, workers: Any) -> None:
    sizes = {1: 5, 3: 1, 6: 9}
    batch_samplers = [BatchSampler(SAMPLERS[name](), 3, drop_last) for _ in range(2)]
    stock = {"num_workers": workers.get("num_workers", 0)}
    expected = TorchDataLoader(Numbers(), batch_sampler=batch_samplers[0], **stock)
    found = fl.DataLoader(Numbers(), batch_sampler=batch_samplers[1], **workers)
    for _ in range(2):
        assert ramp(found, sizes) == ramp(expected, sizes)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_state_is_right_where_the_batch_size_has_changed(name: str, steps: int) -> None:
    loader = fl.DataLoader(Numbers(), batch_sampler=BatchSampler(SAMPLERS[name](), 3, False), num_workers=0)
    whole = [number for batch in loader for number in batch.tolist()]
    loader = fl.DataLoader(Numbers(), batch_sampler=BatchSampler(SAMPLERS[name](), 3, False), num_workers=0)
    taken: list[int] = []
    for step, batch in enumerate(loader):
        taken += batch.tolist()
        if step + 1 == steps:
            state = loader.state_dict()
            break
        loader.batch_sampler.batch_size = 2 + step  # type: ignore[union-attr]
    again = fl.DataLoader(Numbers(), batch_sampler=BatchSampler(SAMPLERS[name](), 3, False), num_workers=0)
    again.load_state_dict(state)
    assert taken + [number for batch in again for number in batch.tolist()] == whole


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {}, {"num_workers": 0, "cache": "1MiB"}, {"num_workers": 1}], ids=str
)
def test_an_epoch_may_be_set_between_the_iterator_and_its_first_batch(options: Any) -> None:
    def begin(make: Any, **how: Any) -> tuple[Any, Any]:
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=4)
        loader = make(Numbers(), batch_size=3, sampler=sampler, **how)
        iterator = iter(loader)
        sampler.set_epoch(5)
        return loader, iterator

    _, stock = begin(TorchDataLoader, num_workers=options.get("num_workers", 0))
    expected = [batch.tolist() for batch in stock]
    loader, iterator = begin(fl.DataLoader, **options)
    before = loader.state_dict()
    first = [next(iterator).tolist() for _ in range(2)]
    state = loader.state_dict()
    assert first + [batch.tolist() for batch in iterator] == expected
    sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=4)
    again = fl.DataLoader(Numbers(), batch_size=3, sampler=sampler, **options)
    again.load_state_dict(state)
    assert first + [batch.tolist() for batch in again] == expected
    again.load_state_dict(before)
    assert [batch.tolist() for batch in again] == expected


def test_a_sampler_without_batches_is_asked_for_its_order_by_iter() -> None:
    def samples(make: Any) -> list[int]:
        sampler = DistributedSampler(Numbers(), num_replicas=2, rank=0, seed=4)
        iterator = iter(make(Numbers(), batch_size=None, sampler=sampler, num_workers=0))
        sampler.set_epoch(5)
        return list(map(int, iterator))

    assert samples(fl.DataLoader) == samples(TorchDataLoader)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [0, -1, None, np.int64(5), torch.tensor(5), np.uint8(200)], ids=repr)
@pytest.mark.parametrize("name", SAMPLERS)
def test_batch_sizes_of_any_kind_are_taken_as_torch_takes_them(name: str, size: Any, drop_last: bool) -> None:
    def sizes(make: Any, when: int) -> list[Any]:
        loader: Any = make(Numbers(), batch_sampler=BatchSampler(SAMPLERS[name](), 3, drop_last), num_workers=0)
        found: list[Any] = []
        try:
            iterator = iter(loader)
            for step in range(SIZE):
                if step == when:
                    loader.batch_sampler.batch_size = size
                found.append(len(next(iterator)))
                if make is fl.DataLoader:
                    json.dumps(loader.state_dict())
        except StopIteration:
            pass
        except ValueError as error:
            found.append(type(error))
        return found

    for when in range(0 if size == 5 else 1, 3):
        assert sizes(fl.DataLoader, when) == sizes(TorchDataLoader, when)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        yield from range(30) if worker is None else range(worker.id, 30, worker.num_workers)


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["no workers", "workers", "persistent workers"],
)
def test_the_batch_size_of_a_stream_may_change_between_epochs(options: Any) -> None:
    def batches(loader: Any) -> list[Any]:
        found = []
        for size in (4, 2):
            found.append([batch.tolist() for batch in loader])
            loader.batch_sampler.batch_size = size
        return [*found, [batch.tolist() for batch in loader]]

    expected = batches(TorchDataLoader(Stream(), batch_size=3, **options))
    assert batches(fl.DataLoader(Stream(), batch_size=3, workers="processes", **options)) == expected
    assert batches(fl.DataLoader(Stream(), batch_size=3, workers="threads", **options)) == expected
