"""A spill folder serves the next run until the data changes."""

from __future__ import annotations

import gc
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreload.cache.spill import SpillFolder
from foreload.cache.store import SampleStore


class Files:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[str, int]:
        return Path(self.path).read_text(), index


def spilled(dataset: Any, folder: Path) -> SampleStore:
    store = SampleStore(len(dataset), 0)
    store.native.follow_members(np.zeros(len(dataset), np.uint8))
    store.spill_to(SpillFolder(folder, dataset))
    return store


def load_all(store: SampleStore, dataset: Any) -> list[int]:
    calls = []

    def get(index: int) -> Any:
        calls.append(index)
        return dataset[index]

    for index in range(len(dataset)):
        assert store.load(index, get) == dataset[index]
    return calls


def test_a_spill_folder_serves_the_next_run_until_the_data_changes(tmp_path: Path) -> None:
    source = tmp_path / "data.txt"
    source.write_text("first")
    dataset = Files(source)
    store = spilled(dataset, tmp_path / "spill")
    assert load_all(store, dataset) == list(range(8))
    assert load_all(store, dataset) == []
    with pytest.warns(UserWarning, match="in use by another run"):
        assert not SpillFolder(tmp_path / "spill", dataset).usable
    del store
    gc.collect()
    store = spilled(dataset, tmp_path / "spill")
    load_all(store, dataset)  # these are compared
    assert load_all(store, dataset) == []
    del store
    gc.collect()
    source.write_text("second, longer")
    assert load_all(spilled(dataset, tmp_path / "spill"), dataset) == list(range(8))


class Sly:
    """Changes in a way that no fingerprint shows."""

    shift = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index + Sly.shift


def test_a_spill_folder_that_lies_is_found_out(tmp_path: Path) -> None:
    dataset = Sly()
    load_all(spilled(dataset, tmp_path), dataset)
    gc.collect()
    Sly.shift = 1
    store = spilled(dataset, tmp_path)
    with pytest.warns(UserWarning, match="not what the dataset gives now"):
        load_all(store, dataset)
    Sly.shift = 0


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    import resource

    dataset = Sly()
    store = spilled(dataset, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.warns(UserWarning, match="nothing more is written to the spill folder") as warned:
            load_all(store, dataset)
            load_all(store, dataset)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(warned) == 1


def test_other_files_in_a_spill_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "00000.spill").write_bytes(b"not ours, but named as ours")
    dataset = Sly()
    load_all(spilled(dataset, tmp_path), dataset)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
