"""A page of metrics for Prometheus, served from a thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from socketserver import BaseRequestHandler, TCPServer
from typing import Any, Self

from foreload.export.loaders import LoaderRefs

__all__ = ["LoaderCollector", "MetricsServer", "serve_metrics"]

# Name, where it is in ``stats()``, meaning. What is None there is left out.
_COUNTERS = [
    ("epochs", "epochs", "Epochs begun."),
    ("batches", "batches", "Batches given to the loop."),
    ("samples", "samples", "Samples given to the loop."),
    ("running_seconds", "seconds", "Time from the begin of epochs to their last batch."),
    ("wait_seconds", "wait_seconds", "Time that the loop waited for batches."),
    ("loop_seconds", "loop_seconds", "Time that the loop worked."),
    ("read_bytes", "bytes_read", "Bytes read."),
    ("cache_hits", "cache.hits", "Samples that the cache had."),
    ("cache_misses", "cache.misses", "Samples that the cache did not have."),
    ("errors", "errors", "Samples that could not be loaded."),
    ("restarts", "restarts", "Worker processes replaced."),
]
_GAUGES = [
    ("first_batch_seconds", "first_batch_seconds", "Time to the first batch of the last epoch."),
    ("workers", "workers.count", "Workers."),
    ("depth_batches", "workers.depth", "Batches kept in the making."),
    ("cache_bytes", "cache.used", "Memory that the cache takes."),
    ("memory_bytes", "memory.tree_bytes", "Memory of this process and those below it (PSS)."),
    ("memory_granted_bytes", "memory.granted_bytes", "Memory that may be used."),
    ("cores_granted", "cpu.cores", "Cores that may be used."),
    ("cpu_ratio", "cpu.share", "CPU time used of that granted, while epochs ran."),
    ("gpu_idle_ratio", "gpu.idle_share", "Time without work for the GPU."),
]
_OF_STAGES = [
    ("stage_spans", "count", "How often workers were at a stage."),
    ("stage_seconds", "seconds", "Time that workers spent at a stage."),
    ("stage_cpu_seconds", "cpu_seconds", "CPU time that workers spent at a stage."),
    ("stage_samples", "samples", "Samples that went through a stage."),
    ("stage_bytes", "bytes", "Bytes that went through a stage."),
]
_QUANTILES = [("median", "0.5"), ("p95", "0.95"), ("p99", "0.99")]

# A client that sends nothing, or reads nothing, is left after so many seconds.
_PATIENCE = 10


class LoaderCollector:
    """Gives the figures of loaders to a registry of ``prometheus_client``, for those who serve their own.

    ``prometheus_client.REGISTRY.register(LoaderCollector(loader))``. Loaders are asked when somebody looks, and
    vanish when they are gone: they are not kept.

    Args:
        loaders: a loader, or a dict of names and loaders.
    """

    def __init__(self, loaders: Any) -> None:
        self._loaders = loaders if isinstance(loaders, LoaderRefs) else LoaderRefs(loaders, lambda: None)
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Any]:
        """Ask the loaders."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        with self._lock:  # many clients at once shall not take time from the loop
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
        family = GaugeMetricFamily("foreload_batch_seconds", "From batch to batch.", labels=["loader", "quantile"])
        for loader, figures in stats.items():
            for key, quantile in _QUANTILES:
                family.add_metric([loader, quantile], figures["batch_seconds"][key])
        yield family


def _find(stats: Any, path: str) -> float | None:
    """Give a figure, or how many there are.

    >>> _find({"gpu": None, "restarts": [{}]}, "restarts"), _find({"gpu": None}, "gpu.idle_share")
    (1, None)
    """
    for key in path.split("."):
        stats = None if stats is None else stats[key]
    return len(stats) if isinstance(stats, list) else stats


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
        self._loaders = LoaderRefs(loaders, self._over)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(LoaderCollector(self._loaders))
        handler = type("Handler", (MetricsHandler,), {"registry": registry, "timeout": _PATIENCE})
        try:
            self._server = _Server(host, port, handler)
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
        """Stop listening, and leave clients that have not read all."""
        if not self._loaders.is_here:
            return
        self._loaders.release()
        self._server.stop()
        self._thread.join()
        self._server.leave_clients()

    def _over(self) -> None:
        if self._loaders.alive():  # then the interpreter exits
            self.close()
        self._server.stop()  # whoever lets go of the last loader does not wait

    def __enter__(self) -> Self:
        """Give the server, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the server."""
        self.close()


class _Server(TCPServer):
    """A thread for each client: none of them can hold up another, or the end."""

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
            # Wakes who waits for clients, and ends the listening also for forks that have the socket.
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
            with suppress(OSError):  # one that leaves, or takes too long, is no matter
                self.finish_request(request, client_address)
        finally:
            self.shutdown_request(request)
            del self._clients[threading.current_thread()]

    def leave_clients(self) -> None:
        for thread, request in list(self._clients.items()):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
            thread.join()


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
