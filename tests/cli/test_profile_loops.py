"""``foreload profile`` on loops over generators, and whatever else has batches."""

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
from foreload.cli.profile.loops import LoopSamples
from foreload.cli.profile.stacks import Function, StackReader


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    script = folder / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    return script


def the_loop(found: Profile) -> tuple[str, dict[str, Any], LoopReport]:
    ((loader, report),) = zip(found.loaders, found.reports, strict=True)
    assert isinstance(report, LoopReport)
    return loader.title, loader.stats, report


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


@pytest.mark.slow
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
    def __len__(self): return 60
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor(index)
def later(batches, seconds):
    for batch in batches:
        if seconds: time.sleep(seconds)  # even one of 0 seconds gives the core away
        yield batch
if __name__ == "__main__":
    start = sys.argv[2] or None
    loader = DataLoader(Slow(), batch_size=4, num_workers=int(sys.argv[1]), multiprocessing_context=start)
    for batch in later(loader, float(sys.argv[3])):
        time.sleep(0.005)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start"), [("0", ""), ("1", "fork"), ("1", "spawn")])
@pytest.mark.parametrize(
    ("seconds", "others"), [("0", 0), ("0.3", 1)]
)  # a batch takes 8 ms, more beside other tests
def test_a_loop_around_a_loader_is_told_from_it(
    workers: str, start: str, seconds: str, others: int, tmp_path: Path
) -> None:
    expected = others * ["for batch in later(loader, float(sys.argv[3]))"]
    for _ in range(8):  # others who need the cores may make it wait
        found = profile(write(tmp_path, TORCH), [workers, start, seconds])
        first, *rest = found.loaders
        assert first.title.startswith("DataLoader(Slow")
        titles = [each.title.partition(" at ")[0] for each in rest]
        if titles == expected:
            break
    assert titles == expected


class ReaderThatImports:
    """Sees a script within its import of the file of torch's workers, then within its loop."""

    process = 1

    def __init__(self, path: Path) -> None:
        worker = Function("/site-packages/torch/utils/data/_utils/worker.py", "<module>", 1)
        (loop,) = find_loops(compile(Path("train.py").read_text(), "train.py", "exec"))
        script = Function(str(Path("train.py").absolute()), "<module>", 1)
        self._stacks = [[(worker, 0)], *3 * [[(script, min(loop.waits))]]]

    def read(self) -> list[tuple[Function, int]]:
        return self._stacks.pop(0)

    def close(self) -> None:
        pass


def test_a_script_that_imports_torch_is_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "for batch in batches(): pass\n")
    (tmp_path / "1.frames").touch()
    monkeypatch.setattr("foreload.cli.profile.loops.StackReader", ReaderThatImports)
    samples = LoopSamples(tmp_path)
    samples.look_for_processes()
    for _ in range(4):
        samples.sample()
    assert [loop.where for loop in samples.loops()] == ["train.py:1"]


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
    until = time.monotonic() + 300
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
