"""The BLAS libraries of a worker process, of which each would start threads of its own."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["compute_alone", "find_libraries"]

_libraries: list[Any] | None = None


def find_libraries() -> list[Any]:
    """Find the BLAS libraries of this process, for itself and for the processes that it then forks.

    They have the same libraries, and looking through all that is loaded takes each of them some milliseconds.
    """
    from threadpoolctl import ThreadpoolController  # only workers need it

    global _libraries
    _libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return _libraries


def compute_alone() -> None:
    """Let the BLAS libraries of a worker process compute in the calling thread.

    NumPy's threads would take the cores of other workers, and wait for each other.
    """
    for library in find_libraries() if _libraries is None else _libraries:
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
