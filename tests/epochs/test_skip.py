"""Steps and samples that are left out of epochs, against a list computed by hand."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, IterableDataset, Sampler, TensorDataset, get_worker_info

import foreload as fl
from tests.epochs.skipped import ORDERS, SAMPLES, SIZE, STEPS, WORKERS, make, plain


class Fives(Sampler[Any]):
    """A user's own batch sampler, of lists and tuples."""

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, SIZE, 5):
            yield (list if first % 2 else tuple)(range(first, first + 5))

    def __len__(self) -> int:
        return SIZE // 5


def without(batches: list[Any], steps: Any, samples: Any, size: int = 4, drop_last: bool = False) -> list[Any]:
    """The oracle: the batches of an epoch without anything left out."""
    left = [index for step, batch in enumerate(batches) if step not in steps for index in batch]
    left = [index for index in left if index not in samples]
    cut = [left[first : first + size] for first in range(0, len(left), size)]
    return [batch for batch in cut if len(batch) == size] if drop_last else cut


FLAT = {0, 3, 5, 6}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("skip", [fl.Skip(STEPS), fl.Skip(samples=SAMPLES), fl.Skip(STEPS, SAMPLES)])
def test_what_is_left_out_does_not_come(order: str, workers: str, skip: Any) -> None:
    torch.manual_seed(2)
    everything = plain(make(order, workers, drop_last=False))
    torch.manual_seed(2)
    loader = make(order, workers, skip=skip)
    expected = without(everything, FLAT if skip.steps else (), skip.samples, drop_last=order == "drop_last")
    assert plain(loader) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize("workers", ["here", pytest.param("threads", marks=pytest.mark.slow), "processes"])
@pytest.mark.parametrize("order", ORDERS)
def test_it_is_honoured_before_and_after_a_state(order: str, workers: str) -> None:
    skip = fl.Skip(STEPS, SAMPLES)
    torch.manual_seed(2)
    expected = plain(make(order, workers, skip=skip))
    for stop in (0, 1, 2, 5, len(expected)):
        torch.manual_seed(2)
        loader = make(order, workers, skip=skip)
        iterator = iter(loader)
        first = plain(next(iterator) for _ in range(stop))
        state = loader.state_dict()
        again = make(order, workers, skip=skip)
        with pytest.warns() if order == "own" and stop else nullcontext():
            again.load_state_dict(state)
            assert first + plain(again) == expected, stop


@pytest.mark.parametrize("order", ["sequential", "seed", "own"])
def test_a_new_skip_leaves_out_of_what_is_still_to_come(order: str) -> None:
    everything = plain(make(order))
    loader = make(order)
    iterator = iter(loader)
    first = plain(next(iterator) for _ in range(4))
    samples = everything[6][:2] + everything[1][:1]  # one of which has come
    again = make(order, skip=[fl.Skip(steps=[2, 8]), fl.Skip(samples=samples)])
    with pytest.warns() if order == "own" else nullcontext():
        again.load_state_dict(loader.state_dict())
        rest = plain(again)
    expected = without(everything, {0, 1, 2, 3, 8}, samples)
    assert (first + rest)[4:] == expected


def test_a_skip_that_is_lifted_brings_back_only_what_was_still_to_come() -> None:
    everything = plain(make("seed"))
    loader = make("seed", skip=fl.Skip(steps=[1, 9], samples=everything[10][:1]))
    iterator = iter(loader)
    first = plain(next(iterator) for _ in range(4))
    assert first == [everything[step] for step in (0, 2, 3, 4)]
    again = make("seed")
    again.load_state_dict(loader.state_dict())
    assert plain(again) == everything[5:]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.sets(st.integers(0, 14)),
    samples=st.sets(st.integers(0, SIZE - 1)),
    stops=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), max_size=4),
    order=st.sampled_from(["sequential", "seed", "shuffled"]),
)
def test_each_sample_once_or_never(steps: Any, samples: Any, stops: Any, order: str) -> None:
    skip = fl.Skip(steps=sorted(steps), samples=samples)
    state: Any = None
    seen: list[int] = []
    torch.manual_seed(4)
    everything = plain(make(order))
    torch.manual_seed(4)
    for stop, _size in [*stops, (1000, 4)]:
        loader = make(order, skip=skip)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        for _ in range(stop):
            batch = next(iterator, None)
            seen += [] if batch is None else batch.tolist()
        state = loader.state_dict()
        if state["finished"]:
            break
    assert seen == [index for batch in without(everything, steps, samples) for index in batch]


def test_it_is_of_one_epoch_or_of_every() -> None:
    loader = make("seed", skip=[fl.Skip(steps=2, epoch=1), fl.Skip(samples=[5])])
    epochs = [[index for batch in plain(loader) for index in batch] for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [49, 45, 49]
    assert not any(5 in epoch for epoch in epochs)
    loader.skip = None
    assert sum(len(batch) for batch in loader) == SIZE


def test_it_can_be_changed_between_epochs_and_copied() -> None:
    loader = make("sequential")
    assert loader.skip == ()
    loader.skip = fl.Skip(steps=range(1, 13))
    for other in (loader, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert plain(other) == [[0, 1, 2, 3]]
    assert len(loader) == 13  # of the whole epoch


@pytest.mark.parametrize("workers", ["here", "threads", "processes"])
def test_batches_of_a_batch_sampler(workers: str) -> None:
    skip = fl.Skip(steps=[1], samples=[0, 3, *range(10, 15)])
    loader: Any = fl.DataLoader(
        range(SIZE),  # type: ignore[arg-type]
        batch_sampler=Fives(),
        skip=skip,
        **WORKERS[workers],
    )
    expected = [[1, 2, 4], *(list(range(first, first + 5)) for first in range(15, SIZE, 5))]
    assert plain(loader) == expected
    one_by_one: Any = fl.DataLoader(range(SIZE), batch_size=None, skip=skip, **WORKERS[workers])  # type: ignore[arg-type]
    assert list(one_by_one) == [2, *range(4, 10), *range(15, SIZE)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_leave_out_the_same(ranks: int, drop_last: bool) -> None:
    def make_rank(rank: int, skip: Any) -> Any:
        sampler: Any = DistributedSampler(range(SIZE), ranks, rank, seed=3, drop_last=drop_last)  # type: ignore[arg-type]
        return fl.DataLoader(range(SIZE), 4, sampler=sampler, num_workers=0, skip=skip)  # type: ignore[arg-type]

    everything = [plain(make_rank(rank, None)) for rank in range(ranks)]
    by_steps = [plain(make_rank(rank, fl.Skip(steps=[1, 2]))) for rank in range(ranks)]
    assert by_steps == [[batch for step, batch in enumerate(own) if step not in (1, 2)] for own in everything]
    samples = [3, 4, 5, 20, 44]
    by_samples = [plain(make_rank(rank, fl.Skip(samples=samples))) for rank in range(ranks)]
    assert len({len(own) for own in by_samples}) == 1
    seen = {index for own in by_samples for batch in own for index in batch}
    assert not seen & set(samples)
    assert len(seen) >= SIZE - len(samples) - (ranks - 1 if drop_last else 0)
    states = []
    first: list[Any] = []
    for rank in range(ranks):
        loader = make_rank(rank, fl.Skip(steps=[1], samples=samples))
        iterator = iter(loader)
        first.append(plain(next(iterator) for _ in range(2)))
        states.append((loader.state_dict(), plain(iterator)))
    for rank, (state, expected) in enumerate(states):
        again = make_rank(rank, fl.Skip(steps=[1], samples=samples))
        again.load_state_dict(state)
        assert plain(again) == expected


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(SIZE) if info is None else range(info.id, SIZE, info.num_workers))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*has no state_dict")
@pytest.mark.parametrize("workers", WORKERS)
def test_steps_of_a_stream(workers: str) -> None:
    everything = plain(fl.DataLoader(Stream(), 4, **WORKERS[workers]))
    skip = fl.Skip(steps=[0, 4, 5])
    expected = [batch for step, batch in enumerate(everything) if step not in (0, 4, 5)]
    assert plain(fl.DataLoader(Stream(), 4, skip=skip, **WORKERS[workers])) == expected
    for stop in (1, 3, 4):
        loader: Any = fl.DataLoader(Stream(), 4, skip=skip, **WORKERS[workers])
        iterator = iter(loader)
        first = plain(next(iterator) for _ in range(stop))
        again: Any = fl.DataLoader(Stream(), 4, skip=skip, **WORKERS[workers])
        again.load_state_dict(loader.state_dict())
        assert first + plain(again) == expected


def test_a_cache_plans_without_what_is_left_out() -> None:
    data = TensorDataset(torch.arange(200.0).reshape(SIZE, 4))
    cache = fl.Cache("1MiB", policy="lru")
    skip = fl.Skip(steps=[2], samples=[1, 2])
    loader: Any = fl.DataLoader(data, 4, shuffle=True, seed=1, num_workers=0, cache=cache, skip=skip)
    plain_loader: Any = fl.DataLoader(data, 4, shuffle=True, seed=1, num_workers=0)
    everything = [(batch[0][:, 0] / 4).int().tolist() for batch in plain_loader]
    assert [(batch[0][:, 0] / 4).int().tolist() for batch in loader] == without(everything, {2}, {1, 2})
    planned = loader.sample_cache.plan
    if planned is not None:
        assert planned.accesses.tolist() == [i for batch in without(everything, {2}, {1, 2}) for i in batch]


def test_listeners_hear_of_the_order_that_is_delivered() -> None:
    from foreload.protocol import EpochListener

    class Listening(TensorDataset, EpochListener):
        def epoch_begins(self, order: Any, key: Any) -> None:
            self.order = order.tolist()

    data = Listening(torch.arange(SIZE))
    for order in ("sequential", "seed", "shuffled"):
        loader: Any = fl.DataLoader(data, num_workers=0, skip=fl.Skip(STEPS, SAMPLES), **ORDERS[order])
        assert [index for batch in loader for index in batch[0].tolist()] == data.order


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"steps": [-1]}, ValueError, "Skip: steps must be 0 or more"),
        ({"steps": ["a"]}, TypeError, "Skip: steps must be an int"),
        ({"steps": "12"}, TypeError, "Skip: steps must be ints and ranges"),
        ({"steps": [range(-3, 2)]}, ValueError, "Skip: steps"),
        ({"steps": [True]}, TypeError, "Skip: steps"),
        ({"samples": [-1]}, ValueError, "Skip: samples"),
        ({"samples": [1.5]}, TypeError, "Skip: samples"),
        ({"samples": 3.5}, TypeError, "Skip: samples"),
        ({"samples": torch.ones(4, dtype=torch.bool)}, TypeError, "Skip: samples must be an int, got tensor"),
        ({"epoch": -1}, ValueError, "Skip: epoch"),
        ({"epoch": "1"}, TypeError, "Skip: epoch"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        fl.Skip(**arguments)


def test_skips_of_the_wrong_kind_are_refused() -> None:
    for wrong in (3, [3], "a", {"steps": [1]}):
        with pytest.raises(TypeError, match=r"skip must be a foreload.Skip or a list of them"):
            make("seed", skip=wrong)
        with pytest.raises(TypeError, match=r"skip must be a foreload.Skip or a list of them"):
            make("seed").skip = wrong
    with pytest.raises(ValueError, match="samples of an iterable dataset have no indices"):
        fl.DataLoader(Stream(), skip=fl.Skip(samples=[1]))


def test_values_of_many_kinds_are_taken() -> None:
    assert fl.Skip(steps=3).steps == (3,)
    assert fl.Skip(steps=range(2, 4)).steps == (range(2, 4),)
    assert fl.Skip(samples=np.array([4, 5])).samples == (4, 5)
    assert fl.Skip(samples=torch.tensor([4, 5])).samples == (4, 5)
    assert fl.Skip(samples=7).samples == (7,)
    assert fl.Skip(steps=[range(9, 1, -3)]) == fl.Skip(steps=[range(9, 1, -3)])
    loader = make("sequential", skip=fl.Skip(steps=range(0, 13, 2)))
    assert [batch[0] for batch in plain(loader)] == [4, 12, 20, 28, 36, 44]


# The samples of a batch.


def test_samples_cannot_be_left_out_of_an_order_that_ranks_share_otherwise() -> None:
    mixture = fl.Mixture({"a": range(30), "b": range(20)}, weights=[3, 1], num_samples=24)
    sampler = fl.order.MixtureSampler(mixture, 1, num_replicas=2) if hasattr(fl, "order") else None
    if sampler is None:
        from foreload.order.mixture import MixtureSampler

        sampler = MixtureSampler(mixture, 1, num_replicas=2)
    loader: Any = fl.DataLoader(mixture, 4, sampler=sampler, num_workers=0, skip=fl.Skip(samples=[1]))
    with pytest.raises(ValueError, match="leave out steps"):
        iter(loader)
    loader.skip = fl.Skip(steps=[1])
    whole: Any = fl.DataLoader(mixture, 4, sampler=sampler, num_workers=0)
    assert plain(loader) == [batch for step, batch in enumerate(plain(whole)) if step != 1]


@pytest.mark.parametrize("order", ["shuffled", "own"])
def test_an_order_that_is_no_function_is_refused(order: str) -> None:
    with pytest.raises(ValueError, match=r"is not known without drawing it; with seed="):
        make(order).indices(0, 0)
    with pytest.raises(ValueError, match="it is iterable"):
        fl.DataLoader(Stream()).indices(0, 0)
    for wrong in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="must be 0 or more"):
            make("seed").indices(*wrong)
    with pytest.raises(TypeError, match="step must be an int"):
        make("seed").indices(0, "a")


def test_a_sample_that_is_not_there_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="there is no sample 8 to leave out: the dataset has samples 0 to 7"):
        loader = fl.DataLoader(range(8), skip=fl.Skip(samples=[8, 2]), num_workers=0)  # type: ignore[arg-type]
    assert [batch.item() for batch in loader] == [0, 1, 3, 4, 5, 6, 7]
