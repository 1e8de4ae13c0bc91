"""The memory of tensors: shared with processes, mapped from files, or moved."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.datasets.test_tensors import FORMS, X, Y, flat


def test_the_callers_tensor_stays_its_own() -> None:
    source = X.clone()
    data = fl.CachedDataset(source)
    source.zero_()
    assert torch.equal(data[1], X[1])


def test_without_shared_memory_private_memory_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: torch.Tensor) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.warns(UserWarning, match="/dev/shm"):
        data = fl.CachedDataset(X)
    assert torch.equal(next(iter(fl.DataLoader(data, batch_size=20))), X)


def test_memory_is_shared_with_processes_not_copied() -> None:
    assert fl.CachedDataset(X)[0].is_shared()
    assert not fl.CachedDataset(X, share=False)[0].is_shared()


def test_what_is_shared_already_is_not_copied() -> None:
    source = X.clone().share_memory_()
    assert fl.CachedDataset({"x": source, "y": Y})[0]["x"].data_ptr() == source.data_ptr()


def test_tensors_are_moved_on_request() -> None:
    x, y = X.clone(), Y.clone()
    data = fl.CachedDataset((x, y), move=True)
    assert x.is_shared()
    assert y.is_shared()
    assert data[0][0].data_ptr() == x.data_ptr()
    assert torch.equal(x, X)
    array = X.numpy().copy()
    moved = fl.CachedDataset(array, move=True)
    array[:] = 0
    assert torch.equal(torch.stack(list(moved)), X)


def own_memory() -> int:
    """Bytes of this process that are no file's."""
    status = Path("/proc/self/status").read_text()
    return sum(1024 * int(kilobytes) for kilobytes in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))


MAPPED_ROWS = 40_000


@pytest.fixture
def mapped(tmp_path: Path) -> Path:
    """An array of 32 MB in a file."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(MAPPED_ROWS * 100, dtype=np.float64).reshape(MAPPED_ROWS, 100))
    return path


def test_a_part_of_a_mapped_file(mapped: Path) -> None:
    array = np.load(mapped, mmap_mode="r")
    data = fl.CachedDataset((array[10:], torch.arange(MAPPED_ROWS - 10)))
    assert all((x[:, 0] == 100 * (y + 10)).all() for x, y in TorchDataLoader(data, batch_size=1000))


def test_holding_a_mapped_file_takes_no_memory_of_its_own(mapped: Path) -> None:
    array = np.load(mapped, mmap_mode="r")
    before = own_memory()
    data = fl.CachedDataset(array)
    assert data[MAPPED_ROWS - 1][0] == 100 * (MAPPED_ROWS - 1)
    assert sum(float(row[0]) for row in data) == 100 * MAPPED_ROWS * (MAPPED_ROWS - 1) / 2
    assert own_memory() - before < 8 << 20


def test_what_is_written_to_a_sample_of_a_read_only_file_stays_in_the_process(mapped: Path) -> None:
    data = fl.CachedDataset(np.load(mapped, mmap_mode="r"))
    data[3].zero_()
    assert not data[3].any()
    assert np.load(mapped)[3, 5] == 305


def test_a_file_that_is_mapped_for_writing_is_the_samples_memory(mapped: Path) -> None:
    array = np.load(mapped, mmap_mode="r+")
    data = fl.CachedDataset(array)
    array[4, 0] = -1
    assert data[4][0] == -1


def test_a_mapped_file_that_was_deleted_is_copied(mapped: Path) -> None:
    array = np.load(mapped, mmap_mode="r")
    mapped.unlink()
    data = fl.CachedDataset(array)
    data[3].zero_()
    assert data[4][5] == 405


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_processes_map_the_file_too(mapped: Path, method: str) -> None:
    data = fl.CachedDataset(np.load(mapped, mmap_mode="r"))
    loader: Any = TorchDataLoader(data, 10_000, num_workers=1, multiprocessing_context=method)
    assert [float(batch[1, 0]) for batch in loader] == [
        100.0 * (start + 1) for start in range(0, MAPPED_ROWS, 10_000)
    ]
    assert not data[0].is_shared()  # nothing was moved to shared memory for it


@pytest.mark.parametrize("form", sorted(FORMS))
def test_copies_are_the_same_data(form: str) -> None:
    data = fl.CachedDataset(FORMS[form])
    expected = [flat(batch) for batch in TorchDataLoader(data, batch_size=6)]
    for other in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert [flat(batch) for batch in TorchDataLoader(other, batch_size=6)] == expected


def test_pinning_without_cuda_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    with pytest.raises(RuntimeError, match="pin=True needs CUDA"):
        fl.CachedDataset(X, pin=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.CachedDataset(X)
