"""Iterable datasets, as torch streams them."""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, get_worker_info

import foreload as fl
from tests.pairwise import pairwise

warnings.filterwarnings("ignore", message="This DataLoader will create")


class Numbers(IterableDataset[int]):
    """start ... end - 1, split between workers."""

    def __init__(self, start: int, end: int, *, split: bool = True) -> None:
        self.start = start
        self.end = end
        self.split = split

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None and self.split else (0, 1)
        return iter(range(self.start + first, self.end, step))


class Stateful(IterableDataset[int]):
    """Its own iterator, as many are."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.at = 0

    def __iter__(self) -> Stateful:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at >= self.end:
            raise StopIteration
        self.at += 1
        return self.at


def take_a_part(worker: int) -> None:
    """The example in torch's documentation: each worker edits its own copy."""
    info = get_worker_info()
    dataset = info.dataset
    share = -(-(dataset.end - dataset.start) // info.num_workers)
    dataset.start = dataset.start + worker * share
    dataset.end = min(dataset.start + share, dataset.end)


every_kind = pytest.mark.parametrize("kind", ["threads", "processes"])
CASES: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 4},
    "dropped": {"batch_size": 4, "drop_last": True},
    "single": {"batch_size": None},
    "exact": {"batch_size": 5},
    "larger": {"batch_size": 100},
    "collated": {"batch_size": 3, "collate_fn": sum},
}


STREAMS: dict[str, Callable[[], Any]] = {
    "split": lambda: Numbers(0, 25),
    "whole": lambda: Numbers(0, 7, split=False),
    "empty": lambda: Numbers(0, 0),
    "stateful": lambda: Stateful(10),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("stream", "case", "workers", "kind"), pairwise(STREAMS, CASES, [0, 1, 2, 3], ["threads", "processes"])
)
def test_streams_are_torchs(stream: str, case: str, workers: int, kind: Any) -> None:
    dataset, arguments = STREAMS[stream](), {**CASES[case], "num_workers": workers}
    ours = [torch.as_tensor(batch).tolist() for batch in fl.DataLoader(dataset, workers=kind, **arguments)]
    theirs = [torch.as_tensor(batch).tolist() for batch in TorchDataLoader(dataset, **arguments)]
    assert ours == theirs


@every_kind
def test_the_documented_worker_init_fn_splits_the_data(kind: Any) -> None:
    dataset = Numbers(3, 17, split=False)
    for workers in (1, 2, 4):
        loader = fl.DataLoader(dataset, num_workers=workers, workers=kind, worker_init_fn=take_a_part)
        assert sorted(int(batch) for batch in loader) == list(range(3, 17))
    assert (dataset.start, dataset.end) == (3, 17)


def test_by_default_a_stream_of_the_users_is_read_by_the_calling_thread() -> None:
    loader = fl.DataLoader(Numbers(0, 20), batch_size=6)
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == list(range(20))
    assert loader.num_workers == 0
    assert "with num_workers=1 or more, processes read it ahead" in loader.stats()["workers"]["why"]


def test_by_default_one_thread_reads_a_stream_that_allows_it_ahead() -> None:
    class Shared(Numbers):
        thread_safe = True

    loader = fl.DataLoader(Shared(0, 20), batch_size=6)
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == list(range(20))
    workers = loader.stats()["workers"]
    assert (workers["kind"], workers["count"], workers["why"]) == ("threads", 1, "one stream, read ahead")


@every_kind
@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_stream_can_be_left(workers: int, kind: Any) -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return itertools.count()

    for _ in range(3):
        first = next(iter(fl.DataLoader(Endless(), batch_size=2, num_workers=workers, workers=kind)))
        assert first.tolist() == [0, 1]


@every_kind
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_comes_after_the_batches_before_it(workers: int, kind: Any) -> None:
    class Breaking(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(4)
            raise KeyError("broken")

    iterator = iter(fl.DataLoader(Breaking(), batch_size=2, num_workers=workers, workers=kind))
    assert next(iterator).tolist() == [0, 1]
    assert next(iterator).tolist() == [2, 3]
    with pytest.raises(KeyError, match="broken"):
        next(iterator)


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}], ids=str)
def test_samplers_are_refused_in_torchs_words(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as theirs:
        TorchDataLoader(Numbers(0, 3), **arguments)
    with pytest.raises(ValueError) as ours:
        fl.DataLoader(Numbers(0, 3), **arguments)
    assert str(ours.value) == str(theirs.value)


@every_kind
def test_a_stuck_stream_times_out(kind: Any) -> None:
    released = threading.Event()

    class Stuck(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            released.wait(20)
            yield 1

    with pytest.raises(RuntimeError, match="timed out"):
        next(iter(fl.DataLoader(Stuck(), num_workers=1, workers=kind, timeout=0.2)))
    released.set()
    for thread in threading.enumerate():
        if thread.name.startswith("foreload"):
            thread.join(300)


def test_the_default_leaves_in_the_dataset_what_it_learns() -> None:
    class Counting(IterableDataset[int]):
        epoch = 0

        def __iter__(self) -> Iterator[int]:
            self.epoch += 1
            return iter([self.epoch] * 2)

    ours, theirs = (cls(Counting()) for cls in (fl.DataLoader, TorchDataLoader))
    for _ in range(3):
        assert [int(batch) for batch in ours] == [int(batch) for batch in theirs]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@every_kind
def test_uneven_shards_take_turns_as_in_torch(workers: int, drop_last: bool, kind: Any) -> None:
    class Uneven(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            worker = 0 if info is None else info.id
            return iter(range(100 * worker, 100 * worker + (7, 0, 13)[worker]))

    arguments = {"batch_size": 2, "num_workers": workers, "drop_last": drop_last}
    ours = [batch.tolist() for batch in fl.DataLoader(Uneven(), workers=kind, **arguments)]
    assert ours == [batch.tolist() for batch in TorchDataLoader(Uneven(), **arguments)]


@every_kind
def test_workers_have_ids_seeds_and_copies_as_in_torch(kind: Any) -> None:
    class Asking(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            yield info.id, info.num_workers, info.seed, info.dataset is self

    def told(cls: Any, **more: Any) -> list[Any]:
        torch.manual_seed(7)
        return list(cls(Asking(), batch_size=None, num_workers=2, **more))

    assert told(fl.DataLoader, workers=kind) == told(TorchDataLoader)


@every_kind
def test_a_worker_init_fn_that_fails_is_heard_of(kind: Any) -> None:
    def init(worker: int) -> None:
        raise ValueError(f"worker {worker} will not")

    with pytest.raises(ValueError, match="will not"):
        list(fl.DataLoader(Numbers(0, 5), num_workers=2, workers=kind, worker_init_fn=init))


@every_kind
def test_streams_that_are_left_leave_no_worker(kind: Any) -> None:
    loader = fl.DataLoader(Numbers(0, 10**9), batch_size=3, num_workers=2, workers=kind)
    for _ in range(5):
        for batch in loader:
            if batch[0] > 20:
                break
    # The fixture looks for threads and processes.


def test_torchs_datapipes_stay_torchs() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(10)).shuffle()
    for _ in range(2):
        torch.manual_seed(3)
        ours = [int(batch) for batch in fl.DataLoader(pipe, shuffle=True)]
        torch.manual_seed(3)
        assert ours == [int(batch) for batch in TorchDataLoader(pipe, shuffle=True)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 0),
        ("transform", str),
        ("cache", "1MiB"),
        ("device", "cpu"),
        ("on_error", "skip"),
        ("workers", "threads"),
    ],
)
def test_what_torchs_datapipes_cannot_have_is_refused(name: str, value: Any) -> None:
    from torch.utils.data.datapipes.map import SequenceWrapper

    options: Any = {name: value}
    with pytest.raises(ValueError, match=f"{name} has no effect where torch's own code loads"):
        fl.DataLoader(SequenceWrapper(range(4)), **options)
    loader = fl.DataLoader(SequenceWrapper(range(4)))
    vars(loader)[name] = vars(fl.DataLoader(range(4), **options))[name]
    with pytest.raises(ValueError, match=f"{name} has no effect"):
        iter(loader)


def test_torchs_datapipes_have_no_state() -> None:
    from torch.utils.data.datapipes.map import SequenceWrapper

    loader = fl.DataLoader(SequenceWrapper(range(4)))
    assert int(next(iter(loader))) == 0
    with pytest.warns(UserWarning, match=r"state_dict\(\) is empty.*put a pipe into a Dataset or IterableDataset"):
        assert loader.state_dict() == {}


class LongerThanItsLength(Numbers):
    """Reports half of what each worker yields."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __repr__(self) -> str:
        return "LongerThanItsLength"


@pytest.mark.parametrize("workers", [0, 2])
def test_more_samples_than_the_length_are_warned_of_in_torchs_words(workers: int) -> None:
    """By which filters, and users who search for them, know the warning; each batch beyond the length is one."""
    told = []
    for loader_class in (fl.DataLoader, TorchDataLoader):
        loader: Any = loader_class(LongerThanItsLength(0, 4), batch_size=None, num_workers=workers)
        assert len(loader) == 2
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(loader)
        texts = [str(each.message).replace(" (", "(") for each in caught]
        told.append([text for text in texts if text.startswith("Length of")])
    assert told[0] == told[1]
    assert told[0]


class _OnceOver(IterableDataset[int]):
    """An iterator that, like lhotse's, fails if it is asked again after its end."""

    def __iter__(self) -> Iterator[int]:
        worker: Any = get_worker_info()
        self.left: Any = iter(range(1 + 6 * worker.id))
        return self

    def __next__(self) -> int:
        try:
            return int(next(self.left))
        except StopIteration:
            self.left = None
            raise


def test_workers_do_not_ask_a_stream_again_after_its_end() -> None:
    loader = fl.DataLoader(_OnceOver(), batch_size=None, num_workers=2)
    assert sorted(loader) == [0, *range(7)]


class _GoesOn(IterableDataset[int]):
    """An iterator that goes on after its end."""

    count = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count % 4 == 0:
            raise StopIteration
        return self.count


@pytest.mark.parametrize("size", [None, 2])
def test_the_calling_thread_asks_a_stream_again_as_torch_does(size: int | None) -> None:
    found = []
    for kind in (TorchDataLoader, fl.DataLoader):
        batches = iter(kind(_GoesOn(), batch_size=size, num_workers=0))
        found.append([[torch.as_tensor(batch).tolist() for batch in batches] for _ in range(3)])
    assert found[0] == found[1]
