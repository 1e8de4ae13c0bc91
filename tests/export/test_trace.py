"""Traces follow the Trace Event Format, and show what was recorded; NVTX ranges are balanced."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foreload as fl
from foreload.cli.profile import profile
from foreload.export.trace import Recording, write_recordings
from foreload.record.spans import SPAN, Stage
from tests.export.trace_format import Read
from tests.programs import python

DOCUMENT = Path(__file__).parents[2] / "docs" / "profiling.md"


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


def recorded(recording: Recording) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            recording.lanes[span["lane"]].name,
            Stage(span["stage"]).name,
            *(int(span[name]) for name in ("batch", "samples", "bytes", "begin")),
            int(span["end"] - span["begin"]),
        )
        for span in recording.spans
    )


@pytest.mark.parametrize("workers", [None, "threads", "processes"])
def test_what_was_recorded_is_in_the_trace(workers: Any, tmp_path: Path) -> None:
    count = 0 if workers is None else 2
    with fl.DataLoader(Rows(), batch_size=4, num_workers=count, workers=workers or "auto") as loader:
        for _ in range(2):
            assert len(list(loader)) == 10
    path = tmp_path / "trace.json"
    fl.export.write_trace(loader, str(path))  # of a loader that is closed
    found = Read(path)
    assert found.rows() == recorded(Recording("", loader.spans.recent(), loader.spans.lanes))
    assert {"wait", "order", "sample", "batch"} <= {each["name"] for each in found.slices}
    names = list(found.threads.values())
    assert names[0] == "consumer 0"
    if workers == "threads":
        assert names[1:] == ["thread 0", "thread 1"]
    if workers == "processes":
        assert list(found.processes.values()) == ["loader", "process 0 of loader", "process 1 of loader"]
    else:
        assert list(found.processes.values()) == ["loader"]
    assert list(tmp_path.iterdir()) == [path]


def test_counters_add_up_to_what_came(tmp_path: Path) -> None:
    for number in range(32):
        (tmp_path / f"{number}.bin").write_bytes(bytes(50_000))
    loader = fl.DataLoader(
        fl.FileDataset(tmp_path), batch_size=2, num_workers=2, workers="threads", collate_fn=len
    )
    assert sum(loader) == 32
    fl.export.write_trace({"train": loader}, tmp_path / "trace.json.gz")
    found = Read(tmp_path / "trace.json.gz")

    def total(name: str) -> float:
        ((_, points),) = ((key, points) for key, points in found.counters.items() if key[1] == name)
        assert points[-1][1] == 0
        return sum((b[0] - a[0]) / 1e6 * a[1] for a, b in pairwise(points))

    assert list(found.processes.values()) == ["train"]
    assert total("samples/s") == pytest.approx(32, rel=0.01)
    assert total("read MiB/s") == pytest.approx(loader.stats()["bytes_read"] / 2**20, rel=0.01)


def test_a_loader_that_did_nothing_and_a_fork_give_valid_files(tmp_path: Path) -> None:
    loader = fl.DataLoader(Rows(), batch_size=4, num_workers=1, workers="threads")
    fl.export.write_trace(loader, tmp_path / "empty.json")
    assert Read(tmp_path / "empty.json").all["traceEvents"] == []
    write_recordings([], tmp_path / "none.json")
    assert Read(tmp_path / "none.json").all["traceEvents"] == []
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        fl.export.write_trace(loader, tmp_path / "fork.json")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not Read(tmp_path / "fork.json").slices
    fl.export.write_trace(loader, tmp_path / "open.json")  # in the middle of an epoch
    assert Read(tmp_path / "open.json").slices
    del batches


class Lane:
    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind


TIMES = st.integers(0, 3_000)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8), TIMES, TIMES), max_size=60), st.integers(0, 2**62))
def test_any_spans_make_rows_that_nest(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, ...]], start: int
) -> None:
    spans = np.zeros(len(rows), SPAN)
    for span, (lane, stage, begin, length) in zip(spans, rows, strict=True):
        span["lane"], span["stage"], span["samples"], span["bytes"] = lane, stage, 1, 1
        span["begin"], span["end"] = start + begin, start + begin + length
    recording = Recording("any", spans, [Lane("consumer 0", "consumer"), Lane("process 0", "process")])
    path = tmp_path_factory.mktemp("any") / "trace.json"
    write_recordings([recording, recording._replace(name="again")], path)
    found = Read(path)
    assert found.rows() == recorded(recording) + recorded(recording)


def test_a_trace_that_fails_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("before")
    spans = np.zeros(1, SPAN)
    spans["stage"] = 200
    with pytest.raises(ValueError):
        write_recordings([Recording("bad", spans, [Lane("x", "thread")])], tmp_path / "trace.json")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_what_is_no_file_of_its_own_stays_what_it_is(tmp_path: Path, name: str) -> None:
    """A trace for /dev/null must not put a file in its place."""
    loader = fl.DataLoader(Rows(), batch_size=2)
    list(loader)
    if name == "pipe":
        os.mkfifo(tmp_path / name)
        reader = os.open(tmp_path / name, os.O_RDWR | os.O_NONBLOCK)
    else:
        (tmp_path / "linked").write_text("before")
        (tmp_path / name).symlink_to(tmp_path / "linked")
        reader = os.open(tmp_path / "linked", os.O_RDONLY)
    try:
        fl.export.write_trace(loader, tmp_path / name)
        assert json.loads(os.read(reader, 1 << 20))["traceEvents"]
    finally:
        os.close(reader)
    assert (tmp_path / name).is_fifo() if name == "pipe" else (tmp_path / name).is_symlink()
    assert not list(tmp_path.glob("*.part"))


def test_wrong_input_is_said_plainly(tmp_path: Path) -> None:
    stock = torch.utils.data.DataLoader(Rows())
    loader = fl.DataLoader(Rows())
    for wrong in (stock, {"a": loader, "b": stock}):
        with pytest.raises(TypeError, match=r"must be a foreload.DataLoader, got DataLoader; `foreload profile"):
            fl.export.write_trace(wrong, tmp_path / "x.json")
    with pytest.raises(TypeError, match="names of loaders must be str, got 1"):
        fl.export.write_trace({1: loader}, tmp_path / "x.json")
    with pytest.raises(ValueError, match="loaders is empty"):
        fl.export.write_trace({}, tmp_path / "x.json")
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*none' for the trace 'x.json'"):
        fl.export.write_trace(loader, tmp_path / "none" / "x.json")
    for error, path in ((IsADirectoryError, str(tmp_path)), (FileNotFoundError, "/proc/x.json")):
        with pytest.raises(error) as failed:
            fl.export.write_trace(loader, path)
        assert str(failed.value).endswith(f": {path!r}")


SCRIPT = """
import torch
import foreload
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index): return torch.full((3,), float(index))

if __name__ == "__main__":
    for batch in DataLoader(Rows(), batch_size=4, num_workers=2): pass
    for batch in foreload.DataLoader(Rows(), batch_size=8, num_workers=1, workers="threads"): pass
"""


@pytest.mark.slow
def test_a_profiled_script_is_traced(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    result = python("-m", "foreload", "profile", "--trace", "trace.json.gz", "script.py", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "trace.json.gz" in result.stdout
    found = Read(tmp_path / "trace.json.gz")
    loops = {process: name for process, name in found.processes.items() if " of " not in name}
    assert sorted(name.partition("(")[0] for name in loops.values()) == ["DataLoader", "foreload.DataLoader"]
    assert sum(name.startswith("worker ") for name in found.processes.values()) == 2
    for process, name in loops.items():
        waits = [each for each in found.slices if each["pid"] == process and each["name"] == "wait"]
        assert sum(each["args"]["samples"] for each in waits) == 40, name


FAKE_NVTX = """
import sys, types
torch._C._nvtx = types.SimpleNamespace(
    rangePushA=lambda name: print("push", name, flush=True), rangePop=lambda: print("pop", flush=True)
)
for loader in (DataLoader(Rows(), batch_size=20), foreload.DataLoader(Rows(), batch_size=20, num_workers=1)):
    print("loader", flush=True)
    for batch in loader:
        print("loop", flush=True)
"""


@pytest.mark.slow
def test_a_profile_under_nsight_systems_marks_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(
        '#!/bin/sh\n[ "$2" = --help ] && exit\n'
        'while [ "${1#-}" != "$1" ] || [ "$1" = profile ]; do shift; done\nexec "$@"\n'
    )
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:{os.environ['PATH']}")
    (tmp_path / "script.py").write_text(SCRIPT.partition("if __name__")[0] + FAKE_NVTX)
    assert profile(tmp_path / "script.py", nsys=tmp_path / "out.nsys-rep").code == 0
    stock, ours = capfd.readouterr().out.split("loader\n")[1:]
    for said in (stock, ours):
        open_ranges: list[str] = []
        top = []
        for line in said.splitlines():
            if line.startswith("push"):
                open_ranges.append(line)
                top += [line] if len(open_ranges) == 1 else []
            elif line == "pop":
                open_ranges.pop()
            else:
                assert not open_ranges  # the loop's work is in none
                top.append(line)
        assert not open_ranges
        assert [line for line in top if line != "push order"] == [*["push wait", "loop"] * 2, "push wait"]
    assert "push sample" in stock


class Ranges:
    """In the place of ``torch.cuda.nvtx.range`` or ``nvtx.annotate``."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, name: str) -> Any:
        self.said.append(name.removeprefix("foreload: "))
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.said.append("end")


def test_ranges_are_where_the_loop_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Ranges()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range", ranges)
    loader = fl.export.nvtx_ranges(fl.DataLoader(Rows(), batch_size=20))
    assert len(loader) == 2
    assert loader.batch_size == 20
    for batch in loader:
        ranges.said.append(f"loop {len(batch)}")
    assert ranges.said == ["begin", "end", *["wait", "end", "loop 20"] * 2, "wait", "end"]
    ranges.said.clear()
    for _ in fl.export.nvtx_ranges([1, 2]):
        break
    with pytest.raises(ZeroDivisionError):
        list(fl.export.nvtx_ranges(1 // zero for zero in [0]))
    assert ranges.said == ["begin", "end", "wait", "end"] * 2
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(annotate=ranges))  # type: ignore[arg-type]
    ranges.said.clear()
    assert list(fl.export.nvtx_ranges([1])) == [1]
    assert ranges.said == ["begin", "end", *["wait", "end"] * 2]


def test_without_nvtx_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.warns(RuntimeWarning, match="marks nothing: this torch has no CUDA.*pip install nvtx"):
        loader = fl.export.nvtx_ranges([1, 2])
    assert list(loader) == [1, 2]
    with pytest.raises(TypeError, match="must be iterable, got int"):
        fl.export.nvtx_ranges(3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_documents_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    serve = fl.export.serve_metrics  # others may have the port
    monkeypatch.setattr(fl.export, "serve_metrics", lambda loaders, port: serve(loaders, port=0))
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names = {"dataset": list(range(64)), "train_step": lambda batch: None}
    assert blocks
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
