"""What this machine offers for loading data, and what each absence costs."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from foreload import _native
from foreload.machine import granted_cores, granted_memory

__all__ = ["Finding", "examine"]

_GIB = 1 << 30


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    good: bool
    found: str
    advice: str = ""  # what an absence costs, and the remedy


def examine(path: Path) -> Iterator[Finding]:
    """Look at the machine, and at the file system that ``path`` lies on.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no {str(path)!r}; name a file or folder of your data")
    yield _cores()
    yield Finding("memory", True, f"{granted_memory() / _GIB:.1f} GiB granted to this process")
    yield _shared_memory()
    yield _simd()
    yield _jpeg()
    yield _cuda()
    yield _io_uring()
    yield _direct(path)


def _cores() -> Finding:
    cores, host = granted_cores(), os.cpu_count() or 1
    found = f"{cores} of {host}" if cores < host else f"{cores}"
    return Finding("cores", cores > 1, found, "loading and training share one core; grant the container more")


def _shared_memory() -> Finding:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Finding(
            "shared memory",
            False,
            "no /dev/shm",
            "CachedDataset is copied by spawned workers; mount a tmpfs there",
        )
    free = shutil.disk_usage(folder).free
    return Finding(
        "shared memory",
        free >= _GIB,
        f"{free / _GIB:.1f} GiB free in /dev/shm",
        "worker processes and CachedDataset share memory there; enlarge it (docker run --shm-size=8g)",
    )


def _simd() -> Finding:
    isa = _native.simd()
    return Finding(
        "SIMD",
        isa != "baseline" or os.uname().machine != "x86_64",
        isa,
        "no AVX2: resizing takes about three times as long",
    )


def _jpeg() -> Finding:
    library = _native.jpeg_library()
    return Finding(
        "JPEG",
        bool(library),
        library or "built without libjpeg-turbo",
        "JPEGs are decoded by Pillow, several times slower; apt install libjpeg62-turbo-dev, then build again",
    )


def _cuda() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("CUDA", True, torch.cuda.get_device_name(0))
    return Finding("CUDA", False, "not available", "batches stay on the CPU, and memory is not page-locked")


def _io_uring() -> Finding:
    # io_uring_setup(0 entries) is refused before anything is made: EINVAL where it exists and is allowed.
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(120)
    libc.syscall(425, 0, parameters)
    code = ctypes.get_errno()
    if code == errno.EINVAL:
        return Finding("io_uring", True, "available")
    why = (
        "not in this kernel"
        if code == errno.ENOSYS
        else f"refused ({os.strerror(code)}): a container's seccomp profile?"
    )
    return Finding("io_uring", False, why, "many reads in flight need as many threads")


def _direct(path: Path) -> Finding:
    name = "O_DIRECT"
    file = path if path.is_file() else next((entry for entry in path.rglob("*") if entry.is_file()), None)
    if file is None:
        return Finding(name, False, f"no file in {str(path)!r} to try it on", "name a folder with data in it")
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return _no_direct(name, file, error)
    try:
        with mmap.mmap(-1, 4096) as block:
            os.preadv(descriptor, [block], 0)
    except OSError as error:
        return _no_direct(name, file, error)
    finally:
        os.close(descriptor)
    return Finding(name, True, f"works on {file}")


def _no_direct(name: str, file: Path, error: OSError) -> Finding:
    return Finding(
        name,
        False,
        f"{file}: {error.strerror}",
        "reads go through the page cache, which they push other data out of",
    )
