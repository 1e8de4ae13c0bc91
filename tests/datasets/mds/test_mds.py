"""MDS shards beside MosaicML's own library."""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.datasets.compared import HOW, same, split_epoch
from tests.datasets.mds.conftest import write_mds
from tests.test_documents import run_skipped_examples

pytestmark = pytest.mark.slow  # the library is one of the frameworks


@pytest.mark.parametrize("how", ["auto", "none", "processes", "threads"])
def test_mds_samples_are_those_of_the_library(mosaic: Any, shards: Path, how: str) -> None:
    theirs = mosaic.LocalDataset(str(shards))
    ours = fl.MDSDataset(shards)
    assert len(ours) == len(theirs) == 150
    assert len(ours._shards) > 3
    assert same([ours[i] for i in range(150)], [theirs[i] for i in range(150)])
    torch.manual_seed(2)
    wanted = list(TorchDataLoader(theirs, batch_size=16, shuffle=True))
    for dataset in (ours, theirs, pickle.loads(pickle.dumps(ours))):
        torch.manual_seed(2)
        loader = fl.DataLoader(dataset, batch_size=16, shuffle=True, cache="4MiB", **HOW[how])
        assert same(list(loader), wanted)
        loader.close()
    _, rest, continued = split_epoch(
        lambda: fl.DataLoader(ours, batch_size=16, shuffle=True, seed=2, **HOW[how]), 4
    )
    assert same(continued, rest)


def test_mds_folders_modes_and_transforms(mosaic: Any, shards: Path, tmp_path: Path) -> None:
    more = write_mds(mosaic, tmp_path / "more", range(150, 160))
    for mode in fl.LoadingMode:
        dataset = fl.MDSDataset([shards, str(more)], lambda sample: sample["x"] + 1, mode)
        assert [dataset[i] for i in range(160)] == list(range(1, 161))


@pytest.mark.parametrize("compression", ["zstd:3", "gz", "bz2"])
def test_compressed_mds_shards_are_decompressed_once(mosaic: Any, tmp_path: Path, compression: str) -> None:
    folder = write_mds(mosaic, tmp_path / "packed", range(60), compression=compression)
    before = {file.name for file in folder.iterdir()}
    assert [sample["x"] for sample in fl.MDSDataset(folder)] == list(range(60))
    made = {file.name for file in folder.iterdir()} - before
    assert made == {f"shard.{i:05}.mds" for i in range(len(before) - 1)}
    assert fl.MDSDataset(folder)[59]["text"] == "59"
    packed = next(file for file in folder.iterdir() if file.name.startswith("shard.00001.mds."))
    (folder / "shard.00001.mds").unlink()
    packed.write_bytes(b"nothing")
    with pytest.raises(fl.errors.DecodeError, match=rf"{packed.name}: the shard cannot be decompressed"):
        fl.MDSDataset(folder)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_wrong_mds_is_named(mosaic: Any, shards: Path, tmp_path: Path) -> None:
    folder = write_mds(mosaic, tmp_path / "a", range(60))
    shard = folder / "shard.00001.mds"
    data = shard.read_bytes()
    dataset = fl.MDSDataset(folder)
    get = dataset._shards[1].get_sample_data
    dataset._shards[1].get_sample_data = lambda number: (os.utime(shard, ns=(0, 0)), get(number))[1]
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: the file has changed"):
        dataset[int(dataset._starts[1])]
    dataset = fl.MDSDataset(folder)
    shard.write_bytes(data[:-5])
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: the file has changed"):
        list(fl.DataLoader(dataset))
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: the shard has .* bytes, but index"):
        fl.MDSDataset(folder)
    shard.write_bytes(data[:60] + b"\xff" * (len(data) - 60))
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00001\.mds: sample \d+ of the shard"):
        list(fl.MDSDataset(folder))
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds"):
        fl.MDSDataset(folder)
    for content in (
        b"",
        b"[]",
        b'{"version": 2}',
        b'{"version": 3, "shards": []}',
        b'{"version": 2, "shards": [{}]}',
    ):
        (folder / "index.json").write_bytes(content)
        with pytest.raises(fl.errors.DecodeError, match=r"index\.json"):
            fl.MDSDataset(folder)
    with pytest.raises(FileNotFoundError, match=r"no index\.json in"):
        fl.MDSDataset(tmp_path)
    with pytest.raises(ValueError, match="empty list"):
        fl.MDSDataset([])
    with pytest.raises(TypeError, match="data_path"):
        fl.MDSDataset(3)
    with pytest.raises(IndexError, match="index 150"):
        fl.MDSDataset(shards)[150]


def test_pickled_columns_must_be_asked_for(mosaic: Any, tmp_path: Path) -> None:
    with mosaic.MDSWriter(out=str(tmp_path), columns={"any": "pkl"}) as writer:
        writer.write({"any": {1, 2}})
    with pytest.raises(ValueError, match="unsafe type"):
        fl.MDSDataset(tmp_path)
    assert fl.MDSDataset(tmp_path, allow_unsafe_types=True)[0] == {"any": {1, 2}}


@pytest.fixture
def streamed(mosaic: Any, shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Makes loaders of a new StreamingDataset, as a new program would."""
    # The library replaces them for good, by something that fails for semaphores.
    for name in ("register", "unregister"):
        monkeypatch.setattr(resource_tracker, name, getattr(resource_tracker, name))

    def make(cls: Any, count: int, **more: Any) -> Any:
        mosaic.base.util.clean_stale_shared_memory()
        dataset = mosaic.StreamingDataset(local=str(shards), batch_size=16, shuffle=True, shuffle_seed=3)
        return cls(dataset, batch_size=16, num_workers=count, **more)

    # Its shared memory has the same names in every program.
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield make
        mosaic.base.util.clean_stale_shared_memory()


@pytest.mark.parametrize(("workers", "kind"), [(0, "threads"), (1, "threads"), (2, "threads"), (2, "processes")])
def test_a_mosaic_stream_is_the_same_and_goes_on(streamed: Any, workers: int, kind: Any) -> None:
    loader = streamed(TorchDataLoader, workers)
    wanted = [[batch["x"].tolist() for batch in loader] for _ in range(3)]
    for epoch, batches in ((0, 0), (0, 3), (1, 0), (1, 4)):
        loader = streamed(fl.DataLoader, workers, workers=kind)
        for _ in range(epoch):
            list(loader)
        batches_of = iter(loader)
        first = [next(batches_of)["x"].tolist() for _ in range(batches)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        batches_of.close()
        loader = streamed(fl.DataLoader, workers, workers=kind)
        loader.load_state_dict(state)
        assert first + [batch["x"].tolist() for batch in loader] == wanted[epoch]
        state = loader.state_dict()
        loader = streamed(fl.DataLoader, workers, workers=kind)
        loader.load_state_dict(state)
        assert [batch["x"].tolist() for batch in loader] == wanted[epoch + 1]


def test_a_mosaic_stream_goes_on_with_other_workers(streamed: Any) -> None:
    loader = streamed(fl.DataLoader, 2)
    epoch = iter(loader)
    given = [next(epoch)["x"].tolist() for _ in range(4)]
    state = loader.state_dict()
    epoch.close()
    loader = streamed(fl.DataLoader, 1)
    loader.load_state_dict(state)
    given += [batch["x"].tolist() for batch in loader]
    assert sorted(x for batch in given for x in batch) == list(range(150))


def test_the_example_of_the_docstring(mosaic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run_skipped_examples(fl.MDSDataset, MDSDataset=fl.MDSDataset)
