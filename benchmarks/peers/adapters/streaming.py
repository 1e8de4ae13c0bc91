"""MosaicML Streaming: MDS shards on the local disk, StreamingDataset in torch's loader.

https://docs.mosaicml.com/projects/streaming: batch_size given to the dataset too,
num_canonical_nodes=1, its own shuffle.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import benchmarks.peers.torchvision_stub  # noqa: F401
import numpy as np
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import loads
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.text import BLOCK
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset


def _dataset(kind: type[StreamingDataset], folder: Path, work: Work, **options: Any) -> Any:
    known = {"local": str(folder), "batch_size": work.batch_size, "shuffle": True, "num_canonical_nodes": 1}
    return kind(**{**known, **options})


class Images(StreamingDataset):  # type: ignore[misc]
    """JPEGs, decoded in the workers."""

    work: Work
    how: str

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return decode.one(sample["image"], self.work, self.how), int(sample["number"])


def _write_images(folder: Path, work: Work) -> None:
    with MDSWriter(out=str(folder), columns={"image": "bytes", "number": "int"}) as out:
        for number, path in enumerate(work.files):
            out.write({"image": Path(path).read_bytes(), "number": number})


def _images(work: Work, how: str) -> Any:
    folder = work.converted("mds", lambda folder: _write_images(folder, work))
    dataset = _dataset(Images, folder, work, shuffle=work.family == "train")
    dataset.work, dataset.how = work, how
    collate = partial(decode.collate, work=work)
    return StreamingDataLoader(dataset, batch_size=work.batch_size, num_workers=CORES, collate_fn=collate)


for _family in ("train", "validation"):
    loads(_family, "Pillow")(partial(_images, how="pillow"))
    loads(_family, "simplejpeg and OpenCV")(partial(_images, how="opencv"))


def _rows(work: Work, workers: int) -> Any:
    return StreamingDataLoader(
        _dataset(StreamingDataset, work.folder, work), batch_size=work.batch_size, num_workers=workers
    )


loads("mds", "StreamingDataset, 0 workers")(partial(_rows, workers=0))
loads("mds", f"StreamingDataset, {CORES} workers")(partial(_rows, workers=CORES))


class Tokens(StreamingDataset):  # type: ignore[misc]
    """Blocks, as the documentation's language models read them."""

    def __getitem__(self, index: Any) -> Any:
        return torch.from_numpy(super().__getitem__(index)["tokens"].copy())


def _write_tokens(folder: Path, work: Work) -> None:
    values = np.fromfile(work.folder / "tokens.bin", np.int32).reshape(-1, BLOCK)
    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:int32:{BLOCK}"}) as out:
        for block in values:
            out.write({"tokens": block})


@loads("tokens", "StreamingDataset")
def tokens(work: Work) -> Any:
    folder = work.converted("mds", lambda folder: _write_tokens(folder, work))
    return StreamingDataLoader(_dataset(Tokens, folder, work), batch_size=work.batch_size, num_workers=CORES)
