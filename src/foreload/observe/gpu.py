"""How busy the GPU is."""

from __future__ import annotations

import torch

__all__ = ["idle_share"]


def idle_share(device: torch.device | None) -> float | None:
    """Give the share of the last moment (up to a second) in which nothing ran on the GPU.

    Args:
        device: which; None: the one in use.

    Returns:
        0 to 1; None where this process uses no GPU, or nvidia-ml-py is not there to ask it.
    """
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        busy = torch.cuda.utilization(device if device is not None and device.type == "cuda" else None)
    except (ImportError, RuntimeError):  # NVML's own errors are among them
        return None
    return 1 - busy / 100
