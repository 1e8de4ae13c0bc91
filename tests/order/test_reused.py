"""Buffers that samplers and streams reuse are read as they were yielded; and any index that torch takes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

import foreload as fl
from tests.order.reused_batches import (
    BATCHES,
    Made,
    inner_lists,
    lists_of_slices,
    one_array,
    one_list,
    texts,
    tuples_of_lists,
)
from tests.pairwise import pairwise

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

KINDS: dict[str, dict[str, Any]] = {
    "here": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "auto": {},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def identity(value: Any) -> Any:
    return value


class Echo(Dataset[Any]):
    """A sample is its index, as text."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: Any) -> str:
        return repr(index.tolist() if hasattr(index, "tolist") else index)


class EchoAll(Echo):
    """A batch is its indices, as text."""

    def __getitems__(self, indices: Any) -> list[str]:
        if isinstance(indices, slice):
            return [repr(index) for index in range(24)[indices]]
        return [self[index] for index in indices]


class Numbers(Dataset[Any]):
    def __init__(self) -> None:
        self.numbers = torch.arange(100)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: Any) -> Any:
        return self.numbers[index]


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("kind", "make", "dataset"), pairwise(KINDS, BATCHES, [Echo, EchoAll]))
def test_batches_are_as_the_sampler_yielded_them(kind: str, make: Any, dataset: Any) -> None:
    options: Any = {"batch_sampler": Made(make), "collate_fn": identity}
    # Torch's own workers race with the sampler.
    expected = list(TorchDataLoader(dataset(), **options))
    assert list(fl.DataLoader(dataset(), **options, **KINDS[kind])) == expected


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("kind", "make", "wrap"),
    pairwise(
        KINDS,
        [make for make in BATCHES if make not in (inner_lists, tuples_of_lists, texts, lists_of_slices)],
        [TensorDataset, fl.CachedDataset],
    ),
)
def test_batches_of_tensors_too(kind: str, make: Any, wrap: Any) -> None:
    dataset = wrap(torch.arange(100) * 10)
    expected = [default_collate(batch) for batch in map(list, _as_torch(make, wrap))]
    batches = list(fl.DataLoader(dataset, batch_sampler=Made(make), **KINDS[kind]))
    assert [_listed(batch) for batch in batches] == [_listed(batch) for batch in expected]


def _as_torch(make: Any, wrap: Any) -> Iterator[Any]:
    data = torch.arange(100) * 10
    for batch in make():
        yield [(data[index],) if wrap is TensorDataset else data[index] for index in batch]


def _listed(batch: Any) -> Any:
    return [part.tolist() for part in batch] if isinstance(batch, (list, tuple)) else batch.tolist()


@every_kind
def test_slices_in_a_batch_of_tensors(kind: str) -> None:
    options: Any = {"batch_sampler": Made(lists_of_slices)}
    dataset = TensorDataset(torch.arange(100), torch.arange(200).view(100, 2))
    expected = [_listed(batch) for batch in TorchDataLoader(dataset, **options)]
    assert [_listed(batch) for batch in fl.DataLoader(dataset, **options, **KINDS[kind])] == expected
    masks = Made(lambda: iter([[torch.arange(100) < 3, torch.arange(100) > 96]]))
    expected = [_listed(batch) for batch in TorchDataLoader(dataset, batch_sampler=masks)]
    assert [_listed(batch) for batch in fl.DataLoader(dataset, batch_sampler=masks, **KINDS[kind])] == expected


SLICES = [slice(0, 4), slice(4, 20, 3), slice(None, 5), slice(-3, None), slice(10, 0, -2), slice(200, 300)]


@every_kind
def test_slices_are_batches_where_the_dataset_takes_them(kind: str) -> None:
    options: Any = {"batch_sampler": Made(lambda: iter(SLICES[:5])), "collate_fn": identity}
    expected = list(TorchDataLoader(EchoAll(), **options))
    assert list(fl.DataLoader(EchoAll(), **options, **KINDS[kind])) == expected
    with pytest.raises(TypeError, match="'slice' object is not iterable"):
        list(TorchDataLoader(Echo(), **options))
    with pytest.raises(TypeError, match="'slice' object is not iterable"):
        list(fl.DataLoader(Echo(), **options, **KINDS[kind]))


@every_kind
def test_slices_are_batches_of_our_own_datasets(kind: str) -> None:
    data = torch.arange(200.0).view(100, 2)
    loader = fl.DataLoader(fl.CachedDataset(data), batch_sampler=Made(lambda: iter(SLICES[:4])), **KINDS[kind])
    batches = list(loader)
    assert [batch.tolist() for batch in batches] == [data[part].tolist() for part in SLICES[:4]]
    batches[0].zero_()
    assert next(iter(loader)).tolist() == data[:4].tolist()


INDICES: dict[str, list[Any]] = {
    "slices": [part for part in SLICES if part.step is None or part.step > 0],
    "lists": [[1, 2], [3], []],
    "tuples": [(1,), (2,)],
    "arrays": [np.array([1, 2]), np.array(3)],
    "tensors": [torch.tensor([1, 2]), torch.tensor(3)],
    "masks": [torch.arange(100) < 3],
    "None": [None],
    "ellipsis": [...],
    "ranges": [range(3)],
    "numbers": [1, np.int64(2), True],
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("kind", "name", "wrap"), pairwise(KINDS, INDICES, [TensorDataset, lambda _: Numbers()]))
def test_indices_without_batches(kind: str, name: str, wrap: Any) -> None:
    dataset = wrap(torch.arange(100))
    options: Any = {"sampler": Made(lambda: iter(INDICES[name])), "batch_size": None}
    expected = [_listed(sample) for sample in TorchDataLoader(dataset, **options)]
    assert [_listed(sample) for sample in fl.DataLoader(dataset, **options, **KINDS[kind])] == expected


@every_kind
def test_slices_of_a_cached_dataset_without_batches(kind: str) -> None:
    dataset = fl.CachedDataset((torch.arange(100), torch.arange(200).view(100, 2)))
    options: Any = {"sampler": Made(lambda: iter(SLICES[:2])), "batch_size": None}
    expected = [_listed(sample) for sample in TorchDataLoader(dataset, **options)]
    loader = fl.DataLoader(dataset, **options, **KINDS[kind])
    assert [_listed(sample) for sample in loader] == expected
    assert loader.stats()["samples"] == 4 + 6


@every_kind
def test_a_reused_index_without_batches(kind: str) -> None:
    options: Any = {"sampler": Made(one_array), "batch_size": None}
    expected = list(TorchDataLoader(Echo(), **options))
    assert list(fl.DataLoader(Echo(), **options, **KINDS[kind])) == expected


@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_a_killed_worker_is_asked_again_for_what_the_sampler_yielded() -> None:
    class Killing(Echo):
        def __getitem__(self, index: Any) -> Any:
            import os
            import signal

            if index == 6 and not os.path.exists(flag):
                open(flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        flag = f"{folder}/killed"
        loader = fl.DataLoader(Killing(), batch_sampler=Made(one_list), collate_fn=identity, **KINDS["processes"])
        assert list(loader) == [list(range(number, number + 3)) for number in range(8)]


class Buffer(IterableDataset[Any]):
    """Yields buffers that it fills again."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __iter__(self) -> Iterator[Any]:
        buffers: Any = {
            "tensor": torch.zeros(3),
            "large": torch.zeros(300, 300),
            "transposed": torch.zeros(4, 3).t(),
            "array": np.zeros(3),
            "list": [torch.zeros(1), [0]],
            "dict": {"x": np.zeros(2), "y": {"z": torch.zeros(2)}},
            "tuple": (torch.zeros(2), [torch.zeros(1)]),
            "bytes": bytearray(2),
        }[self.form]
        for number in range(20):
            _fill(buffers, number)
            yield buffers


def _fill(value: Any, number: int) -> None:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _fill(part, number)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        value[:] = number
    elif isinstance(value, bytearray) or (isinstance(value, list) and isinstance(value[0], int)):
        value[0] = number


FORMS = ["tensor", "large", "transposed", "array", "list", "dict", "tuple"]
HERE_AND_WORKERS = ["here", "threads", "processes"]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("kind", "form", "batch_size", "collate"),
    [
        *pairwise(HERE_AND_WORKERS, FORMS, [None, 3], [None, identity]),
        # Torch collates no bytearrays.
        *pairwise(HERE_AND_WORKERS, ["bytes"], [None], [None, identity]),
        *pairwise(HERE_AND_WORKERS, ["bytes"], [3], [identity]),
    ],
)
def test_a_stream_may_fill_the_same_buffer(kind: str, form: str, batch_size: int | None, collate: Any) -> None:
    options: Any = {"batch_size": batch_size, "collate_fn": collate}
    expected = [repr(batch) for batch in TorchDataLoader(Buffer(form), **options)]
    workers = {**KINDS[kind], "num_workers": min(1, KINDS[kind]["num_workers"])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = fl.DataLoader(Buffer(form), **options, **workers)
        assert [repr(batch) for batch in loader] == expected


@pytest.mark.parametrize("form", ["tensor", "array"])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_buffers_that_were_read_ahead_can_be_held(form: str, kind: str) -> None:
    held = list(fl.DataLoader(Buffer(form), batch_size=None, **{**KINDS[kind], "num_workers": 1}))
    assert [float(batch[0]) for batch in held] == list(range(20))


def test_without_workers_a_buffer_is_the_streams_own() -> None:
    held = list(fl.DataLoader(Buffer("tensor"), batch_size=None, num_workers=0))
    assert [batch.tolist() for batch in held] == [
        batch.tolist() for batch in TorchDataLoader(Buffer("tensor"), batch_size=None)
    ] or all(batch is held[0] for batch in held)
