"""Private parts of torch that foreload reads or follows, in one place for when torch changes them."""

from __future__ import annotations

import torch

__all__ = ["draw_seed"]


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Draw 63 random bits from torch's generator, as its DataLoader draws its base seed."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
