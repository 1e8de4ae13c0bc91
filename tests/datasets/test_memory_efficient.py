"""MemoryEfficientDataset opens files, folders and arrays of every kind, and keeps what fits."""

from __future__ import annotations

import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def make(folder: Path, kind: str) -> Path:
    path = folder / kind
    if kind == "images":
        for name in ("cat", "dog"):
            (path / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (20, 10), (number * 50, 0, 0)).save(path / name / f"{number}.jpg")
    elif kind == "files":
        path.mkdir()
        for number in range(5):
            (path / f"{number}.bin").write_bytes(bytes([number] * 7))
    elif kind == "lines.txt":
        path.write_text("one\ntwo\nthree\n")
    elif kind == "rows.h5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            file["data"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    elif kind in ("rows.parquet", "tables"):
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table({"x": list(range(5))})
        if kind == "tables":
            path.mkdir()
        parquet.write_table(table, path / "a.parquet" if kind == "tables" else path)
    else:
        fl.pack(make(folder, "files"), path)
    return path


@pytest.mark.parametrize("kind", ["images", "files", "lines.txt", "rows.h5", "rows.parquet", "tables", "shards"])
@pytest.mark.parametrize("mode", list(fl.LoadingMode))
def test_the_memory_efficient_dataset_opens_anything(tmp_path: Path, kind: str, mode: fl.LoadingMode) -> None:
    path = make(tmp_path, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = fl.MemoryEfficientDataset(path, 0.5, mode)
    plain = {
        "images": fl.ImageDataset,
        "files": fl.FileDataset,
        "lines.txt": fl.TextDataset,
        "rows.h5": fl.HDF5Dataset,
        "rows.parquet": fl.ParquetDataset,
        "tables": fl.ParquetDataset,
        "shards": fl.TarDataset,
    }[kind](path)
    assert len(dataset) == len(plain)
    for index in [*range(len(plain)), *range(len(plain)), -1]:
        assert same(dataset[index], plain[index])
    for workers in (0, 2):
        ours = list(fl.DataLoader(dataset, batch_size=2, num_workers=workers, workers="threads"))
        stock = list(TorchDataLoader(plain, batch_size=2))
        assert same(ours, stock)


def test_a_folder_is_what_most_of_its_files_are(tmp_path: Path) -> None:
    path = make(tmp_path, "images")
    (path / "README.txt").write_text("Cats and dogs.")
    (path / "labels.csv").write_text("name,label")
    assert isinstance(fl.MemoryEfficientDataset(path).dataset, fl.ImageDataset)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["images", "files", "lines.txt", "rows.h5", "shards"])
@pytest.mark.parametrize("mode", list(fl.LoadingMode))
def test_a_subclass_of_it_is_asked_for_its_samples(tmp_path: Path, kind: str, mode: fl.LoadingMode) -> None:
    class Reads(fl.MemoryEfficientDataset):
        def read(self, index: int) -> object:
            return index, super().read(index)

    class Gets(fl.MemoryEfficientDataset):
        def __getitem__(self, index: int) -> object:
            return index, super().__getitem__(index)

    path = make(tmp_path, kind)
    for dataset in (Reads(path, 0.5, mode), Gets(path, 0.5, mode)):
        plain = dataset.dataset[1]
        assert same(dataset[1], (1, plain))
        for loader in (fl.DataLoader, TorchDataLoader):
            assert [batch[0][0] for batch in loader(dataset, 2, collate_fn=list)] == list(
                range(0, len(dataset), 2)
            )
        assert [sample[0] for sample in dataset.stream(shuffle=False)] == list(range(len(dataset)))
    if mode is fl.LoadingMode.CACHED:
        tenfold = Reads(path, 0.5, transform=lambda index: 10 * index)
        seen = fl.DataLoader(tenfold, 2, cache="10MiB", collate_fn=list)
        assert [batch[0][0] for _ in range(2) for batch in seen] == 2 * list(range(0, 10 * len(dataset), 20))


def test_mds_shards_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "shard.00000.mds").write_bytes(b"?")
    with pytest.raises((FileNotFoundError, ImportError), match=r"index|mosaicml"):
        fl.MemoryEfficientDataset(tmp_path)


def test_it_keeps_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path, "files")
    monkeypatch.setattr("foreload.datasets.auto.granted_memory", lambda: 1000)
    with pytest.warns(UserWarning, match="max_memory_usage=0.8 of the memory"):
        dataset = fl.MemoryEfficientDataset(path, loading_mode=fl.LoadingMode.EAGER)
    assert [dataset[i][0].item() for i in range(5)] == list(range(5))
    assert dataset._kept is not None
    assert 0 < dataset._kept.native.counts()["used"] <= 800


@pytest.mark.parametrize("share", [0, 1.1, -1, "half"])
def test_wrong_shares(tmp_path: Path, share: object) -> None:
    with pytest.raises((ValueError, TypeError), match="max_memory_usage"):
        fl.MemoryEfficientDataset(make(tmp_path, "files"), share)  # type: ignore[arg-type]


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fl.MemoryEfficientDataset(tmp_path / "nowhere")
    (tmp_path / "x.xyz").write_text("?")
    with pytest.raises(ValueError, match=r"x\.xyz.*of an unknown kind"):
        fl.MemoryEfficientDataset(tmp_path / "x.xyz")


def test_a_tar_file_may_be_named_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_bytes(b"text")
    with tarfile.open(tmp_path / "X.TAR", "w") as tar:
        tar.add(tmp_path / "0.txt", "0.txt")
    assert fl.MemoryEfficientDataset(tmp_path / "X.TAR")[0]["txt"] == b"text"


@pytest.mark.parametrize("path", [None, 5, ["a.jpg"]])
def test_what_is_no_path_is_named(path: Any) -> None:
    with pytest.raises(TypeError, match=f"data_path must be a str or a Path, got {type(path).__name__}"):
        fl.MemoryEfficientDataset(path)


def test_an_hdf5_file_with_other_names_says_what_opens_it(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros(3)
    with pytest.raises(KeyError, match=r"its datasets are: 'images'; to name one of them, use HDF5Dataset\("):
        fl.MemoryEfficientDataset(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "name", ["a.txt", "a.csv", "a.tsv", "a.tab", "a.jsonl", "a.ndjson", "a.jsonlines", "a.JSON"]
)
def test_every_kind_of_text_is_known(name: str, tmp_path: Path) -> None:
    kind = name[2:].lower()
    (tmp_path / name).write_text(
        '{"text": "meow"}\n' if kind.startswith(("j", "nd")) else "meow\n" if kind == "txt" else "text\nmeow\n"
    )
    texts = fl.MemoryEfficientDataset(tmp_path / name)
    assert "".join(map(chr, texts[0][:4].tolist())) == "meow"
