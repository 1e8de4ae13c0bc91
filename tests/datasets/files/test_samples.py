"""FileDataset and BaseDataset give what open() reads, in every loader."""

from __future__ import annotations

import copy
import os
import pickle
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

import foreload as fl
from foreload.datasets.tar.pack import pack
from foreload.options import LoadingMode
from tests.conftest import jpeg, photo

MIXED = [0, 1, 511, 512, 513, 4095, 4096, 4097, 65535, (1 << 20) + 3]


@pytest.fixture(params=["disk", "/dev/shm"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access(request.param, os.W_OK):
        pytest.skip("no /dev/shm")
    with tempfile.TemporaryDirectory(dir=request.param) as made:
        yield Path(made)


def fill(folder: Path, sizes: list[int], classes: int = 3) -> list[Path]:
    """Files of these sizes in class folders, in the order in which they are listed."""
    rng = np.random.default_rng(0)
    paths = []
    for number, size in enumerate(sizes):
        parent = folder / f"class{number * classes // len(sizes)}"
        parent.mkdir(exist_ok=True)
        paths.append(parent / f"{number:04}.bin")
        paths[-1].write_bytes(rng.bytes(size))
    return paths


def plain(batch: Any) -> list[tuple[bytes, int]]:
    return [(row.numpy().tobytes(), int(target)) for row, target in zip(*batch, strict=True)]


@pytest.mark.parametrize("direct_io", [False, True])
def test_samples_are_what_open_reads(folder: Path, direct_io: bool) -> None:
    paths = fill(folder, MIXED)
    (folder / "class0" / ".hidden").write_bytes(b"no sample")
    files = fl.FileDataset(folder, direct_io=direct_io)
    assert files.classes == ["class0", "class1", "class2"]
    assert files.class_to_idx == {"class0": 0, "class1": 1, "class2": 2}
    assert files.paths == [str(path) for path in paths]
    expected = [(path.read_bytes(), int(path.parent.name[-1])) for path in paths]
    for dataset in (files, pickle.loads(pickle.dumps(files)), copy.deepcopy(files)):
        assert [(data.numpy().tobytes(), target) for data, target in dataset] == expected
        assert dataset.targets == [target for _, target in expected]
        assert dataset[-1][0].numpy().tobytes() == expected[-1][0]
    flat = fl.FileDataset(paths, direct_io=direct_io)  # no labels
    loader = fl.DataLoader(flat, batch_size=None, num_workers=2)
    assert [data.numpy().tobytes() for data in loader] == [data for data, _ in expected]
    assert flat.targets == [-1] * len(paths)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("size", [0, 1, 6000])
def test_batches_are_what_open_reads(folder: Path, direct_io: bool, size: int) -> None:
    paths = fill(folder, [size] * 150)
    expected = [(path.read_bytes(), int(path.parent.name[-1])) for path in paths]
    files = fl.FileDataset(folder, direct_io=direct_io)
    loaders: list[Any] = [
        fl.DataLoader(files, batch_size=67, num_workers=threads, workers="threads") for threads in (0, 1, 2, 4)
    ]
    loaders += [
        fl.DataLoader(files, batch_size=67, num_workers=2, workers="processes"),
        fl.DataLoader(files, batch_size=67, num_workers=1, cache=1 << 20),
        TorchDataLoader(files, batch_size=67),
        TorchDataLoader(files, batch_size=67, num_workers=1),
    ]
    for loader in loaders:
        batches = list(loader)
        assert [len(targets) for _, targets in batches] == [67, 67, 16]
        assert batches[0][0].shape == (67, size)
        assert [sample for batch in batches for sample in plain(batch)] == expected
    mixed = fl.DataLoader(Subset(files, [3, 140, 3]), batch_size=8, shuffle=True, seed=1)
    assert sorted(plain(next(iter(mixed)))) == sorted([expected[3], expected[140], expected[3]])
    assert [(data.numpy().tobytes(), int(target)) for data, target in files.__getitems__([-1, 0])] == [
        expected[-1],
        expected[0],
    ]


@pytest.mark.parametrize("kind", ["images", "files", "text", "shards", "rows", "table", "packed"])
def test_what_is_no_index_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "table":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"x": range(5)}), tmp_path / "table")
    elif kind == "rows":
        with pytest.importorskip("h5py").File(tmp_path / "rows", "w") as file:
            file["data"] = np.arange(5)
    else:
        (tmp_path / "photos").mkdir()
        for number in range(5):
            (tmp_path / "photos" / f"{number}.jpg").write_bytes(jpeg(photo(20, 20)))
        (tmp_path / "text").write_text("a\nb\nc\nd\ne\n")
        pack(tmp_path / "photos", tmp_path / "shards")
    make: dict[str, Any] = {
        "images": lambda: fl.ImageDataset(tmp_path / "photos"),
        "files": lambda: fl.FileDataset([tmp_path / "text"] * 5),
        "text": lambda: fl.TextDataset(tmp_path / "text"),
        "shards": lambda: fl.TarDataset(tmp_path / "shards"),
        "rows": lambda: fl.HDF5Dataset(tmp_path / "rows"),
        "table": lambda: fl.ParquetDataset(tmp_path / "table"),
        "packed": lambda: fl.packing.pack_sequences([[1, 2]] * 5, 2),
    }
    dataset = make[kind]()
    for wrong in ([1.0], ["1"], [None], [0, 1.5], [[0]], [slice(0, 1)]):
        with pytest.raises(TypeError):
            dataset.__getitems__(wrong)
    for wrong in ([0, 5], [-6], np.array([0, 5])):
        with pytest.raises(IndexError, match=r"index (5|-6) is out of range for 5"):
            dataset.__getitems__(wrong)
    assert len(dataset.__getitems__([np.int32(1), torch.tensor(2), -5])) == 3
    with pytest.raises(TypeError):
        next(iter(fl.DataLoader(dataset, 2, sampler=[0, 1.5], num_workers=0)))  # type: ignore[list-item]
    if kind not in ("shards", "table", "packed"):  # whose batches default_collate makes
        with pytest.raises(IndexError, match="gave a batch without samples, which cannot be collated"):
            next(iter(fl.DataLoader(dataset, batch_sampler=[[]], num_workers=0)))


def test_few_descriptors(tmp_path: Path) -> None:
    fill(tmp_path, [4000] * 500)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (others + 90, limits[1]))
    try:
        loader = fl.DataLoader(fl.FileDataset(tmp_path, direct_io=True), batch_size=256, num_workers=2)
        assert sum(len(targets) for _, targets in loader) == 500
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
def test_spawned_workers(tmp_path: Path) -> None:
    paths = fill(tmp_path, [5000] * 20)
    files = fl.FileDataset(tmp_path, loading_mode=LoadingMode.EAGER)
    shutil.rmtree(tmp_path / "class2")  # which is in memory
    expected = [sample[0].numpy().tobytes() for sample in files]
    assert expected[0] == paths[0].read_bytes()
    loader = fl.DataLoader(
        files, batch_size=8, num_workers=1, workers="processes", multiprocessing_context="spawn"
    )
    assert [data for batch in loader for data, _ in plain(batch)] == expected


def test_labels_and_transforms(tmp_path: Path) -> None:
    paths = fill(tmp_path, [10] * 6, classes=1)
    named = fl.FileDataset(
        paths, lambda data: data.float().mean(), lambda target: -target, labels=["b", "a", "c"] * 2
    )
    assert named.classes == ["a", "b", "c"]
    mean, target = named[2]
    assert mean == torch.from_numpy(np.fromfile(paths[2], np.uint8)).float().mean()
    assert target == -2
    for loader in (fl.DataLoader(named, batch_size=6), TorchDataLoader(named, batch_size=6)):
        means, targets = next(iter(loader))
        assert means.shape == (6,)
        assert targets.tolist() == [-1, 0, -2, -1, 0, -2]
    with pytest.raises(ValueError, match="labels has 2 entries for 6 files"):
        fl.FileDataset(paths, labels=[1, 2])
    with pytest.raises(TypeError, match="transform must be callable, got int"):
        fl.FileDataset(paths, 3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        fl.FileDataset(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError, match="give its folder"):
        fl.FileDataset(paths[0])
    with pytest.raises(TypeError, match="target_transform needs read"):
        fl.FileDataset(paths, target_transform=int)[0]
    for index in (6, -7):
        with pytest.raises(IndexError, match=f"index {index} is out of range for 6 samples"):
            named[index]
    with pytest.raises(IndexError, match="index 6 is out of range"):
        named.read(6)
    failing = fl.FileDataset(
        paths, lambda data: 1 / int(data.sum() != torch.from_numpy(np.fromfile(paths[4], np.uint8)).sum())
    )
    for loader in (fl.DataLoader(failing, batch_size=4), fl.DataLoader(failing, batch_size=4, num_workers=2)):
        with pytest.raises(ZeroDivisionError) as raised:
            list(loader)
        assert "sample 4" in "".join(raised.value.__notes__)


class Reversed(fl.FileDataset):
    """A read() of one's own."""

    def read(self, index: int) -> Any:
        data, target = super().read(index)
        return data.flip(0), target


def test_an_overridden_read_is_used(tmp_path: Path) -> None:
    paths = fill(tmp_path, [100] * 9)
    files = Reversed(tmp_path)
    expected = [path.read_bytes()[::-1] for path in paths]
    for loader in (
        fl.DataLoader(files, batch_size=4, num_workers=2),
        TorchDataLoader(files, batch_size=4),
        fl.DataLoader(Reversed(tmp_path, loading_mode=LoadingMode.CACHED), batch_size=4),
    ):
        assert [data for batch in loader for data, _ in plain(batch)] == expected


class Lines(fl.BaseDataset):
    """A dataset of a user's own: samples of any type, from an index of entries."""

    reads = 0

    def index(self) -> Any:
        return Path(self.data_path).read_text().splitlines()

    def read(self, index: int) -> Any:
        type(self).reads += 1
        return {"text": self.entries[index], "length": len(self.entries[index])}


def test_a_dataset_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\nthree\n")
    lines = Lines(str(path), loading_mode=LoadingMode.EAGER)
    reads = Lines.reads
    assert len(lines) == reads == 3
    assert [sample["text"] for sample in lines] == ["one", "two", "three"]
    assert Lines.reads == reads
    assert Lines(path, transform=len)[1] == 2
    batch = next(iter(fl.DataLoader(Lines(path), batch_size=3)))
    assert batch["text"] == ["one", "two", "three"]
    path.write_text("")
    for mode in LoadingMode:
        assert len(Lines(path, loading_mode=mode)) == 0
    with pytest.raises(FileNotFoundError, match="data_path: there is nothing at"):
        Lines(tmp_path / "none")
    with pytest.raises(TypeError, match="data_path must be a str or a Path, got int"):
        Lines(3)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="BaseDataset must have a method index"):
        fl.BaseDataset(tmp_path)

    class NoCount(fl.BaseDataset):
        def index(self) -> Any:
            return iter("abc")

    with pytest.raises(TypeError, match=r"NoCount.index\(\) must return the samples, or how many there are, got"):
        NoCount(tmp_path)

    class NoRead(fl.BaseDataset):
        def index(self) -> Any:
            return 2

    with pytest.raises(NotImplementedError, match=r"NoRead must have a method read"):
        NoRead(tmp_path)[0]
    with pytest.raises(ValueError, match="sometimes"):
        Lines(path, loading_mode="sometimes")  # type: ignore[arg-type]
