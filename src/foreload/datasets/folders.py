"""Finding labelled files: folders of classes, flat folders, lists."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foreload.checks import Array, first_beyond_int64, known_length
from foreload.record.progress import track
from foreload.record.units import quantity

__all__ = [
    "IMAGES",
    "Labels",
    "Listing",
    "absolute",
    "check_listable",
    "class_folders",
    "files_below",
    "is_special",
    "list_files",
    "number_names",
    "sorted_files",
]

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")

# Not listed in class folders, as torchvision's ImageFolder does not: indices are to be the same.
_NOT_IN_CLASSES = (".gif",)

# Larger labels are identifiers, for which a list of names from 0 on would take much memory.
_MOST_NAMES = 1 << 20

Labels = Sequence[int] | Sequence[str] | np.ndarray


class Listing(NamedTuple):
    """Files with their targets."""

    paths: list[str]  # absolute
    targets: np.ndarray  # int64, -1 for a file without a label
    classes: list[str]  # by target


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path that leads to the same file wherever the process goes.

    ``..`` stays, since it may come after a link.

    >>> absolute("/data/../a.jpg"), absolute("a.jpg") == os.path.join(os.getcwd(), "a.jpg")
    ('/data/../a.jpg', True)
    """
    text = os.fsdecode(path)
    return text if os.path.isabs(text) else os.path.join(os.getcwd(), text)


def check_listable(name: str, paths: Any) -> None:
    """Raise TypeError for what can be iterated over, but is not a list of paths."""
    if isinstance(paths, (set, frozenset)):
        raise TypeError(f"{name} is a set, which has no order for labels and indices; give sorted({name})")
    if isinstance(paths, Mapping):
        raise TypeError(f"{name} is a dict; give list({name}), and labels, if it holds them, as labels=")
    if isinstance(paths, (bytes, bytearray)):
        raise TypeError(f"{name} must be a str or a Path, got bytes; give os.fsdecode({name})")


def list_files(
    data_path: str | Path | Sequence[str | Path],
    labels: Labels | None,
    extensions: tuple[str, ...] = (),
    name: str = "data_path",
) -> Listing:
    """List the files at ``data_path``, those of a folder as :func:`sorted_files` does.

    Class folders of images are listed as torchvision's ``ImageFolder`` lists them, which leaves out ``.gif``,
    except that hidden files and folders do not count; a warning says so if there are any that would.

    Args:
        data_path: a folder of class folders, a flat folder, or a list of files.
        labels: one per file; by default they come from the class folders.
        extensions: of the files to list, in lower case; empty: all.
        name: what the caller's argument is called, for messages.

    Raises:
        FileNotFoundError: the folder does not exist, or it or one of its class folders has no file.
        NotADirectoryError: ``data_path`` is a file.
        ValueError: ``labels`` has another length than there are files, or one does not fit into int64, or an empty
            list was given.
        TypeError: an argument is of another type.
    """
    if not isinstance(data_path, (str, os.PathLike)):
        return _from_list(data_path, labels, name)
    if not os.path.exists(data_path):  # Path("") would be the present folder
        raise FileNotFoundError(f"{name}: there is no folder {os.fspath(data_path)!r}")
    root = Path(absolute(data_path))
    if not root.is_dir():
        raise NotADirectoryError(f"{name}: {str(root)!r} is a file; give its folder, or a list of files")
    folders = class_folders(root)
    if labels is None and folders:
        return _from_class_folders(root, folders, extensions, name)
    paths = sorted_files(root, extensions)
    if not paths:
        raise FileNotFoundError(f"{name}: no {_looked_for(extensions, str(root))}")
    return _labelled(paths, labels)


def class_folders(root: str | Path) -> list[str]:
    """Return the names of the folders in a folder, sorted; hidden ones do not count."""
    return sorted(entry.name for entry in os.scandir(root) if entry.name[0] != "." and _is_folder(entry))


def number_names(targets: Array) -> list[str]:
    """Return names of classes that are numbers: those from 0 to the largest, as text.

    None if one is too large to be the number of a class, and -1 has none.

    >>> number_names(np.array([3, 1, -1])), number_names(np.array([10**12]))
    (['0', '1', '2', '3'], [])
    """
    count = int(targets.max(initial=-1)) + 1
    return list(map(str, range(count))) if count <= _MOST_NAMES else []


def _from_list(data_path: Sequence[str | Path], labels: Labels | None, name: str) -> Listing:
    check_listable(name, data_path)
    try:
        paths = [absolute(path) for path in data_path]
    except TypeError as error:
        raise TypeError(
            f"{name} must be a folder (str or Path) or a list of files, got {type(data_path).__name__}: {error}"
        ) from None
    if not paths:
        raise ValueError(f"{name} is an empty list; give at least one file")
    return _labelled(paths, labels)


def _looked_for(extensions: tuple[str, ...], where: str) -> str:
    return f"image in {where!r}; looked for {', '.join(extensions)}" if extensions else f"file in {where!r}"


def _from_class_folders(root: Path, folders: list[str], extensions: tuple[str, ...], name: str) -> Listing:
    wanted = tuple(extension for extension in extensions if extension not in _NOT_IN_CLASSES)
    skipped = [entry.path for entry in os.scandir(root) if entry.name[0] == "." and _is_folder(entry)]
    others: list[str] = []
    paths: list[str] = []
    counts: list[int] = []
    for folder in track(folders, "listing folders", total=len(folders), after=1):
        found = sorted_files(root / folder, extensions, root, skipped)
        listed = [path for path in found if path.lower().endswith(wanted)] if wanted else found
        others += [path for path in found if path.lower().endswith(_NOT_IN_CLASSES)] if wanted else []
        paths.extend(listed)
        counts.append(len(listed))
    if empty := [folder for folder, count in zip(folders, counts, strict=True) if count == 0]:
        where = f"class folder(s) {', '.join(map(repr, empty[:5]))} of {str(root)!r}"
        raise FileNotFoundError(
            f"{name}: no image in {where}; looked for {', '.join(wanted)}{_about_others(others)}"
            if extensions
            else f"{name}: no file in {where}"
        )
    if wanted:
        _warn_of_differences(root, others, [path for path in skipped if _holds(path, wanted)])
    return Listing(paths, np.repeat(np.arange(len(folders)), counts), folders)


def _about_others(others: list[str]) -> str:
    return "; for GIFs, give a list of files, and labels=" if others else ""


def _warn_of_differences(root: Path, others: list[str], hidden: list[str]) -> None:
    """Warn of files that somebody who looks into the folder, or uses torchvision, expects to be listed."""
    if others:
        warnings.warn(
            f"{len(others)} GIFs in {str(root)!r}, such as {others[0]!r}, are not listed, as in torchvision's "
            "ImageFolder; convert them, or give a list of files, and labels=",
            stacklevel=5,
        )
    if hidden:
        warnings.warn(
            f"hidden files and folders in {str(root)!r} are not listed, such as {min(hidden)!r}, but "
            "torchvision's ImageFolder lists them; remove them, or rename them if they are samples",
            stacklevel=5,
        )


def _holds(path: str, extensions: tuple[str, ...]) -> bool:
    """Whether torchvision would load an image from a hidden file or folder."""
    below = [name for _, _, names in os.walk(path) for name in names]
    # ("._NAME" is what macOS notes about the file NAME, not an image.)
    names = below if os.path.isdir(path) else [os.path.basename(path)]
    return any(name.lower().endswith(extensions) and not name.startswith("._") for name in names)


def _is_folder(entry: os.DirEntry[str]) -> bool:
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


def files_below(
    folder: str | Path, root: str | Path | None = None, hidden: list[str] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield path and name of the files in a folder and its subfolders, in any order.

    Files and folders whose names begin with a dot are passed over: they are notes of programs, such as
    ``.ipynb_checkpoints`` and the ``._NAME`` of macOS. So are FIFOs, devices and sockets. Links are followed,
    except those to a folder that they lie in, as their files are listed already.

    Args:
        folder: where to begin.
        root: a folder that ``folder`` lies in; links to it are not followed either.
        hidden: is extended by the paths of files and folders that begin with a dot.
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
                if entry.name[0] == ".":
                    if hidden is not None:
                        hidden.append(entry.path)
                elif _is_folder(entry):
                    waiting.append((entry.path, known))
                elif not is_special(entry):
                    yield entry.path, entry.name


def sorted_files(
    folder: str | Path,
    extensions: tuple[str, ...] = (),
    root: str | Path | None = None,
    hidden: list[str] | None = None,
) -> list[str]:
    """List the files in a folder and its subfolders, sorted by folder and then by name, as torchvision does.

    Args:
        folder: where to begin.
        extensions: of the files to list, in lower case; empty: all.
        root: as for :func:`files_below`.
        hidden: as for :func:`files_below`.
    """
    found = (path for path, name in files_below(folder, root, hidden) if name.lower().endswith(extensions or ""))
    return sorted(found, key=os.path.split)


def _identity(folder: str | Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _labelled(paths: list[str], labels: Labels | None) -> Listing:
    if labels is None:
        return Listing(paths, np.full(len(paths), -1), [])
    if known_length(labels) is None:
        raise TypeError(f"labels must be a list or an array, one int or one str per file, got {labels!r:.80}")
    if len(labels) != len(paths):
        entries, files = quantity(len(labels), "entry", "entries"), quantity(len(paths), "file", "files")
        raise ValueError(f"labels has {entries} for {files}; give one per file")
    values = np.asarray(labels)
    if values.dtype == object and values.ndim == 1:  # such as a column of a table from pandas
        labels = values.tolist()
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
    if values.dtype.kind != "U":
        targets = values.astype(np.int64)
        return Listing(paths, targets, number_names(targets))
    # Not by NumPy, whose strings end before a NUL.
    names = list(map(str, labels))
    classes = sorted(set(names))
    ranks = {name: rank for rank, name in enumerate(classes)}
    return Listing(paths, np.array([ranks[name] for name in names], np.int64), classes)
