"""The loaders: stock torch with DLIO's access pattern, foreload with defaults, DALI."""

from __future__ import annotations

import hashlib
import http.client
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from benchmarks.storage import data
from benchmarks.storage.work import Work
from torch.utils.data import DataLoader, Dataset

Load = Callable[[Work, list[int], list[str]], Iterable[Any]]


class Reader(Dataset[Any]):
    """A sample per file, opened and read whenever it is asked for, as DLIO's torch readers do it.

    (argonne-lcf/dlio_benchmark, ``reader/``: ``np.load`` for npz, Pillow for images, the bytes alone where it does
    not decode, and for Parquet the row group of the row, kept until another one is asked for. DLIO then gives a
    constant tensor of the sample's size; here the sample itself is given, which costs the same.)
    """

    def __init__(self, work: Work, urls: list[str]) -> None:
        self.work, self.urls, self.files = work, urls, work.files
        self.read: Callable[[int], Any] = getattr(self, "_http" if work.source == "http" else f"_{work.form}")
        self.connection: http.client.HTTPConnection | None = None
        self.group: tuple[tuple[int, int], Any] | None = None

    def __len__(self) -> int:
        return self.work.count

    def __getitem__(self, index: int) -> Any:
        return self.read(index)

    def _bytes(self, index: int) -> Any:
        return np.fromfile(self.files[index], np.uint8)

    def _image(self, index: int) -> Any:
        from PIL import Image

        return np.asarray(Image.open(self.files[index]))

    def _array(self, index: int) -> Any:
        return np.load(self.files[index], allow_pickle=True)["x"]

    def _rows(self, index: int) -> Any:
        import pyarrow.parquet as pq

        number, row = divmod(index, 64)
        group, row = divmod(row, data.GROUP)
        if self.group is None or self.group[0] != (number, group):
            table = pq.ParquetFile(self.files[number]).read_row_group(group)
            self.group = (number, group), table
        table = self.group[1]
        return {name: table[name][row].values.to_numpy() for name in data.COLUMNS}

    def _http(self, index: int) -> Any:
        shard, begin = data.extent(index)
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.urls[shard].split("/")[2])
        wanted = {"Range": f"bytes={begin}-{begin + self.work.size - 1}"}
        self.connection.request("GET", "/" + self.urls[shard].rpartition("/")[2], headers=wanted)
        return np.frombuffer(bytearray(self.connection.getresponse().read()), np.uint8)

    def _waits(self, index: int) -> Any:
        time.sleep(0.002 if index % 50 else 0.040)
        return index

    def _computes(self, index: int) -> Any:
        for _ in range(1 if index % 50 else 20):
            hashlib.sha256(_BLOCK).digest()
        return index


_BLOCK = bytes(700_000)  # hashed in about half a millisecond


def stock(workers: int | None, work: Work, order: list[int], urls: list[str]) -> Iterable[Any]:
    """torch's DataLoader as DLIO makes it; None: with the workers of the published configuration."""
    number = work.readers if workers is None else workers
    dataset = Reader(work, urls)
    options: dict[str, Any] = {"num_workers": number, "persistent_workers": number > 0, "drop_last": True}
    return DataLoader(dataset, work.batch_size, sampler=order, **options)


def drop_in(work: Work, order: list[int], urls: list[str]) -> Iterable[Any]:
    """foreload's DataLoader over the same dataset."""
    import foreload as fl

    return fl.DataLoader(Reader(work, urls), work.batch_size, sampler=order, drop_last=True)


def native(work: Work, order: list[int], urls: list[str], *, direct_io: bool = False) -> Iterable[Any]:
    """foreload's dataset for the same files."""
    import foreload as fl

    dataset: Any
    if work.source == "http":
        dataset = fl.TarDataset(urls, index_folder=work.folder.with_name(f"{work.folder.name}-index"))
    elif work.form == "rows":
        dataset = fl.ParquetDataset(work.folder)
    elif work.form == "image":
        whole = fl.transforms.resize((data.HEIGHT, data.WIDTH), normalize=False)
        dataset = fl.ImageDataset(work.files, transform=whole, cache_size=0)
    else:
        dataset = fl.FileDataset(work.files, direct_io=direct_io)
    return fl.DataLoader(dataset, work.batch_size, sampler=order, drop_last=True)


def dali(work: Work, order: list[int], urls: list[str]) -> Iterable[Any]:
    """DALI on the CPU: fn.readers.file over the files in this order, fn.decoders.image where pixels are wanted."""
    from benchmarks.peers.adapters import Epochs
    from benchmarks.peers.work import CORES
    from nvidia.dali import fn, pipeline_def

    @pipeline_def  # type: ignore[untyped-decorator]
    def read() -> Any:
        files = work.files
        content, _ = fn.readers.file(files=[files[number] for number in order], random_shuffle=False)
        return fn.decoders.image(content, device="cpu") if work.form == "image" else content

    def epoch(_: int) -> Iterator[Any]:
        for _ in range(len(order) // work.batch_size):
            (content,) = pipeline.run()
            yield content.as_array()

    pipeline = read(batch_size=work.batch_size, num_threads=CORES, device_id=None)
    pipeline.build()
    return Epochs(epoch)


@dataclass(frozen=True)
class Contestant:
    """A loader at one setting.

    Attributes:
        family: whose it is: ``torch``, ``foreload`` or ``dali``, which has an environment of its own.
        loads: whether it takes part in a workload.
    """

    name: str
    family: str
    load: Load
    loads: Callable[[Work], bool] = lambda work: True


def _of_dali(work: Work) -> bool:
    return work.form in ("bytes", "image") and work.source != "http"


def _in_python(work: Work) -> bool:
    return work.form in ("array", "waits", "computes")


ALL = [
    Contestant("torch, DLIO's reader, published workers", "torch", partial(stock, None)),
    Contestant("torch, DLIO's reader, 2 workers", "torch", partial(stock, 2)),
    Contestant("foreload, DLIO's reader, defaults", "foreload", drop_in),
    Contestant("foreload, its dataset, defaults", "foreload", native, lambda work: not _in_python(work)),
    Contestant(
        "foreload, its dataset, direct_io",
        "foreload",
        partial(native, direct_io=True),
        lambda work: work.form == "bytes" and work.source == "disk",
    ),
    Contestant("DALI", "dali", dali, _of_dali),
]


def find(name: str) -> Contestant:
    """The contestant of a name."""
    return next(one for one in ALL if one.name == name)
