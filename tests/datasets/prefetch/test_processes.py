"""Loading ahead in worker processes, forks, copies and threads, with errors at their samples."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import StackDataset

import foreload as fl
from tests.datasets.prefetch.squares import Squares, settle
from tests.programs import python


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
    assert ours.poll(300)
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
        thread.join(300)
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
    run = python("-c", script, finalize=True)
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
