"""HDF5 files in subclasses, left and resumed epochs, forks, threads and worker processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.datasets.hdf5.files import GZIP, Rows, same, write

pytest.importorskip("h5py")


def test_samples_are_the_users_to_change(path: Path) -> None:
    for mode in fl.LoadingMode:
        dataset = fl.HDF5Dataset(path, loading_mode=mode)
        before = dataset[3].clone()
        dataset[3].add_(1)
        assert torch.equal(dataset[3], before)
        dataset.close()


def test_transform_collate_and_subclasses_are_obeyed(path: Path) -> None:
    class Doubled(fl.HDF5Dataset):
        def read(self, index: int) -> Any:
            return 2 * super().read(index)

    data = Rows(path)
    for mode in fl.LoadingMode:
        transformed = fl.HDF5Dataset(path, "data", mode, target_name="labels", transform=lambda row: row.sum())
        for loader in (fl.DataLoader, TorchDataLoader):
            rows, labels = next(iter(loader(transformed, 20)))
            assert torch.equal(rows, data.__getitem__(slice(20)).sum((1, 2)))
            assert labels.tolist() == list(range(20))
    for loader in (fl.DataLoader, TorchDataLoader):
        assert torch.equal(next(iter(loader(Doubled(path), 20))), 2 * data.__getitem__(slice(20)))
        (names, *_) = loader(
            fl.HDF5Dataset(path, target_name="labels"), 3, collate_fn=lambda batch: [y for _, y in batch]
        )
        assert names == [0, 1, 2]
        assert type(names[0]) is int
    seen = fl.DataLoader(fl.HDF5Dataset(path), 20, transform=lambda row: row + 1)
    assert torch.equal(next(iter(seen)), data.__getitem__(slice(20)) + 1)
    cached = fl.DataLoader(fl.HDF5Dataset(path), 20, cache="10MB")
    for _ in range(2):
        assert torch.equal(torch.cat(list(cached)), torch.stack(list(data)))
    assert cached.stats()["cache"]["hits"] >= 300


def test_an_epoch_that_is_left_early_lets_go_of_its_memory(path: Path) -> None:
    dataset = fl.HDF5Dataset(path)
    loader = fl.DataLoader(dataset, 10, shuffle=True, num_workers=2)
    gc.disable()
    try:
        batches = iter(loader)
        next(batches)
        rows = [weakref.ref(batch.take.__self__) for batch in batches._making]
        assert len(rows) > 20
        batches.close()
        del batches
        assert not any(row() for row in rows)
    finally:
        gc.enable()


def test_an_epoch_goes_on_where_it_was_left(path: Path) -> None:
    def loader() -> Any:
        return fl.DataLoader(fl.HDF5Dataset(path), 10, shuffle=True, seed=3)

    whole = list(loader())
    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = first.state_dict()
    batches.close()
    again = loader()
    again.load_state_dict(state)
    same(list(again), whole[4:])


# Processes


def _files_open(path: Path) -> int:
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{entry}") == str(path)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("layout", [{**GZIP}, {"compression": "lzf"}])
def test_after_a_fork_a_child_opens_its_own_file(tmp_path: Path, layout: dict[str, Any]) -> None:
    path = tmp_path / "rows.h5"
    data = write(path, chunks=(16, 6, 5), **layout)
    dataset = fl.HDF5Dataset(path)
    assert np.array_equal(dataset[5].numpy(), data[5])
    bands_of_parent = dataset._opened()
    out, into = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            before = bands_of_parent.file._handle is None
            good = all(np.array_equal(dataset[i].numpy(), data[i]) for i in range(300))
            own = dataset._opened() is not bands_of_parent
            os.write(into, repr((before, good, own)).encode())
        finally:
            os._exit(0)
    os.close(into)
    assert np.array_equal(dataset[299].numpy(), data[299])
    os.waitpid(child, 0)
    with open(out) as answer:
        assert answer.read() == "(True, True, True)"
    dataset.close()
    assert _files_open(path) == 0


@pytest.mark.slow
def test_threads_read_while_others_fork(tmp_path: Path) -> None:
    path = tmp_path / "rows.h5"
    data = write(path, chunks=(4, 6, 5), compression="lzf")
    dataset = fl.HDF5Dataset(path)
    wrong: list[int] = []
    over = threading.Event()

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not over.is_set():
            index = int(rng.integers(300))
            dataset.close() if seed == 0 and index == 7 else None
            if not np.array_equal(dataset.read(index).numpy(), data[index]):
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            batches = list(TorchDataLoader(dataset, 50, num_workers=2))
            assert np.array_equal(torch.cat(batches).numpy(), data)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", fl.LoadingMode)
def test_pickles_and_workers_that_get_them(path: Path, mode: fl.LoadingMode) -> None:
    dataset = fl.HDF5Dataset(path, "data", mode)
    expected = torch.stack(list(Rows(path)))
    assert torch.equal(dataset[3], expected[3])
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[3], expected[3])
    server = multiprocessing.get_context("forkserver")
    batches = list(TorchDataLoader(dataset, 64, num_workers=1, multiprocessing_context=server))
    assert torch.equal(torch.cat(batches), expected)


def test_nothing_is_left_open(path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = fl.HDF5Dataset(path)
        list(fl.DataLoader(dataset, 30, num_workers=2))
        gc.collect()  # what other tests have left
        before = descriptors()
        for _ in range(50):
            list(fl.DataLoader(dataset, 30, num_workers=2))
        assert descriptors() == before
        for _ in range(5):
            fl.HDF5Dataset(path)[0]
        gc.collect()
        assert descriptors() == before
        dataset.close()
        assert _files_open(path) == 0
        assert dataset[1].shape == (6, 5)
        dataset.close()
