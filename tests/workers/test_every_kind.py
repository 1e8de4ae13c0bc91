"""Orders, samples, batches and arguments as torch documents them, with stock and our workers of every kind."""

from __future__ import annotations

import random
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
from tests.workers.kinds import KINDS, Count, Numbers, as_list, every_kind, flat

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:The PyTorch API of nested")


# Orders and lengths.


@pytest.mark.sampled(10)
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
@every_kind
def test_collate_fn_gets_the_samples_and_knows_its_worker(make: Any) -> None:
    assert list(make(Numbers(7), batch_size=3, collate_fn=tuple)) == [(0, 1, 2), (3, 4, 5), (6,)]
    stock = TorchDataLoader(
        Numbers(4), batch_size=2, num_workers=0 if make is KINDS["here"] else 2, collate_fn=worker_and_dataset
    )
    if make is not KINDS["auto"]:
        assert list(make(Numbers(4), batch_size=2, collate_fn=worker_and_dataset)) == list(stock)


@pytest.mark.sampled(2)
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
