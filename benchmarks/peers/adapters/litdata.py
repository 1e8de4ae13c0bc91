"""LitData: data optimised into its chunks, StreamingDataset in StreamingDataLoader.

https://github.com/Lightning-AI/litData: chunk_bytes="64MB", transforms in a subclass's __getitem__,
TokensLoader for tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import loads
from benchmarks.peers.work import CORES, Work
from benchmarks.peers.workloads.files import sample
from benchmarks.peers.workloads.text import BLOCK
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
from litdata.streaming.writer import BinaryWriter


def optimized(work: Work, samples: Callable[[], Iterator[Any]], **options: Any) -> str:
    """Chunks as ``optimize`` writes them, by one writer."""

    def write(folder: Path) -> None:
        writer = BinaryWriter(str(folder), **(options or {"chunk_bytes": 64 << 20}))
        for number, one in enumerate(samples()):
            writer.add_item(number, one)
        writer.done()
        writer.merge(1)

    return str(work.converted("litdata", write))


class Images(StreamingDataset):  # type: ignore[misc]
    """JPEGs, decoded in the workers."""

    def __init__(self, work: Work, how: str) -> None:
        files = work.files
        pairs = lambda: ((Path(path).read_bytes(), number) for number, path in enumerate(files))  # noqa: E731
        train = work.family == "train"
        super().__init__(optimized(work, pairs), shuffle=train, drop_last=False, max_cache_size="20GB")
        self.work, self.how = work, how

    def __getitem__(self, index: Any) -> Any:
        data, number = super().__getitem__(index)
        return decode.one(data, self.work, self.how), number


def _images(work: Work, how: str) -> Any:
    workers = CORES if work.family == "train" else 0
    collate = partial(decode.collate, work=work)
    return StreamingDataLoader(
        Images(work, how), batch_size=work.batch_size, num_workers=workers, collate_fn=collate
    )


for _family in ("train", "validation"):
    loads(_family, "Pillow")(partial(_images, how="pillow"))
    loads(_family, "simplejpeg and OpenCV")(partial(_images, how="opencv"))


def _bytes(samples: Any) -> list[bytes]:
    return [bytes(one) for one in samples]


def _records(work: Work) -> Any:
    folder = optimized(work, lambda: (sample(number) for number in range(work.count)))
    dataset = StreamingDataset(folder, shuffle=True, drop_last=False)
    return StreamingDataLoader(
        dataset, batch_size=work.batch_size, num_workers=work.workers or 0, collate_fn=_bytes
    )


loads("tar-random", "its own chunks, shuffled")(_records)
loads("tar-stream", "its own chunks, shuffled")(_records)


@loads("tokens", "TokensLoader")
def tokens(work: Work) -> Any:
    values = np.fromfile(work.folder / "tokens.bin", np.int32)
    parts = lambda: iter(torch.from_numpy(part) for part in np.split(values, max(1, work.count // 50)))  # noqa: E731
    loader = TokensLoader(block_size=BLOCK)
    folder = optimized(work, parts, chunk_size=BLOCK * 4096, item_loader=loader)
    dataset = StreamingDataset(folder, item_loader=TokensLoader(block_size=BLOCK), shuffle=True, drop_last=False)
    return StreamingDataLoader(dataset, batch_size=work.batch_size, num_workers=CORES)
