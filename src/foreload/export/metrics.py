"""Metrics of loaders for Prometheus, served from a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from socketserver import BaseRequestHandler, TCPServer
from typing import Any, Self
from urllib.parse import urlsplit

from foreload.export.hosts import is_addressed
from foreload.export.loaders import LoaderRefs

__all__ = ["LoaderCollector", "MetricsServer", "serve_metrics"]

# Metric name, path in ``stats()``, help text. A metric whose value is None is left out.
_COUNTERS = [
    ("epochs", "epochs", "Epochs begun."),
    ("batches", "batches", "Batches delivered to the loop."),
    ("samples", "samples", "Samples delivered to the loop."),
    ("running_seconds", "seconds", "Time from the start of epochs to their last batch."),
    ("wait_seconds", "wait_seconds", "Time that the loop waited for batches."),
    ("loop_seconds", "loop_seconds", "Time that the loop worked."),
    ("read_bytes", "bytes_read", "Bytes read."),
    ("cache_hits", "cache.hits", "Samples found in the cache."),
    ("cache_misses", "cache.misses", "Samples not found in the cache."),
    ("errors", "errors", "Samples that could not be loaded."),
    ("restarts", "restarts", "Worker processes replaced."),
]
_GAUGES = [
    ("first_batch_seconds", "first_batch_seconds", "Time to the first batch of the last epoch."),
    ("workers", "workers.count", "Workers."),
    ("depth_batches", "workers.depth", "Prefetch depth: batches being made or ready."),
    ("cache_bytes", "cache.used", "Memory used by the cache."),
    ("memory_bytes", "memory.tree_bytes", "Memory of this process and its children (PSS)."),
    ("memory_granted_bytes", "memory.granted_bytes", "Memory granted to this process."),
    ("cores_granted", "cpu.cores", "Cores granted to this process."),
    ("cpu_ratio", "cpu.share", "Share of the granted CPU time used while epochs ran."),
    ("gpu_idle_ratio", "gpu.idle_share", "Share of the time without work for the GPU."),
]
_OF_STAGES = [
    ("stage_spans", "count", "Spans recorded for a stage."),
    ("stage_seconds", "seconds", "Time that workers spent in a stage."),
    ("stage_cpu_seconds", "cpu_seconds", "CPU time that workers spent in a stage."),
    ("stage_samples", "samples", "Samples that passed a stage."),
    ("stage_bytes", "bytes", "Bytes that passed a stage."),
]
_QUANTILES = [("median", "0.5"), ("p95", "0.95"), ("p99", "0.99")]

# Seconds after which a client that neither sends nor reads is dropped.
_CLIENT_TIMEOUT = 10


class LoaderCollector:
    """Collector of loaders' metrics for a program that serves its own ``prometheus_client`` registry.

    ``prometheus_client.REGISTRY.register(LoaderCollector(loader))``. Loaders are read at each scrape, and are
    left out when they are gone: they are not kept alive.

    Args:
        loaders: a loader, or a dict of names and loaders.
    """

    def __init__(self, loaders: Any) -> None:
        self._loaders = loaders if isinstance(loaders, LoaderRefs) else LoaderRefs(loaders, lambda: None)
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Any]:
        """Read the loaders and yield their metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:  # many clients at once must not take time from the loop
            stats: dict[str, Any] = {name: loader.stats() for name, loader in self._loaders.alive().items()}
        for kind, metrics in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, path, meaning in metrics:
                family = kind(f"foreload_{name}", meaning, labels=["loader"])
                for loader, figures in stats.items():
                    value = _find(figures, path)
                    if value is not None:
                        family.add_metric([loader], value)
                if family.samples:
                    yield family
        for name, field, meaning in _OF_STAGES:
            family = CounterMetricFamily(f"foreload_{name}", meaning, labels=["loader", "stage"])
            for loader, figures in stats.items():
                for stage, sums in figures["stages"].items():
                    family.add_metric([loader, stage], sums[field])
            yield family
        family = GaugeMetricFamily(
            "foreload_batch_seconds", "Time from batch to batch.", labels=["loader", "quantile"]
        )
        for loader, figures in stats.items():
            for key, quantile in _QUANTILES:
                family.add_metric([loader, quantile], figures["batch_seconds"][key])
        yield family


def _find(stats: Any, path: str) -> float | None:
    """Return the number at a path, or the length of a list there.

    >>> _find({"gpu": None, "restarts": [{}]}, "restarts"), _find({"gpu": None}, "gpu.idle_share")
    (1, None)
    """
    for key in path.split("."):
        stats = None if stats is None else stats[key]
    return len(stats) if isinstance(stats, list) else stats


class MetricsServer:
    """HTTP server of loaders' metrics in Prometheus' text format; ends when closed or when the loaders are gone.

    Attributes:
        port: the port it listens on.
        url: the address for Prometheus to scrape.
    """

    def __init__(self, loaders: Any, *, port: int, host: str) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise ImportError("serve_metrics needs prometheus_client: pip install prometheus_client") from error
        self._loaders = LoaderRefs(loaders, self._over)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(LoaderCollector(self._loaders))
        try:
            self._server = _Server(host, port, _handler(host, registry))
        except OSError as error:
            self._loaders.release()
            raise OSError(
                error.errno, f"cannot serve metrics on {host}:{port}: {error.strerror}; port=0 takes any free port"
            ) from error
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve, name="foreload-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and disconnect clients that have not read everything."""
        if not self._loaders.is_here:
            return
        self._loaders.release()
        self._server.stop()
        self._thread.join()
        self._server.drop_clients()

    def _over(self) -> None:
        if self._loaders.alive():  # then the interpreter exits
            self.close()
        self._server.stop()  # without waiting: this runs in the thread that dropped the last loader

    def __enter__(self) -> Self:
        """Return the server, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the server."""
        self.close()


def _handler(host: str, collected: Any) -> type[BaseRequestHandler]:
    from prometheus_client import MetricsHandler
    from prometheus_client.exposition import choose_encoder

    class Handler(MetricsHandler):
        """Answers requests that are meant for this server, and whose address and headers can be parsed."""

        registry = collected
        timeout = _CLIENT_TIMEOUT

        def do_GET(self) -> None:
            if not is_addressed(host, self.headers.get("Host")):
                self.send_error(400, explain=f"The host must be a name of this machine, as in http://{host}")
                return
            try:
                urlsplit(self.path)
                choose_encoder(self.headers.get("Accept") or "")
            except Exception:  # these parsers may raise anything
                self.send_error(400)
                return
            super().do_GET()

    return Handler


class _Server(TCPServer):
    """One thread per client, so that no client can hold up another or the end."""

    allow_reuse_address = True

    def __init__(self, host: str, port: int, handler: type[BaseRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._over = False
        self._clients: dict[threading.Thread, socket.socket] = {}
        super().__init__((host, port), handler)

    def serve(self) -> None:
        while not self._over:
            self.handle_request()
        self.server_close()

    def stop(self) -> None:
        self._over = True
        with suppress(OSError):  # it is closed already
            # Wakes the accepting thread, and ends listening in forks that inherited the socket too.
            self.socket.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._talk, args=(request, client_address), name="foreload-metrics-client"
        )
        thread.daemon = True
        self._clients[thread] = request
        thread.start()

    def _talk(self, request: socket.socket, client_address: Any) -> None:
        try:
            with suppress(OSError):  # the client left or took too long
                self.finish_request(request, client_address)
        finally:
            self.shutdown_request(request)
            del self._clients[threading.current_thread()]

    def drop_clients(self) -> None:
        for thread, request in list(self._clients.items()):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
            thread.join()


def serve_metrics(loaders: Any, *, port: int = 9464, host: str = "127.0.0.1") -> MetricsServer:
    """Serve the metrics of loaders for Prometheus, at ``http://HOST:PORT/metrics``.

    Counters, such as ``foreload_samples_total`` and ``foreload_stage_seconds_total{stage="decode"}``, are for
    ``rate()``; gauges are ``foreload_batch_seconds{quantile="0.95"}``, ``foreload_memory_bytes`` and so on. Each
    series has the label ``loader``.

    Args:
        loaders: a loader, or a dict of names and loaders.
        port: the port to listen on; 0: any free one (see the server's ``port`` and ``url``).
        host: the address to listen on. On loopback, requests under another name than this machine's are refused:
            they are a foreign web page's (DNS rebinding). Beyond loopback (``"0.0.0.0"`` is every interface),
            anyone who reaches it can read the metrics.

    Returns:
        The server: ``close()`` it, or use it as a context manager. It also ends by itself when the loaders are
        gone (it does not keep them alive).

    Raises:
        ImportError: ``prometheus_client`` is not installed.
        OSError: the port is taken, or the address is not one of this machine.
        ValueError, TypeError: an argument is invalid.

    >>> import foreload
    >>> with serve_metrics(foreload.DataLoader([1, 2, 3]), port=0) as server:
    ...     print(server.url)
    http://127.0.0.1:.../metrics
    """
    if isinstance(port, bool) or not isinstance(port, int):
        raise TypeError(f"port must be an int, got {port!r}")
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be between 0 and 65535, got {port}")
    return MetricsServer(loaders, port=port, host=host)
