"""Order: torch's own, bit for bit."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl

warnings.filterwarnings("ignore", message="This DataLoader will create")


class Squares(Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return torch.tensor([index, index * index])


def epochs(cls: Any, make: Any, seed: int, count: int = 2, stop: int | None = None) -> Any:
    """Return what a loader gives in some epochs, and the state of the random numbers afterwards."""
    torch.manual_seed(seed)
    dataset, arguments, generator = make()
    loader = cls(dataset, **arguments)
    out = [[batch.clone() for batch in itertools.islice(loader, stop)] for _ in range(count)]
    return out, torch.get_rng_state(), None if generator is None else generator.get_state()


WORKERS: dict[str, dict[str, Any]] = {
    "auto": {},
    "none": {"num_workers": 0},
    "one": {"num_workers": 1, "workers": "threads"},
    "two": {"num_workers": 2, "workers": "threads"},
}


def assert_same(make: Any, seed: int, workers: str, *, stop: int | None = None) -> None:
    """The same as torch without workers; from a generator of the user's, threads draw as torch's workers would."""
    count = WORKERS[workers].get("num_workers", 0)
    theirs = {"num_workers": count} if count and make()[2] is not None else {}
    assert_equal_epochs(make, seed, WORKERS[workers], theirs, stop)


def assert_equal_epochs(
    make: Any, seed: int, our_workers: dict[str, Any], their_workers: dict[str, Any], stop: int | None
) -> None:
    def with_workers(more: dict[str, Any]) -> Any:
        dataset, arguments, generator = make()
        return dataset, {**arguments, **more}, generator

    theirs, their_rng, their_generator = epochs(
        TorchDataLoader, lambda: with_workers(their_workers), seed, stop=stop
    )
    ours, our_rng, our_generator = epochs(fl.DataLoader, lambda: with_workers(our_workers), seed, stop=stop)
    assert [len(epoch) for epoch in ours] == [len(epoch) for epoch in theirs]
    for ours_epoch, theirs_epoch in zip(ours, theirs, strict=True):
        for a, b in zip(ours_epoch, theirs_epoch, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
    assert torch.equal(our_rng, their_rng)
    if our_generator is not None:
        assert torch.equal(our_generator, their_generator)


@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    own_generator=st.booleans(),
    seed=st.integers(0, 2**31),
    workers=st.sampled_from(sorted(WORKERS)),
    stop=st.sampled_from([None, 2]),
)
def test_batches_are_torchs(
    size: int,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    own_generator: bool,
    seed: int,
    workers: str,
    stop: int | None,
) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(seed + 1) if own_generator else None
        arguments = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "generator": generator,
        }
        return Squares(size), arguments, generator

    assert_same(make, seed, workers, stop=stop)


SAMPLERS = {
    "random": lambda n, g: RandomSampler(range(n), generator=g),
    "fewer": lambda n, g: RandomSampler(range(n), num_samples=max(1, n // 2), generator=g),
    "more": lambda n, g: RandomSampler(range(n), num_samples=2 * n + 3, generator=g),
    "replacement": lambda n, g: RandomSampler(range(n), replacement=True, num_samples=n + 37, generator=g),
    "sequential": lambda n, g: SequentialSampler(range(n)),
    "subset": lambda n, g: SubsetRandomSampler(range(0, n, 2), generator=g),
    "weighted": lambda n, g: WeightedRandomSampler(torch.arange(1.0, n + 1).tolist(), n, generator=g),
    "list": lambda n, g: [n - 1, 0, 0],
}


@given(
    kind=st.sampled_from(sorted(SAMPLERS)),
    size=st.integers(1, 70),
    own_generator=st.booleans(),
    batched=st.booleans(),
    workers=st.sampled_from(sorted(WORKERS)),
    seed=st.integers(0, 1000),
    stop=st.sampled_from([None, 1, 3]),
)
def test_any_sampler_is_read_as_torch_reads_it(
    kind: str, size: int, own_generator: bool, batched: bool, workers: str, seed: int, stop: int | None
) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(seed) if own_generator else None
        sampler = SAMPLERS[kind](size, generator)
        if batched:
            return Squares(size), {"batch_sampler": BatchSampler(sampler, 7, False)}, generator
        return Squares(size), {"batch_size": 5, "sampler": sampler}, generator

    assert_same(make, seed, workers, stop=stop)


@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    kind=st.sampled_from(["random", "fewer", "more", "replacement"]),
    native=st.booleans(),
    workers=st.sampled_from(sorted(WORKERS)),
    stop=st.integers(1, 6),
)
def test_a_loop_that_is_left_early_leaves_the_users_generator_where_torch_does(
    size: int, batch_size: int, kind: str, native: bool, workers: str, stop: int
) -> None:
    def make() -> Any:
        generator = torch.Generator().manual_seed(size)
        dataset: Any = fl.CachedDataset(torch.arange(size)) if native else Squares(size)
        return dataset, {"batch_size": batch_size, "sampler": SAMPLERS[kind](size, generator)}, generator

    assert_same(make, 1, workers, stop=stop)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stop", [None, 2])
@pytest.mark.parametrize("kind", ["random", "more", "subset", "list"])
def test_worker_processes_are_asked_as_far_ahead_as_torchs(kind: str, stop: int | None) -> None:
    """A loop that is left early leaves the user's generator where torch's loop with as many workers does."""

    def make() -> Any:
        generator = torch.Generator().manual_seed(5)
        return Squares(5), {"batch_size": 1, "sampler": SAMPLERS[kind](5, generator)}, generator

    assert_equal_epochs(make, 1, {"num_workers": 2}, {"num_workers": 2}, stop)


def test_a_batch_sampler_may_yield_anything() -> None:
    class Named(Dataset[int]):
        def __getitem__(self, key: tuple[str, int]) -> int:
            return len(key[0]) + key[1]

    batches = [[("a", 1), ("bb", 2)], [("ccc", 3)]]
    for workers in (0, 2):
        got = list(fl.DataLoader(Named(), batch_sampler=batches, num_workers=workers))
        assert [batch.tolist() for batch in got] == [[2, 4], [6]]


BATCHES: dict[str, Any] = {
    "tuple": lambda: [(0, 2), (1,)],
    "set": lambda: [{0, 2}, {1}],
    "dict": lambda: [{0: "a", 2: "b"}],
    "range": lambda: [range(0, 4, 2)],
    "iterator": lambda: [iter([0, 2]), iter([1])],
    "array": lambda: [np.array([0, 2]), np.array([1])],
    "tensor": lambda: [torch.tensor([0, 2])],
    "scalars": lambda: [[np.int32(0), torch.tensor(2)]],
    "empty": lambda: [[0, 2], [], [1]],
}


class Types(Squares):
    """Says what it was asked with."""

    def __getitem__(self, index: Any) -> Any:
        return type(index).__name__, int(index)


class TypesOfBatches(Types):
    def __getitems__(self, indices: Any) -> Any:
        return [(type(indices).__name__, int(index)) for index in indices]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", sorted(BATCHES))
@pytest.mark.parametrize("workers", [0, 2, "auto"])
def test_whatever_can_be_iterated_is_a_batch(form: str, workers: Any) -> None:
    def outcomes(cls: Any, dataset: Any, **more: Any) -> list[Any]:
        """Each batch, or the type of the error in its place."""
        iterator = iter(cls(dataset, batch_sampler=BATCHES[form](), **more))
        out: list[Any] = []
        while "StopIteration" not in out:
            try:
                out.append(str(next(iterator)))
            except Exception as error:
                out.append(type(error).__name__)
        return out

    rows = torch.arange(12).view(4, 3)
    for dataset in (Types(4), TypesOfBatches(4), TensorDataset(rows), fl.CachedDataset(rows)):
        assert outcomes(fl.DataLoader, dataset, num_workers=workers) == outcomes(TorchDataLoader, dataset)
    ours, theirs = (
        list(cls(Squares(4), batch_sampler=BATCHES[form](), collate_fn=len))
        for cls in (fl.DataLoader, TorchDataLoader)
    )
    assert ours == theirs


def test_a_sampler_of_whole_batches_is_read_as_in_torch() -> None:
    # Torch's documentation recommends it for datasets that load a batch at once.
    for cls in (TorchDataLoader, fl.DataLoader):
        sampler = BatchSampler(RandomSampler(range(10), generator=torch.Generator().manual_seed(1)), 4, False)
        asked: list[Any] = []

        class Asked(Squares):
            def __getitem__(self, index: Any) -> Any:
                asked.append(index)
                return torch.tensor(index)

        got = list(cls(Asked(10), sampler=sampler, batch_size=None, num_workers=0))
        assert [type(index) for index in asked] == [list] * 3
        assert [batch.tolist() for batch in got] == asked
        assert sorted(itertools.chain.from_iterable(asked)) == list(range(10))


def test_one_index_that_is_not_there_fails_its_own_batch_only() -> None:
    for more in ({"num_workers": 0}, {"num_workers": 2}, {}):
        iterator = iter(
            fl.DataLoader(
                TensorDataset(torch.arange(10)), batch_size=4, sampler=SequentialSampler(range(14)), **more
            )
        )
        assert [next(iterator)[0].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        for _ in range(2):
            with pytest.raises(IndexError):
                next(iterator)
        assert list(iterator) == []


def test_set_epoch_reaches_the_users_sampler() -> None:
    sampler = torch.utils.data.DistributedSampler(Squares(10), num_replicas=2, rank=0, seed=3)
    loader = fl.DataLoader(Squares(10), batch_size=5, sampler=sampler)
    loader.set_epoch(7)
    assert sampler.epoch == 7
    sampler.set_epoch(7)
    assert torch.cat(list(loader))[:, 0].tolist() == list(sampler)


class Fails:
    """Cannot be iterated over."""

    def __iter__(self) -> Any:
        raise KeyError("no order")


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_that_cannot_be_iterated_ends_the_epoch_with_its_error(workers: str) -> None:
    loader = fl.DataLoader(Squares(4), sampler=Fails(), **WORKERS[workers])
    if WORKERS[workers].get("num_workers"):  # which are given their first batches at once, as torch's are
        with pytest.raises(KeyError, match="no order"):
            iter(loader)
        return
    batches = iter(loader)
    with pytest.raises(KeyError, match="no order"):
        next(batches)
    assert next(batches, None) is None


class FailingOnce:
    """Its own iterator, which fails at one index and can be asked for the next."""

    def __init__(self, *, batched: bool) -> None:
        self.position = -1
        self.batched = batched

    def __iter__(self) -> FailingOnce:
        return self

    def __next__(self) -> Any:
        self.position += 1
        if self.position == 3:
            raise ConnectionError
        if self.position >= 9:
            raise StopIteration
        return [self.position] if self.batched else self.position


@pytest.mark.parametrize("how", ["batches", "batch_sampler", "no batches"])
def test_a_loop_goes_on_after_a_sampler_has_failed_as_with_torch(how: str) -> None:
    def run(cls: Any) -> list[Any]:
        sampler: Any = FailingOnce(batched=how == "batch_sampler")
        arguments: dict[str, Any] = {"batch_sampler": sampler} if sampler.batched else {"sampler": sampler}
        arguments |= {"batch_size": None} if how == "no batches" else {}
        batches, seen = iter(cls(Squares(9), num_workers=0, **arguments)), []
        for _ in range(12):
            try:
                seen.append(next(batches).tolist())
            except (ConnectionError, StopIteration) as error:
                seen.append(type(error).__name__)
        return seen

    assert run(fl.DataLoader) == run(TorchDataLoader)
