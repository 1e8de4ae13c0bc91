"""Torch's ``get_worker_info()``, in thread workers too.

Torch keeps the answer in a global of the process, which is right for process workers only. User code holds the
function by name (``from torch.utils.data import get_worker_info``), so the function itself is taught to look at
the calling thread first. Nothing changes for threads that are no workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, cast

from torch.utils.data._utils import worker as torch_worker

__all__ = ["WorkerIdentity", "no_worker"]

_thread = threading.local()


def _get_worker_info():  # type: ignore[no-untyped-def]
    # Runs with the globals of torch's module.
    return getattr(_foreload_thread, "info", None) or _worker_info  # type: ignore[name-defined]  # noqa: F821


def _teach_torch() -> None:
    function = cast(FunctionType, torch_worker.get_worker_info)
    if function.__code__ is not _get_worker_info.__code__:
        vars(torch_worker)["_foreload_thread"] = _thread
        function.__code__ = _get_worker_info.__code__


class WorkerIdentity:
    """Makes the calling thread a worker in the eyes of ``get_worker_info()``, and runs ``worker_init_fn``."""

    def __init__(self, count: int, seed: int, dataset: Any, init: Callable[[int], object] | None) -> None:
        _teach_torch()
        self._count = count
        self._seed = seed
        self._dataset = dataset
        self._init = init

    def assume(self, worker: int, dataset: Any = None) -> None:
        """Be worker ``worker``; ``dataset`` is this worker's own copy where it has one."""
        fields: dict[str, Any] = {
            "id": worker,
            "num_workers": self._count,
            "seed": self._seed + worker,
            "dataset": self._dataset if dataset is None else dataset,
        }
        if "worker_method" in getattr(torch_worker.WorkerInfo, "__dataclass_fields__", ()):
            fields["worker_method"] = "thread"
        _thread.info = torch_worker.WorkerInfo(**fields)
        if self._init is not None:
            self._init(worker)


@contextmanager
def no_worker() -> Iterator[None]:
    """For the calling thread, be no worker meanwhile.

    Torch's ``default_collate`` allocates shared memory and a file descriptor per tensor where it believes
    itself in a worker process.
    """
    info = getattr(_thread, "info", None)
    _thread.info = None
    try:
        yield
    finally:
        _thread.info = info
