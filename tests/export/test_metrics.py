"""Figures reach Prometheus, TensorBoard and files; no client, crash or full disk gets in their way."""

from __future__ import annotations

import gc
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl
from foreload.export.metrics import LoaderCollector
from foreload.export.tensorboard import scalars

prometheus = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402


def make(samples: int = 12, **options: Any) -> fl.DataLoader[Any]:
    return fl.DataLoader(torch.arange(samples), batch_size=4, **options)  # type: ignore[arg-type]


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def scrape(url: str) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")
            found[(sample.name, *(sample.labels[name] for name in sorted(sample.labels)))] = sample.value
    return found


def test_the_page_says_what_stats_says() -> None:
    loader = make(cache="1MiB")
    for _ in range(2):
        list(loader)
    with fl.export.serve_metrics({"train": loader}, port=0) as server:
        found, stats = scrape(server.url), loader.stats()
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert stats["cache"] is not None
    expected = {
        "epochs_total": 2,
        "batches_total": 6,
        "samples_total": 24,
        "running_seconds_total": stats["seconds"],
        "wait_seconds_total": stats["wait_seconds"],
        "loop_seconds_total": stats["loop_seconds"],
        "read_bytes_total": 0,
        "cache_hits_total": stats["cache"]["hits"],
        "cache_misses_total": stats["cache"]["misses"],
        "cache_bytes": stats["cache"]["used"],
        "errors_total": 0,
        "restarts_total": 0,
        "first_batch_seconds": stats["first_batch_seconds"],
        "workers": stats["workers"]["count"],
        "depth_batches": stats["workers"]["depth"],
        "memory_granted_bytes": stats["memory"]["granted_bytes"],
        "cores_granted": stats["cpu"]["cores"],
    }
    assert {name: found["foreload_" + name, "train"] for name in expected} == expected
    for stage, sums in stats["stages"].items():
        assert found["foreload_stage_spans_total", "train", stage] == sums["count"]
        assert found["foreload_stage_seconds_total", "train", stage] == sums["seconds"]
        assert found["foreload_stage_cpu_seconds_total", "train", stage] == sums["cpu_seconds"]
        assert found["foreload_stage_samples_total", "train", stage] == sums["samples"]
        assert found["foreload_stage_bytes_total", "train", stage] == sums["bytes"]
    assert found["foreload_batch_seconds", "train", "0.95"] == stats["batch_seconds"]["p95"]
    assert found["foreload_memory_bytes", "train"] > 1 << 20
    assert 0 <= found["foreload_cpu_ratio", "train"] <= 1
    assert ("foreload_gpu_idle_ratio", "train") not in found


def test_loaders_vanish_and_the_page_with_the_last_of_them() -> None:
    one, two = make(), make()
    list(one)
    server = fl.export.serve_metrics({"one": one, "two": two}, port=0)
    assert ("foreload_samples_total", "two") in scrape(server.url)
    one.close()
    assert scrape(server.url)["foreload_samples_total", "one"] == 12
    del two
    gc.collect()
    assert {key[1] for key in scrape(server.url)} == {"one"}
    del one
    gc.collect()
    server._thread.join(60)
    with pytest.raises(OSError):
        scrape(server.url)
    server.close()
    server.close()


@pytest.mark.slow
def test_clients_that_do_not_read_hold_nobody_up() -> None:
    loader = make()
    server = fl.export.serve_metrics(loader, port=0)
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for client in clients[:10]:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * (client is not clients[0]))
    for client in clients[5:10]:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()  # which resets it
    list(loader)
    assert scrape(server.url)["foreload_samples_total", "loader"] == 12
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 8  # their time is not waited for
    for client in clients:
        client.close()
    again = fl.export.serve_metrics(loader, port=server.port)
    assert scrape(again.url)["foreload_samples_total", "loader"] == 12
    again.close()


def test_ports_and_arguments_that_will_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make()
    with (
        fl.export.serve_metrics(loader, port=0) as server,
        pytest.raises(
            OSError, match=f"cannot serve metrics on 127.0.0.1:{server.port}: .*in use; port=0 takes any"
        ),
    ):
        fl.export.serve_metrics(loader, port=server.port)
    with pytest.raises(OSError, match=r"cannot serve metrics on 192.0.2.1:0"):
        fl.export.serve_metrics(loader, port=0, host="192.0.2.1")
    with pytest.raises(TypeError, match="port must be an int, got '80'"):
        fl.export.serve_metrics(loader, port="80")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="port must be between 0 and 65535, got 70000"):
        fl.export.serve_metrics(loader, port=70000)
    with pytest.raises(TypeError, match=r"must be a foreload.DataLoader, got list"):
        fl.export.serve_metrics([1], port=0)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"pip install prometheus_client"):
        fl.export.serve_metrics(loader, port=0)


def test_a_registry_of_ones_own() -> None:
    loader = make()
    list(loader)
    registry = prometheus.CollectorRegistry(auto_describe=True)
    registry.register(LoaderCollector(loader))
    assert registry.get_sample_value("foreload_samples_total", {"loader": "loader"}) == 12
    del loader
    gc.collect()
    assert registry.get_sample_value("foreload_samples_total", {"loader": "loader"}) is None


@pytest.mark.slow
def test_looking_while_loaders_run_and_close() -> None:
    loader = make(400, cache="1MiB", num_workers=1, workers="threads")
    collector, looks, over = LoaderCollector(loader), [], threading.Event()

    def look() -> None:
        while not over.is_set():
            looks.append(len(list(collector.collect())))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(30):
        assert len(list(loader)) == 100
        loader.close()
    until(lambda: looks)
    assert thread.is_alive()
    over.set()
    thread.join()


START = """
import os, sys, socket, time
import torch, foreload as fl
from torch.utils.data import TensorDataset
loader = fl.DataLoader(TensorDataset(torch.arange(400)), batch_size=4, num_workers=1, workers="threads")
"""


def start(text: str, *arguments: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + text, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (0, "", "")
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert json.loads(line)["batches"] == 1


def test_lines_are_whole_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    path.write_text('{"half a li')  # of an earlier run
    program = start("log = fl.export.log_stats(loader, sys.argv[1], every=0.01)\nwhile True: list(loader)", path)
    until(lambda: path.read_text().count("\n") >= 4 or program.poll() is not None)
    program.send_signal(signal.SIGKILL)
    program.communicate(timeout=60)
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
    log._thread.join(60)
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
