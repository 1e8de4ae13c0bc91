"""Workers, errors and streams as torch documents them, with stock and our workers of every kind."""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler, get_worker_info

from tests.workers.kinds import KINDS, Count, Numbers, as_list, every_kind, flat

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:The PyTorch API of nested")

WITH_WORKERS = ["stock", "threads", "processes"]

every_worker = pytest.mark.parametrize("make", [KINDS[kind] for kind in WITH_WORKERS], ids=WITH_WORKERS)


class CountWithLength(Count):
    def __len__(self) -> int:
        assert self.length is not None
        return self.length


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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
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


class Pid(Numbers):
    def __getitem__(self, index: int) -> Any:
        return os.getpid()


def test_workers_are_where_they_were_asked_for() -> None:
    here = {os.getpid()}
    assert set(flat(KINDS["here"](Pid(), batch_size=2))) == here
    assert set(flat(KINDS["threads"](Pid(), batch_size=2))) == here
    assert len(set(flat(KINDS["processes"](Pid(), batch_size=2))) - here) == 2
