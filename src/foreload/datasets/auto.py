"""Datasets chosen by the files at a path, within a share of the memory."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from foreload.batch.collated import own_getitems
from foreload.checks import Indices, check_regular_file, check_share, inherits
from foreload.datasets.base import BaseDataset
from foreload.datasets.files import FileDataset
from foreload.datasets.folders import IMAGES, files_below
from foreload.datasets.images.dataset import ImageDataset
from foreload.datasets.tar import TarDataset
from foreload.datasets.tar.shards import are_shards
from foreload.machine import granted_memory
from foreload.options import Keep, LoadingMode
from foreload.protocol import Assembly, BatchMemory, BatchOptions, BlockStorage, NativeBatches, TwoStage
from foreload.record.memory import MemoryMonitor

__all__ = ["MemoryEfficientDataset", "open_dataset"]

Hook = TypeVar("Hook")

_TEXT = (".txt", ".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".jsonlines", ".json")
_HDF5 = (".h5", ".hdf5", ".hdf", ".he5")

# The most files of a folder that are looked at to find out its kind.
_LOOKED_AT = 10_000


def open_dataset(data_path: str | Path, transform: Callable[[Any], Any] | None = None) -> Any:
    """Open the files at ``data_path`` with the dataset for their kind.

    Tar shards: :class:`~foreload.TarDataset`; ``.h5``, ``.hdf5``: HDF5Dataset; files of lines, JSON lines and
    tables, and folders of ``.txt``: :class:`~foreload.TextDataset` (which takes no ``transform``); ``.parquet``
    files and folders of them: ParquetDataset; MDS shards: MDSDataset; folders of images:
    :class:`~foreload.ImageDataset`; any other folder: :class:`~foreload.FileDataset`. The kind of a folder is
    that of most of its first files.

    Raises:
        FileNotFoundError: the path does not exist.
        OSError: it is a FIFO, device or socket.
        ValueError: it is a file of no known kind.
        KeyError: it is an HDF5 file without a dataset of the name ``data``.
        TypeError: it is not a path.
    """
    if are_shards(data_path):
        return TarDataset(data_path, transform)
    if not isinstance(data_path, (str, os.PathLike)):
        raise TypeError(f"data_path must be a str or a Path, got {type(data_path).__name__}")
    path = Path(data_path)
    if not os.path.exists(data_path):  # Path("") would be the present folder
        raise FileNotFoundError(f"data_path: there is nothing at {str(data_path)!r}")
    check_regular_file(str(path))
    kind = path.suffix.lower() if path.is_file() else _kind_within(path)
    if kind == ".tar" and path.is_file():  # in capitals; the others are shards by their names
        return TarDataset(path, transform)
    if kind in _HDF5 and path.is_file():
        from foreload.datasets.hdf5 import HDF5Dataset

        try:
            return HDF5Dataset(path, transform=transform)
        except KeyError as error:  # it names an argument that only HDF5Dataset has
            raise KeyError(
                f"{error.args[0]}; to name one of them, use HDF5Dataset({str(path)!r}, dataset_name=...)"
            ) from None
    if kind in _TEXT and (path.is_file() or kind == ".txt"):
        from foreload.datasets.text import TextDataset

        return TextDataset(path)
    if kind == ".parquet":
        from foreload.datasets.parquet import ParquetDataset

        return ParquetDataset(path, transform=transform)
    if next(path.glob("shard.*.mds*"), None) is not None:
        from foreload.datasets.mds import MDSDataset

        return MDSDataset(path, transform)
    if path.is_file():
        known = ", ".join((".tar", ".h5", ".parquet", *_TEXT))
        raise ValueError(f"data_path: {str(path)!r} is of an unknown kind; give one of {known}")
    return (
        ImageDataset(path, transform=transform, cache_size=0) if kind in IMAGES else FileDataset(path, transform)
    )


def _kind_within(folder: Path) -> str:
    """Return the most common file ending among the first files of a folder."""
    names = (name for _, name in files_below(folder))
    endings = Counter(os.path.splitext(name)[1].lower() for name in islice(names, _LOOKED_AT))
    return endings.most_common(1)[0][0] if endings else ""


class MemoryEfficientDataset(BaseDataset, NativeBatches):
    r"""A dataset of any kind that foreload reads, within a share of the memory.

    The files at ``data_path`` decide how they are read; see :func:`open_dataset`. The loading mode keeps samples
    in memory that workers share, within a container's limit if there is one; memory is given back when it is
    short.

    Args:
        data_path: files or folders.
        max_memory_usage: the share of the memory, above 0 and at most 1, that samples may take.
        loading_mode: ``LAZY`` and ``STREAMING`` keep nothing; ``EAGER`` reads all at the start and keeps what
            fits; ``CACHED`` keeps what fits as it is asked for.
        transform: called with each sample.

    Attributes:
        dataset: the dataset that reads the samples.
        memory_monitor: a :class:`~foreload.MemoryMonitor` of that share, for ``get_memory_stats()``.

    Raises:
        FileNotFoundError, ValueError, TypeError: as :func:`open_dataset`; and if the share is not valid.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "lines.txt"; _ = path.write_text("meow\npurr\n")
    >>> lines = MemoryEfficientDataset(path, 0.5, LoadingMode.CACHED, transform=lambda ids: ids[:4].tolist())
    >>> "".join(map(chr, lines[1]))
    'purr'
    """

    def __init__(
        self,
        data_path: str | Path,
        max_memory_usage: float = 0.8,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        *,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.max_memory_usage = check_share(max_memory_usage)
        self.memory_monitor = MemoryMonitor(self.max_memory_usage)
        self.dataset = open_dataset(data_path, transform if self._is_plain else None)
        # A dataset that takes no transform leaves it to this one.
        taken = self._is_plain and getattr(self.dataset, "transform", None) is not None
        super().__init__(data_path, None if taken else transform, None, loading_mode)

    @property
    def _is_plain(self) -> bool:
        """Whether samples are the dataset's own, not those of a subclass that reads them itself."""
        return inherits(self, MemoryEfficientDataset, "read")

    def _inner(self, hook: type[Hook]) -> Hook | None:
        """Return the dataset if samples are its own and it has this hook."""
        return self.dataset if self._is_plain and isinstance(self.dataset, hook) else None

    def _locate(self, data_path: Any) -> Any:
        return data_path  # the dataset is open already

    def index(self) -> int:
        """Count the samples."""
        return len(self.dataset)

    def read(self, index: int) -> Any:
        """Load the part of a sample that is the same in each epoch."""
        inner = self._inner(TwoStage)
        return self.dataset[index] if inner is None else inner.prepare_sample(index, "encoded")

    @property
    def memory(self) -> int:
        """The most bytes that the loading mode may keep."""
        return int(self.max_memory_usage * granted_memory())

    def _too_large(self, missing: int) -> None:
        warnings.warn(
            f"{missing} of {self._count} samples of {str(self.data_path)!r} do not fit into {self.memory:,} "
            f"bytes, max_memory_usage={self.max_memory_usage:g} of the memory; they are read when asked for",
            stacklevel=5,
        )

    def _has_uncacheable(self, index: int) -> None:
        pass  # the cache has warned, and what does not fit is not kept either

    def finish_sample(self, index: int, prepared: Any) -> Any:
        """Apply the dataset's transform, then that of this one."""
        inner = self._inner(TwoStage)
        return super().finish_sample(index, prepared if inner is None else inner.finish_sample(index, prepared))

    def prepare_sample(self, index: int, keep: Keep = "auto") -> Any:
        """Load the part of a sample that is the same in each epoch, for the cache."""
        inner = None if self._kept is not None else self._inner(TwoStage)
        return super().prepare_sample(index, keep) if inner is None else inner.prepare_sample(index, keep)

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load several samples, before the transforms; in place of one that fails, its exception."""
        own = self._kept is None and inherits(self, MemoryEfficientDataset, "prepare_sample")
        inner = self._inner(BlockStorage) if own else None
        return super().read_many(indices) if inner is None else inner.read_many(indices)

    def storage_blocks(self, size: int) -> Sequence[int] | Indices:
        """Return the first sample of each block of the dataset."""
        own = isinstance(self.dataset, BlockStorage)
        return self.dataset.storage_blocks(size) if own else super().storage_blocks(size)

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]] | None:
        """Load several samples at once, if the dataset can and nothing is kept."""
        own = inherits(self, MemoryEfficientDataset, "__getitem__", "read", "prepare_sample", "finish_sample")
        if not own or self._kept is not None or self.transform:
            return None
        return getattr(self.dataset, "__getitems__", None)

    def user_code(self) -> Iterable[Any]:
        """Return the dataset that reads the samples, and the transform."""
        return self.dataset, self.transform

    def batch_assembly(self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory) -> Assembly | None:
        """Make whole batches as the dataset does, if nothing is kept."""
        inner = None if spec.cache is not None else self._inner(NativeBatches)
        own = inherits(self, MemoryEfficientDataset, "__getitems__") and self.__getitems__ is not None
        return inner.batch_assembly(spec, key, buffers) if inner is not None and own else None

    def __getattr__(self, name: str) -> Any:
        """Return the dataset's own attribute, such as ``classes``."""
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["dataset"], name)
