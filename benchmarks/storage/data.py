"""The files of the workloads: written once, read into the page cache or taken out of it."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

HEIGHT, WIDTH = 768, 1024  # of images
IMAGE, RECORD, VOLUME = 322_957, 114_660, 36_650_157  # bytes of a file
COLUMNS = {"t5_encodings": 524_328, "clip_encodings": 409, "mean": 8232, "logvar": 8232, "timestamp": 7}
GROUP = 16  # rows of a Parquet row group
SHARD = 256  # samples in each tar


def padded(content: bytes, number: int, size: int) -> bytes:
    """A file of exactly this size, unlike any other: what follows the end of a JPEG is ignored by decoders."""
    return content + np.random.default_rng(number).bytes(size - len(content))


def _photo(seed: int) -> bytes:
    """A JPEG with the entropy of a photograph: the best quality whose file is not too large."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    photo = Image.fromarray(np.clip(smooth + rng.normal(0, 5, smooth.shape), 0, 255).astype(np.uint8))
    for quality in range(95, 20, -5):
        out = io.BytesIO()
        photo.save(out, "JPEG", quality=quality, subsampling=2)
        if out.tell() <= IMAGE:
            return out.getvalue()
    raise AssertionError("no quality makes files that are small enough")


def make_images(folder: Path, count: int) -> None:
    """RetinaNet's, of one size in pixels and in bytes; the pixels of a few repeat."""
    photos = [_photo(seed) for seed in range(min(count, 32))]
    for number in range(count):
        (folder / f"{number:06}.jpg").write_bytes(padded(photos[number % len(photos)], number, IMAGE))


def make_records(folder: Path, count: int) -> None:
    """ResNet-50's: noise, for nobody looks into them."""
    for number in range(count):
        (folder / f"{number:06}.bin").write_bytes(padded(b"", number, RECORD))


def make_shards(folder: Path, count: int) -> None:
    """The same records in tar shards."""
    for first in range(0, count, SHARD):
        path = folder / f"shard-{first // SHARD:06}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(first, min(first + SHARD, count)):
                member = tarfile.TarInfo(f"{number:06}.bin")
                member.size = RECORD
                tar.addfile(member, io.BytesIO(padded(b"", number, RECORD)))


def extent(number: int) -> tuple[int, int]:
    """The shard of a record, and where its bytes begin in it."""
    return number // SHARD, 512 + number % SHARD * (512 + -(-RECORD // 512) * 512)


def make_volumes(folder: Path, count: int) -> None:
    """UNet3D's, as DLIO writes them: ``x`` and ``y`` of an archive that is not compressed."""
    side = int(VOLUME**0.5)
    for number in range(count):
        volume = np.random.default_rng(number).integers(0, 255, (side, side, 1), np.uint8)
        np.savez(folder / f"{number:06}.npz", x=volume, y=[0])


def make_tables(folder: Path, count: int) -> None:
    """Flux's: lists of float32, 64 rows in a file, not compressed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for first in range(0, count, 64):
        rng = np.random.default_rng(first)
        rows = min(64, count - first)
        table = pa.table(
            {
                name: pa.FixedSizeListArray.from_arrays(rng.random(rows * size, np.float32), size)
                for name, size in COLUMNS.items()
            }
        )
        path = folder / f"{first // 64:06}.parquet"
        pq.write_table(table, path, row_group_size=GROUP, compression="none", use_dictionary=False)


def make_nothing(folder: Path, count: int) -> None:
    """Samples that are not in files."""


def warm(files: Iterable[str]) -> None:
    """Read all files, so that they are in the page cache."""
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(1 << 20):
                pass


def drop(files: Iterable[str]) -> None:
    """Take files out of the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)  # pages that are not written yet would stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
