"""Batches of MDS samples, decoded as a whole, are those of the samples of MosaicML's library."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from tests.datasets.compared import HOW, same

pytestmark = pytest.mark.slow  # the library is one of the frameworks


def mds_values(encoding: str, i: int) -> Any:
    kind, *about = encoding.split(":")
    if kind == "ndarray":
        shape = tuple(map(int, about[1].split(","))) if len(about) > 1 else (1 + i % 3, 2)
        return (np.arange(np.prod(shape)).reshape(shape) + i).astype(about[0] if about else "float32")
    values = {"int": -(i << 40), "str": "\N{SNOWMAN}" * i, "bytes": bytes(i % 5), "json": [i], "str_int": 1 << i}
    return values[kind] if kind in values else getattr(np, kind)(i % 100)


NUMBERS = ["int", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
LAYOUTS = {
    **{name: [name] for name in [*NUMBERS, "uint16", "uint32", "uint64", "str", "bytes", "json", "str_int"]},
    **{f"array of {name}": [f"ndarray:{name}:2,3"] for name in [*NUMBERS[1:], "uint16", "uint64"]},
    "arrays that say their dtype": ["ndarray"],
    "arrays that say their shape": ["ndarray:int16"],
    "numbers": ["int", "ndarray:uint8:3", "float64", "ndarray:float32:1"],
    "anything": ["str", "int", "ndarray:int32:2", "bytes", "ndarray:int64", "json", "float16"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mds_batches_are_those_of_the_librarys_samples(mosaic: Any, tmp_path: Path, layout: str) -> None:
    encodings = LAYOUTS[layout]
    names = [f"{position}" for position in range(len(encodings))]
    with mosaic.MDSWriter(
        out=str(tmp_path), columns=dict(zip(names, encodings, strict=True)), size_limit=1 << 10
    ) as writer:
        for i in range(60):
            writer.write({name: mds_values(encoding, i) for name, encoding in zip(names, encodings, strict=True)})
    theirs, ours = mosaic.LocalDataset(str(tmp_path)), fl.MDSDataset(tmp_path)
    chosen = [59, 0, -1, 7, 7, *range(20, 40)]
    assert same(ours.__getitems__(chosen), [theirs[i % 60] for i in chosen])  # type: ignore[misc]
    for name, value in ours.__getitems__([3])[0].items():  # type: ignore[misc]
        assert not isinstance(value, np.ndarray) or value.flags.writeable == theirs[3][name].flags.writeable
    is_whole = all(re.fullmatch(rf"({'|'.join(NUMBERS)})|ndarray:({'|'.join(NUMBERS)}):.*", e) for e in encodings)
    assert (ours._collated([0, 1]) is not None) == is_whole
    collate = None if is_whole else collated_or_listed
    torch.manual_seed(1)
    wanted = list(TorchDataLoader(theirs, 7, shuffle=True, collate_fn=collate))
    for how in ("none", "threads", "auto"):
        torch.manual_seed(1)
        assert same(list(fl.DataLoader(ours, 7, shuffle=True, collate_fn=collate, **HOW[how])), wanted)


def collated_or_listed(samples: list[Any]) -> Any:
    try:
        return torch.utils.data.default_collate(samples)
    except Exception:  # columns of different lengths, or that torch has no tensors of
        return samples


def test_a_sample_of_an_mds_batch_that_cannot_be_loaded_is_named(mosaic: Any, tmp_path: Path) -> None:
    columns = {"x": "int", "array": "ndarray:float32:3"}
    with mosaic.MDSWriter(out=str(tmp_path), columns=columns, size_limit=300) as writer:
        for i in range(60):
            writer.write({"x": i, "array": np.zeros(3, np.float32)})
    dataset = fl.MDSDataset(tmp_path)
    first = int(dataset._starts[2])
    list(fl.DataLoader(dataset, 7))  # all shards are open
    os.utime(tmp_path / "shard.00002.mds", ns=(0, 0))
    with pytest.raises(fl.errors.DecodeError, match=r"shard\.00002\.mds: the file has changed") as caught:
        list(fl.DataLoader(dataset, 60, num_workers=0))
    assert any(f"while loading sample {first} " in note for note in caught.value.__notes__)
    left = [i for batch in fl.DataLoader(dataset, 60, on_error="skip", num_workers=0) for i in batch["x"].tolist()]
    assert left == [i for i in range(60) if not dataset._starts[2] <= i < dataset._starts[3]]
