"""``foreload profile`` on loops over anything: DALI's iterators, generators, and whatever else has batches.

NVIDIA DALI is not installed here. What stands for it has the modules, the classes and the order of calls of DALI
1.4x (``nvidia/dali/plugin/base_iterator.py`` and ``plugin/pytorch/__init__.py``), and sleeps instead of decoding.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foreload.cli.profile import Profile, profile
from foreload.cli.profile.bytecode import find_loops
from foreload.cli.profile.inside.frames import publish_frames
from foreload.cli.profile.loop_report import LoopReport
from foreload.cli.profile.stacks import StackReader

BASE_ITERATOR = """
class _DaliBaseIterator:
    def __init__(self, pipelines, size=-1, auto_reset=False, prepare_first_batch=True):
        self._pipes = pipelines if isinstance(pipelines, list) else [pipelines]
        self._num_gpus = len(self._pipes)
        self.batch_size = self._pipes[0].max_batch_size
        self._size, self._counter, self._auto_reset = size, 0, auto_reset
        self._prepare_first_batch = prepare_first_batch
    def _get_outputs(self):
        if self._counter >= self._size:
            if self._auto_reset:
                self.reset()
            raise StopIteration
        return [pipe.run() for pipe in self._pipes]
    def reset(self):
        self._counter = 0
    def next(self):
        return self.__next__()
    def __next__(self):
        raise NotImplementedError
    def __iter__(self):
        return self
    def __len__(self):
        return -(-self._size // self.batch_size)
"""
PYTORCH = """
import torch
from nvidia.dali.plugin.base_iterator import _DaliBaseIterator
class DALIGenericIterator(_DaliBaseIterator):
    def __init__(self, pipelines, output_map, size=-1, auto_reset=False, prepare_first_batch=True):
        self.output_map = output_map
        _DaliBaseIterator.__init__(self, pipelines, size, auto_reset, prepare_first_batch)
        self._first_batch = None
        if self._prepare_first_batch:
            self._first_batch = DALIGenericIterator.__next__(self)
    def __next__(self):
        if self._first_batch is not None:
            batch, self._first_batch = self._first_batch, None
            return batch
        outputs = self._get_outputs()
        batches = [dict(zip(self.output_map, output)) for output in outputs]
        self._counter += self._num_gpus * self.batch_size
        return batches
class DALIClassificationIterator(DALIGenericIterator):
    def __init__(self, pipelines, size=-1, auto_reset=False, prepare_first_batch=True):
        super().__init__(pipelines, ["data", "label"], size, auto_reset, prepare_first_batch)
"""
DALI_SCRIPT = """
import sys, time, torch
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
class Pipeline:
    max_batch_size = 8
    def run(self):
        time.sleep(float(sys.argv[1]))
        return torch.zeros(8, 3, 4, 4), torch.zeros(8, 1)
loader = DALIClassificationIterator([Pipeline(), Pipeline()], size=800, auto_reset=True)
for epoch in range(2):
    for number, data in enumerate(loader):
        images = data[0]["data"]
        time.sleep(float(sys.argv[2]))
    assert number == 49, number
    time.sleep(0.2)
assert type(loader).__next__.__qualname__ == "DALIGenericIterator.__next__"
"""


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    script = folder / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    return script


def the_loop(found: Profile) -> tuple[str, dict[str, Any], LoopReport]:
    ((loader, report),) = zip(found.loaders, found.reports, strict=True)
    assert isinstance(report, LoopReport)
    return loader.title, loader.stats, report


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "work", "kind"), [("0.006", "0.001", "loader-bound"), ("0", "0.01", "consumer-bound")]
)
def test_dali_is_timed(
    load: str,
    work: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, "", "nvidia/dali/__init__.py")
    write(tmp_path, BASE_ITERATOR, "nvidia/dali/plugin/base_iterator.py")
    write(tmp_path, PYTORCH, "nvidia/dali/plugin/pytorch/__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = profile(write(tmp_path, DALI_SCRIPT), [load, work], trace=True)
    assert found.code == 0
    title, stats, report = the_loop(found)
    assert title == "nvidia: DALIClassificationIterator(batch_size=8) iterated at train.py:11"
    # The batch that the constructor makes is delivered by the loop's first call, and counted once.
    assert (stats["epochs"], stats["batches"], stats["samples"]) == (2, 100, 1600)
    assert stats["wait_seconds"] + stats["loop_seconds"] == pytest.approx(stats["seconds"], rel=0.01)
    assert stats["loop_seconds"] >= 98 * float(work)
    assert stats["wait_seconds"] >= 98 * 2 * float(load)
    assert report.verdict.kind == kind
    assert len(found.loaders[0].spans) == 100
    found.show()
    shown = " ".join(capsys.readouterr().out.split())
    assert "decoding" not in shown.replace("reading, decoding and collating apart", "")
    assert ("num_threads" in shown) == (kind == "loader-bound")
    found.write_trace(tmp_path / "trace.json")
    assert (
        sum(e.get("name") == "wait" for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])
        == 100
    )


FFCV = """
import time, torch
from threading import Thread
class EpochIterator(Thread):
    def __init__(self, loader, order):
        super().__init__(daemon=True)
        self.loader, self.left = loader, len(order)
    def __next__(self):
        if not self.left: raise StopIteration()
        self.left -= 1
        time.sleep(0.006)
        return torch.zeros(4, 3), torch.zeros(4)
    def __iter__(self): return self
"""
FFCV_SCRIPT = """
import time
from ffcv.loader.epoch_iterator import EpochIterator
class Loader:
    def __iter__(self): return EpochIterator(self, range(50))
loader = Loader()
for epoch in range(2):
    for images, labels in loader: time.sleep(0.001)
"""


@pytest.mark.slow
def test_ffcv_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ffcv/__init__.py", "ffcv/loader/__init__.py"):
        write(tmp_path, "", name)
    write(tmp_path, FFCV, "ffcv/loader/epoch_iterator.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    title, stats, report = the_loop(profile(write(tmp_path, FFCV_SCRIPT)))
    assert title == "ffcv: EpochIterator() iterated at train.py:8"
    assert (stats["epochs"], stats["batches"], stats["samples"]) == (2, 100, 400)
    assert report.verdict.kind == "loader-bound"
    assert "batches_ahead" in report.verdict.advice[0].change


SUBCLASS = """
import torch
from torch.utils.data import DataLoader
class StreamingDataLoader(DataLoader):  # as MosaicML's and LitData's
    def __iter__(self):
        for batch in super().__iter__():
            yield batch
for batch in StreamingDataLoader(torch.arange(40), batch_size=4): pass
"""


@pytest.mark.slow
def test_a_subclass_of_torchs_loader_is_reported_in_full(tmp_path: Path) -> None:
    (loader,) = profile(write(tmp_path, SUBCLASS)).loaders
    assert loader.title.startswith("StreamingDataLoader(Tensor, batch_size=4")
    assert (loader.stats["batches"], loader.stats["stages"]["sample"]["samples"]) == (10, 40)


def test_where_stacks_may_not_be_read_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> StackReader:
        raise PermissionError

    monkeypatch.setattr("foreload.cli.profile.loops.StackReader", refuse)
    found = profile(write(tmp_path, "import time\ntime.sleep(1)\n"))
    found.show()
    assert found.loaders == []
    assert "does not let a process read the memory of those" in " ".join(capsys.readouterr().out.split())


# Each waits 12 ms for a batch, and works 4 ms on it; `wait` sleeps, or computes without ever releasing the lock.
PREAMBLE = """
import sys, time
import numpy as np
def wait():
    end = time.perf_counter() + 0.012
    while {} time.perf_counter() < end: pass
def work():
    end = time.perf_counter() + 0.004
    while time.perf_counter() < end: pass
def batches():
    for number in range(100):
        wait()
        yield np.zeros(3)
class Batches:
    def __init__(self): self.left = 100
    def __iter__(self): return self
    def __next__(self):
        if not self.left: raise StopIteration
        self.left -= 1
        wait()
        return np.zeros(3)
"""
LOOPS = {
    "generator": "for batch in batches(): work()  # THE LOOP",
    "enumerated": "for number, batch in enumerate(batches()):  # THE LOOP\n    work()",
    "epochs": "for epoch in range(1):\n    for batch in batches():  # THE LOOP\n        work()",
    "object": "def main():\n    for batch in Batches():  # THE LOOP\n        work()\nmain()",
    "next": """
source = batches()
while True:
    try: batch = next(source)  # THE LOOP
    except StopIteration: break
    work()
""",
    "stepped": "source = batches()\nfor step in range(100):\n    batch = next(source)  # THE LOOP\n    work()",
    "in the body": """
for batch in batches():  # THE LOOP
    for part in [1, 2, 3, 4]:
        for i in range(9): part += i
    work()
""",
    "breaks": "for batch in batches():  # THE LOOP\n    work()\n    if batch is None: break\nsys.exit(3)",
    "map": "for batch in map(lambda n: wait(), range(100)): work()  # THE LOOP",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how in ("epochs", "next") else pytest.mark.slow) for how in LOOPS]
)
@pytest.mark.parametrize(
    "rest", ["time.sleep(0.012) or", pytest.param("", marks=pytest.mark.slow)], ids=["sleeps", "spins"]
)
def test_the_loop_that_waits_is_found(how: str, rest: str, tmp_path: Path) -> None:
    text = PREAMBLE.format(rest) + LOOPS[how]
    found = profile(write(tmp_path, text))
    assert found.code == (3 if how == "breaks" else 0)
    title, stats, report = the_loop(found)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "THE LOOP" in line)
    assert title.endswith(f"at train.py:{line}")
    assert stats["sampled"] >= 10
    # It is three quarters; the margin is for a machine with much else to do.
    assert 0.25 < stats["wait_share"] < 1
    assert next(iter(stats["waits_in"])).startswith("wait (train.py:")
    assert report.verdict.kind == "loader-bound"
    assert any("samples of its stack" in line for line in report.verdict.evidence)
    assert not any("decod" in line or "read" in line for line in report.verdict.evidence)


QUIET = {
    "no loop": "time.sleep(1.5)",
    "work only": "for number in range(150): work()",
    "counting": "total = 0\nfor number in range(10 ** 7): total += number",
    "calls": "while time.perf_counter() < end:\n    wait()",
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[] if how == "counting" else pytest.mark.slow) for how in QUIET]
)
def test_loops_that_do_not_wait_are_not_accused(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PREAMBLE.format("") + "end = time.perf_counter() + 1.5\n" + QUIET[how]
    found = profile(write(tmp_path, text))
    assert found.loaders == []
    found.show()
    assert "no loop of its main thread was seen to wait" in " ".join(capsys.readouterr().out.split())


TORCH = """
import sys, time, torch
from torch.utils.data import DataLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 200
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor(index)
def later(batches, seconds):
    for batch in batches:
        time.sleep(seconds)
        yield batch
if __name__ == "__main__":
    start = sys.argv[2] or None
    loader = DataLoader(Slow(), batch_size=4, num_workers=int(sys.argv[1]), multiprocessing_context=start)
    for batch in later(loader, float(sys.argv[3])):
        time.sleep(0.005)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start"), [("0", ""), ("1", "fork"), ("1", "spawn")])
@pytest.mark.parametrize(("seconds", "others"), [("0", 0), ("0.04", 1)])
def test_a_loop_around_a_loader_is_told_from_it(
    workers: str, start: str, seconds: str, others: int, tmp_path: Path
) -> None:
    expected = others * ["for batch in later(loader, float(sys.argv[3]))"]
    for _ in range(3):  # others who need the cores may make it wait
        found = profile(write(tmp_path, TORCH), [workers, start, seconds])
        first, *rest = found.loaders
        assert first.title.startswith("DataLoader(Slow")
        titles = [each.title.partition(" at ")[0] for each in rest]
        if titles == expected:
            break
    assert titles == expected


RANKS = """
import multiprocessing, time
def batches():
    for number in range(100):
        time.sleep(0.012)
        yield [number]
def rank():
    for batch in batches(): time.sleep(0.004)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank) for _ in range(2)]
    for each in ranks: each.start()
    for each in ranks: each.join()
"""


@pytest.mark.slow
def test_loops_of_ranks_are_found_once(tmp_path: Path) -> None:
    title, stats, _ = the_loop(profile(write(tmp_path, RANKS)))
    assert title.endswith("at train.py:8")
    assert 0.25 < stats["wait_share"] < 1


def test_loops_are_found_in_bytecode() -> None:
    def nested(source: Any) -> None:
        for _ in range(3):
            for batch in source:
                print(batch)
        while True:
            print(next(source))

    found = find_loops(nested.__code__)
    first = nested.__code__.co_firstlineno
    assert [loop.line - first for loop in found] == [1, 2, 5]
    outer, inner, stepped = found
    assert outer.start < inner.start < inner.end <= outer.end <= stepped.start
    assert all(loop.start <= at < loop.end for loop in found for at in loop.waits)


STANDING = """
import sys, time
from foreload.cli.profile.inside.frames import publish_frames
def inner():
    print("ready", flush=True)
    sys.stdin.read()
def größe():
    for item in map(lambda _: inner(), [1]): pass
publish_frames(sys.argv[1])
größe()
"""


@pytest.mark.slow
def test_a_stack_is_read_from_outside_as_python_shows_it(tmp_path: Path) -> None:
    script = write(tmp_path, STANDING, "straße.py")
    process = subprocess.Popen(
        [sys.executable, script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    reader = StackReader(tmp_path / f"{process.pid}.frames")
    stack = reader.read()
    assert [(function.name, function.line) for function, _ in stack[:1]] == [("<module>", 1)]
    assert ("inner", 4) in [(function.name, function.line) for function, _ in stack]
    assert {function.path for function, _ in stack if function.name != "größe"} >= {str(script)}
    process.communicate("")
    until = time.monotonic() + 30
    with pytest.raises((ProcessLookupError, OSError)):
        while time.monotonic() < until:
            reader.read()
    reader.close()


def test_another_version_of_python_is_not_read(tmp_path: Path) -> None:
    publish_frames(str(tmp_path))
    (path,) = tmp_path.glob("*.frames")
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 0x030900F0}))
    with pytest.raises(ValueError, match="Python"):
        StackReader(path)
