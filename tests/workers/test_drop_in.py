"""Rare uses of a DataLoader, compared with stock torch."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import (
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    TensorDataset,
)
from torch.utils.data._utils import collate as torch_collate

import foreload as fl
from foreload.nested import move, snapshot


class Named(Dataset[Any]):
    """Has samples by any key."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, key: Any) -> Any:
        return f"<{key}>"


@pytest.mark.parametrize("indices", [["a", "b"], [("a", 1), None], {0: 5, 1: 6}, [-1, 5], [1.5, 1]], ids=str)
@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "workers": "threads"}, {"cache": "1MiB"}], ids=str)
def test_a_subset_of_keys_that_are_no_positions(indices: Any, options: dict[str, Any]) -> None:
    subset = Subset(Named(), indices)
    loader = fl.DataLoader(subset, batch_size=2, **options)
    for _ in range(2):
        assert list(loader) == list(TorchDataLoader(subset, batch_size=2))


def test_stacked_datasets_take_batches_that_are_iterators_and_skip_single_samples() -> None:
    stack = StackDataset(Named(), list(range(6)))
    batches: Any = [iter([4, 1]), iter([0])]
    loader = fl.DataLoader(stack, batch_sampler=batches, collate_fn=list, num_workers=0)
    assert list(loader) == [[("<4>", 4), ("<1>", 1)], [("<0>", 0)]]
    short = StackDataset(Named(), Subset(list(range(6)), [0, 1, 2, 9, 4, 5]))  # type: ignore[arg-type]
    loader = fl.DataLoader(short, 3, collate_fn=list, num_workers=0, on_error="skip")
    assert [[number for _, number in batch] for batch in loader] == [[0, 1, 2], [4, 5]]
    assert [error.index for error in loader.errors] == [3]


def in_tensor() -> Any:
    return torch.zeros(4, 2)


def in_list() -> Any:
    return [torch.zeros(2) for _ in range(4)]


def in_array() -> Any:
    return np.zeros((4, 2))


def in_stack() -> Any:
    return StackDataset(TensorDataset(torch.zeros(4, 2)))


@pytest.mark.parametrize("make", [in_tensor, in_list, in_array, in_stack])
@pytest.mark.parametrize("collate", [{"batch_size": None}, {"batch_size": 2, "collate_fn": list}], ids=str)
def test_what_the_loop_writes_into_batches_of_workers_stays_out_of_the_dataset(
    make: Callable[[], Any], collate: dict[str, Any]
) -> None:
    loader = fl.DataLoader(make(), num_workers=2, **collate)
    assert loader.stats()["workers"]["count"] == 2
    for _ in range(2):
        for batch in loader:
            while isinstance(batch, (list, tuple)):
                batch = batch[0]
            assert batch.sum() == 0
            batch += 1


def seven_times(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.stack(batch) * 7


def test_functions_that_replace_torchs_own_in_default_collate_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torch_collate.default_collate_fn_map, torch.Tensor, seven_times)
    for data in (torch.arange(4), TensorDataset(torch.arange(4)), Subset(torch.arange(4), [1, 3])):
        expected = list(TorchDataLoader(data, batch_size=2))
        assert repr(list(fl.DataLoader(data, batch_size=2))) == repr(expected)
        assert repr(list(fl.DataLoader(data, batch_size=2, num_workers=1))) == repr(expected)


class Tagged(namedtuple("Tagged", "x y")):
    """A named tuple with another constructor, and an attribute."""

    def __new__(cls, x: Any, *, label: Any) -> Tagged:
        made = super().__new__(cls, x, label)
        made.tag = "a"
        return made


@pytest.mark.parametrize(
    "copied", [snapshot, lambda value: move(value, torch.Tensor.clone)], ids=["snapshot", "move"]
)
def test_named_tuples_keep_their_class_and_attributes(copied: Callable[[Any], Any]) -> None:
    result = copied(Tagged(torch.ones(2), label=torch.zeros(1)))
    assert type(result) is Tagged
    assert result.tag == "a"
    assert result.x.tolist() == [1, 1]
    assert type(copied(torch.eye(2).max(0))) is type(torch.eye(2).max(0))
    assert copied(torch.Size([1, 2])) == torch.Size([1, 2])


def test_a_copy_of_a_prefetch_loader_is_in_the_same_place() -> None:
    loader = fl.PrefetchLoader(iter([torch.tensor(i) for i in range(6)]), "meta")
    next(iter(loader))
    assert len(list(copy.copy(loader))) == 5


class Counting(Dataset[Any]):
    """Has a state: how many samples it has loaded."""

    count = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return torch.tensor([index, self.count])

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_a_new_loader_with_workers_takes_the_states_of_their_datasets() -> None:
    expected = [batch.tolist() for batch in fl.DataLoader(Counting(), batch_size=2, num_workers=2)]
    loader = fl.DataLoader(Counting(), batch_size=2, num_workers=2)
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    again = fl.DataLoader(Counting(), batch_size=2, num_workers=2)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected[1:]


class Count(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


@pytest.mark.filterwarnings("ignore:Count has no state_dict")
@pytest.mark.parametrize("taken", [0, 1])
def test_a_stream_resumed_at_the_end_of_an_epoch_is_saved_in_the_next(taken: int) -> None:
    loader = fl.DataLoader(Count(), batch_size=2)
    list(loader)
    again = fl.DataLoader(Count(), batch_size=2)
    again.load_state_dict(loader.state_dict())
    batches = iter(again)
    for _ in range(taken):
        next(batches)
    last = fl.DataLoader(Count(), batch_size=2)
    last.load_state_dict(again.state_dict())
    assert [batch.tolist() for batch in last] == [[0, 1], [2, 3], [4, 5]][taken:]


class FromTheGlobalGenerator(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.rand(1, generator=torch.default_generator)


def test_threads_leave_the_loops_generator_alone_when_it_is_named() -> None:
    torch.manual_seed(0)
    batches = iter(fl.DataLoader(FromTheGlobalGenerator(), batch_size=2, num_workers=2, workers="threads", seed=3))
    before = torch.get_rng_state()
    threaded = torch.cat(list(batches))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(
        threaded, torch.cat(list(fl.DataLoader(FromTheGlobalGenerator(), num_workers=0, seed=3, batch_size=2)))
    )


class DrawsEach(Sampler[int]):
    """Draws each index from the loop's generator when it is asked for it."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(16):
            yield random.randrange(16)


def drawn_between(loader: Any) -> list[Any]:
    """Return the batches, and what a loop draws before, between and after them."""
    torch.manual_seed(0)
    random.seed(0)
    batches, seen = iter(loader), [torch.rand(1).item(), random.random()]
    for batch in batches:
        seen += [*batch.tolist(), torch.rand(1).item(), random.random()]
    return seen


def prepare(worker: int) -> None:
    pass


@pytest.mark.parametrize("order", [{"shuffle": True}, {"sampler": DrawsEach()}], ids=["shuffle", "sampler"])
def test_loops_that_draw_while_workers_load_get_the_numbers_that_they_get_in_torch(order: dict[str, Any]) -> None:
    stock = drawn_between(TorchDataLoader(range(16), 2, num_workers=2, **order))
    for kind in ("auto", "threads", "processes"):
        assert drawn_between(fl.DataLoader(range(16), 2, num_workers=2, workers=kind, **order)) == stock


def test_a_loop_that_draws_before_its_first_batch_does_not_show_which_workers_were_chosen() -> None:
    stock = drawn_between(TorchDataLoader(range(16), 2, shuffle=True))
    assert drawn_between(fl.DataLoader(range(16), 2, shuffle=True)) == stock
    chosen = fl.DataLoader(range(16), 2, shuffle=True, worker_init_fn=prepare)
    assert drawn_between(chosen) == stock
    assert chosen.stats()["workers"]["kind"] == "processes"


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}], ids=str)
def test_rows_of_a_compressed_sparse_tensor(options: dict[str, Any]) -> None:
    data = TensorDataset(torch.eye(4).to_sparse_csr())
    with pytest.raises(RuntimeError, match="Batches of sparse tensors"):
        next(iter(fl.DataLoader(data, batch_size=2, **options)))
    rows = [row.to_dense().tolist() for (row,) in fl.DataLoader(data, batch_size=None, num_workers=0)]
    assert rows == torch.eye(4).tolist()


class InPairs:
    """A batch sampler of the user's around one of torch's with a generator."""

    def __init__(self) -> None:
        self.sampler = RandomSampler(range(8), generator=torch.Generator().manual_seed(3))

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        return iter(list(zip(indices, indices, strict=True)))  # type: ignore[arg-type]


@pytest.mark.parametrize("taken", [None, 0, 2])
def test_a_state_has_the_generator_of_a_sampler_within_a_batch_sampler(taken: int | None) -> None:
    first = fl.DataLoader(range(8), batch_sampler=InPairs(), num_workers=0)
    list(first)
    if taken is not None:
        batches = iter(first)
        for _ in range(taken):
            next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    stock = TorchDataLoader(range(8), batch_sampler=InPairs())
    _, *expected = [[batch.tolist() for batch in stock] for _ in range(3)]
    again = fl.DataLoader(range(8), batch_sampler=InPairs(), num_workers=0)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected[0][taken or 0 :]
    assert [batch.tolist() for batch in again] == expected[1]


class NoLength(Dataset[Any]):
    """Has samples, but no length."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=str)
def test_a_dataset_without_a_length_is_loaded_in_the_order_of_a_sampler(options: dict[str, Any]) -> None:
    loader = fl.DataLoader(NoLength(), batch_size=2, sampler=[1, 2, 3], **options)  # type: ignore[list-item]
    assert [batch.tolist() for batch in loader] == [[1, 2], [3]]
    assert "NoLength" in repr(loader)
    assert loader.state_dict()


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Missing(Exception):
    """Cannot be made of its message."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")
        self.number = number


class Raises(Named):
    def __getitem__(self, index: Any) -> Any:
        raise Locked(f"sample {index}") if index % 2 else Missing("sample", index)


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 1}], ids=str)
def test_an_exception_that_cannot_be_pickled_keeps_its_class(options: dict[str, Any]) -> None:
    batches = iter(fl.DataLoader(Raises(), **options))
    with pytest.raises(Missing, match="sample 0") as caught:
        next(batches)
    assert caught.value.number == 0
    with pytest.raises(Locked, match="sample 1"):
        next(batches)


@pytest.mark.parametrize("generator", [3, "cpu"])
def test_a_generator_that_is_none_is_a_type_error(generator: Any) -> None:
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator or None"):
        fl.DataLoader(Named(), shuffle=True, generator=generator)


@pytest.mark.parametrize("kind", [fl.DataLoader, torch.utils.data.DataLoader])
def test_a_prefetch_factor_of_a_loader_with_defaults_suits_one_without_workers(kind: Any) -> None:
    made = fl.DataLoader(range(6), 4)  # type: ignore[arg-type]
    for factor in (made.prefetch_factor, list(made) and made.prefetch_factor):
        assert factor is None
        again = kind(made.dataset, 4, num_workers=0, prefetch_factor=factor)
        assert [batch.tolist() for batch in again] == [[0, 1, 2, 3], [4, 5]]
    again = kind(made.dataset, num_workers=made.num_workers or 1, prefetch_factor=made.prefetch_factor)
    assert again.prefetch_factor == 2
