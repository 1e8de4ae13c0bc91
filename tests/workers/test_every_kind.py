"""What torch documents of its DataLoader, on stock and on ours, with every kind of worker."""

from __future__ import annotations

import gc
import os
import random
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:The PyTorch API of nested")

KINDS: dict[str, Any] = {
    "stock": lambda data, workers=2, **more: TorchDataLoader(data, num_workers=workers, **more),
    "here": lambda data, workers=2, **more: fl.DataLoader(data, num_workers=0, **_without_workers(more)),
    "threads": lambda data, workers=2, **more: fl.DataLoader(data, num_workers=workers, workers="threads", **more),
    "processes": lambda data, workers=2, **more: fl.DataLoader(
        data, num_workers=workers, workers="processes", **more
    ),
    "auto": lambda data, workers=2, **more: fl.DataLoader(data, **more),
}
WITH_WORKERS = ["stock", "threads", "processes"]
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
every_worker = pytest.mark.parametrize("make", [KINDS[kind] for kind in WITH_WORKERS], ids=WITH_WORKERS)


def _without_workers(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in arguments.items()
        if name not in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
    }


class Numbers(Dataset[Any]):
    def __init__(self, size: int = 20) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return index


class Count(IterableDataset[Any]):
    def __init__(self, size: int = 10, length: int | None = None) -> None:
        self.size = size
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return iter(range(self.size) if info is None else range(info.id, self.size, info.num_workers))


class CountWithLength(Count):
    def __len__(self) -> int:
        assert self.length is not None
        return self.length


def flat(loader: Any) -> list[Any]:
    return [item for batch in loader for item in (batch.tolist() if isinstance(batch, torch.Tensor) else batch)]


# Orders and lengths.


@every_kind
@pytest.mark.parametrize("size", [0, 1, 7, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_lengths_and_last_batches(make: Any, size: int, drop_last: bool) -> None:
    loader = make(Numbers(size), batch_size=4, drop_last=drop_last)
    batches = [batch.tolist() for batch in loader]
    assert len(loader) == len(batches) == (size // 4 if drop_last else -(-size // 4))
    assert [i for batch in batches for i in batch] == list(range(size - size % 4 if drop_last else size))


@every_kind
def test_any_iterable_is_a_sampler_and_any_iterable_of_lists_a_batch_sampler(make: Any) -> None:
    assert flat(make(Numbers(), batch_size=3, sampler=[3, 1, 3, 7])) == [3, 1, 3, 7]
    assert [b.tolist() for b in make(Numbers(), batch_sampler=[[1], [2, 3], [9, 8, 7]])] == [
        [1],
        [2, 3],
        [9, 8, 7],
    ]
    batches = BatchSampler(RandomSampler(Numbers(), generator=torch.Generator().manual_seed(0)), 6, True)
    assert len(make(Numbers(), batch_sampler=batches)) == 3
    loader = make(Numbers(), batch_sampler=batches)
    assert loader.batch_size is None
    assert loader.drop_last is False


@every_kind
def test_shuffling_is_different_each_epoch_and_the_same_after_a_seed(make: Any) -> None:
    torch.manual_seed(5)
    loader = make(Numbers(), batch_size=3, shuffle=True)
    first = [flat(loader), flat(loader)]
    assert first[0] != first[1]
    assert sorted(first[0]) == list(range(20))
    torch.manual_seed(5)
    loader = TorchDataLoader(Numbers(), batch_size=3, shuffle=True)
    assert [flat(loader), flat(loader)] == first


@every_kind
def test_a_generator_makes_the_order_and_the_base_seed(make: Any) -> None:
    orders, states = [], []
    for kind in (make, KINDS["stock"]):
        generator = torch.Generator().manual_seed(3)
        loader = kind(Numbers(), batch_size=4, shuffle=True, generator=generator)
        torch.manual_seed(random.randrange(1000))
        orders.append([flat(loader), flat(loader)])
        states.append(generator.get_state())
    assert orders[0] == orders[1]
    assert torch.equal(*states)


class Keys(Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(["b", "a", ("a", 1)])


class ByKey(Dataset[Any]):
    def __getitem__(self, key: Any) -> Any:
        return f"<{key}>"


@every_kind
def test_indices_need_not_be_numbers_and_datasets_need_no_length(make: Any) -> None:
    assert flat(make(ByKey(), batch_size=2, sampler=Keys())) == ["<b>", "<a>", "<('a', 1)>"]


# Samples and batches.


class Sparse(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.eye(4).mul(index).to_sparse()


class Nested(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.nested.nested_tensor([torch.full((i + 1,), float(index)) for i in range(2)])


class Ragged(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.full((index % 3 + 1,), float(index))


def nested_collate(samples: Any) -> Any:
    return torch.nested.nested_tensor(samples)


def as_list(samples: Any) -> Any:
    return samples


@pytest.mark.slow
@every_kind
def test_sparse_and_nested_tensors(make: Any) -> None:
    with pytest.raises(RuntimeError, match="Batches of sparse tensors are not currently supported"):
        list(make(Sparse(6), batch_size=3))
    for batch in make(Sparse(6), batch_size=3, collate_fn=torch.stack):
        assert batch.is_sparse
        assert batch.shape == (3, 4, 4)
    assert batch.to_dense()[2, 1, 1] == 5
    for number, sample in enumerate(make(Nested(4), batch_size=None)):
        assert sample.is_nested
        assert [part.tolist() for part in sample.unbind()] == [[number], [number, number]]
    (whole,) = make(Ragged(5), batch_size=5, collate_fn=nested_collate)
    assert [len(part) for part in whole.unbind()] == [1, 2, 3, 1, 2]


@every_kind
def test_without_batching_samples_are_converted_only(make: Any) -> None:
    class Arrays(Numbers):
        def __getitem__(self, index: int) -> Any:
            return {"x": np.full(3, index), "y": f"{index}", "z": None, "w": (index, 2.0)}

    loader = make(Arrays(3), batch_size=None)
    assert loader.collate_fn is default_convert
    for number, sample in enumerate(loader):
        assert torch.equal(sample["x"], torch.full((3,), number))
        assert (sample["y"], sample["z"], sample["w"]) == (f"{number}", None, [number, 2.0])
    loader = make(Numbers(), batch_size=None, sampler=BatchSampler(range(9), 4, False))
    assert loader.collate_fn is default_convert
    assert make(Numbers(), batch_size=3).collate_fn is default_collate


@every_kind
def test_ragged_samples_and_unknown_types_are_refused_in_the_same_words(make: Any) -> None:
    # Stock workers that are left with an error take seconds to end.
    workers = 0 if make is KINDS["stock"] else 2
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(make(Ragged(), workers=workers, batch_size=3))

    class Objects(Numbers):
        def __getitem__(self, index: int) -> Any:
            return object() if index else slice(0, 1)

    with pytest.raises(TypeError, match="default_collate: batch must contain tensors, numpy arrays, numbers"):
        list(make(Objects(), workers=workers, batch_size=1))
    assert flat(make(Ragged(4), batch_size=2, collate_fn=as_list))[3].shape == (1,)


def worker_and_dataset(samples: Any) -> Any:
    info = get_worker_info()
    return None if info is None else (info.num_workers, info.dataset.size)


@every_kind
def test_collate_fn_gets_the_samples_and_knows_its_worker(make: Any) -> None:
    assert list(make(Numbers(7), batch_size=3, collate_fn=tuple)) == [(0, 1, 2), (3, 4, 5), (6,)]
    stock = TorchDataLoader(
        Numbers(4), batch_size=2, num_workers=0 if make is KINDS["here"] else 2, collate_fn=worker_and_dataset
    )
    if make is not KINDS["auto"]:
        assert list(make(Numbers(4), batch_size=2, collate_fn=worker_and_dataset)) == list(stock)


@every_kind
def test_combined_datasets(make: Any) -> None:
    torch.manual_seed(0)
    rows = TensorDataset(torch.arange(12))
    both = ConcatDataset([Numbers(3), Numbers(4)])
    assert flat(make(both, batch_size=2)) == [0, 1, 2, 0, 1, 2, 3]
    assert flat(make(Subset(Numbers(), [5, 3]), batch_size=2)) == [5, 3]
    parts = random_split(rows, [0.25, 0.75])
    assert [len(flat(b for (b,) in make(part, batch_size=5))) for part in parts] == [3, 9]
    stacked = StackDataset(a=Numbers(4), b=rows.tensors[0][:4])
    assert [sorted(batch) for batch in make(stacked, batch_size=4)] == [["a", "b"]]
    if make is not KINDS["stock"]:
        assert sorted(flat(make(ChainDataset([Count(3), Count(4)]), batch_size=2))) == [0, 0, 1, 1, 2, 2, 3]


@every_kind
def test_the_default_device_and_dtype_of_the_loop_do_no_harm(make: Any) -> None:
    class Floats(Numbers):
        def __getitem__(self, index: int) -> Any:
            return index / 2

    torch.set_default_dtype(torch.float64)
    torch.set_default_device("cpu")
    try:
        for batch in make(Floats(6), batch_size=3, shuffle=True):
            assert batch.dtype == torch.float64
            assert batch.device.type == "cpu"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


# Workers.


class Info(Numbers):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return index, info.id, info.num_workers, info.seed, type(info.dataset).__name__, torch.initial_seed()


@every_worker
def test_workers_know_who_they_are_and_batches_go_round(make: Any) -> None:
    torch.manual_seed(1)
    loader = make(Info(16), workers=3, batch_size=2, collate_fn=as_list)
    got = list(loader)
    torch.manual_seed(1)
    stock = list(KINDS["stock"](Info(16), workers=3, batch_size=2, collate_fn=as_list))
    if make is KINDS["threads"]:
        # A batch is shared by several threads, and the global generator is nobody's own.
        assert {sample[1] for batch in got for sample in batch} <= {0, 1, 2}
        assert {sample[3] - sample[1] for batch in got for sample in batch} == {stock[0][0][3]}
    else:
        assert got == stock
    assert get_worker_info() is None


def remember(worker: int) -> None:
    info = get_worker_info()
    assert info.id == worker
    info.dataset.size = 100 + worker


class Told(Numbers):
    def __getitem__(self, index: int) -> Any:
        return get_worker_info().dataset.size


@pytest.mark.parametrize("make", [KINDS["stock"], KINDS["processes"]], ids=["stock", "processes"])
def test_worker_init_fn_may_change_the_workers_dataset(make: Any) -> None:
    data = Told(8)
    assert flat(make(data, batch_size=2, worker_init_fn=remember)) == [100, 100, 101, 101, 100, 100, 101, 101]
    assert data.size == 8


class Threads(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.get_num_threads()


@pytest.mark.parametrize("make", [KINDS["stock"], KINDS["processes"]], ids=["stock", "processes"])
def test_worker_processes_compute_with_one_thread(make: Any) -> None:
    before = torch.get_num_threads()
    assert set(flat(make(Threads(), batch_size=4))) == {1}
    assert torch.get_num_threads() == before


class Own(Numbers):
    """Counts in the worker."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        return self.calls


@pytest.mark.parametrize("make", [KINDS["stock"], KINDS["processes"]], ids=["stock", "processes"])
@pytest.mark.parametrize("persistent", [False, True])
def test_persistent_workers_keep_their_dataset_and_others_begin_anew(make: Any, persistent: bool) -> None:
    data = Own(8)
    loader = make(data, batch_size=4, persistent_workers=persistent)
    epochs = [flat(loader) for _ in range(2)]
    assert epochs[0] == [1, 2, 3, 4] * 2
    assert epochs[1] == ([5, 6, 7, 8] * 2 if persistent else epochs[0])
    assert data.calls == 0
    del loader
    gc.collect()


@every_worker
def test_how_far_ahead_is_bounded_by_prefetch_factor(make: Any) -> None:
    asked = []

    class Watched(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            for index in range(1000):
                asked.append(index)
                yield index

    iterator = iter(make(Numbers(1000), batch_size=1, sampler=Watched(), prefetch_factor=3))
    next(iterator)
    time.sleep(0.1)
    assert 6 <= len(asked) <= 7
    next(iterator)
    assert len(asked) <= 8


@every_worker
def test_epochs_may_be_left_at_any_time_and_begun_anew(make: Any) -> None:
    loader = make(Numbers(100), batch_size=2)
    for stop in (0, 1, 3):
        for number, batch in enumerate(loader):
            assert batch.tolist() == [2 * number, 2 * number + 1]
            if number == stop:
                break
    assert flat(loader) == list(range(100))


@every_kind
def test_two_epochs_may_be_open_at_once(make: Any) -> None:
    loader = make(Numbers(12), batch_size=2)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [([i, i + 1], [i, i + 1]) for i in range(0, 12, 2)]
    stream = make(Count(12), batch_size=2)
    for a, b in zip(stream, stream, strict=True):
        assert a.tolist() == b.tolist()


def test_two_epochs_may_share_persistent_threads() -> None:
    # Where processes, as torch's, begin the one epoch anew when the other begins.
    with KINDS["threads"](Numbers(30), batch_size=4, persistent_workers=True) as loader:
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
        assert [a for a, _ in pairs] == [b for _, b in pairs]
        assert [index for a, _ in pairs for index in a] == list(range(30))


class Late(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 3:
            time.sleep(2)
        return index


@pytest.mark.sampled(2)
@every_worker
def test_a_late_batch_is_an_error(make: Any) -> None:
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
        list(make(Late(), batch_size=2, timeout=0.5))


class Fails(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyError("no such key")  # the line that a traceback must reach
        return index


@every_kind
def test_an_exception_comes_in_its_place_and_the_epoch_goes_on(make: Any) -> None:
    # Stock workers that are left with an error take seconds to end.
    iterator = iter(make(Fails(8), workers=0 if make is KINDS["stock"] else 2, batch_size=2))
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError, match="no such key") as caught:
        next(iterator)
    if make is not KINDS["stock"]:
        assert "the line that a traceback must reach" in "".join(traceback.format_exception(caught.value))
        assert any("sample 5" in note for note in caught.value.__notes__)
        assert next(iterator).tolist() == [6, 7]
        with pytest.raises(StopIteration):
            next(iterator)


# Streams.


@pytest.mark.sampled(4)
@every_kind
@pytest.mark.parametrize("batch_size", [None, 3])
def test_streams_come_whole(make: Any, batch_size: int | None) -> None:
    loader = make(Count(10), batch_size=batch_size)
    for _ in range(2):
        items = list(loader)
        assert sorted(items if batch_size is None else [i for batch in items for i in batch.tolist()]) == [
            *range(10)
        ]
    with pytest.raises(TypeError, match=r"has no len\(\)|object of type"):
        len(loader)


@every_kind
def test_a_stream_longer_than_its_length_is_warned_of(make: Any) -> None:
    loader = make(CountWithLength(10, 4), batch_size=1)
    assert len(loader) == 4
    with pytest.warns(UserWarning, match=r"Length of IterableDataset .* was reported to be 4.*but 5 samples"):
        assert sorted(flat(loader)) == list(range(10))


# Words.

WRONG: list[tuple[dict[str, Any], Any]] = [
    ({"num_workers": -1}, ValueError),
    ({"timeout": -1}, ValueError),
    ({"num_workers": 0, "prefetch_factor": 2}, ValueError),
    ({"num_workers": 2, "prefetch_factor": -1}, ValueError),
    ({"num_workers": 0, "persistent_workers": True}, ValueError),
    ({"sampler": [1], "shuffle": True}, ValueError),
    ({"batch_sampler": [[1]], "batch_size": 3}, ValueError),
    ({"batch_sampler": [[1]], "drop_last": True}, ValueError),
    ({"batch_size": None, "drop_last": True}, ValueError),
    ({"batch_size": 0}, ValueError),
    ({"batch_size": -3}, ValueError),
    ({"num_workers": 2, "multiprocessing_context": "bogus"}, ValueError),
    ({"num_workers": 2, "multiprocessing_context": 3}, TypeError),
    ({"num_workers": 0, "multiprocessing_context": "fork"}, ValueError),
]


@pytest.mark.parametrize(("arguments", "kind"), WRONG, ids=lambda value: str(value))
def test_wrong_arguments_are_refused_in_the_same_words(arguments: dict[str, Any], kind: Any) -> None:
    words = []
    for make in (TorchDataLoader, fl.DataLoader):
        with pytest.raises(kind) as caught:
            make(Numbers(), **arguments)
        words.append(str(caught.value))
    assert words[0] == words[1]


@every_kind
def test_some_attributes_cannot_be_set_again(make: Any) -> None:
    loader = make(Numbers(), batch_size=3)
    for name in ("batch_size", "batch_sampler", "drop_last", "dataset"):
        with pytest.raises(
            ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"
        ):
            setattr(loader, name, 3)


class Pinned:
    """A batch of a user's own type."""

    def __init__(self, samples: Any) -> None:
        self.rows = default_collate(samples)
        self.pinned = False

    def pin_memory(self) -> Pinned:
        self.pinned = True
        return self


@every_kind
def test_batches_of_ones_own_type_pass(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the accelerator that is not there
        batches = list(make(Numbers(6), batch_size=3, collate_fn=Pinned, pin_memory=True))
    assert [batch.rows.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]
    assert [batch.pinned for batch in batches] == [torch.cuda.is_available()] * 2


class Pid(Numbers):
    def __getitem__(self, index: int) -> Any:
        return os.getpid()


def test_workers_are_where_they_were_asked_for() -> None:
    here = {os.getpid()}
    assert set(flat(KINDS["here"](Pid(), batch_size=2))) == here
    assert set(flat(KINDS["threads"](Pid(), batch_size=2))) == here
    assert len(set(flat(KINDS["processes"](Pid(), batch_size=2))) - here) == 2
