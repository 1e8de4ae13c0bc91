"""Samples loaded ahead: which, when, by whom, and what becomes of the threads."""

from __future__ import annotations

import contextlib
import copy
import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl


class Squares(Dataset[int]):
    """Says what was loaded, and by which thread; a gate holds up what runs in other threads."""

    def __init__(self, size: int = 100) -> None:
        self.size = size
        self.loaded: list[int] = []
        self.helped: set[int] = set()
        self.bad = -1
        self.classes = ["even", "odd"]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        if threading.current_thread().name.startswith("foreload-prefetch"):
            self.helped.add(index)
        if index == self.bad:
            raise KeyError(f"bad {index}")
        return int(index) ** 2


def settle(dataset: fl.AsyncPrefetchDataset) -> None:
    """Wait for what is being loaded ahead."""
    for future in list(dataset._reader._loaded.values()):
        future.exception()


@pytest.mark.parametrize("indices", [range(40), range(60, 20, -2), range(5, 100, 7)])
def test_equal_steps_are_followed_no_further_than_the_queue_is_long(indices: range) -> None:
    squares = Squares()
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=4)
    for place, index in enumerate(indices):
        assert ahead[index] == index**2
        settle(ahead)
        expected = indices[place + 1 : place + 5]
        if place >= 2:
            assert set(expected) <= set(squares.loaded)
            assert len(set(squares.loaded) - set(indices[: place + 1])) <= 4 + 4  # a first guess may be wrong
    assert len(squares.loaded) == len(set(squares.loaded))


@given(
    order=st.lists(st.integers(0, 30), max_size=60),
    told=st.lists(st.integers(0, 30), max_size=60) | st.none(),
    size=st.integers(1, 8),
)
def test_any_order_gives_the_samples_that_were_asked_for(order: list[int], told: Any, size: int) -> None:
    ahead = fl.AsyncPrefetchDataset(Squares(31), queue_size=size)
    if told is not None:
        ahead.ahead(told)
    assert [ahead[index] for index in order] == [index**2 for index in order]
    assert ahead.__getitems__(order) == [index**2 for index in order]


@pytest.mark.parametrize("as_what", [list, np.asarray, iter, torch.tensor])
def test_the_order_that_was_told_is_loaded_ahead_each_sample_once(as_what: Any) -> None:
    squares = Squares()
    order = random.Random(0).sample(range(100), 100)
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=7, num_workers=3)
    ahead.ahead(as_what(order))
    assert squares.loaded == []
    for place, index in enumerate(order):
        assert ahead[index] == index**2
        settle(ahead)
        assert set(squares.loaded) == set(order[: place + 8])
    assert sorted(squares.loaded) == list(range(100))
    assert squares.helped >= set(order[1:])


def test_an_order_that_is_not_kept_costs_little_and_is_given_up() -> None:
    squares = Squares(1000)
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=5)
    ahead.ahead(range(500))
    assert [ahead[index] for index in range(998, 501, -2)] == [index**2 for index in range(998, 501, -2)]
    settle(ahead)
    assert len(squares.loaded) <= 249 + 5 + 5
    # From the middle of an order it goes on there.
    squares.loaded.clear()
    ahead.ahead(range(500))
    assert ahead[250] == 250**2
    settle(ahead)
    assert sorted(squares.loaded) == list(range(250, 256))


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("seed", [None, 5])
def test_our_loader_tells_its_order(workers: int, seed: int | None) -> None:
    squares = Squares()
    make = lambda dataset: fl.DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=workers, seed=seed, workers="threads"
    )
    ahead = fl.AsyncPrefetchDataset(squares)
    torch.manual_seed(1)
    expected = [[batch.tolist() for batch in loader] for loader in [make(Squares())] for _ in range(2)]
    torch.manual_seed(1)
    loader = make(ahead)
    for epoch in range(2):
        squares.loaded.clear()
        assert [batch.tolist() for batch in loader] == expected[epoch]
        assert sorted(squares.loaded) == list(range(100))  # each once: nothing was guessed
    if workers == 0:
        squares.loaded.clear()
        epoch = iter(loader)
        next(epoch)
        settle(ahead)
        foreseen = set(squares.loaded)
        assert len(foreseen) == 8 + 10  # the batch, and the queue
        assert set(torch.cat([next(epoch), next(epoch)[:2]]).sqrt().tolist()) <= foreseen
    part = fl.DataLoader(Subset(ahead, [3, 1, 2]), batch_size=3, num_workers=workers)
    assert [batch.tolist() for batch in part] == [[9, 1, 4]]


def test_a_stock_loader_has_the_rest_of_a_batch_loaded_ahead() -> None:
    squares = Squares()
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=4)
    generators = [torch.Generator().manual_seed(2) for _ in range(2)]
    theirs, ours = (
        [b.tolist() for b in TorchDataLoader(d, batch_size=8, shuffle=True, generator=g)]
        for d, g in zip((Squares(), ahead), generators, strict=True)
    )
    assert ours == theirs
    assert sorted(squares.loaded) == list(range(100))


def test_an_error_comes_up_at_its_sample() -> None:
    squares = Squares()
    squares.bad = 7
    ahead = fl.AsyncPrefetchDataset(squares, queue_size=5)
    for index in range(7):
        assert ahead[index] == index**2
    settle(ahead)
    assert 7 in squares.loaded
    with pytest.raises(KeyError, match="bad 7"):
        ahead[7]
    assert [ahead[index] for index in range(8, 20)] == [index**2 for index in range(8, 20)]
    with pytest.raises(KeyError, match="bad 7") as caught:
        ahead.__getitems__([1, 9, 7, 3])
    assert any("sample 7 (position 2" in note for note in caught.value.__notes__)
    loader = fl.DataLoader(ahead, batch_size=10, on_error="skip", num_workers=0)
    assert [len(batch) for batch in loader] == [9] + [10] * 9
    assert [error.index for error in loader.errors] == [7]
    with pytest.raises(KeyError, match="bad 7") as caught:
        list(fl.DataLoader(ahead, batch_size=5, num_workers=0))
    assert any("sample 7 (position 2" in note for note in caught.value.__notes__)


class OwnBatches(TensorDataset):
    """Loads whole batches in another way than single samples."""

    def __getitems__(self, indices: Any) -> Any:
        return [(2 * self.tensors[0][index],) for index in indices]


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(6))])
def test_batches_are_the_datasets_own(wrap: Any) -> None:
    dataset = wrap(OwnBatches(torch.arange(8)))
    expected = [batch[0].tolist() for batch in TorchDataLoader(dataset, 2)]
    for loader in (TorchDataLoader, fl.DataLoader):
        assert [batch[0].tolist() for batch in loader(fl.AsyncPrefetchDataset(dataset), 2)] == expected


class Modes(Dataset[Any]):
    """Samples that depend on an attribute."""

    train = True

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return index, self.train


def test_a_dataset_may_change_between_epochs() -> None:
    dataset = Modes()
    ahead = fl.AsyncPrefetchDataset(dataset)
    for _ in range(2):
        for order in ([4, 5, 6, 7], [8, 9, 10, 11], [12, 3, 13, 14]):
            loaded = list(fl.DataLoader(ahead, 2, sampler=order))
            assert [mode.tolist() for _, mode in loaded] == [[dataset.train] * 2] * 2
            time.sleep(0.02)
            dataset.train = not dataset.train
    ahead.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [TorchDataLoader, fl.DataLoader])
def test_each_worker_process_loads_ahead_by_itself(method: str, kind: Any) -> None:
    ahead = fl.AsyncPrefetchDataset(Squares())
    assert [ahead[i] for i in range(5)] == [0, 1, 4, 9, 16]  # threads run before the fork
    extra = {"workers": "processes"} if kind is fl.DataLoader else {}
    loader = kind(ahead, batch_size=16, num_workers=2, multiprocessing_context=method, **extra)
    assert torch.cat(list(loader)).tolist() == [i**2 for i in range(100)]
    assert ahead[5] == 25


def test_a_fork_in_the_middle_goes_on_on_both_sides() -> None:
    ahead = fl.AsyncPrefetchDataset(Squares(), queue_size=6)
    ahead.ahead(range(100))
    assert ahead[0] == 0

    def child(pipe: Any) -> None:
        pipe.send([ahead[i] for i in range(1, 50)])

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == [ahead[i] for i in range(1, 50)]
    process.join()
    assert process.exitcode == 0


def test_copies_and_pickles_begin_anew_and_know_the_dataset() -> None:
    ahead = fl.AsyncPrefetchDataset(Squares(), queue_size=3)
    assert ahead[0] == 0
    for other in (pickle.loads(pickle.dumps(ahead)), copy.copy(ahead), copy.deepcopy(ahead)):
        assert other[3] == 9
        assert (other.queue_size, other.classes, len(other)) == (3, ["even", "odd"], 100)
        assert other._reader is not ahead._reader
    with pytest.raises(AttributeError, match="nothing"):
        ahead.nothing


def test_threads_end_with_the_dataset_and_none_runs_before_it_is_needed() -> None:
    def running() -> int:
        return sum(thread.name.startswith("foreload-prefetch") for thread in threading.enumerate())

    ahead = fl.AsyncPrefetchDataset(Squares(), num_workers=3)
    assert running() == 0
    assert [ahead[i] for i in range(9)] == [i**2 for i in range(9)]
    assert running() == 3
    ahead.close()
    assert running() == 0
    assert [ahead[i] for i in range(9)] == [i**2 for i in range(9)]
    assert running() == 3
    del ahead
    gc.collect()
    assert running() == 0


def test_a_dataset_that_knows_its_wrapper_ends_with_it() -> None:
    squares = Squares()
    squares.ahead = fl.AsyncPrefetchDataset(squares, num_workers=2)  # type: ignore[attr-defined]
    assert [squares.ahead[i] for i in range(9)] == [i**2 for i in range(9)]  # type: ignore[attr-defined]
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("foreload-prefetch")]
    settle(squares.ahead)  # type: ignore[attr-defined]
    left = weakref.ref(squares)
    del squares
    for _ in range(100):  # until the threads have let go of what was cancelled
        gc.collect()
        if left() is None:
            break
        time.sleep(0.01)
    assert left() is None
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_nothing_is_kept_of_what_was_replaced_or_closed() -> None:
    ahead = fl.AsyncPrefetchDataset(Squares())
    assert [ahead[i] for i in range(5)] == [0, 1, 4, 9, 16]
    left, reader = weakref.ref(ahead.dataset), weakref.ref(ahead._reader)
    ahead.dataset = Squares(7)
    gc.collect()
    assert left() is None
    assert reader() is None
    assert len(ahead) == 7
    ahead.close()


@pytest.mark.slow
def test_a_program_ends_while_samples_are_being_loaded() -> None:
    script = (
        "import threading, foreload as fl\n"
        "class Slow:\n"
        "    def __len__(self): return 9\n"
        "    def __getitem__(self, i): return i if i == 0 else threading.Event().wait(1)\n"
        "ahead = fl.AsyncPrefetchDataset(Slow()); print(ahead[0])\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout.strip(), run.stderr) == (0, "0", "")


def test_other_indices_are_the_datasets_own_affair() -> None:
    rows = fl.AsyncPrefetchDataset(torch.arange(10))  # type: ignore[arg-type]
    assert rows[2:4].tolist() == [2, 3]
    assert rows[-1] == 9
    assert rows[torch.tensor(3)] == 3
    assert [row.tolist() for row in rows.__getitems__([slice(0, 2), 1])] == [[0, 1], 1]
    with pytest.raises(IndexError):
        rows[10]


def test_direct_io_is_told_to_a_dataset_that_knows_it() -> None:
    squares = Squares()
    with pytest.raises(ValueError, match="Squares has no attribute 'direct_io'; wrap a dataset that reads files"):
        fl.AsyncPrefetchDataset(squares, direct_io=True)
    squares.direct_io = False  # type: ignore[attr-defined]
    fl.AsyncPrefetchDataset(squares)
    assert not squares.direct_io  # type: ignore[attr-defined]
    assert fl.AsyncPrefetchDataset(squares, direct_io=True).direct_io
    squares.direct_io = False  # type: ignore[attr-defined]
    fl.AsyncPrefetchDataset(StackDataset(one=squares, two=squares), direct_io=True)
    assert squares.direct_io  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((iter([]),), TypeError, "dataset must be map-style"),
        ((torch.utils.data.ChainDataset([]),), TypeError, "ChainDataset is not"),
        (([], 0), ValueError, "queue_size must be 1 or more, got 0"),
        (([], 1, 0), ValueError, "num_workers must be 1 or more, got 0"),
        (([], 1.5), TypeError, "queue_size must be an int, got 1.5"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        fl.AsyncPrefetchDataset(*arguments)


def test_real_images_are_the_same(photos: os.PathLike[str]) -> None:
    images = fl.ImageDataset(photos, image_size=32)  # type: ignore[arg-type]
    ahead = fl.AsyncPrefetchDataset(images)
    assert ahead.classes == images.classes
    for kind in (TorchDataLoader, fl.DataLoader):
        for ours, theirs in zip(kind(ahead, batch_size=8), kind(images, batch_size=8), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", [torch.utils.data.SubsetRandomSampler, torch.utils.data.DistributedSampler])
@pytest.mark.parametrize("batch_size", [3, None])
def test_an_epoch_that_goes_on_gives_the_rest_and_no_more(kind: Any, batch_size: int | None) -> None:
    with contextlib.closing(fl.AsyncPrefetchDataset(Squares(12), queue_size=4, num_workers=1)) as ahead:

        def loader() -> fl.DataLoader[Any]:
            of = range(12)
            sampler = kind(of) if kind is torch.utils.data.SubsetRandomSampler else kind(ahead, 1, 0)
            return fl.DataLoader(ahead, batch_size=batch_size, sampler=sampler, num_workers=0)

        first = loader()
        epoch = iter(first)
        given = [next(epoch), next(epoch)]
        again = loader()
        again.load_state_dict(first.state_dict())
        rest = list(again)
    found = [int(sample) for batch in [*given, *rest] for sample in np.atleast_1d(batch)]
    assert sorted(found) == [index**2 for index in range(12)]


class Drawing(Dataset[Any]):
    """Draws from every generator; a sample in ten takes its time."""

    def __init__(self, wait: threading.Event | None = None) -> None:
        self.wait = wait

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if self.wait is not None and index % 10 == 3:
            self.wait.wait(0.001)
        return index, random.random(), float(np.random.rand()), torch.rand(2)


@pytest.mark.parametrize("shuffle", [False, True])
def test_who_loads_a_sample_does_not_change_what_it_draws(shuffle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def epochs(short: float, wait: threading.Event | None = None) -> tuple[list[Any], bool]:
        monkeypatch.setattr("foreload.datasets.prefetch.read_ahead._SHORT_SECONDS", short)
        torch.manual_seed(5)
        dataset = Drawing(wait)
        with contextlib.closing(fl.AsyncPrefetchDataset(dataset, queue_size=3)) as ahead:
            order = torch.Generator().manual_seed(1)
            loader = TorchDataLoader(ahead, 8, shuffle=shuffle, generator=order, collate_fn=list)
            found = [str(sample) for _ in range(3) for batch in loader for sample in batch]
            first = iter(loader)
            found += map(str, next(first) + next(first) + next(iter(loader)))
            return found, ahead._reader._is_short

    threads, is_short = epochs(0)
    assert not is_short
    assert len(set(threads)) == len(threads) == 3 * 60 + 24
    here, is_short = epochs(1e9)
    assert is_short
    assert here == threads
    assert epochs(5e-5, threading.Event())[0] == threads


def test_a_batch_of_short_samples_ends_loading_ahead_until_one_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreload.datasets.prefetch.read_ahead._SHORT_SECONDS", 0.05)
    slow = threading.Event()
    gate = threading.Event()

    class Gated(Squares):
        def __getitem__(self, index: int) -> int:
            if slow.is_set():
                gate.wait(0.1)
            return super().__getitem__(index)

    squares = Gated(400)
    with contextlib.closing(fl.AsyncPrefetchDataset(squares, queue_size=4)) as ahead:
        batches = iter(TorchDataLoader(ahead, batch_size=10))
        for _ in range(4):
            next(batches)
        settle(ahead)
        squares.helped.clear()
        for _ in range(3):
            next(batches)
        assert not squares.helped
        assert sorted(squares.loaded)[-1] == 69
        slow.set()
        next(batches)
        settle(ahead)
        assert squares.helped & set(range(72, 80))
        assert sorted(squares.loaded)[-1] >= 80


def test_a_sample_that_fails_in_a_batch_of_short_ones_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    squares = Squares()
    monkeypatch.setattr("foreload.datasets.prefetch.read_ahead._SHORT_SECONDS", 1.0)
    ahead = fl.AsyncPrefetchDataset(squares)
    squares.bad = 17
    for _ in range(2):  # loaded by threads, then here
        assert len(ahead.__getitems__(list(range(40, 90)))) == 50
        with pytest.raises(KeyError, match="bad 17") as caught:
            ahead.__getitems__([15, 16, 17, 18])
        assert any("sample 17 (position 2" in note for note in caught.value.__notes__)
        with pytest.raises(KeyError, match="bad 17") as caught:
            ahead.__getitems__([9, 17, 18])
        assert any("sample 17 (position 1" in note for note in caught.value.__notes__)
    ahead.close()


class Sharing(Dataset[Any]):
    """Draws from every generator."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(2).tolist()


@pytest.mark.parametrize("wrap", [lambda ahead: ahead, lambda ahead: Subset(ahead, range(29, -1, -1))])
@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (2, "threads"), (2, "processes")])
def test_loaders_that_share_it_draw_what_each_draws_alone(wrap: Any, workers: int, kind: Any) -> None:
    def loader(dataset: Any, seed: int) -> Any:
        return fl.DataLoader(
            dataset, 4, shuffle=True, seed=seed, num_workers=workers, workers=kind, collate_fn=list
        )

    alone = []
    for seed in (0, 1):
        with contextlib.closing(fl.AsyncPrefetchDataset(Sharing())) as ahead:
            alone.append(list(loader(wrap(ahead), seed)))
    with contextlib.closing(fl.AsyncPrefetchDataset(Sharing(), queue_size=5)) as ahead:
        train, val = loader(wrap(ahead), 0), loader(wrap(ahead), 1)
        found = list(zip(train, val, strict=True))
        assert [batch for batch, _ in found] == alone[0]
        assert [batch for _, batch in found] == alone[1]
    if wrap(ahead) is ahead:
        assert list(loader(Sharing(), 0)) == alone[0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stock_epochs_after_one_of_ours_draw_other_numbers_each_time(num_workers: int) -> None:
    with contextlib.closing(fl.AsyncPrefetchDataset(Sharing(), queue_size=5)) as ahead:
        epochs = [list(fl.DataLoader(ahead, 4, num_workers=0, collate_fn=list))]
        stock = TorchDataLoader(ahead, 4, num_workers=num_workers, collate_fn=list)
        epochs += [list(stock) for _ in range(3)]
    drawn = [sample[1] for epoch in epochs for batch in epoch for sample in batch]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("loader", [TorchDataLoader, fl.DataLoader])
def test_wrappers_within_wrappers_draw_other_numbers_each_time(loader: Any) -> None:
    def epochs() -> list[Any]:
        torch.manual_seed(3)
        inner = fl.AsyncPrefetchDataset(Sharing(), queue_size=2)
        with contextlib.closing(inner), contextlib.closing(fl.AsyncPrefetchDataset(inner, queue_size=3)) as outer:
            batches = loader(outer, 4, num_workers=0, collate_fn=list)
            return [sample[1] for _ in range(3) for batch in batches for sample in batch]

    drawn = epochs()
    assert len(set(drawn)) == len(drawn)
    assert drawn == epochs()


def test_another_dataset_and_other_attributes_are_followed() -> None:
    ahead = fl.AsyncPrefetchDataset(Modes(), queue_size=6)
    assert [ahead[index] for index in range(3)] == [(0, True), (1, True), (2, True)]
    ahead.train = False
    assert ahead.dataset.train is False
    assert [ahead[index] for index in range(3, 6)] == [(3, False), (4, False), (5, False)]
    ahead.dataset = Squares()
    assert [ahead[index] for index in range(6, 9)] == [36, 49, 64]
    ahead.own = 1
    assert ahead.own == 1
    assert not hasattr(ahead.dataset, "own")
    ahead.close()


def test_attributes_of_a_subclass_are_its_own() -> None:
    class Negated(fl.AsyncPrefetchDataset):
        def __init__(self, dataset: Any, size: int) -> None:
            super().__init__(dataset)
            self.size = size

        def __len__(self) -> int:
            return self.size

    squares = Squares(50)
    some = Negated(fl.AsyncPrefetchDataset(squares), 5)
    assert (len(some), len(some.dataset), squares.size) == (5, 50, 50)
    assert (some.queue_size, some.dataset.queue_size) == (10, 10)


class _Drawing(Dataset[float]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return float(torch.rand(()))


class _Pairs(Dataset[Any]):
    """Draws a number itself, and asks one part twice and another once."""

    def __init__(self) -> None:
        self.parts = [fl.AsyncPrefetchDataset(_Drawing()) for _ in range(2)]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        first, other = self.parts
        return (
            float(torch.rand(())),
            first[index],
            first[index],
            other[index],
            *first.__getitems__([index, 3 - index]),
        )


def _concatenated() -> Dataset[float]:
    return ConcatDataset([fl.AsyncPrefetchDataset(_Drawing()) for _ in range(2)])


def _of_subsets() -> Dataset[float]:
    parts = [fl.AsyncPrefetchDataset(_Drawing()) for _ in range(2)]
    return ConcatDataset([Subset(parts[0], [3, 1, 0]), Subset(parts[1], [3, 2])])


def _nested() -> Dataset[float]:
    return fl.AsyncPrefetchDataset(ConcatDataset([_concatenated(), _concatenated()]))


def _stacked() -> Dataset[Any]:
    return StackDataset(*(fl.AsyncPrefetchDataset(_Drawing()) for _ in range(3)))


def _numbers(loader: Any) -> list[float]:
    return [float(number) for batch in loader for number in np.ravel([*map(np.asarray, batch)])]


@pytest.mark.parametrize("make", [_concatenated, _of_subsets, _nested, _stacked, _Pairs])
def test_parts_of_a_dataset_draw_numbers_of_their_own(make: Any) -> None:
    def epochs(**options: Any) -> list[list[float]]:
        loader = fl.DataLoader(make(), batch_size=3, seed=1, **options)
        return [_numbers(loader) for _ in range(2)]

    expected = epochs(num_workers=0)
    first, second = expected
    assert len({*first, *second}) == len(first) + len(second)
    assert epochs(num_workers=2, workers="threads") == expected
    assert sorted(epochs(num_workers=0, shuffle=True)[1]) == sorted(expected[1])
    if make is not _stacked:  # which makes whole batches
        assert sorted(_numbers(fl.DataLoader(make(), batch_size=2, seed=1, num_workers=0))) == sorted(first)
    for kind in (fl.DataLoader, torch.utils.data.DataLoader):
        torch.manual_seed(0)
        drawn = _numbers(kind(make(), batch_size=3, num_workers=0))
        assert len(set(drawn)) == len(drawn)
        torch.manual_seed(0)
        assert _numbers(kind(make(), batch_size=3, num_workers=0)) == drawn
