"""Whole files as samples: the bytes of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foreload import _native
from foreload.batch.buffers import Buffers
from foreload.batch.collate import is_default_collate, pinned
from foreload.batch.collated import Collated, own_getitems
from foreload.batch.read import ReadAssembly, read_samples
from foreload.checks import inherits
from foreload.datasets.base import BaseDataset
from foreload.datasets.direct import DirectReads
from foreload.datasets.folders import Labels, list_files
from foreload.options import LoadingMode
from foreload.protocol import BatchMemory, BatchOptions, NativeBatches

__all__ = ["FileDataset"]


class FileDataset(DirectReads, BaseDataset, NativeBatches):
    """The bytes of files: a sample is a uint8 tensor, or (tensor, target) if there are labels.

    Files of one size make a batch of batch x bytes, which is read natively. Reads that find their file in memory
    are made one after the other; those that wait for the disk, many at a time (io_uring).

    Args:
        data_path: a folder of class folders, a flat folder, or a list of files. Hidden files and folders do not
            count.
        transform: called with each tensor, for instance to decode it.
        target_transform: called with each target.
        loading_mode: as for :class:`~foreload.BaseDataset`.
        labels: an int or str per file, for a list or a flat folder (in the order of the file names).
        direct_io: read past the page cache, which is left to others; warns if the file system cannot. The
            attribute of this name can be set later, too.

    Attributes:
        classes, class_to_idx, targets: as :class:`~foreload.ImageDataset` has them.

    Raises:
        FileNotFoundError, NotADirectoryError: ``data_path`` does not exist.
        ValueError, TypeError: an argument is invalid; the message names it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()); _ = (folder / "a.bin").write_bytes(bytes([1, 2, 3]))
    >>> FileDataset(folder)[0]
    tensor([1, 2, 3], dtype=torch.uint8)
    """

    def __init__(
        self,
        data_path: str | Path | Sequence[str | Path],
        transform: Callable[[torch.Tensor], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        loading_mode: LoadingMode = LoadingMode.LAZY,
        *,
        labels: Labels | None = None,
        direct_io: bool = False,
    ) -> None:
        paths, self._targets, self.classes = list_files(data_path, labels)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        self._labelled = labels is not None or bool(self.classes)
        self._files = _native.Files([os.fsencode(path) for path in paths])
        self.direct_io = direct_io
        self._lengths: np.ndarray[Any, Any] | None = None
        super().__init__(data_path, transform, target_transform, loading_mode)  # type: ignore[arg-type]

    def _locate(self, data_path: Any) -> Any:
        return data_path  # it has been listed already

    def index(self) -> int:
        """Count the files."""
        return len(self._files)

    def read(self, index: int) -> Any:
        """Read a file."""
        tensor = torch.from_numpy(np.frombuffer(bytearray(self._files.read(index)), np.uint8))
        return (tensor, int(self._targets[index])) if self._labelled else tensor

    @property
    def targets(self) -> list[int]:
        """The target of every file; -1 if none was given."""
        targets: list[int] = self._targets.tolist()
        return targets

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [os.fsdecode(self._files.path(index)) for index in range(len(self._files))]

    def _sizes(self) -> np.ndarray[Any, Any]:
        if self._lengths is None:
            sizes = (_size(self._files.path(index)) for index in range(len(self._files)))
            self._lengths = np.fromiter(sizes, np.int64, len(self._files))
        return self._lengths

    @property
    def _native(self) -> bool:
        """Whether whole batches can be read natively: nothing was overridden, and all rows are of one size."""
        plain = inherits(self, FileDataset, "__getitem__", "read", "prepare_sample", "finish_sample")
        if not plain or self._kept is not None or not (self.transform is None is self.target_transform):
            return False
        sizes = self._sizes()
        return bool(sizes[0] >= 0 and (sizes == sizes[0]).all())

    def _present(self, memory: Any, starts: Any, indices: Any) -> Any:
        rows = torch.from_numpy(memory).view(len(indices), int(self._sizes()[0]))
        return [rows, torch.from_numpy(self._targets[indices])] if self._labelled else rows

    @own_getitems
    def __getitems__(self) -> Callable[[Sequence[int]], Sequence[Any]] | None:
        """Read the files of a batch, for a stock DataLoader; None if samples are loaded one by one."""
        return self._load_batch if self._native else None

    def _load_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        if not len(indices):
            return []
        batch = ReadAssembly(self._files, self._sizes(), self._present, Buffers()).start(indices)
        batch.job.run_here()
        return Collated(batch.take(), len(indices), numbers=(1,))

    def read_many(self, indices: Sequence[int]) -> Sequence[Any]:
        """Load several files, before the transforms; in place of one that fails, its exception."""
        if self._kept is None and inherits(self, FileDataset, "read", "prepare_sample"):
            try:
                sizes = np.array([os.stat(self._files.path(index)).st_size for index in indices], np.int64)
                memory, starts = read_samples(self._files, indices, sizes)
                files = [torch.from_numpy(memory[begin:end].copy()) for begin, end in pairwise(starts)]
                if not self._labelled:
                    return files
                return list(zip(files, self._targets[np.asarray(indices, np.int64)].tolist(), strict=True))
            except OSError:  # load one by one, to find out which fails
                pass
        return super().read_many(indices)

    def batch_assembly(
        self, spec: BatchOptions, key: tuple[int, int], buffers: BatchMemory
    ) -> ReadAssembly | None:
        """Read whole batches natively for foreload's DataLoader."""
        own = inherits(self, FileDataset, "__getitems__") and self._native
        if not own or spec.cache is not None or not is_default_collate(spec.collate_fn):
            return None

        def present(memory: Any, starts: Any, indices: Any) -> Any:
            return pinned(self._present(memory, starts, indices), spec.pin_device)

        return ReadAssembly(self._files, self._sizes(), present, buffers, spec)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the list of files."""
        return {**self.__dict__, "_files": [self._files.path(index) for index in range(len(self._files))]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the list again."""
        self.__dict__.update(state)
        self._files = _native.Files(state["_files"], direct=self.direct_io)


def _size(path: bytes) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # loading it raises the error later
        return -1
