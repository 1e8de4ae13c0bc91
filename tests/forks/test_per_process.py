"""Objects made once per process: neither pickled nor used by a fork, and no state of a dataset."""

import copy
import os
import pickle
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import foreload
from foreload.dataset_state.copied import CopiedState
from foreload.dataset_state.digest import StateWatch
from foreload.forks.per_process import PerProcess


def test_threads_share_what_one_of_them_makes():
    readers = PerProcess[object]()

    def make() -> object:
        time.sleep(0.01)
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(readers.get(make))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1
    assert readers.get(make) is found[0]


def test_each_key_has_its_own_and_can_be_forgotten():
    readers = PerProcess[list[int]]()
    first = readers.get(list)
    assert readers.get(list, "other") is not first
    assert readers.pop() is first
    assert readers.pop() is None
    assert readers.get(list) is not first


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_are_empty(copied):
    readers = PerProcess[threading.Lock]()
    lock = readers.get(threading.Lock)
    other = copied(readers)
    assert isinstance(other, PerProcess)
    assert other.get(threading.Lock) is not lock


def test_a_fork_makes_its_own():
    readers = PerProcess[list[int]]()
    readers.get(list).append(1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, bytes([len(readers.get(list))]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"\0"
    os.close(read), os.close(write)
    assert readers.get(list) == [1]


def hdf5(folder: Path, transform):
    with h5py.File(folder / "rows.h5", "w") as file:
        file["data"] = np.arange(300 * 4, dtype=np.float32).reshape(300, 4)
    return foreload.HDF5Dataset(folder / "rows.h5", transform=transform)


def parquet(folder: Path, transform):
    pq.write_table(pa.table({"a": list(range(300))}), folder / "rows.parquet", row_group_size=50)
    return foreload.ParquetDataset(folder / "rows.parquet", transform=transform)


def unchanged(row):
    return row


@pytest.mark.parametrize("make", [hdf5, parquet])
def test_loading_changes_no_state_of_foreloads_own_datasets(make, tmp_path):
    dataset = make(tmp_path, unchanged)
    copied, watch = CopiedState(dataset), StateWatch(dataset)
    for index in (0, 299, 100):
        dataset[index]
        watch.compare()
        assert watch.change is None
        assert copied.changed() is None
        assert copied.changed_by_loading() is None
    dataset.transform = str
    watch.compare()
    assert watch.change == "transform"
    assert copied.changed() == "transform"


def test_a_copy_reads_for_itself(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    dataset = hdf5(first, None)
    with h5py.File(second / "rows.h5", "w") as file:
        file["data"] = np.ones((300, 4), dtype=np.float32)
    dataset[3]
    other = copy.copy(dataset)
    other.data_path = second / "rows.h5"
    other.index()
    assert other[3].tolist() == [1.0] * 4
    assert dataset[3].tolist() == [12.0, 13.0, 14.0, 15.0]
