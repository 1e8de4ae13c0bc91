"""Torch's ``get_worker_info()``, in thread workers too.

Torch keeps the answer in a global of the process, which is right for process workers only. User code holds the
function by name (``from torch.utils.data import get_worker_info``), so the function itself is taught to look at
the calling thread first. Nothing changes for threads that are no workers.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import torch
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

__all__ = ["WorkerIdentity"]

_thread = threading.local()


def _get_worker_info():  # type: ignore[no-untyped-def]
    # Runs with the globals of torch's module.
    return _foreload_info() or _worker_info  # type: ignore[name-defined]  # noqa: F821


def _info() -> Any:
    info = getattr(_thread, "info", None)
    # Torch's own collate asks only to allocate shared memory, a file descriptor per tensor, for another process.
    # This is a thread, and its memory is everybody's already.
    if info is not None and sys._getframe(2).f_code is torch_collate.collate_tensor_fn.__code__:
        return None
    return info


def _teach_torch() -> None:
    function = cast(FunctionType, torch_worker.get_worker_info)
    if function.__code__ is not _get_worker_info.__code__:
        vars(torch_worker)["_foreload_info"] = _info
        function.__code__ = _get_worker_info.__code__


def _compute_alone() -> None:
    """Let what torch computes in the calling thread be computed by it alone.

    For OpenMP (5.2, nthreads-var), and for MKL, which has a number of its own once ``torch.set_num_threads`` was
    called. That function would change it for threads to come, too, which are not all ours.
    """
    torch.get_num_threads()  # sets it in a thread that has not computed yet
    for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
        if (set_num_threads := getattr(_torch_cpu, name, None)) is not None:  # torch may be built without
            set_num_threads(1)


def _symbols_of_torch() -> ctypes.CDLL:
    # Its own OpenMP and MKL: another library may have brought others.
    found = [path for path in Path(torch.__file__).parent.glob("lib/libtorch_cpu.*") if path.suffix != ".lib"]
    return ctypes.CDLL(str(found[0]) if found else None)


_torch_cpu = _symbols_of_torch()


class WorkerIdentity:
    """Makes the calling thread a worker in the eyes of ``get_worker_info()``, and runs ``worker_init_fn``.

    What torch computes in a worker, its own thread computes, as in torch's workers: there are others beside it.
    """

    def __init__(self, count: int, seed: int, dataset: Any, init: Callable[[int], object] | None) -> None:
        _teach_torch()
        self._count = count
        self._seed = seed
        self._dataset = dataset
        self._init = init
        self._infos: list[Any] = []

    def resize(self, count: int) -> None:
        """Let workers know that there are ``count`` of them now."""
        self._count = count
        for info in list(self._infos):
            object.__setattr__(info, "num_workers", count)  # torch lets nobody change it

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
        self._infos.append(_thread.info)
        _compute_alone()
        if self._init is not None:
            self._init(worker)
