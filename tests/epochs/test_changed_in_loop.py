"""Without workers, what the loop changes is in the next batch, as in torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, RandomSampler, Sampler, StackDataset, Subset, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl


def in_place(tensor: torch.Tensor) -> None:
    tensor.add_(1)


def row(tensor: torch.Tensor) -> None:
    tensor[-1] = 77


def array(tensor: torch.Tensor) -> None:
    alias = tensor.numpy()
    alias *= 2


def data(tensor: torch.Tensor) -> None:
    tensor.data.sub_(3)


def other_data(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data + 5


def detached(tensor: torch.Tensor) -> None:
    tensor.detach().view(-1)[::2] = 0


def other_form(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.t().contiguous().t()


CHANGES: list[Callable[[torch.Tensor], None]] = [in_place, row, array, data, other_data, detached, other_form]
LOADERS = {
    "none": {"num_workers": 0},
    "none, seeded": {"num_workers": 0, "seed": 1},
    "none, limited": {"num_workers": 0, "memory": "64MiB"},
    "auto": {},
}


def seen(make: Any, wrap: Any, change: Callable[[torch.Tensor], None], size: int, **options: Any) -> list[Any]:
    tensor = torch.arange(400.0).view(100, 4)
    batches = []
    for number, batch in enumerate(make(wrap(tensor), batch_size=size, **options)):
        batches.append(batch[0].tolist())
        if number % 3 == 0:
            change(tensor)
    return batches


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("size", [1, 8])
def test_a_changed_tensor_is_in_the_next_batch(change: Any, options: Any, size: int) -> None:
    expected = seen(TorchDataLoader, TensorDataset, change, size)
    assert seen(fl.DataLoader, TensorDataset, change, size, **options) == expected


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_subset_of_changed_tensors_too(change: Any) -> None:
    def wrap(tensor: torch.Tensor) -> Any:
        return Subset(TensorDataset(tensor), list(range(90, 10, -1)))

    assert seen(fl.DataLoader, wrap, change, 8, num_workers=0) == seen(TorchDataLoader, wrap, change, 8)


def test_tensors_that_are_replaced() -> None:
    def batches(make: Any, **options: Any) -> list[Any]:
        dataset = TensorDataset(torch.arange(40.0), torch.arange(40))
        seen = []
        for batch in make(dataset, batch_size=4, **options):
            seen.append([field.tolist() for field in batch])
            dataset.tensors = (dataset.tensors[0] * 2, dataset.tensors[1], torch.ones(40))[: 2 + len(seen) % 2]
        return seen

    assert batches(fl.DataLoader, num_workers=0) == batches(TorchDataLoader)


def test_indices_of_a_subset_that_change() -> None:
    def batches(make: Any, **options: Any) -> list[Any]:
        subset = Subset(TensorDataset(torch.arange(40.0)), list(range(20)))
        seen = []
        for (batch,) in make(subset, batch_size=4, **options):
            seen.append(batch.tolist())
            subset.indices[-1] = len(seen)
        return seen

    assert batches(fl.DataLoader, num_workers=0) == batches(TorchDataLoader)


def test_gradients_are_asked_for_in_the_loop() -> None:
    def batches(make: Any, **options: Any) -> list[Any]:
        tensor = torch.arange(12.0)
        seen = []
        for (batch,) in make(TensorDataset(tensor), batch_size=4, **options):
            seen.append((batch.requires_grad, batch.tolist()))
            tensor.requires_grad_()
        return seen

    assert batches(fl.DataLoader, num_workers=0) == batches(TorchDataLoader)


def test_fewer_rows_are_an_error_as_in_torch() -> None:
    for make in (TorchDataLoader, fl.DataLoader):
        tensor = torch.arange(12.0)
        batches = iter(make(TensorDataset(tensor), batch_size=4, num_workers=0))
        next(batches)
        tensor.data = tensor.data[:6]
        with pytest.raises(IndexError):
            next(batches)


def test_views_of_a_cached_dataset_that_are_written_to() -> None:
    dataset = fl.CachedDataset(torch.arange(40.0), share=False)
    seen = []
    for batch in fl.DataLoader(dataset, batch_size=4, num_workers=0):
        seen.append(batch.tolist())
        dataset[39].fill_(len(seen))
    assert seen[-1][-1] == 9


class Counting(Dataset[Any]):
    """Notes when its samples are loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        return index


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_nothing_is_loaded_before_it_is_requested(batch_size: int | None) -> None:
    dataset = Counting()
    for number, _ in enumerate(fl.DataLoader(dataset, batch_size=batch_size, num_workers=0)):
        assert len(dataset.loaded) == (number + 1) * (batch_size or 1)


class Feedback(Sampler[int]):
    """Yields what the loop told it."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(20):
            yield self.next

    def __len__(self) -> int:
        return 20


def test_a_sampler_that_follows_the_loop() -> None:
    def batches(make: Any, **options: Any) -> list[Any]:
        sampler, seen = Feedback(), []
        for (batch,) in make(TensorDataset(torch.arange(100)), sampler=sampler, batch_size=4, **options):
            seen.append(batch.tolist())
            sampler.next = len(seen) * 3
        return seen

    assert batches(fl.DataLoader, num_workers=0) == batches(TorchDataLoader)


def test_a_generator_that_the_loop_draws_from() -> None:
    def batches(make: Any, **options: Any) -> list[Any]:
        generator, seen = torch.Generator().manual_seed(3), []
        dataset = TensorDataset(torch.arange(100))
        sampler = RandomSampler(dataset, replacement=True, num_samples=100, generator=generator)
        for (batch,) in make(dataset, sampler=sampler, batch_size=8, **options):
            seen.append([*batch.tolist(), float(torch.rand(1, generator=generator))])
        return seen

    assert batches(fl.DataLoader, num_workers=0) == batches(TorchDataLoader)


def test_batches_that_the_loop_changes_are_its_own() -> None:
    tensor = torch.arange(40.0)
    held = []
    for (batch,) in fl.DataLoader(TensorDataset(tensor), batch_size=4, num_workers=0):
        batch.mul_(-1)
        held.append(batch)
    assert torch.equal(torch.cat(held), -tensor)
    assert torch.equal(tensor, torch.arange(40.0))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 0, 2), (7, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int8])
def test_rows_of_any_form(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.ones(30, *shape).mul(torch.arange(30.0).view(30, *[1] * len(shape))).to(dtype)
    ours = list(fl.DataLoader(TensorDataset(tensor), batch_size=7, num_workers=0))
    stock = list(TorchDataLoader(TensorDataset(tensor), batch_size=7))
    assert len(ours) == len(stock)
    for (x,), (y,) in zip(ours, stock, strict=True):
        assert torch.equal(x, y)
        assert (x.dtype, x.stride()) == (y.dtype, y.stride())


def test_large_batches_lie_in_memory_that_is_used_again() -> None:
    tensor = torch.from_numpy(np.arange(64 * 40_000, dtype=np.float32).reshape(64, 40_000))
    addresses = set()
    for epoch in range(3):
        for (batch,) in fl.DataLoader(TensorDataset(tensor), batch_size=8, num_workers=0):
            assert torch.equal(batch, tensor[int(batch[0, 0]) // 40_000 :][:8])
            addresses.add((epoch, batch.data_ptr()))
    assert len(addresses) <= 9


class Rows(Dataset[Any]):
    """Gives the rows of a tensor."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


FORMS: dict[str, Any] = {
    "TensorDataset": TensorDataset,
    "tensor": lambda tensor: tensor,
    "list": list,
    "Subset": lambda tensor: Subset(TensorDataset(tensor), range(100)),
    "ConcatDataset": lambda tensor: ConcatDataset([TensorDataset(tensor), TensorDataset(tensor)]),
    "StackDataset": lambda tensor: StackDataset(one=TensorDataset(tensor), two=TensorDataset(tensor)),
    "class": Rows,
}


@pytest.mark.parametrize("form", FORMS)
def test_threads_warn_of_changes_while_they_load(form: str) -> None:
    tensor = torch.zeros(100, 4)
    loader = fl.DataLoader(FORMS[form](tensor), batch_size=2, num_workers=2, workers="threads")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            for _ in loader:
                pass
            tensor.add_(1)  # between epochs
    with pytest.warns(UserWarning, match="were changed while worker threads load") as found:
        for _ in loader:
            tensor.add_(1)
    assert len(found) == 1
    assert found[0].filename == __file__


def test_datasets_that_know_each_other_are_loaded() -> None:
    one, other = (Rows(torch.arange(8.0)) for _ in range(2))
    one.dataset, other.dataset = other, one  # type: ignore[attr-defined]
    assert [batch.tolist() for batch in fl.DataLoader(one, 4, num_workers=2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_processes_show_the_data_of_the_epochs_beginning() -> None:
    tensor = torch.zeros(100, 4)
    loader = fl.DataLoader(TensorDataset(tensor), batch_size=2, num_workers=2, workers="processes")
    for epoch in range(2):
        seen = set()
        for (batch,) in loader:
            seen.add(float(batch.max()))
            tensor.add_(1)
        assert seen == {50.0 * epoch}


ARRAYS: dict[str, Any] = {
    "array": lambda array: array,
    "tensors over an array": lambda array: TensorDataset(torch.from_numpy(array)),
    "list of arrays": list,
    "Subset of an array": lambda array: Subset(array, range(100)),
}


@pytest.mark.parametrize("form", ARRAYS)
def test_threads_warn_of_changed_arrays_while_they_load(form: str) -> None:
    array = np.zeros((100, 4))
    loader = fl.DataLoader(ARRAYS[form](array), batch_size=2, num_workers=2)
    assert loader.stats()["workers"]["count"] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            for _ in loader:
                pass
            array += 1  # between epochs
    with pytest.warns(UserWarning, match="were changed while worker threads load") as found:
        for _ in loader:
            array += 1
    assert len(found) == 1


@pytest.mark.parametrize("change", [lambda numbers: numbers.append(1), lambda numbers: numbers.reverse()])
@pytest.mark.parametrize("form", [lambda numbers: numbers, lambda numbers: Subset(torch.arange(100), numbers)])  # type: ignore[arg-type]
def test_threads_warn_of_changed_lists_while_they_load(form: Any, change: Any) -> None:
    numbers = list(range(100))
    with pytest.warns(UserWarning, match="were changed while worker threads load"):
        for place, _ in enumerate(fl.DataLoader(form(numbers), batch_size=2, num_workers=2)):
            if place == 1:
                change(numbers)


@pytest.mark.parametrize(
    "change",
    [lambda rows: rows.update({99: torch.ones(2)}), lambda rows: rows[0].add_(1), lambda rows: rows.pop(99)],
)
def test_threads_warn_of_changed_dicts_while_they_load(change: Any) -> None:
    rows = {number: torch.zeros(2) for number in range(100)}
    loader = fl.DataLoader(rows, batch_size=2, num_workers=2, sampler=range(90))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="were changed while worker threads load"):
        for place, _ in enumerate(loader):
            if place == 1:
                change(rows)
