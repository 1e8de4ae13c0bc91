"""Several threads at one iterator or one loader: each sample comes once, and all of them end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

import foreload as fl

_SIZE = 120


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return _SIZE

    def __getitem__(self, index: int) -> int:
        if index % 30 == 7:
            time.sleep(0.002)
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(_SIZE) if info is None else range(info.id, _SIZE, info.num_workers))


class Stuck(Dataset[int]):
    """All samples but the first wait until they are let go."""

    def __init__(self, patience: float = 600) -> None:
        self.gate = threading.Event()
        self.patience = patience

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index:
            self.gate.wait(self.patience)
        return index


KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "inline": (Numbers, {"num_workers": 0}),
    "gathered": (lambda: TensorDataset(torch.arange(_SIZE)), {"num_workers": 0}),
    "threads": (Numbers, {"num_workers": 2, "workers": "threads"}),
    "native": (lambda: TensorDataset(torch.arange(_SIZE)), {"num_workers": 2, "workers": "threads"}),
    "processes": (Numbers, {"num_workers": 2, "workers": "processes"}),
    "stream": (Stream, {"num_workers": 0}),
    "stream, threads": (Stream, {"num_workers": 2, "workers": "threads"}),
    "stream, processes": (Stream, {"num_workers": 2, "workers": "processes"}),
}


def load(kind: str, **arguments: Any) -> Any:
    make, options = KINDS[kind]
    return fl.DataLoader(make(), batch_size=4, **{**options, **arguments})


def together(*actions: Callable[[], Any]) -> list[Any]:
    """Return what the functions return or raise, each in its own thread; "hangs" for one that does not end."""
    results: list[Any] = ["hangs"] * len(actions)

    def call(place: int) -> None:
        try:
            results[place] = actions[place]()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=call, args=(place,), daemon=True) for place in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return results


def indices(batches: Any) -> list[int]:
    found: list[int] = []
    for batch in batches:
        found += (batch[0] if isinstance(batch, (list, tuple)) else batch).tolist()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_comes_once_and_every_thread_ends(kind: str) -> None:
    iterator = iter(load(kind))
    parts = together(*[lambda: indices(iterator)] * 3)
    assert sorted(chain(*parts)) == list(range(_SIZE))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["threads", "processes", "stream, processes"])
@pytest.mark.parametrize("arguments", [{"persistent_workers": True, "in_order": False}, {"seed": 0}], ids=str)
def test_with_other_arguments(kind: str, arguments: dict[str, Any]) -> None:
    loader = load(kind, **arguments)
    for _ in range(2):
        iterator = iter(loader)
        assert sorted(chain(*together(*[lambda: indices(iterator)] * 3))) == list(range(_SIZE))
    loader.close()


@pytest.mark.parametrize("kind", ["inline", "threads", "processes", "stream"])
def test_errors_come_once_and_the_rest_goes_on(kind: str) -> None:
    def fail(samples: list[int]) -> Any:
        if 40 in samples:
            raise OSError("no such sample")
        return torch.tensor(samples)

    iterator = iter(load(kind, collate_fn=fail))
    failures: list[str] = []

    def go() -> list[int]:
        found: list[int] = []
        while True:
            try:
                found += indices([next(iterator)])
            except OSError as error:
                failures.append(str(error))
            except StopIteration:
                return found

    parts = together(go, go)
    assert sorted(chain(*parts)) == [i for i in range(_SIZE) if not 40 <= i < 44]
    assert failures == ["no such sample"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_each_thread_may_have_an_epoch_of_its_own(kind: str) -> None:
    loader = load(kind)
    assert together(*[lambda: sorted(indices(loader))] * 3) == [list(range(_SIZE))] * 3


@pytest.mark.parametrize("kind", ["processes", "stream, processes"])
def test_the_second_epoch_of_persistent_processes_ends_the_first(kind: str) -> None:
    loader = load(kind, persistent_workers=True)
    results = together(*[lambda: sorted(indices(loader))] * 3)
    loader.close()
    # As in torch, they are one iterator: a thread that has not waited for a batch meanwhile goes on with the last
    # epoch, whose batches are then of several threads.
    got = [result for result in results if isinstance(result, list)]
    assert set().union(*got) == set(range(_SIZE))
    for result in results:
        is_ended = any(why in str(result) for why in ("another one was begun", "another thread closed this epoch"))
        # Of the epoch that it began, and of the last one, at most once each.
        assert is_ended or all(result.count(index) <= len(results) for index in result)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("what", ["iterator", "loader"])
def test_closing_in_one_thread_is_an_error_in_another_that_waits(
    what: str, workers: Any, persistent: bool
) -> None:
    if what == "loader" and not persistent:
        pytest.skip("the workers are the epoch's")
    dataset = Stuck(600 if workers == "threads" else 1)  # a process does not see the gate
    loader = fl.DataLoader(dataset, num_workers=1, workers=workers, persistent_workers=persistent)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0]

    def close() -> None:
        time.sleep(0.2)
        dataset.gate.set()  # or closing would wait for the sample
        (iterator if what == "iterator" else loader).close()

    waited, closed = together(lambda: [next(iterator) for _ in range(100)], close)
    assert closed is None
    assert isinstance(waited, (RuntimeError, StopIteration)), waited
    loader.close()


def test_closing_ends_every_thread_that_waits_though_the_workers_persist() -> None:
    loader = fl.DataLoader(Stuck(), num_workers=1, workers="processes", persistent_workers=True)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0]

    def close() -> None:
        time.sleep(0.3)
        iterator.close()

    *waited, closed = together(*[lambda: next(iterator)] * 4, close)
    assert closed is None
    assert all(isinstance(each, (RuntimeError, StopIteration)) for each in waited), waited
    iterator._workers[0].kill()
    loader.close()


def test_closing_a_stream_is_an_error_in_another_thread_that_waits() -> None:
    gate = threading.Event()

    class Waiting(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            gate.wait(600)

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    iterator = iter(fl.DataLoader(Waiting(), batch_size=None, num_workers=1, workers="threads"))
    assert int(next(iterator)) == 0

    def close() -> None:
        time.sleep(0.2)
        gate.set()
        iterator.close()

    waited, closed = together(lambda: next(iterator), close)
    assert closed is None
    assert isinstance(waited, (RuntimeError, StopIteration)), waited


def test_a_fork_in_one_thread_while_another_has_the_iterator_hangs_nothing_in_the_child() -> None:
    dataset = Stuck()
    loader = fl.DataLoader(dataset, num_workers=0)
    iterator = iter(loader)
    next(iterator)
    thread = threading.Thread(target=lambda: next(iterator))
    thread.start()
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        dataset.gate = threading.Event()
        dataset.gate.set()
        left = len(list(iterator)), len(list(loader))
        os._exit(0 if left[0] in (8, 9) and left[1] == 10 else 1)
    ended = threading.Timer(300, os.kill, (child, signal.SIGKILL))
    ended.start()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ended.cancel()
    dataset.gate.set()
    thread.join()
