"""foreload, with nothing but defaults wherever a workload leaves the choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.peers import server
from benchmarks.peers.adapters import Epochs, loads
from benchmarks.peers.datasets import Cifar
from benchmarks.peers.work import Work
from benchmarks.peers.workloads.python import DATASETS
from torch.utils.data import TensorDataset

import foreload as fl


def images(work: Work, transform: Any, **options: Any) -> fl.ImageDataset:
    files = work.files
    return fl.ImageDataset(files, transform=transform, labels=range(len(files)), **options)


def loader(dataset: Any, work: Work, **options: Any) -> Any:
    return fl.DataLoader(dataset, **{"batch_size": work.batch_size, "shuffle": True, "seed": 0, **options})


@loads("train", "defaults, no cache")
def train(work: Work) -> Any:
    transform = fl.transforms.train(work.options["size"], normalize=work.options["normalize"])
    return loader(images(work, transform, cache_size=0), work)


@loads("validation", "defaults, no cache")
def validation(work: Work) -> Any:
    transform = fl.transforms.val(work.options["size"], normalize=work.options["normalize"])
    return loader(images(work, transform, cache_size=0), work, shuffle=False)


@loads("decoded", "loading_mode=CACHED")
def decoded(work: Work) -> Any:
    transform = fl.transforms.train(work.options["size"], normalize=work.options["normalize"])
    mode = fl.LoadingMode.CACHED
    return loader(images(work, transform, loading_mode=mode, cache_size=work.count), work)


@loads("rows", "TensorDataset, defaults")
def rows(work: Work) -> Any:
    return loader(TensorDataset(torch.from_numpy(np.load(work.folder / "rows.npy"))), work)


@loads("rows", "CachedDataset, defaults")
def cached_rows(work: Work) -> Any:
    return loader(fl.CachedDataset(np.load(work.folder / "rows.npy")), work)


@loads("cifar", "a dataset in Python, defaults")
def cifar(work: Work) -> Any:
    return loader(Cifar(work), work)


@loads("cifar", "ImageArrayDataset, defaults")
def cifar_natively(work: Work) -> Any:
    transform = fl.transforms.train_small(32, padding=4, normalize=False)
    images = np.load(work.folder / "images.npy")
    return loader(fl.ImageArrayDataset(images, range(work.count), transform), work)


@loads("files", "FileDataset, defaults")
def files(work: Work) -> Any:
    return loader(fl.FileDataset(work.files), work)


@loads("resume", "FileDataset, defaults")
def resume(work: Work) -> Any:
    return loader(fl.FileDataset(work.files), work)


@loads("tar-random", "TarDataset")
def tar_random(work: Work) -> Any:
    return loader(fl.TarDataset(work.folder), work, num_workers=work.workers)


@loads("tar-stream", "TarStream")
def tar_stream(work: Work) -> Any:
    stream = fl.TarStream(work.folder, seed=0)

    def epoch(number: int) -> Any:
        stream.set_epoch(number)
        return iter(fl.DataLoader(stream, work.batch_size, num_workers=work.workers or 0))

    return Epochs(epoch)


@loads("remote", "TarDataset, defaults")
def remote(work: Work) -> Any:
    index = work.converted("indexes", lambda folder: None)
    return loader(fl.TarDataset(server.start(work), index_folder=index), work)


@loads("parquet", "ParquetDataset, defaults")
def parquet(work: Work) -> Any:
    return loader(fl.ParquetDataset(work.folder, ["values"]), work)


@loads("mds", "MDSDataset, defaults")
def mds(work: Work) -> Any:
    import benchmarks.peers.torchvision_stub  # noqa: F401  (MosaicML's package imports torchvision)

    return loader(fl.MDSDataset(work.folder), work)


@loads("hdf5", "HDF5Dataset, defaults")
def hdf5(work: Work) -> Any:
    return loader(fl.HDF5Dataset(work.folder / "rows.h5"), work)


@loads("tokens", "CachedDataset over a memory map, defaults")
def tokens(work: Work) -> Any:
    mapped = np.memmap(work.folder / "tokens.bin", np.int32, "r").reshape(work.count, -1)
    return loader(fl.CachedDataset(mapped), work)


@loads("packing", "pack_sequences, defaults")
def packing(work: Work) -> Any:
    from benchmarks.peers.workloads.text import LENGTH

    together = np.load(work.folder / "tokens.npy")
    documents = np.split(together, np.cumsum(np.load(work.folder / "lengths.npy"))[:-1])
    return Epochs(lambda number: iter(loader(fl.packing.pack_sequences(documents, LENGTH), work, seed=number)))


@loads("python", "defaults")
def python(work: Work) -> Any:
    return fl.DataLoader(DATASETS[work.options["dataset"]](work.count), batch_size=work.batch_size, shuffle=True)


@loads("many", "defaults, seeded")
def many(work: Work) -> Any:
    return loader(range(work.count), work)
