"""Finding labelled files: folders of classes, flat folders, lists."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from foreload.checks import first_beyond_int64
from foreload.record.progress import track

__all__ = ["IMAGES", "Labels", "Listing", "files_below", "is_folder", "is_special", "list_files"]

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")

Labels = Sequence[int] | Sequence[str] | np.ndarray


class Listing(NamedTuple):
    """Files with their targets."""

    paths: list[str]
    targets: np.ndarray  # int64, -1 for a file without a label
    classes: list[str]


def list_files(
    data_path: str | Path | Sequence[str | Path], labels: Labels | None, extensions: tuple[str, ...] = ()
) -> Listing:
    """List the files at ``data_path``, sorted by name if it is a folder; see :func:`files_below`.

    Args:
        data_path: a folder of class folders, a flat folder, or a list of files.
        labels: one per file; by default they come from the class folders.
        extensions: of the files to list, in lower case; empty: all. Hidden files are never listed.

    Raises:
        FileNotFoundError: the folder does not exist, or it or one of its class folders has no file.
        NotADirectoryError: ``data_path`` is a file.
        ValueError: ``labels`` has another length than there are files, or one does not fit into int64, or an empty
            list was given.
        TypeError: an argument is of another type.
    """
    if not isinstance(data_path, (str, Path)):
        return _from_list(data_path, labels)
    root = Path(data_path)
    if not root.exists():
        raise FileNotFoundError(f"data_path: there is no folder {str(root)!r}")
    if not root.is_dir():
        raise NotADirectoryError(f"data_path: {str(root)!r} is a file; give its folder, or a list of files")
    folders = sorted(entry.name for entry in os.scandir(root) if is_folder(entry))
    if labels is None and folders:
        return _from_class_folders(root, folders, extensions)
    paths = _files_below(str(root), extensions)
    if not paths:
        raise FileNotFoundError(f"data_path: no {_looked_for(extensions, str(root))}")
    return _labelled(paths, labels)


def _from_list(data_path: Sequence[str | Path], labels: Labels | None) -> Listing:
    try:
        paths = [os.fspath(path) for path in data_path]
    except TypeError as error:
        raise TypeError(
            f"data_path must be a folder (str or Path) or a list of files, got {type(data_path).__name__}: {error}"
        ) from None
    if not paths:
        raise ValueError("data_path is an empty list; give at least one file")
    return _labelled(paths, labels)


def _looked_for(extensions: tuple[str, ...], where: str) -> str:
    return f"image in {where!r}; looked for {', '.join(extensions)}" if extensions else f"file in {where!r}"


def _from_class_folders(root: Path, folders: list[str], extensions: tuple[str, ...]) -> Listing:
    paths: list[str] = []
    counts: list[int] = []
    for folder in track(folders, "listing folders", total=len(folders), after=1):
        found = _files_below(str(root / folder), extensions, str(root))
        paths.extend(found)
        counts.append(len(found))
    if empty := [folder for folder, count in zip(folders, counts, strict=True) if count == 0]:
        where = f"class folder(s) {', '.join(map(repr, empty[:5]))} of {str(root)!r}"
        raise FileNotFoundError(
            f"data_path: no image in {where}; looked for {', '.join(extensions)}"
            if extensions
            else f"data_path: no file in {where}"
        )
    return Listing(paths, np.repeat(np.arange(len(folders)), counts), folders)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder is a folder, or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_special(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is, or links to, a FIFO, device or socket: reading it might never end.

    A link that leads nowhere is not: its file is missing, which reading it says.
    """
    try:
        return not entry.is_file(follow_symlinks=False) and not stat.S_ISREG(entry.stat().st_mode)
    except OSError:
        return False


def files_below(folder: str | Path, root: str | Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield path and name of the files in a folder and its subfolders, in any order.

    Links are followed, except those to a folder that they lie in, as their files are listed already. FIFOs,
    devices and sockets are passed over.

    Args:
        folder: where to begin.
        root: a folder that ``folder`` lies in; links to it are not followed either.
    """
    above = frozenset() if root is None else frozenset({_identity(root)})
    waiting = [(os.fspath(folder), above)]
    while waiting:
        path, above = waiting.pop()
        known = above | {_identity(path)}
        if known == above:
            continue
        with os.scandir(path) as entries:
            for entry in entries:
                if is_folder(entry):
                    waiting.append((entry.path, known))
                elif not is_special(entry):
                    yield entry.path, entry.name


def _identity(folder: str | Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _files_below(folder: str, extensions: tuple[str, ...], root: str | None = None) -> list[str]:
    return sorted(
        path
        for path, name in files_below(folder, root)
        if not name.startswith(".") and name.lower().endswith(extensions or "")
    )


def _labelled(paths: list[str], labels: Labels | None) -> Listing:
    if labels is None:
        return Listing(paths, np.full(len(paths), -1), [])
    if len(labels) != len(paths):
        raise ValueError(f"labels has {len(labels)} entries for {len(paths)} files; give one per file")
    values = np.asarray(labels)
    if (beyond := first_beyond_int64(labels, values)) is not None:
        raise ValueError(
            f"labels: {labels[beyond]} of {paths[beyond]!r} does not fit into int64; number the classes from 0"
        )
    if values.dtype.kind == "U" and not isinstance(labels, np.ndarray):
        odd = next((label for label in labels if not isinstance(label, str)), "")
        if odd != "":
            raise TypeError(f"labels must be all int or all str, got {str(values[0])!r:.50} and {odd!r:.50}")
    if values.ndim != 1 or values.dtype.kind not in "iubU":
        raise TypeError(f"labels must be one int or one str per file, got an array of {values.dtype}")
    if values.dtype.kind == "U":
        classes, targets = np.unique(values, return_inverse=True)
        return Listing(paths, targets.astype(np.int64), classes.tolist())
    return Listing(paths, values.astype(np.int64), [str(label) for label in np.unique(values).tolist()])
