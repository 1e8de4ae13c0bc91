"""States that are taken before the first batch of an epoch, of which a sampler may know nothing yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, Sampler, SubsetRandomSampler

import foreload as fl
from tests.epochs.stateful import SIZE, take


class Counted(Sampler[int]):
    """Each epoch has another order. It goes on with the epoch that a state is of, which may be over."""

    def __init__(self) -> None:
        self.epoch, self.at, self.goes_on = 0, 0, False

    def __iter__(self) -> Iterator[int]:
        if not self.goes_on:
            self.epoch, self.at = self.epoch + 1, 0
        self.goes_on = False
        return self._left()

    def _left(self) -> Iterator[int]:
        while self.at < SIZE:
            self.at += 1
            yield (self.at * 7 + self.epoch) % SIZE

    def __len__(self) -> int:
        return SIZE

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at, self.goes_on = state["epoch"], state["at"], True


class Lazy(Counted):
    """Begins an epoch when the first item is requested."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()


@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize(
    ("before", "sampler"), [(0, Counted), (2, Counted), (None, Counted), (None, Lazy)]
)  # (one that was left is still in the middle of an epoch until its first item is requested)
def test_an_epoch_is_not_lost_if_its_state_is_taken_before_its_first_batch(
    before: int | None, sampler: type[Counted], size: int | None
) -> None:
    loader: Any = fl.DataLoader(range(SIZE), size, sampler=sampler(), num_workers=0)  # type: ignore[arg-type]
    if before is None:
        list(loader)
    else:
        take(iter(loader), before)
    batches = iter(loader)
    again: Any = fl.DataLoader(range(SIZE), size, sampler=sampler(), num_workers=0)  # type: ignore[arg-type]
    again.load_state_dict(loader.state_dict())
    rest = [torch.as_tensor(batch).tolist() for batch in again]
    assert rest == [torch.as_tensor(batch).tolist() for batch in batches]
    assert len(rest) == -(-SIZE // (size or 1))


class Always(Counted):
    """Counts an epoch whenever it is asked for an iterator, unless it is in the middle of one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        if self.at in (0, SIZE):
            self.epoch, self.at = self.epoch + 1, 0
        return self._left()


class OfIterator(Always):
    """Its position is its iterator's."""

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return _Position(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


class _Position(Iterator[int]):
    def __init__(self, epoch: int) -> None:
        self.epoch, self.at = epoch, 0

    def __next__(self) -> int:
        if self.at == SIZE:
            raise StopIteration
        self.at += 1
        return (self.at * 7 + self.epoch) % SIZE

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class CountsLast(Counted):
    """Counts an epoch after its last item, and keeps its position until the next one's first item is requested.

    It tells of a state that it was set to no earlier, as torchdata's ``StatefulDistributedSampler``.
    """

    def __iter__(self) -> Iterator[int]:
        self.at, self.goes_on = self.goes_on or 0, False
        yield from self._left()
        self.epoch += 1

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.goes_on = state["epoch"], state["at"]


class SetsBack(CountsLast):
    """Sets its position back when it counts."""

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.at = 0


def _flat(batches: Any) -> list[int]:
    return [index for batch in batches for index in torch.as_tensor(batch).reshape(-1).tolist()]


MOMENTS: dict[str, Any] = {
    "fresh": lambda loader: None,
    "begun": iter,
    "in the middle": lambda loader: take(iter(loader), 2) and None,
    "delivered": lambda loader: take(all_of := iter(loader), len(loader)) and all_of,
    "over": lambda loader: list(loader) and None,
    "over, begun": lambda loader: list(loader) and iter(loader),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("workers", [0, 2, "auto"])
@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("sampler", [Counted, Always, OfIterator, CountsLast, SetsBack])
def test_samplers_that_count_epochs_go_on_with_the_right_one(
    sampler: type[Counted], moment: str, is_used: bool, size: int | None, workers: Any
) -> None:
    if moment == "delivered" and sampler is Always:
        pytest.skip("which begins the next epoch if it is set to the end of one")

    def make() -> Any:
        return fl.DataLoader(range(SIZE), size, sampler=sampler(), num_workers=workers)  # type: ignore[arg-type]

    loader, again = make(), make()
    kept = iter(loader) if moment == "in the middle" else None
    batches = kept or MOMENTS[moment](loader)
    before = take(kept, 2) if kept else []
    state = json.loads(json.dumps(loader.state_dict()))
    if is_used:
        take(iter(again), 1)
    again.load_state_dict(state)
    assert again.state_dict() == state
    expected = [_flat(loader if batches is None else batches), _flat(loader), _flat(loader)]
    assert [_flat(again), _flat(again), _flat(again)] == expected
    assert len(expected[0]) == (0 if moment == "delivered" else SIZE - len(_flat(before)))


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "threads"}], ids=str)
@pytest.mark.parametrize("size", [4, None])
@pytest.mark.parametrize("moment", ["in the middle", "delivered", "over", "over, begun"])
@pytest.mark.parametrize("sampler", [Counted, Always, OfIterator, CountsLast, SetsBack])
def test_the_state_of_a_loader_that_goes_on_may_be_saved_before_its_first_batch(
    sampler: type[Counted], moment: str, size: int | None, how: dict[str, Any]
) -> None:
    if moment == "delivered" and sampler is Always:
        pytest.skip("which begins the next epoch if it is set to the end of one")

    def make() -> Any:
        return fl.DataLoader(range(SIZE), size, sampler=sampler(), **{"num_workers": 0, **how})

    loader, second, third = make(), make(), make()
    kept = iter(loader) if moment == "in the middle" else None
    batches = kept or MOMENTS[moment](loader)
    if kept:
        take(kept, 2)
    second.load_state_dict(loader.state_dict())
    begun = iter(second)
    third.load_state_dict(second.state_dict())
    expected = [_flat(loader if batches is None else batches), _flat(loader)]
    assert [_flat(begun), _flat(second)] == expected
    assert [_flat(third), _flat(third)] == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, SIZE, 4])
@pytest.mark.parametrize("left", [0, 1, 2, None])
@pytest.mark.parametrize("sampler", [Counted, CountsLast, SetsBack])
def test_the_end_of_an_epoch_that_was_gone_on_with_leads_to_the_next(
    sampler: type[Counted], left: int | None, size: int, workers: int
) -> None:
    """Also where only its last samples were left, or it has but one batch."""

    def make(state: Any = None) -> Any:
        loader: Any = fl.DataLoader(range(SIZE), size, sampler=sampler(), num_workers=workers)  # type: ignore[arg-type]
        if state is not None:
            loader.load_state_dict(state)
        return loader

    loader = make()
    if left is not None:
        batches = iter(loader)
        take(batches, max(0, len(loader) - left))
        loader = make(loader.state_dict())
    list(loader)
    again = make(loader.state_dict())
    for each in (loader, again):
        iter(each)  # which nobody asks for a batch
    assert [_flat(again), _flat(again)] == [_flat(loader), _flat(loader)]


def test_a_state_before_the_first_batch_asks_the_sampler_for_no_iterator() -> None:
    """Torch asks the sampler in its own batch sampler at the first batch, when an eager one draws its order."""
    sampler = Always()
    loader: Any = fl.DataLoader(range(SIZE), 4, sampler=sampler, num_workers=0)  # type: ignore[arg-type]
    loader.state_dict()
    batches = iter(loader)
    loader.state_dict()
    assert sampler.asked == 0
    next(batches)
    assert sampler.asked == 1


@pytest.mark.parametrize("sampler", [SubsetRandomSampler(range(9)), RandomSampler(range(9), True, 5)])  # type: ignore[arg-type]
def test_the_loops_generator_goes_on_as_from_an_epoch_that_had_not_begun(sampler: Any) -> None:
    torch.manual_seed(3)
    loader: Any = fl.DataLoader(range(9), None, sampler=sampler, num_workers=0)  # type: ignore[arg-type]
    batches = iter(loader)
    state, place = loader.state_dict(), torch.get_rng_state()
    expected = [*batches, *loader]
    again: Any = fl.DataLoader(range(9), None, sampler=sampler, num_workers=0)  # type: ignore[arg-type]
    torch.set_rng_state(place)
    again.load_state_dict(state)
    assert [*again, *again] == expected


@pytest.mark.parametrize("workers", [0, 2, -2], ids=["none", "of an epoch", "persistent"])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_sampler_may_be_set_to_another_epoch_after_that(seed: int | None, workers: int) -> None:
    orders = []
    for saves in (False, True):
        dataset = Stateful()
        how: Any = {"shuffle": True, "seed": seed} if seed else {"sampler": DistributedSampler(dataset, 2, 0)}
        how |= {"num_workers": abs(workers), "persistent_workers": workers < 0}
        loader: Any = fl.DataLoader(dataset, 2, **how)
        if saves:
            loader.state_dict()
        loader.sampler.set_epoch(5)
        orders.append([torch.cat(list(loader)).tolist() for _ in range(2)])
        loader.close()
    assert orders[0] == orders[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_so_it_may_where_a_state_is_taken_once_more(workers: int) -> None:
    loader: Any = fl.DataLoader(Stateful(), 2, shuffle=True, seed=3, num_workers=workers)
    loader.state_dict()
    loader.sampler.set_epoch(5)
    state = loader.state_dict()
    order = torch.cat(list(loader)).tolist()
    loader.load_state_dict(state)
    assert torch.cat(list(loader)).tolist() == order
    loader.close()


@pytest.mark.parametrize("saves", [False, True])
def test_steps_may_be_left_out_after_that(saves: bool) -> None:
    loader: Any = fl.DataLoader(Stateful(), 2, shuffle=True, seed=3, num_workers=2)
    whole = [loader.indices(epoch, step) for epoch in range(2) for step in range(6)]
    if saves:
        loader.state_dict()
    loader.skip = fl.Skip(steps=[1], epoch=0)
    assert [batch.tolist() for _ in range(2) for batch in loader] == [
        indices for number, indices in enumerate(whole) if number != 1
    ]


class Stateful(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...
