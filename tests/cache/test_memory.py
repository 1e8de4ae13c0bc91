"""Memory: one budget, the container's limit, and what is given back before it is too late."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import shlex
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import foreload as fl
from foreload.cache import budget as memory
from foreload.cache.budget import MemoryBudget, Pressure
from foreload.cache.store import SampleStore

MIB = 1 << 20


class Squares(Dataset[torch.Tensor]):
    """Samples of 1 MiB."""

    def __init__(self, count: int = 32) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((MIB // 4,), float(index))


def filled(count: int = 50) -> SampleStore:
    store = SampleStore(count, count * 2 * MIB)
    store.native.follow_rule("all")
    for index in range(count):
        store.load(index, lambda index: torch.full((MIB // 4,), float(index)))
    return store


def test_what_is_short_is_given_back_and_taken_again() -> None:
    store, said, left = filled(), [], [1 << 40]
    pressure = Pressure(said.append, lambda: left[0])
    pressure.check(store)
    assert not said
    used = store.native.counts()["used"]
    left[0] = pressure._free - 10 * MIB
    pressure._next = 0.0
    pressure.check(store)
    counts = store.native.counts()
    assert counts["used"] <= counts["room"] == max(0, used - pressure._free - 10 * MIB)
    assert len(said) == 1
    assert "memory is short" in said[0]
    pressure.check(store)  # a moment later
    assert len(said) == 1
    for index in range(50):
        assert store.load(index, lambda index: torch.full((MIB // 4,), float(index)))[0] == index
    left[0] = 1 << 40
    pressure.fit(store, 100 * MIB)
    assert store.native.counts()["room"] == 100 * MIB
    assert "may take 104,857,600" in said[-1]


def test_memory_is_looked_at_before_it_can_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    now, left, looks = [100.0], [0.0], []

    def available() -> int:
        looks.append(now[0])
        return int(left[0])

    monkeypatch.setattr(memory.time, "monotonic", lambda: now[0])
    pressure = Pressure(lambda said: None, available)
    for spare, seconds in ((1e6, 0.05), (4e9, 0.25), (1e12, 1.0)):
        left[0] = pressure._free + spare
        now[0] += 10
        pressure.check(None)
        since = now[0]
        now[0] = since + 0.98 * seconds
        pressure.check(None)
        assert looks[-1] == since
        now[0] = since + 1.02 * seconds
        pressure.check(None)
        assert looks[-1] == now[0]
    # Batches may take it sooner: half of a TB.
    seen = len(looks)
    for _ in range(499):
        pressure.check(None, int(1e9))
    assert len(looks) == seen
    pressure.check(None, int(2e9))
    assert len(looks) == seen + 1


def test_one_of_several_threads_looks_and_gives_back() -> None:
    store, said, looking, looked = filled(), [], threading.Barrier(8), threading.Event()
    used = store.native.counts()["used"]

    def available() -> int:
        looked.wait(0.2)  # others come meanwhile
        return pressure._free - 10 * MIB

    pressure = Pressure(said.append, available)

    def check() -> None:
        looking.wait()
        pressure.check(store)
        looked.set()

    threads = [threading.Thread(target=check) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 1
    assert store.native.counts()["room"] == max(0, used - pressure._free - 10 * MIB)


def test_memory_that_is_given_back_is_the_systems_again() -> None:
    def shared() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2])

    store = filled(100)
    before = shared()
    store.native.limit(10 * MIB)
    assert (before - shared()) * os.sysconf("SC_PAGE_SIZE") > 80 * MIB
    assert sum(store.residents()) in range(5, 11)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_budget_bounds_cache_and_batches(workers: int) -> None:
    loader = fl.DataLoader(
        Squares(),
        batch_size=4,
        num_workers=workers,
        workers="threads",
        prefetch_factor=8 if workers else None,
        memory=40 * MIB,
        cache=1 << 30,
    )
    for _ in range(3):
        assert [batch[:, 0].tolist() for batch in loader] == [
            batch[:, 0].tolist() for batch in TorchDataLoader(Squares(), batch_size=4)
        ]
    stats = loader.stats()
    assert stats["memory"]["limit"] == 40 * MIB
    assert stats["memory"]["batch_bytes"] == 4 * MIB
    assert stats["cache"]["room"] + 3 * 4 * MIB <= 40 * MIB
    assert stats["cache"]["hits"] > 0
    said = " ".join(stats["memory"]["decisions"])
    assert "the cache may take" in said
    if workers:
        assert "batches of 4,194,304 bytes are made ahead, not 16" in said
    assert pickle.loads(pickle.dumps(loader)).stats()["memory"]["limit"] == 40 * MIB


def test_the_depth_is_that_which_fits() -> None:
    budget = MemoryBudget(100)
    assert budget.depth(8) == 2
    budget.observe_batch(torch.zeros(10, dtype=torch.uint8), None)
    assert [budget.depth(wanted) for wanted in (1, 8, 50)] == [1, 8, 8]
    budget.observe_batch([torch.zeros(30, dtype=torch.uint8), {"x": torch.zeros(30, dtype=torch.uint8)}], None)
    assert budget.depth(8) == 1
    assert MemoryBudget(None).depth(8) == 8


@pytest.mark.parametrize("wrong", [-1, "many", 1.5, True])
def test_wrong_budgets(wrong: object) -> None:
    with pytest.raises((ValueError, TypeError), match="memory"):
        fl.DataLoader([1, 2], memory=wrong)  # type: ignore[arg-type]


SCRIPT = """
import sys, torch
from torch.utils.data import Dataset
class Large(Dataset):
    each = 1 if sys.argv[1] == "cache" else 8  # MiB
    def __len__(self): return 1280 // self.each
    def __getitem__(self, index): return torch.full((self.each << 18,), float(index))
if __name__ == "__main__":
    kind = sys.argv[1]
    if kind == "stock":
        from torch.utils.data import DataLoader
        loader = DataLoader(Large(), batch_size=8, num_workers=4, prefetch_factor=8)
    else:
        import foreload as fl
        extra = {"memory": "50%"} if kind == "budget" else {"cache": "90%"}
        workers = dict(num_workers=4, prefetch_factor=8) if kind == "budget" else dict(num_workers=2)
        loader = fl.DataLoader(Large(), batch_size=8, workers="threads", **workers, **extra)
    import time
    for epoch in range(1 if kind != "cache" else 3):
        seen = []
        for batch in loader:
            seen += batch[:, 0].tolist()
            time.sleep(0.01)
        assert seen == [float(i) for i in range(len(Large()))], seen
    print("finished")
    if kind != "stock": print(loader.stats()["memory"]["decisions"])
"""


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A container of 800 MiB, where the system lets us make one."""
    for root, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        folder = Path("/sys/fs/cgroup") / root / f"foreload-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(800 * MIB))
        except OSError:
            folder.rmdir()
            continue
        if run_in(folder, "-c", "bytearray(1 << 30)").returncode != -signal.SIGKILL:
            folder.rmdir()
            continue
        yield folder
        # Workers of a process that was killed may take a moment to go.
        while members := (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                select.select([os.pidfd_open(int(members[0]))], [], [])
        folder.rmdir()
        return
    pytest.skip("no cgroup that limits memory can be made here")


def run_in(cgroup: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    join = f"echo $$ > {cgroup}/cgroup.procs && exec {shlex.join([sys.executable, *arguments])}"
    return subprocess.run(["sh", "-c", join], capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_it_finishes_where_stock_torch_is_killed(cgroup: Path, tmp_path: Path) -> None:
    script = tmp_path / "large.py"
    script.write_text(SCRIPT)
    for kind in ("budget", "cache"):
        done = run_in(cgroup, str(script), kind)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "finished" in done.stdout
    stock = run_in(cgroup, str(script), "stock")
    assert stock.returncode != 0, "the settings are too mild"


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def make(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "images":
        for name in ("cat", "dog"):
            (path / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (20, 10), (number * 50, 0, 0)).save(path / name / f"{number}.jpg")
    elif kind == "files":
        path.mkdir()
        for number in range(5):
            (path / f"{number}.bin").write_bytes(bytes([number] * 7))
    elif kind == "lines.txt":
        path.write_text("one\ntwo\nthree\n")
    elif kind == "rows.h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["data"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    elif kind in ("rows.parquet", "tables"):
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table({"x": list(range(5))})
        if kind == "tables":
            path.mkdir()
        parquet.write_table(table, path / "a.parquet" if kind == "tables" else path)
    else:
        fl.pack(make(folder, "files"), path)
    return path


@pytest.mark.parametrize("kind", ["images", "files", "lines.txt", "rows.h5", "rows.parquet", "tables", "shards"])
@pytest.mark.parametrize("mode", list(fl.LoadingMode))
def test_the_memory_efficient_dataset_opens_anything(tmp_path: Path, kind: str, mode: fl.LoadingMode) -> None:
    path = make(tmp_path, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = fl.MemoryEfficientDataset(path, 0.5, mode)
    plain = {
        "images": fl.ImageDataset,
        "files": fl.FileDataset,
        "lines.txt": fl.TextDataset,
        "rows.h5": fl.HDF5Dataset,
        "rows.parquet": fl.ParquetDataset,
        "tables": fl.ParquetDataset,
        "shards": fl.TarDataset,
    }[kind](path)
    assert len(dataset) == len(plain)
    for index in [*range(len(plain)), *range(len(plain)), -1]:
        assert same(dataset[index], plain[index])
    for workers in (0, 2):
        ours = list(fl.DataLoader(dataset, batch_size=2, num_workers=workers, workers="threads"))
        stock = list(TorchDataLoader(plain, batch_size=2))
        assert same(ours, stock)


def test_a_folder_is_what_most_of_its_files_are(tmp_path: Path) -> None:
    path = make(tmp_path, "images")
    (path / "README.txt").write_text("Cats and dogs.")
    (path / "labels.csv").write_text("name,label")
    assert isinstance(fl.MemoryEfficientDataset(path).dataset, fl.ImageDataset)


@pytest.mark.parametrize("kind", ["images", "files", "lines.txt", "rows.h5", "shards"])
@pytest.mark.parametrize("mode", list(fl.LoadingMode))
def test_a_subclass_of_it_is_asked_for_its_samples(tmp_path: Path, kind: str, mode: fl.LoadingMode) -> None:
    class Reads(fl.MemoryEfficientDataset):
        def read(self, index: int) -> object:
            return index, super().read(index)

    class Gets(fl.MemoryEfficientDataset):
        def __getitem__(self, index: int) -> object:
            return index, super().__getitem__(index)

    path = make(tmp_path, kind)
    for dataset in (Reads(path, 0.5, mode), Gets(path, 0.5, mode)):
        plain = dataset.dataset[1]
        assert same(dataset[1], (1, plain))
        for loader in (fl.DataLoader, TorchDataLoader):
            assert [batch[0][0] for batch in loader(dataset, 2, collate_fn=list)] == list(
                range(0, len(dataset), 2)
            )
        assert [sample[0] for sample in dataset.stream(shuffle=False)] == list(range(len(dataset)))
    if mode is fl.LoadingMode.CACHED:
        tenfold = Reads(path, 0.5, transform=lambda index: 10 * index)
        seen = fl.DataLoader(tenfold, 2, cache="10MiB", collate_fn=list)
        assert [batch[0][0] for _ in range(2) for batch in seen] == 2 * list(range(0, 10 * len(dataset), 20))


def test_mds_shards_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "shard.00000.mds").write_bytes(b"?")
    with pytest.raises((FileNotFoundError, ImportError), match=r"index|mosaicml"):
        fl.MemoryEfficientDataset(tmp_path)


def test_it_keeps_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path, "files")
    monkeypatch.setattr("foreload.datasets.auto.granted_memory", lambda: 1000)
    with pytest.warns(UserWarning, match="max_memory_usage=0.8 of the memory"):
        dataset = fl.MemoryEfficientDataset(path, loading_mode=fl.LoadingMode.EAGER)
    assert [dataset[i][0].item() for i in range(5)] == list(range(5))
    assert dataset._kept is not None
    assert 0 < dataset._kept.native.counts()["used"] <= 800


@pytest.mark.parametrize("share", [0, 1.1, -1, "half"])
def test_wrong_shares(tmp_path: Path, share: object) -> None:
    with pytest.raises((ValueError, TypeError), match="max_memory_usage"):
        fl.MemoryEfficientDataset(make(tmp_path, "files"), share)  # type: ignore[arg-type]


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fl.MemoryEfficientDataset(tmp_path / "nowhere")
    (tmp_path / "x.xyz").write_text("?")
    with pytest.raises(ValueError, match=r"x\.xyz.*of no known kind"):
        fl.MemoryEfficientDataset(tmp_path / "x.xyz")
