"""Streams that are interrupted and go on, with a state of their own or without."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import foreload as fl
from tests.epochs.orders import WORKERS, Stream, plain, saved
from tests.pairwise import pairwise


class StatefulStream(Stream):
    """Tells its own state."""

    def __init__(self) -> None:
        self.at: int | None = None

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        self.at = first if self.at is None else self.at
        while self.at < 50 - 11 * first:
            Stream.read += 1
            self.at += step
            yield self.at - step
        self.at = None

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class SetBack(StatefulStream):
    """Sets its position back when its next pass begins; until then it tells that of the end of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on: int | None = None

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        self.at, self.goes_on = (first if self.goes_on is None else self.goes_on), None
        while self.at < 50 - 11 * first:
            self.at += step
            yield self.at - step

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.goes_on = state["at"]


class StatefulIterator(Iterator[int]):
    def __init__(self) -> None:
        info = get_worker_info()
        self.first, self.step = (0, 1) if info is None else (info.id, info.num_workers)
        self.at = self.first

    def __next__(self) -> int:
        if self.at >= 50 - 11 * self.first:
            raise StopIteration
        self.at += self.step
        return self.at - self.step

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class StreamOfIterators(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*has no state_dict")
@pytest.mark.parametrize(
    ("kind", "workers", "stop", "batch_size"),
    pairwise([Stream, StatefulStream, StreamOfIterators], [*WORKERS, "three"], [0, 1, 2, 5, 8, "end"], [3, None]),
)
def test_streams_go_on(kind: Any, workers: str, stop: int | str, batch_size: int | None) -> None:
    arguments: dict[str, Any] = {"batch_size": batch_size, **WORKERS.get(workers, {"num_workers": 3})}
    expected = plain(fl.DataLoader(kind(), **arguments))
    seen = len(expected) if stop == "end" else int(stop)
    loader: Any = fl.DataLoader(kind(), **arguments)
    iterator = iter(loader)
    assert plain(next(iterator) for _ in range(seen)) == expected[:seen]
    state = saved(loader.state_dict())
    del iterator
    again: Any = fl.DataLoader(kind(), **arguments)
    again.load_state_dict(state)
    assert plain(again) == expected[seen:]


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("stop", [0, 1, 2, 5, "all"])
@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 0},
        {"num_workers": 3, "persistent_workers": True},
        {"num_workers": 3, "persistent_workers": True, "snapshot_every_n_steps": 100},
        {"num_workers": 2, "workers": "threads"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [StatefulStream, SetBack, StreamOfIterators])
def test_the_second_pass_goes_on_where_some_workers_have_delivered_nothing_of_it(
    kind: Any, how: dict[str, Any], stop: Any, batch_size: int | None
) -> None:
    loader: Any = fl.DataLoader(kind(), batch_size=batch_size, **how)
    expected = plain(loader)
    stop = len(expected) if stop == "all" else stop
    iterator = iter(loader)
    assert plain(next(iterator) for _ in range(stop)) == expected[:stop]
    again: Any = fl.DataLoader(kind(), batch_size=batch_size, **how)
    again.load_state_dict(saved(loader.state_dict()))
    begun = iter(again)
    third: Any = fl.DataLoader(kind(), batch_size=batch_size, **how)
    third.load_state_dict(saved(again.state_dict()))  # before its first batch
    for batches, other in ((begun, again), (third, third)):
        assert plain(batches) == expected[stop:]
        assert plain(other) == expected


class Unready(StatefulStream):
    """Has no state to tell of between being set to one and being read."""

    is_set = False

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            self.is_set = False
            yield item

    def state_dict(self) -> dict[str, Any]:
        if self.is_set:
            raise RuntimeError("not read yet")
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.is_set = True


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [2, "all"])
def test_a_stream_need_not_tell_of_its_state_before_it_is_read(stop: Any, workers: int) -> None:
    loader: Any = fl.DataLoader(Unready(), batch_size=3, num_workers=workers)
    expected = plain(loader)
    stop = len(expected) if stop == "all" else stop
    iterator = iter(loader)
    assert plain(next(iterator) for _ in range(stop)) == expected[:stop]
    again: Any = fl.DataLoader(Unready(), batch_size=3, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    assert plain(again) == expected[stop:]


def test_a_stream_with_a_state_is_not_read_again_and_one_without_says_so() -> None:
    for kind, reads in ((StatefulStream, 20), (Stream, 50)):
        loader: Any = fl.DataLoader(kind(), batch_size=5, num_workers=0)
        iterator = iter(loader)
        for _ in range(6):
            next(iterator)
        again: Any = fl.DataLoader(kind(), batch_size=5, num_workers=0)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            again.load_state_dict(loader.state_dict())
        assert any("read again" in str(warning.message) for warning in warned) == (kind is Stream)
        Stream.read = 0
        assert [i for batch in again for i in batch.tolist()] == list(range(30, 50))
        assert Stream.read == reads


@pytest.mark.filterwarnings("ignore:DataLoader worker")
def test_a_stream_with_a_state_survives_a_killed_worker() -> None:
    import os
    import signal

    arguments: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "workers": "processes"}
    expected = plain(fl.DataLoader(StatefulStream(), **arguments))
    iterator = iter(fl.DataLoader(StatefulStream(), **arguments))
    got = plain(next(iterator) for _ in range(5))
    os.kill(iterator._workers[1].pid, signal.SIGKILL)
    assert got + plain(iterator) == expected


class DrawingIterator(StatefulIterator):
    """Draws from torch's global generator, whose state is part of its own."""

    def __next__(self) -> int:
        super().__next__()
        return int(torch.randint(1 << 30, ()))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


class DrawingStream(StatefulStream):
    """As ``DrawingIterator``, and draws when it begins."""

    def __iter__(self) -> Iterator[int]:
        items, first = super().__iter__(), int(torch.randint(1 << 30, ()))
        return (first ^ int(torch.randint(1 << 30, ())) for _ in items)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


class StreamOfDrawingIterators(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return DrawingIterator()


@pytest.mark.parametrize("kind", [StreamOfDrawingIterators, DrawingStream])
@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 0},
        {"num_workers": 2, "workers": "threads", "persistent_workers": True},
        {"num_workers": 2, "workers": "processes", "persistent_workers": True},
    ],
)
def test_what_a_seed_draws_in_an_epoch_does_not_depend_on_a_state_of_the_end_of_the_one_before(
    kind: Any, arguments: dict[str, Any]
) -> None:
    loader: Any = fl.DataLoader(kind(), batch_size=4, seed=7, **arguments)
    plain(loader)
    state = saved(loader.state_dict())
    expected = plain(loader), plain(loader)
    again: Any = fl.DataLoader(kind(), batch_size=4, seed=7, **arguments)
    again.load_state_dict(state)
    assert (plain(again), plain(again)) == expected


@pytest.mark.parametrize(
    "arguments", [{"num_workers": 0}, {"num_workers": 2, "workers": "threads"}], ids=["here", "threads"]
)
def test_a_state_amid_an_epoch_with_a_seed_holds_the_generator_that_the_stream_draws_from(arguments: Any) -> None:
    loader: Any = fl.DataLoader(StreamOfDrawingIterators(), batch_size=4, seed=7, **arguments)
    iterator = iter(loader)
    next(iterator)
    state, expected = saved(loader.state_dict()), plain(iterator)
    again: Any = fl.DataLoader(StreamOfDrawingIterators(), batch_size=4, seed=7, **arguments)
    again.load_state_dict(state)
    before = torch.get_rng_state()
    loader.state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert plain(again) == expected
