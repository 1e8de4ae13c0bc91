"""WebDataset: shards in its own layout, a full buffer of shuffling, batches made in the workers.

https://webdataset.github.io/webdataset/: more shards than workers, shardshuffle and shuffle(1000), batched in the
dataset and batch_size=None in WebLoader.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import webdataset as wds
from benchmarks.peers import decode, server
from benchmarks.peers.adapters import loads
from benchmarks.peers.work import CORES, Work


def write_shards(folder: Path, work: Work) -> None:
    files = work.files
    each = max(1, len(files) // 16)
    for first in range(0, len(files), each):
        with wds.TarWriter(str(folder / f"shard-{first // each:06}.tar")) as tar:
            for number in range(first, min(first + each, len(files))):
                jpeg = Path(files[number]).read_bytes()
                tar.write({"__key__": f"{number:06}", "jpg": jpeg, "cls": str(number)})


def decoded(sample: Any, work: Work, how: str) -> Any:
    return decode.one(sample["jpg"], work, how), int(sample["cls"])


def image_loader(work: Work, how: str) -> Any:
    folder = work.converted("wds", lambda folder: write_shards(folder, work))
    urls = sorted(map(str, folder.glob("*.tar")))
    train = work.family == "train"
    dataset = wds.WebDataset(urls, shardshuffle=len(urls) if train else False)
    dataset = dataset.shuffle(1000) if train else dataset
    dataset = dataset.map(partial(decoded, work=work, how=how))
    workers = CORES if train else 0  # workers take shards in turns: only one process keeps the order
    dataset = dataset.batched(work.batch_size, collation_fn=partial(decode.collate, work=work))
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)


for _family in ("train", "validation"):
    for _how in ("pillow", "opencv"):
        loads(_family, "Pillow" if _how == "pillow" else "simplejpeg and OpenCV")(partial(image_loader, how=_how))


def _bytes(sample: Any) -> bytes:
    content: bytes = sample["bin"]
    return content


def _records(urls: list[str], work: Work, workers: int) -> Any:
    dataset = wds.WebDataset(urls, shardshuffle=len(urls), empty_check=False).shuffle(1000)
    dataset = dataset.map(_bytes).batched(work.batch_size, collation_fn=None)
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers)


@loads("tar-stream", "shuffle(1000)")
def tar_stream(work: Work) -> Any:
    return _records(sorted(map(str, work.folder.glob("*.tar"))), work, work.workers or 0)


@loads("remote", "http, 4 workers")
def remote(work: Work) -> Any:
    return _records(server.start(work), work, 4)


@loads("remote", "pipe:curl, 4 workers")
def remote_pipes(work: Work) -> Any:
    return _records([f"pipe:curl -s {url}" for url in server.start(work)], work, 4)
