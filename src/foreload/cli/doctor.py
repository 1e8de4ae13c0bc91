"""Findings on what this machine offers for loading data, and what each missing feature costs."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from rich.markup import escape
from rich.table import Table

from foreload import _native
from foreload.machine import granted_cores, granted_memory
from foreload.record import units

__all__ = ["FINDINGS", "Finding", "examine", "table"]

FINDINGS = 9  # number of findings

_GIB = 1 << 30

# Reading is measured on this many pieces each way, of at most this many bytes.
_NUM_PIECES = 200
_MAX_PIECE_BYTES = 128 << 10

# Many reads are kept in flight if that is faster by this factor.
_MIN_SPEEDUP = 1.2


class Finding(NamedTuple):
    """The result of one check."""

    name: str
    good: bool
    found: str
    advice: str = ""  # cost of a missing feature, and the remedy


def examine(path: Path) -> Iterator[Finding]:
    """Check the machine, and the file system of ``path``.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no {str(path)!r}; give a file or folder of your data")
    yield _cores()
    yield Finding("memory", True, f"{granted_memory() / _GIB:.1f} GiB granted to this process")
    yield _shared_memory()
    yield _simd()
    yield _jpeg()
    yield _cuda()
    yield _io_uring()
    yield _direct(path)
    yield _reading(path)


def table(findings: Iterable[Finding]) -> Table:
    """Return findings as a table for a terminal of any width."""
    rows = Table(show_header=False, box=None)
    for _ in range(3):
        rows.add_column(overflow="fold")  # a long path is broken, not cut off
    for finding in findings:
        mark = "[green]good[/]" if finding.good else "[yellow]missing[/]"
        advice = "" if finding.good else f"\n[dim]{escape(finding.advice)}[/]"
        rows.add_row(mark, finding.name, escape(finding.found) + advice)
    return rows


def _cores() -> Finding:
    cores, host = granted_cores(), os.cpu_count() or 1
    found = f"{cores} of {host}" if cores < host else f"{cores}"
    return Finding("cores", cores > 1, found, "loading and training share one core; give the container more")


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
        "CachedDataset and torch's own worker processes share memory there, foreload's do not; enlarge it "
        "(docker run --shm-size=8g)",
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
        "JPEGs are decoded by Pillow, several times slower; apt install libjpeg-dev, then build again",
    )


def _cuda() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding("CUDA", True, torch.cuda.get_device_name(0))
    return Finding("CUDA", False, "not available", "batches stay on the CPU, and memory is not page-locked")


def _io_uring() -> Finding:
    # io_uring_setup with 0 entries fails before it makes anything: with EINVAL if it exists and is allowed.
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(120)
    libc.syscall(425, 0, parameters)
    code = ctypes.get_errno()
    if code == errno.EINVAL:
        return Finding("io_uring", True, "available")
    why = (
        "not in this kernel"
        if code == errno.ENOSYS
        else f"refused ({os.strerror(code)}), maybe by the container's seccomp profile"
    )
    return Finding("io_uring", False, why, "many reads in flight need as many threads")


def _direct(path: Path) -> Finding:
    name = "O_DIRECT"
    file = next(_files(path), None)
    if file is None:
        return _nothing_to_try(name, path)
    problem = _native.Files([os.fsencode(file)]).direct_problem()
    if problem is not None:
        lost = "reads go through the page cache, and evict other data from it"
        return Finding(name, False, f"{file}: {problem[1]}", lost)
    return Finding(name, True, f"works on {file}")


def _reading(path: Path) -> Finding:
    """Measure how fast files at ``path`` are read from storage, and report how they will be read."""
    name = "reading"
    files = list(islice(_files(path), 3 * _NUM_PIECES))
    if not files:
        return _nothing_to_try(name, path)
    pieces = _pieces(files)
    each = max(1, len(pieces) // 3)
    alone, many, direct = (
        _rate(pieces[i * each : (i + 1) * each] or pieces, direct=i == 2, many=i > 0) for i in range(3)
    )
    size = sum(length for _, _, length in pieces) / len(pieces)
    will = "many at a time (io_uring)" if max(many, direct) > _MIN_SPEEDUP * alone else "one after the other"
    return Finding(
        name,
        True,
        f"{units.size(size)} from storage: {alone:,.0f}/s one after the other, {many:,.0f}/s with 64 reads in "
        f"flight, {direct:,.0f}/s with direct_io=True; reads that wait will be made {will}",
    )


def _files(path: Path) -> Iterator[Path]:
    """List files to try: not empty, readable and not hidden."""
    for file in (path,) if path.is_file() else path.rglob("*"):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        # Access is asked first: looking at what is out of reach, such as a link into a closed folder, is an error.
        if not hidden and os.access(file, os.R_OK) and file.is_file() and file.stat().st_size > 0:
            yield file


def _nothing_to_try(name: str, path: Path) -> Finding:
    return Finding(name, False, f"no file in {str(path)!r} to try it on", "give a folder with data in it")


def _pieces(files: list[Path]) -> list[tuple[Path, int, int]]:
    """Choose pieces to read: one of each file, or several of a few large files."""
    random = Random(0)
    pieces = []
    for number in range(max(len(files), _NUM_PIECES)):
        file = files[number % len(files)]
        size = file.stat().st_size
        if number >= len(files) and size <= _MAX_PIECE_BYTES:
            break
        length = min(size, _MAX_PIECE_BYTES)
        pieces.append((file, random.randrange(size - length + 1), length))
    return pieces


def _rate(pieces: list[tuple[Path, int, int]], *, direct: bool, many: bool) -> float:
    files = sorted({file for file, _, _ in pieces})
    for file in files:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())  # data not yet on the disk cannot be dropped from memory
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    extents = np.array([(files.index(file), offset, length) for file, offset, length in pieces], np.int64)
    stamps = np.array([(file.stat().st_size, file.stat().st_mtime_ns) for file in files], np.int64)
    source = _native.Files([os.fsencode(file) for file in files], 0, extents, stamps, direct)
    if many:
        source.expect_cold()
    source.read(0)  # opens the readers, outside the measured time
    starts = np.concatenate([[0], np.cumsum(extents[:, 2])])
    job = _native.ReadJob(source, np.arange(len(pieces)), starts, np.zeros(int(starts[-1]), np.uint8))
    began = time.perf_counter()
    job.run_here()
    return len(pieces) / (time.perf_counter() - began)
