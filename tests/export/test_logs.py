"""Figures reach files and TensorBoard; no crash or full disk gets in their way."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.export.tensorboard import scalars
from tests.programs import Program

pytest.importorskip("prometheus_client")


def make(samples: int = 12, **options: Any) -> fl.DataLoader[Any]:
    return fl.DataLoader(torch.arange(samples), batch_size=4, **options)  # type: ignore[arg-type]


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 300
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


START = """
import os, sys, socket, time
import torch, foreload as fl
from torch.utils.data import TensorDataset
loader = fl.DataLoader(TensorDataset(torch.arange(400)), batch_size=4, num_workers=1, workers="threads")
"""


def start(text: str, *arguments: Any) -> Program:
    return Program("-c", START + text, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_program_ends_with_clients_and_logs_open(tmp_path: Path) -> None:
    program = start(
        """
server = fl.export.serve_metrics(loader, port=0)
client = socket.create_connection(("127.0.0.1", server.port))
log = fl.export.log_stats(loader, sys.argv[1], every=1000)
batches = iter(loader); next(batches)
if os.fork() == 0:
    log.write(); log.close(); server.close()  # nothing of it is the fork's
    sys.exit()
assert os.wait()[1] == 0
client.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
while client.recv(1000): pass
client = socket.create_connection(("127.0.0.1", server.port))
""",
        tmp_path / "log",
    )
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out, err) == (0, "", "")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["batches"] == 1


def test_lines_are_whole_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    path.write_text('{"half a li')  # of an earlier run
    program = start("log = fl.export.log_stats(loader, sys.argv[1], every=0.01)\nwhile True: list(loader)", path)
    until(lambda: path.read_text().count("\n") >= 4 or program.poll() is not None)
    program.send_signal(signal.SIGKILL)
    program.communicate(timeout=300)
    assert program.returncode == -signal.SIGKILL
    half, *lines = path.read_text().splitlines()
    assert half == '{"half a li'
    found = [json.loads(line) for line in lines]
    assert len(found) >= 3
    assert all(each["name"] == "loader" and each["stages"]["sample"] for each in found)
    batches = [each["batches"] for each in found]
    assert batches == sorted(set(batches))
    assert [each["time"] for each in found] == sorted(each["time"] for each in found)


def test_lines_by_call_and_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    train, other = make(), make(8)
    with fl.export.log_stats({"train": train, "other": other}, path, every=None) as log:
        log.write()  # nothing has happened yet
        list(train)
        log.write()
        list(train)
        list(other)
    log.close()
    list(train)
    log.write()  # after its end
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["name"], line["samples"]) for line in lines] == [("train", 12), ("train", 24), ("other", 8)]


def test_a_log_ends_with_its_loaders(tmp_path: Path) -> None:
    loader = make()
    log = fl.export.log_stats(loader, tmp_path / "x", every=1000)
    assert log._thread is not None
    del loader
    gc.collect()
    log._thread.join(300)
    assert not log._thread.is_alive()
    log.close()


def test_a_disk_that_is_full_is_said_once(tmp_path: Path) -> None:
    loader = make()
    list(loader)
    with (
        pytest.warns(UserWarning, match="could not be written: OSError.*No space left") as said,
        fl.export.log_stats(loader, "/dev/full", every=0.01) as log,
    ):
        with pytest.raises(OSError, match="No space left"):
            log.write()
        until(lambda: log._warned)
        time.sleep(0.05)
    assert len(said) == 1
    with pytest.raises(FileNotFoundError, match="none"):
        fl.export.log_stats(loader, tmp_path / "none" / "x")
    with pytest.raises(TypeError, match="every must be a number of seconds or None, got '1'"):
        fl.export.log_stats(loader, tmp_path / "x", every="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="above 0, got 0"):
        fl.export.log_stats(loader, tmp_path / "x", every=0)
    assert not (tmp_path / "x").exists()
    with pytest.raises(TypeError, match=r"must be a foreload.DataLoader"):
        fl.export.log_stats([1], tmp_path / "x")


class Writer:
    def __init__(self) -> None:
        self.points: dict[tuple[str, int], float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert type(value) is float
        self.points[tag, step] = value


@pytest.mark.slow
def test_points_are_of_the_time_since_the_last_one() -> None:
    writer = Writer()
    loader = make(4000, cache="16MiB")
    with fl.export.log_tensorboard({"train": loader}, writer, every=None) as log:
        list(loader)
        log.write()
        before = loader.stats()
        list(loader)
        log.write()
        after = loader.stats()
    seconds = after["seconds"] - before["seconds"]
    assert writer.points["train/samples_per_second", 2000] == pytest.approx(4000 / seconds)
    assert writer.points["train/samples_per_second", 1000] == pytest.approx(before["samples_per_second"])
    wait = after["wait_seconds"] - before["wait_seconds"]
    assert writer.points["train/wait_share", 2000] == pytest.approx(wait / seconds)
    assert writer.points["train/cache_hit_rate", 1000] == 0
    assert writer.points["train/cache_hit_rate", 2000] == 1
    assert {step for _, step in writer.points} == {1000, 2000}
    assert all(value == 0 for tag, value in scalars(after, after).items() if tag.startswith("stages/"))


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loader = make()
    with fl.export.log_tensorboard(loader, tmp_path, every=1000) as log:
        list(loader)
        log.write()
        list(loader)
    found = accumulator.EventAccumulator(str(tmp_path)).Reload()
    tags = found.Tags()["scalars"]
    assert {
        "loader/samples_per_second",
        "loader/wait_share",
        "loader/stages/batch",
        "loader/batch_seconds/p95",
    } <= {*tags}
    assert [event.step for event in found.Scalars("loader/samples_per_second")] == [3, 6]
    assert found.Scalars("loader/workers")[0].value == loader.num_workers
    with pytest.raises(TypeError, match="writer must be a SummaryWriter or a folder, got int"):
        fl.export.log_tensorboard(loader, 3)
    with pytest.raises(TypeError, match=r"must be a foreload.DataLoader"):
        fl.export.log_tensorboard([1], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install tensorboard"):
        fl.export.log_tensorboard(loader, tmp_path)
