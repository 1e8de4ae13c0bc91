"""The loader: any map-style dataset, torch's arguments, torch's results."""

from __future__ import annotations

import collections
import copy
import inspect
import multiprocessing
import pickle
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset, TensorDataset, get_worker_info

import foreload as fl

warnings.filterwarnings("ignore", message="This DataLoader will create")

Point = collections.namedtuple("Point", ["x", "y"])

KINDS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
}
every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


class Items(Dataset[Any]):
    """Anything, by a function of the index."""

    def __init__(self, size: int, item: Any = lambda i: i) -> None:
        self.size = size
        self.item = item

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


NESTED = {
    "int": lambda i: i,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 2 == 0,
    "str": lambda i: f"s{i}",
    "bytes": lambda i: b"x" * i,
    "tensor": lambda i: torch.full((3, 2), i),
    "large": lambda i: torch.full((200, 200), float(i)),
    "array": lambda i: np.full((4,), i, np.int16),
    "scalar": lambda i: np.float32(i),
    "tuple": lambda i: (i, torch.tensor(i), f"{i}"),
    "list": lambda i: [i, [i + 1, 2.0]],
    "dict": lambda i: {"a": i, "b": {"c": torch.zeros(2, i // 100 + 1)}},
    "ordered": lambda i: collections.OrderedDict(a=i, b=torch.tensor([i])),
    "named": lambda i: Point(torch.tensor([i]), (i, "z")),
    "bfloat16": lambda i: torch.full((64, 64), i, dtype=torch.bfloat16),
    "complex": lambda i: torch.full((3,), 1j * i),
    "empty": lambda i: torch.zeros(0, 3),
}


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", sorted(NESTED))
@every_kind
def test_samples_of_any_form_collate_as_in_torch(kind: str, options: dict[str, Any]) -> None:
    dataset = Items(10, NESTED[kind])
    ours = list(fl.DataLoader(dataset, batch_size=4, **options))
    assert_equal(ours, list(TorchDataLoader(dataset, batch_size=4)))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("kind", sorted(NESTED))
@every_kind
def test_without_batching_samples_pass_as_in_torch(kind: str, options: dict[str, Any]) -> None:
    dataset = Items(5, NESTED[kind])
    assert_equal(
        list(fl.DataLoader(dataset, batch_size=None, **options)),
        list(TorchDataLoader(dataset, batch_size=None)),
    )


def test_it_is_a_torch_dataloader_and_keeps_its_arguments() -> None:
    arguments = {"batch_size": 3, "drop_last": True, "seed": 4, "workers": "threads", "num_workers": 2}
    loader = fl.DataLoader(Items(10), **arguments)
    assert isinstance(loader, TorchDataLoader)
    assert len(loader) == 3
    for name in inspect.signature(fl.DataLoader.__init__).parameters:
        if name not in ("self", "shuffle"):
            assert hasattr(loader, name), name
    assert {name: getattr(loader, name) for name in arguments} == arguments
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 5


def test_copies_and_pickles_load_the_same() -> None:
    loader = fl.DataLoader(
        TensorDataset(torch.arange(20)), batch_size=4, shuffle=True, seed=1, persistent_workers=True
    )
    expected = [batch[0].tolist() for batch in loader]
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        other.set_epoch(0)
        assert [batch[0].tolist() for batch in other] == expected
        other.close()
    loader.close()


@every_kind
def test_getitems_is_called_once_per_batch_with_ints(options: dict[str, Any]) -> None:
    class Batched(Items):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            assert type(indices) is list
            assert all(type(i) is int for i in indices)
            calls.append(len(indices))
            return [(10 * i, len(indices)) for i in indices]

    calls: list[int] = []
    batches = list(fl.DataLoader(Batched(7), batch_size=3, shuffle=True, **options))
    assert sorted(calls) == ([] if options is KINDS["processes"] else [1, 3, 3])  # threads end in any order
    assert [asked.tolist() for _, asked in batches] == [[3, 3, 3], [3, 3, 3], [1]]
    assert sorted(torch.cat([values for values, _ in batches]).tolist()) == [0, 10, 20, 30, 40, 50, 60]


def test_worker_threads_know_who_they_are() -> None:
    begun = []

    def item(index: int) -> tuple[int, int, int]:
        info = get_worker_info()
        assert info.dataset is dataset
        assert threading.current_thread().name == f"foreload-worker-{info.id}"
        time.sleep(0.001)
        return info.id, info.num_workers, info.seed - info.id

    dataset = Items(200, item)
    torch.manual_seed(0)
    loader = fl.DataLoader(dataset, batch_size=10, num_workers=3, workers="threads", worker_init_fn=begun.append)
    ids, counts, seeds = (torch.cat(column) for column in zip(*loader, strict=True))
    assert sorted(begun) == [0, 1, 2]
    assert set(ids.tolist()) == {0, 1, 2}
    assert set(counts.tolist()) == {3}
    torch.manual_seed(0)
    assert set(seeds.tolist()) == {int(torch.empty((), dtype=torch.int64).random_())}
    assert get_worker_info() is None


@pytest.mark.parametrize("workers", ["auto", "threads", "processes"])
def test_an_error_in_worker_init_fn_reaches_the_loop(workers: Any) -> None:
    def init(worker: int) -> None:
        raise ValueError(f"worker {worker} will not")

    with pytest.raises(ValueError, match="will not"):
        list(fl.DataLoader(Items(10), num_workers=2, worker_init_fn=init, workers=workers))
    more = {"worker_init_fn": init, "persistent_workers": True, "workers": workers}
    with fl_open(fl.DataLoader(Items(10), num_workers=2, **more)) as loader:
        for _ in range(2):
            with pytest.raises(ValueError, match="will not"):
                list(loader)


class fl_open:
    """Closes a loader in the end."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __enter__(self) -> Any:
        return self.loader

    def __exit__(self, *_: object) -> None:
        self.loader.close()


@pytest.mark.parametrize("factor", [1, 3])
def test_prefetch_factor_bounds_how_far_ahead_samples_are_made(factor: int) -> None:
    asked: list[int] = []
    items = Items(100, lambda i: asked.append(i) or i)
    loader = fl.DataLoader(items, batch_size=1, num_workers=2, prefetch_factor=factor, workers="threads")
    iterator = iter(loader)
    for taken in range(1, 20):
        next(iterator)
        assert max(asked) < taken + 2 * factor
    iterator.close()


def test_a_prefetch_factor_that_torch_finds_wrong_later_is_refused() -> None:
    with pytest.raises(ValueError, match="prefetch_factor must be 1 or more, got 0"):
        fl.DataLoader(Items(4), num_workers=2, prefetch_factor=0)
    with pytest.raises(TypeError, match=r"prefetch_factor must be an int, got 2\.5"):
        fl.DataLoader(Items(4), num_workers=2, prefetch_factor=2.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_out_of_order_gives_every_batch_once(workers: Any) -> None:
    has_batch = multiprocessing.get_context("fork").Event()

    def item(index: int) -> int:
        assert index or has_batch.wait(60)
        return index

    loader = fl.DataLoader(Items(40, item), batch_size=2, num_workers=2, in_order=False, workers=workers)
    batches = []
    for batch in loader:
        has_batch.set()
        batches.append(tuple(batch.tolist()))
    assert sorted(batches) == [(i, i + 1) for i in range(0, 40, 2)]
    assert batches[0] != (0, 1)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_in_order_is_the_default(workers: Any) -> None:
    items = Items(40, lambda i: time.sleep(0.02 if i % 7 == 0 else 0) or i)
    loader = fl.DataLoader(items, batch_size=3, num_workers=4, workers=workers)
    assert torch.cat(list(loader)).tolist() == list(range(40))


def test_pinning_without_an_accelerator_warns_as_torch_does() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    for device in ("", "cuda"):
        texts = []
        for make in (TorchDataLoader, fl.DataLoader):
            with pytest.warns(UserWarning, match="pin_memory") as found:
                list(make(Items(3), pin_memory=True, pin_memory_device=device))
            texts.append([str(warning.message) for warning in found])
        assert texts[0] == texts[1]


@every_kind
def test_ragged_samples_are_named(options: dict[str, Any]) -> None:
    dataset = Items(4, lambda i: torch.zeros(3 + i // 2))
    with pytest.raises(RuntimeError, match="equal size") as caught:
        list(fl.DataLoader(dataset, batch_size=4, **options))
    assert "[0, 1, 2, 3]" in "".join(caught.value.__notes__)


@every_kind
def test_an_index_that_is_not_there_is_named(options: dict[str, Any]) -> None:
    for dataset in (TensorDataset(torch.arange(5)), fl.CachedDataset(torch.arange(5))):
        with pytest.raises(IndexError, match="9"):
            list(fl.DataLoader(dataset, sampler=[1, 9], batch_size=2, **options))
    with pytest.raises(IndexError) as caught:
        list(fl.DataLoader(Items(3, [1, 2, 3].__getitem__), sampler=[1, 9], **options))
    assert "9" in "".join(caught.value.__notes__)


@every_kind
def test_a_subset_of_a_native_dataset_is_native_too(options: dict[str, Any]) -> None:
    data = fl.CachedDataset((torch.arange(50) * 2, torch.arange(50)))
    subset = Subset(Subset(data, range(10, 50)), [3, 1, 2])
    loader = fl.DataLoader(subset, batch_size=3, **options)
    (batch,) = loader
    assert batch[1].tolist() == [13, 11, 12]
    assert loader.stats()["loader"]["native"]


def test_a_subclass_that_overrides_getitem_is_asked() -> None:
    class Negated(fl.CachedDataset):
        def __getitem__(self, index: Any) -> Any:
            return -super().__getitem__(index)

        __getitems__ = None

    assert next(iter(fl.DataLoader(Negated(torch.arange(1, 5)), batch_size=4))).tolist() == [-1, -2, -3, -4]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"num_workers": "many"}, ValueError),
        ({"num_workers": 1.5}, TypeError),
        ({"workers": "elves"}, ValueError),
    ],
    ids=str,
)
def test_wrong_arguments_of_our_own_are_named(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        fl.DataLoader(Items(5), **arguments)


def test_empty_datasets_and_those_without_length_are_as_in_torch() -> None:
    assert list(fl.DataLoader(Items(0), batch_size=2)) == []
    assert list(fl.DataLoader(TensorDataset(torch.zeros(0, 3)), batch_size=2)) == []
    for cls in (TorchDataLoader, fl.DataLoader):
        with pytest.raises(ValueError, match="num_samples"):
            list(cls(Items(0), shuffle=True))


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_after_a_timeout_persistent_workers_are_new_ones(workers: Any) -> None:
    released = threading.Event()
    slow = [True]
    dataset = Items(6, lambda i: (released.wait(20) if slow[0] else None) or i)
    loader = fl.DataLoader(
        dataset, batch_size=2, num_workers=1, timeout=0.2, persistent_workers=True, workers=workers
    )
    with pytest.raises(RuntimeError, match="timed out"):
        next(iter(loader))
    loader.timeout = 300
    slow[0] = False
    released.set()
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    loader.close()
    for thread in threading.enumerate():
        if thread.name.startswith("foreload"):
            thread.join(300)
