"""Workloads in the proportions of MLPerf Storage's: the files, the step of an emulated accelerator, the threshold.

Sizes, batches and step times are those of mlcommons/storage, ``configs/dlio/workload``: ``retinanet_b200``,
``resnet50_h100``, ``unet3d_h100`` and ``flux_b200``. Where a batch and its step are a part of theirs, that is
said in ``about``; samples per second and accelerator are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from benchmarks.peers.work import ROOT, made
from benchmarks.storage import data


@dataclass(frozen=True)
class Work:
    """Files, and an accelerator that takes them.

    Attributes:
        about: the files and what becomes of them, in words.
        data: the folder's name; workloads may share one.
        form: of a sample: ``bytes`` of its file, ``image`` (decoded), ``array`` (a volume) or ``rows`` (decoded).
        make: writes ``count`` samples into a new folder.
        count, quick: samples that there are; with ``--quick``.
        batch_size, step: what an accelerator takes at a time, and the seconds that it computes on it; 0: not
            emulated, samples per second are compared.
        threshold: the utilisation that MLPerf Storage asks for.
        readers: the workers of each rank in the published configuration.
        size: bytes of a sample, to say bytes per second.
        source: ``warm`` (in the page cache), ``disk`` (not in it) or ``http`` (a server that answers late).
        together: samples that stay side by side when the order is shuffled.
        decoded: whether samples are decoded, which makes processors the limit.
    """

    name: str
    about: str
    data: str
    form: str
    make: Callable[[Path, int], None]
    count: int
    quick: int
    batch_size: int
    step: float
    threshold: float
    readers: int
    size: int
    source: str = "warm"
    together: int = 1
    decoded: bool = False
    milliseconds: float = 10

    def shortened(self) -> Work:
        """The same on few samples, in small batches."""
        small = min(self.batch_size, self.quick // 8)
        step = self.step * small / self.batch_size
        return replace(self, count=self.quick, batch_size=small, step=step)

    @property
    def rate(self) -> float:
        """Samples per second that an accelerator takes."""
        return self.batch_size / self.step

    @property
    def folder(self) -> Path:
        return ROOT / "data" / "storage" / f"{self.data}-{self.count}"

    @property
    def files(self) -> list[str]:
        """The files, in the order of the samples."""
        return [str(path) for path in sorted(self.folder.rglob("*.*")) if path.suffix != ".idx"]

    def prepare(self) -> None:
        """Make the data where it is missing."""
        made(self.folder, lambda folder: self.make(folder, self.count))

    def order(self, rank: int, ranks: int, samples: int) -> list[int]:
        """The samples that a rank loads: its contiguous part, shuffled anew in each pass over it."""
        each = self.count // self.together // ranks
        rng = np.random.default_rng(rank)
        passes = -(-samples // (each * self.together))
        blocks = np.concatenate([rank * each + rng.permutation(each) for _ in range(passes)])
        numbers = (blocks[:, None] * self.together + np.arange(self.together)).reshape(-1)
        return numbers[:samples].tolist()

    def most_steps(self, ranks: int) -> int | None:
        """The steps for which a rank's part suffices, if none of it may be read twice."""
        each = self.count // self.together // ranks * self.together
        return each // self.batch_size if self.source == "disk" else None


RETINANET = Work(
    "RetinaNet, bytes",
    "JPEG files of 322,957 bytes, 505 a second for each B200; the bytes of each",
    "retinanet",
    "bytes",
    data.make_images,
    count=3072,
    quick=64,
    batch_size=24,
    step=0.04755,
    threshold=0.85,
    readers=8,
    size=data.IMAGE,
)
RESNET = Work(
    "ResNet-50, bytes",
    "records of 114,660 bytes, a file each, 1,786 a second for each H100, a quarter of the published batch and "
    "step; the bytes of each",
    "resnet50",
    "bytes",
    data.make_records,
    count=8192,
    quick=64,
    batch_size=100,
    step=0.056,
    threshold=0.90,
    readers=8,
    size=data.RECORD,
)
UNET = Work(
    "UNet3D, bytes",
    "npz files of volumes, a quarter of the published 146.6 MB and of the step, 7 in 81 ms for each H100; the "
    "bytes of each",
    "unet3d",
    "bytes",
    data.make_volumes,
    count=112,
    quick=16,
    batch_size=7,
    step=0.08075,
    threshold=0.90,
    readers=4,
    size=data.VOLUME,
)
FLUX = Work(
    "Flux, decoded",
    "Parquet, 541,208 float32 a row (2.2 MB) in five columns, row groups of 16, 35.6 rows a second for each B200, "
    "a third of the published batch and step; tensors of the columns",
    "flux",
    "rows",
    data.make_tables,
    count=512,
    quick=32,
    batch_size=16,
    step=0.45,
    threshold=0.90,
    readers=8,
    size=4 * sum(data.COLUMNS.values()),
    together=data.GROUP,
    decoded=True,
)
_UNEVEN = Work(
    "uneven samples, waiting",
    "a dataset in Python whose samples wait 2 ms, one in fifty 40 ms; in the order of the sampler",
    "uneven",
    "waits",
    data.make_nothing,
    count=6400,
    quick=64,
    batch_size=8,
    step=0.0,
    threshold=0.0,
    readers=8,
    size=8,
)

ALL: list[Work] = [
    RETINANET,
    replace(RETINANET, name="RetinaNet, bytes, from disk", source="disk"),
    replace(
        RETINANET,
        name="RetinaNet, decoded",
        about="the same files; their pixels, 768 x 1,024 x 3",
        form="image",
        decoded=True,
    ),
    RESNET,
    replace(RESNET, name="ResNet-50, bytes, from disk", source="disk"),
    replace(
        RESNET,
        name="ResNet-50, bytes, over HTTP",
        about="the same records in tar shards on a server that answers each request after 10 ms",
        data="resnet50-tar",
        make=data.make_shards,
        count=4096,
        source="http",
    ),
    UNET,
    replace(UNET, name="UNet3D, bytes, from disk", source="disk"),
    replace(
        UNET,
        name="UNet3D, arrays",
        about="the same files; the array in each, by np.load",
        form="array",
        decoded=True,
    ),
    FLUX,
    replace(FLUX, name="Flux, decoded, from disk", source="disk"),
    _UNEVEN,
    replace(
        _UNEVEN,
        name="uneven samples, computing",
        about="the same with samples that compute, 0.5 ms, one in fifty 10 ms, without the GIL",
        form="computes",
    ),
]


def find(name: str) -> Work:
    """The workload of a name."""
    return next(work for work in ALL if work.name == name)
