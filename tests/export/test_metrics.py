"""Figures reach Prometheus; no client that does not read holds anything up."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
import urllib.request

import pytest

import foreload as fl
from foreload.export.metrics import LoaderCollector
from tests.export.test_logs import make, until

prometheus = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402


def scrape(url: str) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(url, timeout=300) as answer:
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
    server._thread.join(300)
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
