"""Files that were named from one working directory are read from there, wherever the process goes then."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import foreload as fl
from tests.datasets.tar.shards import write_tar

COLOURS = {"here": 200, "there": 50}


def fill(root: Path, name: str) -> None:
    """Write the same files to two folders, of one size, with other contents."""
    colour = COLOURS[name]
    (root / "images" / "cat").mkdir(parents=True)
    Image.new("RGB", (4, 4), (colour, 0, 0)).save(root / "images" / "cat" / "tom.png")
    (root / "texts" / "cat").mkdir(parents=True)
    (root / "texts" / "cat" / "tom.txt").write_text(chr(colour))
    (root / "lines.txt").write_text(f"{chr(colour)}\n")
    (root / "bytes").mkdir()
    (root / "bytes" / "one").write_bytes(bytes([colour]))
    write_tar(root / "one.tar", [("a.bin", bytes([colour]))])
    pq.write_table(pa.table({"n": [colour]}), root / "one.parquet")
    with h5py.File(root / "one.h5", "w") as file:
        file["data"] = np.full((1, 1), colour)


class Own(fl.BaseDataset):
    """Reads a file of its own."""

    def index(self) -> int:
        return 1

    def read(self, index: int) -> int:
        return int(self.data_path.read_bytes()[0])


OPENED: dict[str, Callable[[], Any]] = {
    "images": lambda: fl.ImageDataset("images", transform=np.asarray),
    "a list of images": lambda: fl.ImageDataset([Path("images/cat/tom.png")], transform=np.asarray),
    "texts": lambda: fl.TextDataset("texts", max_length=1),
    "lines": lambda: fl.TextDataset("lines.txt", max_length=1),
    "files": lambda: fl.FileDataset("bytes"),
    "a list of files": lambda: fl.FileDataset(["bytes/one"]),
    "tar": lambda: fl.TarDataset("one.tar"),
    "tar in a folder": lambda: fl.TarDataset("."),
    "parquet": lambda: fl.ParquetDataset("one.parquet"),
    "parquet in a folder": lambda: fl.ParquetDataset(Path(".")),
    "hdf5": lambda: fl.HDF5Dataset("one.h5"),
    "memory efficient": lambda: fl.MemoryEfficientDataset("bytes"),
    "a class of one's own": lambda: Own("bytes/one"),
}


def number_of(sample: Any) -> int:
    """Return the first number of a sample."""
    while not isinstance(sample, int):
        if isinstance(sample, dict):
            sample = sample.get("bin", sample.get("n"))
        elif isinstance(sample, (np.ndarray, torch.Tensor)):
            sample = int(sample.reshape(-1)[0])
        else:
            sample = sample[0]
    return sample


@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize("there", ["nothing", "others"])
def test_samples_are_those_of_the_files_that_were_named(
    kind: str, there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in COLOURS:
        (tmp_path / name).mkdir()
    fill(tmp_path / "here", "here")
    if there == "others":
        fill(tmp_path / "there", "there")
    monkeypatch.chdir(tmp_path / "here")
    dataset = OPENED[kind]()
    monkeypatch.chdir(tmp_path / "there")
    assert number_of(dataset[0]) == COLOURS["here"]
    assert number_of(pickle.loads(pickle.dumps(dataset))[0]) == COLOURS["here"]


def test_a_tar_that_is_read_in_order_is_the_one_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in COLOURS:
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "one.tar", [("a.bin", bytes([COLOURS[name]]))])
    monkeypatch.chdir(tmp_path / "here")
    streams = [fl.TarStream("one.tar", shuffle=False), fl.TarStream(".", shuffle=False)]
    monkeypatch.chdir(tmp_path / "there")
    assert [next(iter(stream))["bin"] for stream in streams] == [bytes([COLOURS["here"]])] * 2


def test_dots_after_a_link_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "far" / "one").write_bytes(b"far")
    (tmp_path / "one").write_bytes(b"near")
    (tmp_path / "link").symlink_to("far/away")
    monkeypatch.chdir(tmp_path)
    assert bytes(fl.FileDataset(["link/../one"])[0].tolist()) == b"far"


def test_what_is_no_path_is_left_as_it_is() -> None:
    class Squares(fl.BaseDataset):
        def _load_data(self) -> None:
            self.data = [i * i for i in range(3)]

    assert Squares("squares").data_path == Path("squares")
