"""States of other workers, loaders or batches are refused, and each wrong field is named."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

import foreload as fl
from foreload.order.samplers import KeyedSampler
from tests.epochs.stateful import SIZE, Numbers, Passes, as_it_is, make, take

pytestmark = pytest.mark.filterwarnings("ignore:.*has no state_dict")


# Workers.


def test_other_workers_are_refused_where_they_have_states() -> None:
    for kind in ("counting", "passes", "plain"):
        loader = make(kind, "processes")
        iterator = iter(loader)
        take(iterator, 2)
        state = loader.state_dict()
        for other in ("persistent", "here"):
            with pytest.raises(ValueError, match=r"workers = 2, but this one has [03].*num_workers=2"):
                make(kind, other).load_state_dict(state)


@pytest.mark.parametrize("kind", ["shuffled", "generator", "seed", "turning", "batches"])
def test_other_workers_are_exact_where_they_have_none(kind: str) -> None:
    loader = make(kind, "processes")
    iterator = iter(loader)
    take(iterator, 3)
    state = loader.state_dict()
    expected = list(iterator)
    for other in ("here", "threads"):
        again = make(kind, other)
        again.load_state_dict(state)
        assert list(again) == expected


def test_a_loader_that_may_choose_takes_the_number_of_the_state() -> None:
    loader: Any = fl.DataLoader(Passes(), 4, num_workers=2, workers="threads", collate_fn=as_it_is)
    iterator = iter(loader)
    take(iterator, 3)
    state = loader.state_dict()
    again: Any = fl.DataLoader(Passes(), 4, collate_fn=as_it_is)
    again.load_state_dict(state)
    assert list(again) == list(iterator)
    assert again.num_workers == 2


# What is wrong.


def _state(kind: str) -> dict[str, Any]:
    loader = make(kind, "here")
    take(iter(loader), 2)
    return loader.state_dict()


@pytest.mark.parametrize(
    "kind", ["shuffled", "seed", "generator", "turning", "lazy", "batches", "passes", "counting"]
)
def test_each_missing_field_is_named(kind: str) -> None:
    state = _state(kind)
    for name in state:
        wrong = {key: value for key, value in state.items() if key != name}
        with pytest.raises(ValueError, match="must come from" if name == "foreload" else f"'{name}'"):
            make(kind, "here").load_state_dict(wrong)


WRONG: list[tuple[str, str, Any]] = [
    *(("seed", name, value) for name in ("epoch", "turn", "base_seed") for value in (-1, 1.5, "1", None, [])),
    *(("seed", name, value) for name in ("finished", "begun", "draws_seed") for value in (None, 1, "True")),
    *(
        ("seed", "given", value)
        for value in (None, 3, [3], [[0, -4]], [[4, 0]], [[0, 4, 8]], [[0, "8"]], [[-4, 8]])
    ),
    *(
        ("seed", "given", value)
        for value in ([[0, SIZE + 1]], [[0, 8], [4, 12]], [[0, 8], [10, 1000]], [[8, 12], [0, 4]])
    ),
    *(("seed", "key", value) for value in (None, [1], [1, 2, 3], [1, -2], ["a", "b"])),
    *(("seed", "streams", value) for value in (None, [1], [[0, 1]], [[0, -1, None, []]], [["a", 1, None, []]])),
    *(("passes", "streams", value) for value in ([[0, 1, 3, []]], [[7, 1, None, []]], [[0, 0, {"at": 1}, []]])),
    *(("seed", "sampler_epoch", value) for value in ("a", 1.5)),
    *(("seed", name, value) for name in ("samples", "workers") for value in (-1, "a", 2.5)),
    *(("shuffled", "drawn", value) for value in (None, "a", -1, [], {}, 1 << 70)),
    *(("generator", "drawn", value) for value in (None, "a", -1, [], {}, "QUJD")),
    *(("generator", "generator", value) for value in (None, "a", -1, [], "QUJD")),
    *(("lazy", "drawn", value) for value in (None, "a", 4, {}, {"generators": {}}, {"generators": 3})),
    *(
        ("lazy", "drawn", {"generators": {"iter": value, "next": None, "drew": False}})
        for value in (None, "a", "QUJD")
    ),
    *(("turning", "drawn", value) for value in (None, 4, {"own": {}}, {"own": {"sampler": 1, "iterator": 2}})),
    *(("batches", "given", value) for value in ([[0, 2], [8, 9]], [[0, 99], [100, 101]])),
    ("seed", "foreload", 2),
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_each_impossible_value_is_named(kind: str, name: str, value: Any) -> None:
    loader = make(kind, "here")
    with pytest.raises(ValueError, match="must come from" if name == "foreload" else name):
        loader.load_state_dict({**_state(kind), name: value})
    assert len(list(loader)) == len(list(make(kind, "here")))  # as if nothing had been loaded


@pytest.mark.parametrize(
    ("was", "is_", "words"),
    [
        ("sequential", "shuffled", r"sampler = 'SequentialSampler'.*shuffle = False, but this one has True"),
        ("shuffled", "sequential", r"sampler = 'RandomSampler'.*shuffle = True, but this one has False"),
        ("seed", "shuffled", "seed = 3, but this one has None"),
        ("shuffled", "weighted", "sampler = 'RandomSampler', but this one has 'WeightedRandomSampler'"),
        ("turning", "places", "sampler = 'Turning', but this one has 'Places'"),
        ("batches", "sequential", "sampler = 'Batches'"),
        ("generator", "shuffled", "a generator, but this one has none"),
        ("shuffled", "generator", "no generator, but this one has one"),
        ("replacement", "shuffled", f"positions = 70, but this one has {SIZE}"),
        ("passes", "sequential", "samples|sampler"),
        ("sequential", "passes", "samples|sampler"),
    ],
)
def test_a_state_of_another_loader_is_refused(was: str, is_: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(is_, "here").load_state_dict(_state(was))


def test_a_state_of_other_batches_is_refused() -> None:
    state = _state("sequential")
    with pytest.raises(ValueError, match="batch_sampler = 'BatchSampler', but this one has None"):
        make("sequential", "here", batch_size=None).load_state_dict(state)
    plain = _state("plain")
    with pytest.raises(ValueError, match="batch_size = 4, but this one has 5"):
        make("plain", "here", batch_size=5).load_state_dict(plain)
    longer: Any = fl.DataLoader(Numbers(SIZE + 1), 4, num_workers=0)
    with pytest.raises(ValueError, match=f"samples = {SIZE}, but this one has {SIZE + 1}"):
        longer.load_state_dict(state)


def test_positions_that_made_shares_equal_do_not_count_with_fewer_ranks() -> None:
    def make(rank: int, ranks: int) -> Any:
        return fl.DataLoader(list(range(3)), batch_size=None, seed=0, group=(rank, ranks), num_workers=0)

    loader = make(0, 2)
    epoch = iter(loader)
    next(epoch), next(epoch)
    state = loader.state_dict()
    assert state["given"] == [[0, 4]]  # one sample was delivered twice
    for _ in range(2):
        alone = make(0, 1)
        alone.load_state_dict(state)
        epoch = iter(alone)
        state = alone.state_dict()
        assert list(epoch) == []


# Ranks.


class Held(Numbers):
    """Its first samples do not come before ``rest`` has."""

    thread_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.rest = threading.Event()

    def __getitem__(self, index: int) -> list[int]:
        assert index >= 4 or self.rest.wait(60)
        return super().__getitem__(index)


def test_what_one_rank_had_out_of_order_is_refused_by_others() -> None:
    def share(rank: int, ranks: int, dataset: Numbers) -> Any:
        sampler: Any = DistributedSampler(range(SIZE), ranks, rank, shuffle=False)  # type: ignore[arg-type]
        return fl.DataLoader(
            dataset, 2, sampler=sampler, in_order=False, num_workers=3, workers="threads", collate_fn=as_it_is
        )

    dataset = Held()
    loader = share(0, 2, dataset)
    batches = iter(loader)
    seen = take(batches, 2)
    state = json.loads(json.dumps(loader.state_dict()))
    dataset.rest.set()
    for rank, ranks in [(1, 2), (0, 1), (0, 3)]:
        with pytest.raises(ValueError, match=r"rank 0 of 2, whose batches came out of order"):
            share(rank, ranks, Numbers()).load_state_dict(state)
    again = share(0, 2, Numbers())
    again.load_state_dict(state)
    batches = iter(again)
    seen += take(batches, 1)
    with pytest.raises(ValueError, match=r"came out of order"):
        share(1, 2, Numbers()).load_state_dict(again.state_dict())
    seen += list(batches)
    assert sorted(index for batch in seen for index, _ in batch) == list(range(0, SIZE, 2))


def test_another_seed_of_a_sampler_is_refused() -> None:
    def loader(sampler: Any, seed: int) -> Any:
        return fl.DataLoader(Numbers(), 4, sampler=sampler(Numbers(), seed=seed), num_workers=0)

    for sampler in (KeyedSampler, partial(DistributedSampler, num_replicas=2, rank=0)):
        state = loader(sampler, 1).state_dict()
        with pytest.raises(ValueError, match="sampler_seed = 1, but this one has 2"):
            loader(sampler, 2).load_state_dict(state)
        loader(sampler, 1).load_state_dict(state)
