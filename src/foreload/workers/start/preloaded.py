"""Imports of a template process, made once for all workers that are forked from it."""

from __future__ import annotations

import os

import numpy as np
import torch

import foreload.workers.worker  # noqa: F401

__all__: list[str] = []

_template = os.getpid()


def _after_fork() -> None:
    """Have random numbers of its own, as each process that imports NumPy and torch has."""
    if os.getppid() == _template:
        np.random.seed()
        torch.default_generator.seed()


os.register_at_fork(after_in_child=_after_fork)
