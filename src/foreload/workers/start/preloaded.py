"""Imports of a template process, made once for all workers that are forked from it."""

from __future__ import annotations

import os

import numpy as np
import torch

import foreload.workers.worker  # noqa: F401

__all__: list[str] = []

# Each process that imports NumPy and torch has random numbers of its own, and so has each forked from this one.
os.register_at_fork(after_in_child=np.random.seed)
os.register_at_fork(after_in_child=torch.default_generator.seed)
