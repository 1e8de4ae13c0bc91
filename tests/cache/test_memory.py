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
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
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
