"""Exporters: a loader's ``stats()`` and spans in logs, dashboards, traces and other processes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreload.export.logs import log_stats
    from foreload.export.metrics import serve_metrics
    from foreload.export.nvtx import nvtx_ranges
    from foreload.export.publisher import publish
    from foreload.export.tensorboard import log_tensorboard
    from foreload.export.trace import write_trace

__all__ = ["log_stats", "log_tensorboard", "nvtx_ranges", "publish", "serve_metrics", "write_trace"]

# Each is imported when first used: an epoch needs none of them.
_MODULES = {
    "log_stats": "logs",
    "log_tensorboard": "tensorboard",
    "nvtx_ranges": "nvtx",
    "publish": "publisher",
    "serve_metrics": "metrics",
    "write_trace": "trace",
}


if not TYPE_CHECKING:  # or type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import an exporter when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        exporter = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = exporter
        return exporter


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
