"""A page of metrics for Prometheus, served from a thread."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Literal, NamedTuple, Self

from foreload.observe.watched import Watched

__all__ = ["MetricsServer", "serve_metrics"]

_QUANTILES = [("median", "0.5"), ("p95", "0.95"), ("p99", "0.99")]


class _Metric(NamedTuple):
    """A family of series: how its value is found in ``stats()``; None where there is none.

    With a ``label`` there is a value for each of the label's.
    """

    kind: Literal["counter", "gauge"]
    name: str
    meaning: str
    value: Callable[[dict[str, Any]], Any]
    label: str = ""


def _of_stages(field: str) -> Callable[[dict[str, Any]], dict[str, float]]:
    return lambda stats: {stage: each[field] for stage, each in stats["stages"].items()}


def _of_cache(field: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda stats: None if stats["cache"] is None else stats["cache"][field]


_METRICS = [
    _Metric("counter", "epochs", "Epochs begun.", lambda stats: stats["epochs"]),
    _Metric("counter", "batches", "Batches given to the loop.", lambda stats: stats["batches"]),
    _Metric("counter", "samples", "Samples given to the loop.", lambda stats: stats["samples"]),
    _Metric(
        "counter", "running_seconds", "Time from begin to last batch of epochs.", lambda stats: stats["seconds"]
    ),
    _Metric("counter", "wait_seconds", "Time that the loop waited.", lambda stats: stats["wait_seconds"]),
    _Metric("counter", "loop_seconds", "Time that the loop worked.", lambda stats: stats["loop_seconds"]),
    _Metric("counter", "read_bytes", "Bytes read.", lambda stats: stats["bytes_read"]),
    _Metric("counter", "errors", "Samples that could not be loaded.", lambda stats: stats["errors"]),
    _Metric("counter", "restarts", "Worker processes replaced.", lambda stats: len(stats["restarts"])),
    _Metric("counter", "stage_seconds", "Time that workers spent.", _of_stages("seconds"), "stage"),
    _Metric("counter", "stage_cpu_seconds", "CPU time that workers spent.", _of_stages("cpu_seconds"), "stage"),
    _Metric("counter", "stage_samples", "Samples that went through.", _of_stages("samples"), "stage"),
    _Metric("counter", "stage_bytes", "Bytes that went through.", _of_stages("bytes"), "stage"),
    _Metric("counter", "cache_hits", "Samples that the cache had.", _of_cache("hits")),
    _Metric("counter", "cache_misses", "Samples that the cache did not have.", _of_cache("misses")),
    _Metric("gauge", "cache_bytes", "Memory that the cache takes.", _of_cache("used")),
    _Metric(
        "gauge",
        "batch_seconds",
        "From one batch to the next.",
        lambda stats: {quantile: stats["batch_seconds"][key] for key, quantile in _QUANTILES},
        "quantile",
    ),
    _Metric("gauge", "first_batch_seconds", "Of the last epoch.", lambda stats: stats["first_batch_seconds"]),
    _Metric("gauge", "workers", "Workers.", lambda stats: stats["workers"]["count"]),
    _Metric("gauge", "depth", "Batches kept in the making.", lambda stats: stats["workers"]["depth"]),
    _Metric("gauge", "memory_bytes", "Of process and workers (PSS).", lambda stats: stats["memory"]["tree_bytes"]),
    _Metric("gauge", "memory_granted_bytes", "May be used.", lambda stats: stats["memory"]["granted_bytes"]),
    _Metric("gauge", "cores_granted", "Cores that may be used.", lambda stats: stats["cpu"]["cores"]),
    _Metric("gauge", "cpu_share", "CPU time used of that granted.", lambda stats: stats["cpu"]["share"]),
    _Metric(
        "gauge",
        "gpu_idle_share",
        "Time without work for the GPU.",
        lambda stats: None if stats["gpu"] is None else stats["gpu"]["idle_share"],
    ),
]
# A client that sends nothing, or reads nothing, is left after so many seconds.
_PATIENCE = 10


class MetricsServer:
    """Serves the figures of loaders, in Prometheus' text format, until closed or the loaders are gone.

    Attributes:
        port: where it listens.
        url: what Prometheus is to scrape.
    """

    def __init__(self, loaders: Any, *, port: int, host: str) -> None:
        try:
            from prometheus_client import CollectorRegistry, MetricsHandler
        except ImportError as error:
            raise ImportError("serve_metrics needs prometheus_client: pip install 'foreload[metrics]'") from error
        self._watched = Watched(loaders, self.close)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._watched))
        handler = type("Handler", (MetricsHandler,), {"registry": registry, "timeout": _PATIENCE})
        try:
            self._server = _Server(host, port, handler)
        except OSError as error:
            self._watched.release()
            raise OSError(
                error.errno, f"cannot serve metrics on {host}:{port}: {error.strerror}; port=0 takes any free port"
            ) from error
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve, name="foreload-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        if not self._watched.is_here:
            return
        self._watched.release()
        self._server.stop()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        """Give the server, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the server."""
        self.close()


class _Server(ThreadingMixIn, TCPServer):
    """A thread for each client: none of them can hold up another, or the end."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._over = False
        super().__init__((host, port), handler)

    def serve(self) -> None:
        while not self._over:
            self.handle_request()
        self.server_close()

    def stop(self) -> None:
        self._over = True
        with suppress(OSError):  # it is closed already
            # Wakes who waits for clients, and ends the listening also for forks that have the socket.
            self.socket.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the client has left
            super().handle_error(request, client_address)


class _Collector:
    """Asks the loaders at each scrape."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
        stats = {name: loader.stats() for name, loader in self._watched.alive().items()}
        for metric in _METRICS:
            labels = ["loader", metric.label] if metric.label else ["loader"]
            family = kinds[metric.kind](f"foreload_{metric.name}", metric.meaning, labels=labels)
            for name, figures in stats.items():
                value = metric.value(figures)
                if metric.label:
                    for which, each in value.items():
                        family.add_metric([name, which], each)
                elif value is not None:
                    family.add_metric([name], value)
            if family.samples:
                yield family


def serve_metrics(loaders: Any, *, port: int = 9464, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the figures of loaders for Prometheus to scrape, from ``http://HOST:PORT/metrics``.

    Counters, such as ``foreload_samples_total`` and ``foreload_stage_seconds_total{stage="decode"}``, are made for
    ``rate()``; gauges are ``foreload_batch_seconds{quantile="0.95"}``, ``foreload_memory_bytes`` and so on. Each
    series has the label ``loader``.

    Args:
        loaders: a loader, or a dict of names and loaders.
        port: where to listen; 0: any free port, to be found in the server's ``port`` and ``url``.
        host: on which address. Any other than this machine's own (``"0.0.0.0"`` is all) lets everybody read the
            figures.

    Returns:
        The server: ``close()`` it, or use it as a context manager. It also ends by itself when the loaders are
        gone, whom it does not keep.

    Raises:
        ImportError: ``prometheus_client`` is not installed.
        OSError: the port is taken, or the address is not this machine's.
        ValueError, TypeError: an argument makes no sense.
    """
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"port must be an int, got {port!r}")
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be between 0 and 65535, got {port}")
    return MetricsServer(loaders, port=port, host=host)
