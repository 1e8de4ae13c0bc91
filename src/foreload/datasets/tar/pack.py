"""Packing files into tar shards: ``foreload pack``."""

from __future__ import annotations

import fcntl
import io
import json
import os
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from foreload import _native
from foreload.checks import check_int
from foreload.datasets.folders import IMAGES, Labels, Listing, list_files
from foreload.datasets.images.decode import decode_with_pillow
from foreload.datasets.tar.index import index_of
from foreload.datasets.tar.shards import ShardIndex
from foreload.errors import DecodeError
from foreload.machine import granted_cores
from foreload.record.progress import ProgressBar

__all__ = ["MANIFEST", "Packed", "pack"]

MANIFEST = "pack.json"

# Samples that the threads read and transcode at a time.
_RUN = 64


@dataclass(frozen=True)
class Packed:
    """The result of :func:`pack`.

    Attributes:
        shards: their files.
        samples: the number of samples.
        tiled: the number of JPEGs that were tiled.
        resumed: the number of shards that were there already.
        bytes_before, bytes_after: bytes of the files, and of the shards.
    """

    shards: list[str]
    samples: int
    tiled: int
    resumed: int
    bytes_before: int
    bytes_after: int


def pack(
    source: str | Path | Sequence[str | Path],
    folder: str | Path,
    *,
    labels: Labels | None = None,
    shard_bytes: int = 256 << 20,
    tiled: bool = False,
    verify: bool = True,
) -> Packed:
    """Write files as tar shards in WebDataset's layout, each with an index for random access.

    A sample is ``KEY.EXTENSION`` and, where there are labels, ``KEY.cls`` with a number; ``pack.json`` has the
    names of the classes. Run again after an interruption, it resumes at the first shard that is missing.

    Args:
        source: a folder of class folders, a flat folder, or a list of files.
        folder: where the shards go; it is made if there is none.
        labels: as for :class:`~foreload.FileDataset`.
        shard_bytes: the size at which a shard is full.
        tiled: transcode JPEGs, without loss, so that a crop can be read without decoding all of it. They stay
            ordinary JPEGs.
        verify: read each shard back and compare it with the files, JPEGs that were tiled by their pixels.

    Raises:
        FileNotFoundError, ValueError: as :class:`~foreload.FileDataset`; and where ``folder`` holds a pack of
            something else, or lies in ``source``.
        OSError: ``folder`` cannot be made, or a file cannot be read or written.
        BlockingIOError: another process is packing into ``folder``.
        DecodeError: ``tiled`` met a JPEG that cannot be decoded, or what was written does not read back.

    >>> import tempfile
    >>> source, target = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp()); (source / "cat").mkdir()
    >>> _ = (source / "cat" / "tom.bin").write_bytes(b"meow")
    >>> pack(source, target).samples
    1
    >>> from foreload import TarDataset
    >>> TarDataset(target)[0]
    {'__key__': 'cat/tom', 'bin': b'meow', 'cls': b'0'}
    """
    shard_bytes = check_int("shard_bytes", shard_bytes, 1)
    _check_apart(source, folder)
    listing = list_files(source, labels, name="source")
    _warn_of_strays(listing.paths)
    if labels is None and listing.classes and isinstance(source, (str, os.PathLike)):
        _warn_of_left_out(Path(source))
    status = [os.stat(path) for path in listing.paths]
    sizes = np.array([one.st_size for one in status], np.int64)
    times = np.array([one.st_mtime_ns for one in status], np.int64)
    keys = _keys(listing.paths, source)
    extensions = [_extension(path) for path in listing.paths]
    cuts = _cuts(sizes, shard_bytes)
    plan = _plan(listing, np.stack([sizes, times]), cuts, tiled)
    labelled = labels is not None or bool(listing.classes)
    packing = _Packing(listing, keys, extensions, labelled=labelled, tiled=tiled, verify=verify)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(f"folder: {str(folder)!r} cannot be made: {error.strerror}") from error
    with _alone_in(target):
        _check_plan(target, plan)
        shards, resumed = [], 0
        with ProgressBar("packing", len(keys), after=1) as progress:
            for number, (begin, end) in enumerate(pairwise(cuts)):
                path = target / f"shard-{number:06}.tar"
                if path.exists():
                    index_of(path)  # makes an index that is still missing
                    resumed += 1
                    progress.skip(end - begin)
                else:
                    packing.write(path, begin, end, progress.advance)
                shards.append(str(path))
        manifest = plan | {"finished": True, "classes": listing.classes}
        _write(target / MANIFEST, json.dumps(manifest, indent=1).encode())
    after = sum(os.stat(path).st_size for path in shards)
    return Packed(shards, len(keys), packing.tiled_count, resumed, int(sizes.sum()), after)


def _check_apart(source: str | Path | Sequence[str | Path], folder: str | Path) -> None:
    """Check that shards do not come among the files that the next run would pack."""
    if isinstance(source, (str, os.PathLike)) and Path(folder).resolve().is_relative_to(Path(source).resolve()):
        raise ValueError(
            f"folder: {str(folder)!r} lies in {str(source)!r}, whose files are packed: the next time, that would "
            "include the shards; choose a folder outside it"
        )


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder against other packs, for the block; the end of a process releases it.

    Raises:
        BlockingIOError: another process is packing into it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        message = "another `foreload pack` is writing to this folder; wait for it, or give another folder"
        raise BlockingIOError(error.errno, message, str(folder)) from None
    except OSError:
        pass  # a file system without locks


def _warn_of_strays(paths: list[str]) -> None:
    """Warn now of files that would only be noticed after hours of packing."""
    strays = [path for path in paths if not path.lower().endswith(IMAGES)]
    if 0 < len(strays) < len(paths):
        warnings.warn(
            f"{len(strays)} of {len(paths)} files are not images, such as {strays[0]!r}: ImageDataset will not "
            "read this pack; move them away, or read it with TarDataset",
            stacklevel=3,
        )


def _warn_of_left_out(root: Path) -> None:
    """Warn of files beside class folders, which belong to no class."""
    beside = sorted(entry.name for entry in os.scandir(root) if entry.name[0] != "." and entry.is_file())
    if beside:
        count = "file" if len(beside) == 1 else "files"
        warnings.warn(
            f"{len(beside)} {count} beside the class folders, such as {str(root / beside[0])!r}, not packed: only "
            "files in class folders have a class; move them into one",
            stacklevel=3,
        )


def _plan(listing: Listing, stamps: Any, cuts: list[int], tiled: bool) -> dict[str, Any]:
    known = zlib.crc32(os.fsencode("\0".join(map(os.path.abspath, listing.paths))))
    known = zlib.crc32(listing.targets.tobytes(), zlib.crc32(stamps.tobytes(), known))
    return {"foreload pack": 1, "samples": len(listing.paths), "shards": cuts, "tiled": tiled, "files": known}


def _check_plan(target: Path, plan: dict[str, Any]) -> None:
    path = target / MANIFEST
    if path.exists():
        try:
            before = dict(json.loads(path.read_bytes()))
        except (TypeError, ValueError, RecursionError):
            before = {}
        if any(before.get(name) != value for name, value in plan.items()):
            raise ValueError(
                f"folder: {str(target)!r} holds a pack of other files (or they have changed), or with other "
                "settings; give an empty one"
            )
        return
    if any(target.glob("*.tar")):
        raise ValueError(f"folder: {str(target)!r} holds shards that are not of a pack; give an empty folder")
    _write(path, json.dumps(plan | {"finished": False}, indent=1).encode())


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_bytes(content)
    temporary.replace(path)


def _cuts(sizes: Any, shard_bytes: int) -> list[int]:
    cuts, filled = [0], 0
    for position, size in enumerate(sizes.tolist()):
        if filled >= shard_bytes:
            cuts.append(position)
            filled = 0
        filled += size + 1024
    return [*cuts, len(sizes)]


def _keys(paths: list[str], source: Any) -> list[str]:
    """Return a unique key for each file: its path below the folder, without dots in the name."""
    folders = [source] if isinstance(source, (str, os.PathLike)) else [os.path.dirname(path) for path in paths]
    root = os.path.commonpath([os.path.abspath(one) for one in folders])
    keys: list[str] = []
    taken: set[str] = set()
    for path in paths:
        stem, _ = os.path.splitext(os.path.relpath(os.path.abspath(path), root))
        parent, name = os.path.split(stem)
        # Names that begin with underscores may mean something else in a shard.
        key = plain = os.path.join(parent, name.replace(".", "_").lstrip("_") or "_").lstrip("_/") or "_"
        number = 0
        while key in taken:
            number += 1
            key = f"{plain}-{number}"
        taken.add(key)
        keys.append(key)
    return keys


def _extension(path: str) -> str:
    extension = os.path.splitext(path)[1].lower().lstrip(".") or "bin"
    if extension == "cls":
        raise ValueError(f"source: {path!r}: in shards .cls is the name of labels; pass them as labels=")
    return extension


class _Packing:
    def __init__(
        self,
        listing: Listing,
        keys: list[str],
        extensions: list[str],
        *,
        labelled: bool,
        tiled: bool,
        verify: bool,
    ) -> None:
        self._listing = listing
        self._keys = keys
        self._extensions = extensions
        self._tiled = tiled
        self._verify = verify
        self._labelled = labelled
        self.tiled_count = 0

    def write(self, path: Path, begin: int, end: int, tell: Callable[[], object]) -> None:
        """Write one shard and its index, named only once whole; ``tell`` is called for each sample."""
        temporary = path.with_name(f"{path.name}.part")
        checks: list[int] = []
        with ThreadPoolExecutor(granted_cores()) as threads, open(temporary, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for run in range(begin, end, _RUN):
                    positions = range(run, min(run + _RUN, end))
                    contents = threads.map(self._content, positions)
                    for position, (content, was_tiled) in zip(positions, contents, strict=True):
                        checks.append(zlib.crc32(content))
                        self._add(tar, position, content)
                        self.tiled_count += was_tiled
                        tell()
            file.flush()
            os.fsync(file.fileno())
            if self._verify:  # let it be read back from the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        index = index_of(temporary, save=False)
        if self._verify:
            if index.keys != self._keys[begin:end]:
                raise DecodeError(f"{temporary}: its samples are not those that were written; check the disk")
            _check(temporary, index, checks)
        os.replace(temporary, path)
        index.save(f"{path}.idx")

    def _add(self, tar: tarfile.TarFile, position: int, content: bytes) -> None:
        key = self._keys[position]
        members = [(f"{key}.{self._extensions[position]}", content)]
        if self._labelled:
            members.append((f"{key}.cls", str(self._listing.targets[position]).encode()))
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

    def _content(self, position: int) -> tuple[bytes, bool]:
        path = self._listing.paths[position]
        content = _native.Files([os.fsencode(path)]).read(0)  # never waits for a FIFO
        if not self._tiled or content[:3] != b"\xff\xd8\xff":
            return content, False
        try:
            tiled = _native.tile_jpeg(content)
        except DecodeError as error:
            tiled = b""
            try:
                decode_with_pillow(path, content)  # which reads much that is damaged
            except DecodeError:
                raise DecodeError(f"{path}: {error}; remove it, or pack without tiling") from error
        if not tiled:
            return content, False
        if self._verify:
            before, after = (_native.decode_rgb(path, data, decode_with_pillow) for data in (content, tiled))
            if not np.array_equal(before, after):
                raise DecodeError(f"{path}: the tiled picture differs; pack without tiling, and report this")
        return tiled, True


def _check(path: Path, index: ShardIndex, checks: list[int]) -> None:
    with open(path, "rb") as file:
        for number, expected in enumerate(checks):
            member = int(index.first[number])
            file.seek(int(index.offsets[member]))
            if zlib.crc32(file.read(int(index.lengths[member]))) != expected:
                raise DecodeError(f"{path}: sample {index.keys[number]!r} does not read back as it was written")
