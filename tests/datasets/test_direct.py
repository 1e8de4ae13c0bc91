"""Direct reads: the page cache stays as it was, whoever reads, and the bytes are the same."""

from __future__ import annotations

import copy
import ctypes
import io
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload.datasets.direct import open_direct
from foreload.datasets.tar.pack import pack
from foreload.options import LoadingMode
from tests.conftest import jpeg, photo
from tests.shims import build_shim

SIZES = [1, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, (3 << 20) + 5]


def cached_pages(path: Path) -> int:
    """Return how much of a file the page cache holds."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        told = (ctypes.c_ubyte * pages)()
        start = (ctypes.c_ubyte * len(mapped)).from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_size_t(len(mapped))
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), size, told) == 0
        del start
        return sum(page & 1 for page in told)


class Data:
    """Files of many sizes, images, and both in shards, none of them in the page cache."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.photos = folder / "photos"
        rng = np.random.default_rng(0)
        for number, size in enumerate(SIZES):
            path = self.files / f"class{number % 2}" / f"{number:02}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.bytes(size))
        self.photos.mkdir()
        for number in range(9):
            (self.photos / f"{number}.jpg").write_bytes(jpeg(photo(200 + number, 150)))
        photo(30, 20).save(self.photos / "9.png")  # which Pillow decodes
        self.packed = folder / "packed"
        pack(self.files, self.packed / "files")
        pack(self.photos, self.packed / "photos")
        self.plain = folder / "plain.tar"  # without an index
        with tarfile.open(self.plain, "w") as tar:
            for number, size in enumerate(SIZES):
                member = tarfile.TarInfo(f"{number:04}.bin")
                member.size = size
                tar.addfile(member, io.BytesIO(rng.bytes(size)))
        self.all = [path for end in ("bin", "jpg", "png", "tar") for path in folder.rglob(f"*.{end}")]
        self.drop()

    def drop(self) -> None:
        for path in self.all:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def in_cache(self) -> list[Path]:
        return [path for path in self.all if cached_pages(path)]


@pytest.fixture
def data(tmp_path: Path) -> Data:
    made = Data(tmp_path)
    if made.in_cache():
        pytest.skip("this file system keeps its pages")
    fl.FileDataset(tmp_path / "files")[0]
    if not made.in_cache():
        pytest.skip("this file system does not tell which pages it keeps")
    made.drop()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fl.FileDataset(tmp_path / "files", direct_io=True)
    if caught:
        pytest.skip("this file system has no O_DIRECT")
    return made


def images(source: Path, **how: Any) -> fl.ImageDataset:
    """Images that are read each time, unless the mode is to keep them."""
    return fl.ImageDataset(source, cache_size=1000 if "loading_mode" in how else 0, **how)


KINDS: dict[str, Callable[..., Any]] = {
    "files": lambda data, **how: fl.FileDataset(data.files, **how),
    "images": lambda data, **how: images(data.photos, image_size=32, **how),
    "images by Pillow": lambda data, **how: images(data.photos, transform=np.asarray, **how),
    "shards of images": lambda data, **how: images(data.packed / "photos", image_size=32, **how),
    "shards": lambda data, **how: fl.TarDataset(data.packed / "files", **how),
    "shards without an index": lambda data, **how: fl.TarDataset(data.plain, **how),
}


def first(samples: list[Any]) -> Any:
    return samples[0]


def read_in_every_way(dataset: Any) -> Iterator[str]:
    """Load all samples, and say how."""
    for index in range(len(dataset)):
        dataset[index]
    yield "one by one"
    if dataset.__getitems__ is not None:
        dataset.__getitems__(list(range(len(dataset))))
        yield "at once"
    if isinstance(dataset, fl.TarDataset):
        dataset = Subset(dataset, range(len(dataset)))
    how: dict[str, Any] = {"batch_size": 4, "collate_fn": first}
    for workers in (0, 2):
        for _ in TorchDataLoader(dataset, num_workers=workers, **how):
            pass
        yield f"stock, {workers} workers"
    for kind in ({"num_workers": 0}, {"workers": "threads"}, {"workers": "processes"}, {"cache": "1MiB"}):
        for _ in fl.DataLoader(dataset, **{"num_workers": 2, **how, **kind}):
            pass
        yield f"foreload, {kind}"
    for _ in range(2):
        for _ in fl.DataLoader(dataset, 1, num_workers=0, cache="1MiB", collate_fn=first):
            pass
    yield "foreload, a small cache"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_direct_io_leaves_the_page_cache_alone(data: Data, kind: str) -> None:
    dataset = KINDS[kind](data, direct_io=True)
    assert dataset.direct_io
    assert dataset.direct_problem is None
    assert not data.in_cache(), "by opening"
    for way in read_in_every_way(dataset):
        assert not data.in_cache(), way
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        other[0]
        assert not data.in_cache(), "by a copy"
    for _ in dataset.stream(seed=0):
        pass
    assert not data.in_cache(), "by a stream"
    for mode in (LoadingMode.EAGER, LoadingMode.CACHED):
        list(TorchDataLoader(KINDS[kind](data, direct_io=True, loading_mode=mode), collate_fn=first))
        assert not data.in_cache(), mode


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(len(dataset)))])
@pytest.mark.parametrize("kind", KINDS)
def test_the_prefetching_wrapper_makes_its_dataset_read_directly(data: Data, kind: str, wrap: Any) -> None:
    dataset = KINDS[kind](data)
    data.drop()  # opening a shard compares some of its headers with the index
    ahead = fl.AsyncPrefetchDataset(wrap(dataset), direct_io=True)
    assert dataset.direct_io
    for index in range(len(ahead)):
        ahead[index]
    for workers in (0, 2):
        for _ in TorchDataLoader(ahead, batch_size=4, shuffle=True, collate_fn=first, num_workers=workers):
            pass
    for _ in fl.DataLoader(ahead, batch_size=4, collate_fn=first):
        pass
    ahead.close()
    assert not data.in_cache()
    dataset.direct_io = False
    dataset[0]
    assert data.in_cache()


def test_the_prefetching_wrapper_finds_the_datasets_that_read(data: Data) -> None:
    files = fl.FileDataset(data.files), fl.FileDataset(data.files)
    fl.AsyncPrefetchDataset(ConcatDataset([Subset(files[0], [0]), files[1]]), direct_io=True)
    assert all(each.direct_io for each in files)
    mixed = fl.MemoryEfficientDataset(data.files)
    data.drop()
    for _ in TorchDataLoader(fl.AsyncPrefetchDataset(mixed, direct_io=True), collate_fn=first):
        pass
    assert mixed.direct_io
    assert not data.in_cache()
    for other in (ConcatDataset([files[0], [1, 2]]), [1, 2], fl.CachedDataset(torch.zeros(3))):
        with pytest.raises(ValueError, match=r"direct_io=True: (list|CachedDataset) has no attribute 'direct_io'"):
            fl.AsyncPrefetchDataset(other, direct_io=True)


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_the_bytes_are_the_same(data: Data, where: str, tmp_path: Path) -> None:
    folder = tmp_path
    if where == "memory":
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("no /dev/shm")
        folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
        shutil.copytree(data.files, folder / "files")
        shutil.copytree(data.packed, folder / "packed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pairs = [
                [kind(folder / path, direct_io=direct) for direct in (False, True)]
                for kind, path in ((fl.FileDataset, "files"), (fl.TarDataset, "packed/files"))
            ]
        for ours, theirs in pairs:
            for one, other in zip(ours, theirs, strict=True):
                assert str(one) == str(other)
                assert str(list(one)) == str(list(other))
            for batch, other in zip(
                fl.DataLoader(ours, batch_size=3, collate_fn=list),
                fl.DataLoader(theirs, batch_size=3, collate_fn=list),
                strict=True,
            ):
                assert str(batch) == str(other)
        expected = [path.read_bytes() for path in sorted((folder / "files").rglob("*.bin"))]
        assert [sample[0].numpy().tobytes() for sample in pairs[0][1]] == expected
        assert [sample["bin"] for sample in pairs[1][1]] == [
            path.read_bytes() for path in map(Path, fl.FileDataset(folder / "files").paths)
        ]
    finally:
        if folder != tmp_path:
            shutil.rmtree(folder)


@pytest.mark.parametrize("size", [0, *SIZES])
def test_a_file_opened_directly_reads_as_any_other(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    rng = np.random.default_rng(0)
    with open_direct(path) as ours, path.open("rb") as theirs:
        assert os.fstat(ours.fileno()).st_size == size
        assert ours.read() == theirs.read()
        for _ in range(50):
            place, length = int(rng.integers(0, size + 5000)), int(rng.integers(0, 200_000))
            assert ours.seek(place) == theirs.seek(place)
            assert ours.read(length) == theirs.read(length)
            assert ours.tell() == theirs.tell()
        assert ours.seek(0, os.SEEK_END) == size
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(OSError, match=str(wrong)), open_direct(wrong) as ours:
            ours.read()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_files_in_memory_are_named_once() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        photos, packed = Path(made) / "photos", Path(made) / "packed"
        photos.mkdir()
        for number in range(4):
            (photos / f"{number}.jpg").write_bytes(jpeg(photo(20, 20)))
        pack(photos, packed)
        kinds: list[Callable[..., Any]] = [fl.FileDataset, fl.ImageDataset, fl.TarDataset]
        for kind, path in zip(kinds, (photos, photos, packed), strict=True):
            told = "direct_io=True: '/dev/shm/.* is read through the page cache all the same: .*tmpfs"
            with pytest.warns(UserWarning, match=told) as caught:
                dataset = kind(path, direct_io=True)
            assert len(caught) == 1
            assert caught[0].filename == __file__
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert len(list(fl.DataLoader(dataset, batch_size=2, collate_fn=list, num_workers=2))) == 2
                assert len(pickle.loads(pickle.dumps(dataset))) == 4
                assert kind(path).direct_problem is None
            loader = fl.DataLoader(Subset(dataset, range(4)), batch_size=2, collate_fn=list, num_workers=0)
            assert len(list(loader)) == 2
            assert loader.stats()["loader"]["direct_problem"] == dataset.direct_problem
            assert "direct_io" in str(loader.report())
            with pytest.warns(UserWarning, match=told) as caught:
                fl.AsyncPrefetchDataset(kind(path), direct_io=True)
            assert len(caught) == 1


WITHOUT_URING = """
import sys, warnings; warnings.simplefilter("error")
from pathlib import Path
import foreload as fl
from tests.datasets.test_direct import cached_pages
folder = Path(sys.argv[1])
files = fl.FileDataset(folder, direct_io=True)
paths = [Path(path) for path in files.paths]
assert not any(map(cached_pages, paths))
found = [data.numpy().tobytes() for data in fl.DataLoader(files, batch_size=None, num_workers=2)]
assert not any(cached_pages(path) for path in paths if path.suffix != ".refused")
assert found == [path.read_bytes() for path in paths]
"""

SHIM = r"""
#define WRAP(name)                                                                                        \
  ssize_t name(int fd, void* to, size_t n, off_t at) {                                                    \
    static ssize_t (*real)(int, void*, size_t, off_t);                                                    \
    if (!real) real = (ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, #name);                     \
    if (ends(fd, ".refused") && (fcntl(fd, F_GETFL) & O_DIRECT)) { errno = EINVAL; return -1; }           \
    ssize_t got = real(fd, to, n, at);                                                                    \
    return ends(fd, ".short") && got > 4608 ? 4608 : got;                                                 \
  }
WRAP(pread)
WRAP(pread64)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_without_io_uring(data: Data, tmp_path: Path) -> None:
    """Reads one after the other; of which some come in pieces, and some are refused once the file is open."""
    folder = tmp_path / "without"
    folder.mkdir()
    rng = np.random.default_rng(1)
    for number, size in enumerate(SIZES):
        for end in ("bin", "short", "refused"):
            (folder / f"{end}{number:02}.{end}").write_bytes(rng.bytes(size))
    data.all = list(folder.iterdir())
    data.drop()
    subprocess.run(
        [sys.executable, "-c", WITHOUT_URING, folder],
        env={
            **os.environ,
            "LD_PRELOAD": str(build_shim(tmp_path, SHIM)),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        check=True,
    )
