"""The threads that a worker process computes with: torch and each BLAS library would start some of their own."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

__all__ = ["find_blas", "use_one_thread"]

_libraries: list[Any] | None = None

# A variable of the environment, for OpenMP.
_DUPLICATES = "KMP_DUPLICATE_LIB_OK"


def find_blas() -> list[Any]:
    """Find the BLAS libraries of this process, for itself and for the processes that it then forks.

    They have the same libraries, and looking through all that is loaded takes each of them some milliseconds.
    """
    global _libraries
    is_set = _DUPLICATES in os.environ
    from threadpoolctl import ThreadpoolController  # only workers need it

    if not is_set:
        # The import has set it, for the user's dataset and programs too. It counts when OpenMP is loaded, and here
        # only libraries that are loaded already are looked for.
        os.environ.pop(_DUPLICATES, None)
    _libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return _libraries


def use_one_thread() -> None:
    """Let torch and the BLAS libraries of a worker process compute in the calling thread.

    More threads would take the cores of other workers, and wait for each other.
    """
    torch.set_num_threads(1)
    for library in find_blas() if _libraries is None else _libraries:
        threads = _openblas_threads(library)
        if threads is None:
            library.set_num_threads(1)
        else:
            threads.value = 1


def _openblas_threads(library: Any) -> ctypes.c_int | None:
    """Return OpenBLAS's own number of threads, where it has that as a variable that others may see.

    After a fork, its function to set that number starts all its threads first, and they wait busily for work: up
    to 0.1 s on a core that another worker needs.
    """
    if library.internal_api != "openblas" or getattr(library, "threading_layer", None) != "pthreads":
        return None
    try:
        return ctypes.c_int.in_dll(library.dynlib, "blas_cpu_number")
    except ValueError:
        return None
