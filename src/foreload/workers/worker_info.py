"""The identity of a worker thread: torch's ``get_worker_info()``, and ``worker_init_fn``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from foreload._torch import compute_alone, is_collating_tensors, patch_worker_info, worker_info, worker_rng
from foreload.batch.generators.threads import own_generators

__all__ = ["WorkerIdentity"]

_thread = threading.local()


def _info() -> Any:
    info = getattr(_thread, "info", None)
    # If there is a worker, torch's own collate allocates shared memory, a file descriptor per tensor, for another
    # process. The loop has a thread's memory already.
    if info is not None and is_collating_tensors(2):
        return None
    return info


class WorkerIdentity:
    """Makes the calling thread a worker for ``get_worker_info()``, and runs ``worker_init_fn``.

    Torch computes with one thread per worker, as in its own workers: other cores are for other workers.

    Args:
        count: the number of workers.
        seed: the base seed; worker ``i`` has ``seed + i``.
        dataset: the dataset as workers see it.
        init: ``worker_init_fn``.
    """

    def __init__(self, count: int, seed: int, dataset: Any, init: Callable[[int], object] | None) -> None:
        patch_worker_info(_info)
        self._count = count
        self._seed = seed
        self._dataset = dataset
        self._init = init
        self._infos: list[Any] = []

    def resize(self, count: int) -> None:
        """Change the number of workers, for the threads that are workers already too."""
        self._count = count
        for info in list(self._infos):
            object.__setattr__(info, "num_workers", count)  # torch makes its fields read-only

    def assume(self, worker: int, dataset: Any = None) -> None:
        """Make the calling thread worker ``worker``; ``dataset`` is its own copy if it has one."""
        _thread.info = worker_info(
            id=worker,
            num_workers=self._count,
            seed=self._seed + worker,
            dataset=self._dataset if dataset is None else dataset,
            worker_method="thread",
            rng=worker_rng(own_generators()),
        )
        self._infos.append(_thread.info)
        compute_alone()
        if self._init is not None:
            self._init(worker)
