"""Hugging Face datasets: Arrow tables, set_format/with_transform, torch's loader.

https://huggingface.co/docs/datasets/use_with_pytorch: a map-style dataset whose __getitems__
reads a batch at a time.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from benchmarks.peers import decode
from benchmarks.peers.adapters import loads
from benchmarks.peers.work import CORES, Work
from torch.utils.data import DataLoader

datasets.disable_progress_bars()


def _decoded(rows: Any, work: Work) -> Any:
    images = [decode.one(Path(path).read_bytes(), work) for path in rows["path"]]
    return {"image": images, "number": rows["number"]}


def _collate(rows: Any, work: Work) -> Any:
    return decode.collate([(row["image"], row["number"]) for row in rows], work)


def _images(work: Work, workers: int) -> Any:
    table = datasets.Dataset.from_dict({"path": work.files, "number": list(range(work.count))})
    table = table.with_transform(partial(_decoded, work=work))
    known: Any = {"batch_size": work.batch_size, "shuffle": work.family == "train", "num_workers": workers}
    return DataLoader(table, **known, persistent_workers=workers > 0, collate_fn=partial(_collate, work=work))


for _family in ("train", "validation"):
    loads(_family, f"simplejpeg and OpenCV, {CORES} workers")(partial(_images, workers=CORES))


def _rows(work: Work, workers: int) -> Any:
    paths = sorted(map(str, work.folder.glob("*.parquet")))
    cache = str(work.converted("huggingface", lambda folder: None))
    table = datasets.Dataset.from_parquet(paths, columns=["values"], cache_dir=cache).with_format("torch")
    known: Any = {"batch_size": work.batch_size, "shuffle": True, "num_workers": workers}
    return DataLoader(table, **known, persistent_workers=workers > 0)


loads("parquet", "with_format torch, 0 workers")(partial(_rows, workers=0))
loads("parquet", f"with_format torch, {CORES} workers")(partial(_rows, workers=CORES))


@loads("many", "0 workers")
def many(work: Work) -> Any:
    import numpy as np

    table = datasets.Dataset.from_dict({"number": np.arange(work.count)}).with_format("torch")
    torch.manual_seed(0)
    return DataLoader(table, batch_size=work.batch_size, shuffle=True, collate_fn=_numbers)


def _numbers(rows: Any) -> torch.Tensor:
    return torch.stack([row["number"] for row in rows])
