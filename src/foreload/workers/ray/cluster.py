"""The Ray cluster that this process is part of, or starts."""

from __future__ import annotations

from typing import Any

__all__ = ["connected", "count_cpus", "current_job"]


def connected() -> Any:
    """Return the module ``ray``, connected to the cluster that is there, or to one that is started here.

    Raises:
        ImportError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("workers='ray' needs Ray: pip install ray") from error
    if not ray.is_initialized():
        ray.init()
    return ray


def current_job() -> str | None:
    """Return a name of the job that this process runs on its cluster; None if it is not connected to one."""
    import ray

    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"  # each cluster counts its jobs from 1


def count_cpus() -> int:
    """Count the CPUs of the cluster that nothing else has taken; at least 1."""
    return max(1, int(connected().available_resources().get("CPU", 0)))
