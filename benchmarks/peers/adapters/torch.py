"""torch's own DataLoader, with a dataset as one writes it: no workers, and as many as there are cores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import loads
from benchmarks.peers.datasets import Cifar, Numbers
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.python import DATASETS
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset


class Images(Dataset[Any]):
    """Files, decoded one by one."""

    def __init__(self, work: Work, how: str) -> None:
        self.work, self.how, self.files = work, how, work.files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return decode.one(Path(self.files[index]).read_bytes(), self.work, self.how), index


def loader(dataset: Any, work: Work, workers: int, **options: Any) -> Any:
    known = {"batch_size": work.batch_size, "shuffle": True, "num_workers": workers}
    return DataLoader(dataset, **{**known, "persistent_workers": workers > 0, **options})


def image_loader(work: Work, how: str, workers: int) -> Any:
    collate = partial(decode.collate, work=work)
    return loader(Images(work, how), work, workers, collate_fn=collate, shuffle=work.family == "train")


def register(family: str, settings: str, load: Callable[[Work, int], Any]) -> None:
    """Without workers, and with one per core."""
    for workers in (0, CORES):
        loads(family, f"{settings}, {workers} workers")(partial(_with_workers, load, workers))


def _with_workers(load: Callable[[Work, int], Any], workers: int, work: Work) -> Any:
    return load(work, workers)


for _family in ("train", "validation"):
    register(_family, "Pillow", lambda work, workers: image_loader(work, "pillow", workers))
    register(_family, "simplejpeg and OpenCV", lambda work, workers: image_loader(work, "opencv", workers))


class Decoded(Dataset[Any]):
    """Decoded images in one process's memory, cropped by OpenCV."""

    def __init__(self, work: Work) -> None:
        self.work, self.files = work, work.files
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import simplejpeg

        if index not in self.kept:
            self.kept[index] = simplejpeg.decode_jpeg(Path(self.files[index]).read_bytes())
        return decode.crop_decoded(self.kept[index], self.work), index


@loads("decoded", "a dict of arrays, 0 workers")
def decoded(work: Work) -> Any:
    return loader(Decoded(work), work, 0, collate_fn=partial(decode.collate, work=work))


def rows_of(work: Work) -> torch.Tensor:
    return torch.from_numpy(np.load(work.folder / "rows.npy"))


register("rows", "TensorDataset", lambda work, workers: loader(TensorDataset(rows_of(work)), work, workers))


@loads("rows", "TensorDataset, a BatchSampler as sampler")
def row_batches(work: Work) -> Any:
    dataset = TensorDataset(rows_of(work))
    sampler = BatchSampler(RandomSampler(dataset), work.batch_size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=sampler)


register("cifar", "a dataset in Python", lambda work, workers: loader(Cifar(work), work, workers))


class Files(Dataset[Any]):
    """The bytes of files."""

    def __init__(self, work: Work) -> None:
        self.files = work.files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.files[index], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


register("files", "a dataset in Python", lambda work, workers: loader(Files(work), work, workers))


class Parquet(Dataset[Any]):
    """All columns in memory, as one reads a table that fits."""

    def __init__(self, work: Work) -> None:
        import pyarrow.parquet as pq

        column = pq.read_table(work.folder, columns=["values"])["values"].combine_chunks()
        self.values = torch.from_numpy(column.flatten().to_numpy().reshape(work.count, -1).copy())

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index]


register("parquet", "read whole into memory", lambda work, workers: loader(Parquet(work), work, workers))


class Rows(Dataset[Any]):
    """Rows read by h5py, the file opened in each process."""

    def __init__(self, work: Work) -> None:
        self.path, self.count = work.folder / "rows.h5", work.count
        self.data: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.data is None:
            import h5py

            self.data = h5py.File(self.path, "r", rdcc_nbytes=64 << 20)["data"]
        return torch.from_numpy(self.data[index])


register("hdf5", "h5py", lambda work, workers: loader(Rows(work), work, workers))


class Blocks(Dataset[Any]):
    """Rows of a memory map."""

    def __init__(self, work: Work) -> None:
        self.tokens = np.memmap(work.folder / "tokens.bin", np.int32, "r").reshape(work.count, -1)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.tokens[index]))


register("tokens", "a memory map", lambda work, workers: loader(Blocks(work), work, workers))


class Packed(IterableDataset[Any]):
    """First fit, as hand-written packing does it: documents in random order, cut where a row is full."""

    def __init__(self, work: Work) -> None:
        self.tokens, lengths = np.load(work.folder / "tokens.npy"), np.load(work.folder / "lengths.npy")
        self.ends = np.cumsum(lengths)

    def __iter__(self) -> Any:
        from benchmarks.peers.workloads.text import LENGTH

        row, used = np.zeros(LENGTH, np.int64), 0
        for number in torch.randperm(len(self.ends)).tolist():
            document = self.tokens[self.ends[number - 1] if number else 0 : self.ends[number]]
            while len(document):
                taken = document[: LENGTH - used]
                row[used : used + len(taken)] = taken
                used, document = used + len(taken), document[len(taken) :]
                if used == LENGTH:
                    yield torch.from_numpy(row)
                    row, used = np.zeros(LENGTH, np.int64), 0
        if used:
            yield torch.from_numpy(row)


@loads("packing", "by hand, documents one after the other, 0 workers")
def packing(work: Work) -> Any:
    return DataLoader(Packed(work), batch_size=work.batch_size)


@loads("python", "defaults")
def python(work: Work) -> Any:
    return DataLoader(DATASETS[work.options["dataset"]](work.count), batch_size=work.batch_size, shuffle=True)


@loads("many", "0 workers")
def many(work: Work) -> Any:
    torch.manual_seed(0)
    return DataLoader(Numbers(work.count), batch_size=work.batch_size, shuffle=True)
