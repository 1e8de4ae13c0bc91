"""OPTCache keeps apart the instances, copies and parts of a decorated dataset."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, Subset

import foreload as fl
from tests.cache.belady import belady
from tests.cache.foretold import EPOCHS, Base, N, Third, foretell, run


class Everything(Base):
    @fl.OPTCache()
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        return self.make(index)


def test_a_dataset_that_comes_after_another_never_gets_its_samples() -> None:
    foretell()
    first = Everything()
    for index in range(N):
        first[index]
    place = id(first)
    del first
    for _ in range(10_000):
        second = Everything(shift=1000)
        if id(second) == place:
            break
    else:
        pytest.skip("nothing came to lie where the first dataset was")
    assert [int(second[index][0][0]) for index in range(3)] == [1000, 1001, 1002]


def changed_copy(dataset: Everything, out: Any) -> None:
    dataset[3]
    other = copy.copy(dataset)
    other.shift = 1000
    out.put((float(dataset[3][0][0]), float(other[3][0][0])))


@pytest.mark.parametrize(
    "method",
    ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)],
)
def test_a_changed_copy_never_gets_the_originals_samples(method: str) -> None:
    foretell()
    dataset = Everything()
    context: Any = multiprocessing.get_context(method)
    out = context.Queue()
    process = context.Process(target=changed_copy, args=(dataset, out))
    process.start()
    assert out.get(timeout=300) == (3.0, 1003.0)
    process.join(300)


def test_copies_in_the_same_process_are_datasets_of_their_own() -> None:
    foretell()
    dataset = Everything()
    dataset[3]
    for other in (copy.copy(dataset), copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        other.shift = 1000
        for _ in range(2):
            assert other[3][0][0] == 1003
    assert dataset[3][0][0] == 3
    assert dataset.calls[3] <= 1 + 2 * 3


def test_both_of_two_instances_may_be_used_in_turns() -> None:
    generator, expected = foretell(1)
    train, valid = Third(), Third(shift=500)
    for epoch in range(EPOCHS):
        run(DataLoader, train, generator, 1, batch_size=8, num_workers=2 * (epoch % 2))
        for x, y in DataLoader(valid, batch_size=8, num_workers=2 * (epoch % 2)):
            assert (x == (y + 500)[:, None]).all()
    assert train.calls.sum() == belady(expected, N // 3)
    assert (valid.calls == EPOCHS).all()


class Child(Third):
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        x, y = super().__getitem__(index)
        return x + torch.rand(()), y


@pytest.mark.parametrize("method", [None, "fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_class_may_be_derived_from(method: str | None) -> None:
    generator, expected = foretell(1, 2)
    dataset = Child()
    loader: Any = DataLoader(
        dataset,
        batch_size=8,
        sampler=RandomSampler(dataset, replacement=True, generator=generator),
        num_workers=0 if method is None else 2,
        multiprocessing_context=method,
        persistent_workers=method == "spawn",  # each epoch's own would import everything anew
    )
    fractions = set()
    for _ in range(2):
        for x, y in loader:
            assert (x[:, 0].long() == y).all()
            fractions |= {float(value) % 1 for value in x[:, 0]}
    assert len(fractions) > N  # what the child adds is not cached
    assert dataset.calls.sum() == belady(expected, N // 3)


class Closed(Third):
    """Says itself how it is pickled."""

    def __reduce__(self) -> Any:
        return Closed._again, (self.shift, self.calls)

    @staticmethod
    def _again(shift: int, calls: torch.Tensor) -> Closed:
        made = Closed(N, shift)
        made.calls = calls
        return made


@pytest.mark.slow
def test_datasets_that_pickle_themselves_share_when_spawned() -> None:
    generator, expected = foretell(1, 2)
    dataset = Closed(shift=4)
    own: Any = {"multiprocessing_context": "spawn", "persistent_workers": True}
    run(DataLoader, dataset, generator, 2, batch_size=8, num_workers=2, **own)
    assert dataset.calls.sum() == belady(expected, N // 3)


def test_a_part_of_a_dataset_gets_its_own_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    fl.OPTInit(RandomSampler, generator, 30, epochs=2)
    dataset = Third()
    part = Subset(dataset, list(range(N - 1, N - 31, -1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = RandomSampler(part, replacement=True, generator=generator)
        for _ in range(2):
            for x, y in DataLoader(part, batch_size=8, sampler=sampler):
                assert (x == y[:, None]).all()
