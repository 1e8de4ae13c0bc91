"""The ways in which a loader copies batches."""

from __future__ import annotations

from typing import Any

import torch

from foreload.nested import move

__all__ = ["LOADERS", "first", "moved"]

LOADERS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a cache": {"cache": "1MiB"},
    "a cache in the calling thread": {"num_workers": 0, "cache": "1MiB"},
    "a device": {"device": "cpu"},
    "a seed": {"seed": 0, "shuffle": False},
    "the calling thread": {"num_workers": 0},
    "threads": {"num_workers": 2, "workers": "threads"},
}


def first(samples: list[Any]) -> Any:
    return samples[0]


def moved(value: Any) -> Any:
    return move(value, torch.clone)
