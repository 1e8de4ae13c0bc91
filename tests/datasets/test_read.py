"""FileDataset and BaseDataset: what open() reads, whoever asks; and errors that say which file."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import resource
import shutil
import subprocess
import sys
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
from foreload.errors import DecodeError
from foreload.options import LoadingMode
from tests.conftest import jpeg, photo
from tests.shims import build_shim

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


ON_ERROR: tuple[Any, ...] = ("raise", "skip", "replace")


def spoil(path: Path, how: str) -> type[Exception]:
    if how == "removed":
        path.unlink()
        return FileNotFoundError
    if how == "a folder":
        path.unlink()
        path.mkdir()
        return IsADirectoryError
    with path.open("r+b") as file:
        file.truncate({"truncated": 2000, "grown": 5000, "emptied": 0}[how])
    return DecodeError


@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("how", ["removed", "a folder", "truncated", "grown", "emptied"])
def test_files_that_change_in_mid_epoch(tmp_path: Path, how: str, direct_io: bool) -> None:
    paths = fill(tmp_path, [4000] * 40)
    contents = [path.read_bytes() for path in paths]
    files = fl.FileDataset(tmp_path, direct_io=direct_io)
    loaders = [fl.DataLoader(files, batch_size=8, num_workers=0, on_error=on_error) for on_error in ON_ERROR]
    loaders.append(fl.DataLoader(files, batch_size=8, num_workers=2, prefetch_factor=1, on_error="skip"))
    running = [iter(loader) for loader in loaders]
    stock = iter(TorchDataLoader(files, batch_size=8))
    for each in [*running, stock]:
        next(each)
    expected = spoil(paths[37], how)
    for each in (running[0], stock):
        with pytest.raises(expected) as raised:
            list(each)
        assert str(paths[37]) in str(raised.value)
        assert "sample 37" in str(raised.value)
    if expected is DecodeError:
        assert "and had 4000 when the dataset was opened" in str(raised.value)
    left = [[data for batch in each for data, _ in plain(batch)] for each in running[1:]]
    without = [content for number, content in enumerate(contents) if number != 37]
    assert left[0] == without[8:] == left[2]
    assert left[1] == [*without[8:37], contents[38], *without[37:]]
    for loader in loaders[1:]:
        (error,) = loader.errors
        assert (error.index, error.source) == (37, str(paths[37]))


def test_a_missing_file_is_one_sample(tmp_path: Path) -> None:
    paths = fill(tmp_path, [4000] * 10)
    files = fl.FileDataset(paths)
    paths[3].unlink()
    loader = fl.DataLoader(files, batch_size=5, on_error="skip")
    assert [len(batch) for batch in loader] == [4, 5]
    assert [error.index for error in loader.errors] == [3]
    with pytest.raises(FileNotFoundError, match=paths[3].name):
        list(TorchDataLoader(files, batch_size=5))
    with pytest.raises(FileNotFoundError, match=paths[3].name):
        fl.FileDataset(paths, loading_mode=LoadingMode.EAGER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be someone else")
@pytest.mark.parametrize("direct_io", [False, True])
def test_permission_denied(direct_io: bool) -> None:
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        paths = fill(Path(made), [4000] * 6)
        for path in paths:
            path.chmod(0o644)
        paths[4].chmod(0o600)
        loader = fl.DataLoader(fl.FileDataset(made, direct_io=direct_io), batch_size=6, on_error="skip")
        os.seteuid(65534)
        try:
            ((data, _),) = loader
            with pytest.raises(PermissionError, match=paths[4].name):
                loader.dataset[4]
        finally:
            os.seteuid(0)
        assert len(data) == 5
        assert "Permission denied" in loader.errors[0].error


SHIM = r"""
#define WRAP(name, args, pass)                                   \
  ssize_t name args {                                            \
    static ssize_t(*real) args;                                  \
    if (!real) real = (ssize_t(*) args)dlsym(RTLD_NEXT, #name);  \
    if (ends(fd, ".eio")) { errno = EIO; return -1; }            \
    return real pass;                                            \
  }
WRAP(read, (int fd, void* to, size_t n), (fd, to, n))
WRAP(pread, (int fd, void* to, size_t n, off_t at), (fd, to, n, at))
WRAP(pread64, (int fd, void* to, size_t n, off_t at), (fd, to, n, at))
WRAP(preadv, (int fd, const struct iovec* to, int n, off_t at), (fd, to, n, at))
WRAP(preadv64, (int fd, const struct iovec* to, int n, off_t at), (fd, to, n, at))
"""

FAULTY = """
import sys, warnings; warnings.simplefilter("ignore")
import foreload as fl
for direct_io in (False, True):
    files = fl.FileDataset(sys.argv[1], direct_io=direct_io)
    try:
        list(fl.DataLoader(files, batch_size=4, num_workers=0))
    except OSError as error:
        print(error.errno, error.filename.rpartition("/")[2], "sample 5" in str(error))
    loader = fl.DataLoader(files, batch_size=4, num_workers=2, on_error="skip")
    print(sum(map(len, loader)), [error.index for error in loader.errors])
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_read_error(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(10):
        (data / f"{number}.{'eio' if number == 5 else 'bin'}").write_bytes(bytes(3000))
    result = subprocess.run(
        [sys.executable, "-c", FAULTY, data],
        env={**os.environ, "LD_PRELOAD": str(build_shim(tmp_path, SHIM))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == [f"{errno.EIO} 5.eio True", "9 [5]"] * 2


MEMORY = """
import os, sys, warnings; warnings.simplefilter("ignore")
import torch, foreload as fl
from torch.utils.data import DataLoader
torch.set_num_threads(1)
MODES = fl.LoadingMode

def mib(name):
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024

class Limited(fl.FileDataset):
    memory = 20 << 20

def growth(make, epochs=1):
    before = mib("Pss_Anon"), mib("Pss_Shmem")
    files = make()
    most = [0, 0]
    for _ in range(epochs):
        for index in range(len(files)):
            assert int(files[index][0]) == index
            if index % 8 == 7:
                now = mib("Pss_Anon") - before[0], mib("Pss_Shmem") - before[1]
                most = list(map(max, most, now))
    return most

folder = sys.argv[1]
fl.FileDataset(folder)[0]
for mode in (MODES.LAZY, MODES.STREAMING):
    assert sum(growth(lambda: fl.FileDataset(folder, loading_mode=mode))) < 16, mode
anon, shared = growth(lambda: Limited(folder, loading_mode=MODES.CACHED), 2)
assert anon < 16 and 16 < shared <= 21, (anon, shared)
try:
    Limited(folder, loading_mode=MODES.EAGER)
    raise SystemExit("EAGER must say that it does not fit")
except MemoryError as error:
    assert "do not fit into 20,971,520 bytes; use LoadingMode.CACHED" in str(error), error
before = mib("Pss_Shmem")
eager = fl.FileDataset(folder, loading_mode=MODES.EAGER)
assert 64 <= mib("Pss_Shmem") - before < 68

class Measured(torch.utils.data.Dataset):
    def __len__(self):
        return len(eager)
    def __getitem__(self, index):
        begun = mib("Pss_Anon"), mib("Rss")
        for i in range(len(eager)):
            assert int(eager[i][1]) == 0
        return mib("Pss_Anon"), mib("Pss_Shmem")

private, shared = next(iter(DataLoader(Measured(), batch_size=1, num_workers=2)))
assert private < 64 and shared < 50, (private, shared)  # two processes at least hold it

large = fl.FileDataset(folder + "/../large", direct_io=True)
before = mib("Pss_Anon")
for _ in range(2):
    rows = large.__getitems__(range(len(large)))
    del rows
assert mib("Pss_Anon") - before < 120, mib("Pss_Anon") - before
"""


@pytest.mark.slow
def test_memory_of_the_loading_modes(tmp_path: Path) -> None:
    data, large = tmp_path / "data", tmp_path / "large"
    data.mkdir()
    large.mkdir()
    for number in range(64):
        (data / f"{number:03}").write_bytes(bytes([number]) + bytes((1 << 20) - 1))
    for number in range(16):
        with (large / str(number)).open("wb") as file:
            file.truncate(16 << 20)
    subprocess.run([sys.executable, "-c", MEMORY, data], check=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", LoadingMode)
def test_loading_modes_give_the_same(tmp_path: Path, mode: LoadingMode) -> None:
    paths = fill(tmp_path, [3000] * 12)
    expected = [path.read_bytes() for path in paths]
    files = fl.FileDataset(tmp_path, lambda data: data.fill_(7), loading_mode=mode)
    for _ in range(2):  # what a transform does in place stays out of what is kept
        files[0]
    files.transform = None
    for dataset in (files, copy.deepcopy(files), pickle.loads(pickle.dumps(files))):
        for loader in (
            fl.DataLoader(dataset, batch_size=5, num_workers=2),
            fl.DataLoader(dataset, batch_size=5, num_workers=1, workers="processes"),
            TorchDataLoader(dataset, batch_size=5),
        ):
            for _ in range(2):
                assert [data for batch in loader for data, _ in plain(batch)] == expected
    if mode is LoadingMode.EAGER:
        shutil.rmtree(tmp_path)
        assert [data.numpy().tobytes() for data, _ in files] == expected


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
