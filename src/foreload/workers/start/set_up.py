"""Set-up of a worker process as torch does it, and what makes it unseen."""

from __future__ import annotations

import gc
import signal
from contextlib import suppress
from typing import Any

import torch

from foreload._torch import (
    allow_child_processes,
    name_worker_process,
    seed_worker,
    set_process_worker_info,
    set_worker_signal_handlers,
    worker_info,
)
from foreload.cache.budget import reuse_freed
from foreload.tune.copies.descriptors import own_positions
from foreload.tune.unshare import unshare
from foreload.workers import blas
from foreload.workers.start.method import start_nested_no_processes

__all__ = ["set_up_process"]


def set_up_process(worker: int, task: Any) -> None:
    """Make this process a worker as torch does: signals, threads, seeds, ``get_worker_info()``."""
    # What was there before stays shared with the parent until it is written to, which the collector would do.
    gc.freeze()
    if task.reuses:
        reuse_freed()
    set_worker_signal_handlers()
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the loop, which ends the workers
    name_worker_process()
    torch.set_num_threads(1)
    blas.compute_alone()
    seed_worker(task.seed, worker)
    if task.held is not None:
        unshare(with_locks=False)
        own_positions(with_output=False)
    if task.is_hidden:
        start_nested_no_processes()
        allow_child_processes()
        return
    set_process_worker_info(
        worker_info(id=worker, num_workers=task.count, seed=task.seed + worker, dataset=task.dataset)
    )
