"""Synthetic data that costs as much to load as real data: photo-like JPEGs, tensors, text, HDF5."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from foreload.checks import Array
from foreload.record.progress import ProgressBar, track, track_threads
from foreload.record.units import quantity

__all__ = ["synth_hdf5", "synth_images", "synth_tensors", "synth_text"]

_MARK = ".foreload-synth.json"
_FIELD = 1280
_CHUNK = 64  # rows of an HDF5 file that are compressed together
_WORDS = (
    "the of and to in is was for on are as with his they at be this from have or by one had not but what all were "
    "when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made "
    "over did down only way find use may water long little very after words called just where most know"
).split()


def claim(folder: Path, kind: str, made: list[int], paths: Iterable[Path], *, force: bool) -> None:
    """Create ``folder`` and mark it as synthetic data.

    Args:
        folder: where the data is to be.
        kind: of the data.
        made: what the data depends on, its seed last.
        paths: the files of this kind that are there.
        force: write over other data, and beside other files.

    Raises:
        FileExistsError: it holds other files, or data of this kind that is not the same, and ``force`` is False.
        OSError: it cannot be written to.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{str(folder)!r} is a file; name a folder to write to")
    known = _known(folder)
    foreign = folder.is_dir() and any(folder.iterdir()) and known is None
    if foreign and not force:
        raise FileExistsError(f"{str(folder)!r} holds other files; name an empty folder, or add --force")
    other = next(iter(paths), None) if not force and (known or {}).get(kind) != made else None
    if other is not None:
        raise FileExistsError(
            f"{str(other)!r} is there, but is not what seed {made[-1]} makes of these sizes; name another folder, "
            "or add --force, which overwrites it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).write_text(json.dumps({**(known or {}), kind: made}) + "\n")
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise type(error)(f"{str(folder)!r} cannot be written to: {error.strerror}") from error


def _known(folder: Path) -> dict[str, Any] | None:
    """Return what was made in a folder, by kind; None if it is not marked as synthetic data."""
    try:
        known = json.loads((folder / _MARK).read_text())
    except OSError:
        return None
    except ValueError:  # of a run that was killed
        return {}
    return known if isinstance(known, dict) else {}


def _there(folder: Path, *names: str) -> list[Path]:
    return [folder / name for name in names if (folder / name).exists()]


def synth_images(folder: Path, count: int, *, seed: int = 0, classes: int = 10, force: bool = False) -> None:
    """Write ``count`` JPEGs into class folders, with the size and entropy of photographs.

    About 500 x 375 pixels and 97 KiB each, 4:2:0: a 1/f spectrum, smooth and textured regions, objects with
    edges, correlated colours. The same ``seed`` gives the same files.

    Raises:
        ValueError: ``count`` is not positive.
        FileExistsError: the folder holds other files, or other images, and ``force`` is False.
    """
    if count < 1:
        raise ValueError(f"images must be 1 or more, got {count}")
    classes = min(classes, count)
    paths = [folder / f"class_{index % classes:02}" / f"{index:06}.jpg" for index in range(count)]
    # Those of an earlier run with another number would be taken for a part of these.
    present = set(folder.glob("class_*/*.jpg"))
    others = set() if force else present - set(paths)
    if others:
        raise FileExistsError(
            f"{str(folder)!r} holds {quantity(len(others), 'other image', 'other images')}, such as "
            f"{str(min(others))!r}; name an empty folder, or add --force, which leaves them there"
        )
    claim(folder, "images", [classes, seed], sorted(present), force=force)
    for name in range(classes):
        (folder / f"class_{name:02}").mkdir(exist_ok=True)
    fields = _fields(np.random.default_rng([seed, 0]))

    def write(index: int) -> None:
        data = _photo(fields, np.random.default_rng([seed, 1, index]))
        paths[index].write_bytes(data)

    for _ in track_threads(write, range(count), "images"):
        pass


def _fields(rng: np.random.Generator) -> list[Array]:
    """Make large noise fields with spectra around 1/f, from which pictures are cut."""
    squared = np.fft.fftfreq(_FIELD)[:, None] ** 2 + np.fft.rfftfreq(_FIELD)[None] ** 2
    squared[0, 0] = 1
    fields = []
    for slope in (0.9, 1.0, 1.1, 1.3, 1.6, 2.2):
        shape = squared.shape
        spectrum = (rng.normal(size=shape) + 1j * rng.normal(size=shape)) * squared ** (-slope / 2)
        spectrum[0, 0] = 0
        field = np.fft.irfft2(spectrum, (_FIELD, _FIELD)).astype(np.float32)
        fields.append(field / field.std())
    return fields


def _photo(fields: list[Array], rng: np.random.Generator) -> bytes:
    from PIL import Image

    width, height = (500, 375) if rng.random() < 0.75 else (375, 500)
    if rng.random() < 0.15:
        width, height = int(rng.integers(320, 640)), int(rng.integers(320, 640))

    def cut(slope: int) -> Array:
        y, x = rng.integers(0, _FIELD - height), rng.integers(0, _FIELD - width)
        part = fields[slope][y : y + height, x : x + width]
        return part[:, ::-1] if rng.random() < 0.5 else part

    # Smooth regions (sky, skin, blur) and textured ones (leaves, cloth).
    roughness = 1 / (1 + np.exp(-3 * cut(5) - rng.normal(0.2, 0.5)))
    luma = 125 + 45 * cut(4) + 42 * roughness * cut(int(rng.integers(0, 3)))
    chroma = [128 + 16 * cut(4) + 4 * cut(2) + 0.08 * (luma - 125) * sign for sign in (-1, 1)]
    for _ in range(int(rng.integers(2, 7))):
        _paint_object([luma, *chroma], rng)
    planes = [Image.fromarray(np.clip(plane, 0, 255).astype(np.uint8)) for plane in (luma, *chroma)]
    out = io.BytesIO()
    Image.merge("YCbCr", planes).save(out, "JPEG", quality=int(rng.integers(92, 97)), subsampling=2)
    return out.getvalue()


def _paint_object(planes: list[Array], rng: np.random.Generator) -> None:
    """Shift brightness and colour within an ellipse, so that it has an edge."""
    height, width = planes[0].shape
    y, x = np.ogrid[0:height, 0:width]
    center_y, center_x = rng.integers(0, height), rng.integers(0, width)
    half_y, half_x = rng.uniform(0.05, 0.35, 2) * (height, width)
    inside = ((y - center_y) / half_y) ** 2 + ((x - center_x) / half_x) ** 2 < 1
    for plane, spread in zip(planes, (45, 18, 18), strict=True):
        plane[inside] += rng.normal(0, spread)


def synth_tensors(folder: Path, rows: int, columns: int, *, seed: int = 0, force: bool = False) -> None:
    """Write ``x.npy`` (float32, rows x columns) and ``y.npy`` (int64 labels from 0 to 9).

    Raises:
        ValueError: a size is not positive.
        FileExistsError: the folder holds other files, or others of these names, and ``force`` is False.
    """
    if min(rows, columns) < 1:
        raise ValueError(f"tensors must be ROWS,COLUMNS, both 1 or more, got {rows},{columns}")
    claim(folder, "tensors", [rows, columns, seed], _there(folder, "x.npy", "y.npy"), force=force)
    rng = np.random.default_rng(seed)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, columns))
    for begin, end in _runs(rows, columns):
        x[begin:end] = rng.normal(size=(end - begin, columns))
    x.flush()
    np.save(folder / "y.npy", rng.integers(0, 10, rows))


def _runs(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    """Yield runs of rows of a few MiB, in whole chunks, and show the progress."""
    step = max(1, (1 << 20) // columns // _CHUNK) * _CHUNK
    with ProgressBar("rows", rows, after=1) as progress:
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            yield begin, end
            progress.advance(end - begin)


def synth_text(folder: Path, lines: int, *, seed: int = 0, force: bool = False) -> None:
    """Write ``lines.txt``: lines of 3 to 60 common words.

    Raises:
        ValueError: ``lines`` is not positive.
        FileExistsError: the folder holds other files, or others of these names, and ``force`` is False.
    """
    if lines < 1:
        raise ValueError(f"text must be 1 line or more, got {lines}")
    claim(folder, "text", [lines, seed], _there(folder, "lines.txt"), force=force)
    rng = np.random.default_rng(seed)
    words = np.array(_WORDS)
    with (folder / "lines.txt").open("w") as file:
        for _ in track(range(lines), "lines", total=lines):
            file.write(" ".join(words[rng.integers(0, len(words), rng.integers(3, 61))]) + "\n")


def synth_hdf5(folder: Path, rows: int, columns: int, *, seed: int = 0, force: bool = False) -> None:
    """Write ``data.h5``: dataset ``data`` (float32, rows x columns, chunked, compressed) and ``labels``.

    Raises:
        ValueError: a size is not positive.
        FileExistsError: the folder holds other files, or others of these names, and ``force`` is False.
        ImportError: h5py is not installed.
    """
    if min(rows, columns) < 1:
        raise ValueError(f"hdf5 must be ROWS,COLUMNS, both 1 or more, got {rows},{columns}")
    try:
        import h5py
    except ImportError:
        raise ImportError("synthetic HDF5 needs h5py: pip install h5py") from None
    claim(folder, "hdf5", [rows, columns, seed], _there(folder, "data.h5"), force=force)
    rng = np.random.default_rng(seed)
    with h5py.File(folder / "data.h5", "w") as file:
        shape, chunks = (rows, columns), (min(_CHUNK, rows), columns)
        data = file.create_dataset("data", shape, np.float32, chunks=chunks, compression="gzip")
        for begin, end in _runs(rows, columns):
            data[begin:end] = rng.normal(size=(end - begin, columns)).astype(np.float32).round(2)
        file.create_dataset("labels", data=rng.integers(0, 10, rows))
