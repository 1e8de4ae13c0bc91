"""The files of a folder that are samples, their order, and the names of their classes."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreload as fl
from foreload.datasets.tar.pack import pack
from tests.conftest import jpeg, photo

SOUND = jpeg(photo(20, 20))
# torchvision.datasets.folder.IMG_EXTENSIONS
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def image_folder(root: Path) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return what torchvision's find_classes and make_dataset return."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    class_to_idx = {name: number for number, name in enumerate(classes)}
    samples = []
    for name in sorted(class_to_idx):
        for folder, _, names in sorted(os.walk(os.path.join(root, name), followlinks=True)):
            files = [file for file in sorted(names) if file.lower().endswith(EXTENSIONS)]
            samples += [(os.path.join(folder, file), class_to_idx[name]) for file in files]
    return samples, class_to_idx


def fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(SOUND)


NESTED = [
    *("b/2.JPG", "b/1.png", "b/10.jpg", "a/deep/er/x.jpeg", "a/deep/z.jpg", "a/deep-2/y.jpg", "a/z.jpg"),
    *("a/A.jpg", "a/deep.jpg", "B/é.webp", "B/z.TIFF", "B/a b.bmp", "B/notes.txt", "top.jpg"),
]


def test_class_folders_are_listed_as_in_torchvision(tmp_path: Path) -> None:
    fill(tmp_path / "data", *NESTED)
    fill(tmp_path / "elsewhere", "0.jpg", "more/1.jpg")
    (tmp_path / "data" / "a" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "c").symlink_to(tmp_path / "elsewhere")
    samples, class_to_idx = image_folder(tmp_path / "data")
    assert [os.path.basename(path) for path, _ in samples[3:7]] == ["A.jpg", "deep.jpg", "z.jpg", "z.jpg"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = fl.ImageDataset(str(tmp_path / "data"))
    assert (images.samples, images.class_to_idx) == (samples, class_to_idx)
    assert images.classes == list(class_to_idx) == ["B", "a", "b", "c"]


def test_gifs_take_no_number_among_class_folders(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg", "a/0.gif", "b/1.jpg", "b/2.GIF")
    with pytest.warns(
        UserWarning, match=r"2 GIFs .*0\.gif.* not listed, as in torchvision's ImageFolder.*labels="
    ):
        images = fl.ImageDataset(tmp_path)
    assert images.samples == image_folder(tmp_path)[0]
    assert len(fl.ImageDataset(tmp_path / "a")) == 2  # a flat folder
    (tmp_path / "a" / "1.jpg").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"no image in class folder\(s\) 'a'.*for GIFs, give a list of files"
    ):
        fl.ImageDataset(tmp_path)


HIDDEN = [".ipynb_checkpoints/x.jpg", "a/.ipynb_checkpoints/1.jpg", "a/.1.jpg", "b/deep/.2/3.jpg"]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_hidden_images_are_no_samples_and_a_warning_says_so(tmp_path: Path, hidden: str) -> None:
    fill(tmp_path, "a/1.jpg", "b/deep/2.jpg")
    expected = image_folder(tmp_path)
    fill(tmp_path, hidden)
    with pytest.warns(UserWarning, match=r"not listed, such as .*/\..*, but torchvision's ImageFolder lists them"):
        images = fl.ImageDataset(tmp_path)
    assert (images.samples, images.class_to_idx) == expected != image_folder(tmp_path)


def test_notes_of_programs_are_passed_over_quietly(tmp_path: Path) -> None:
    fill(tmp_path, "a/1.jpg", "a/._1.jpg", "a/.DS_Store", ".git/config", ".cache/._2.jpg", "._a/x", ".3.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fl.ImageDataset(tmp_path).samples == [(str(tmp_path / "a" / "1.jpg"), 0)]
        assert fl.ImageDataset(tmp_path / "a").targets == [-1]


@pytest.mark.parametrize("name", [".x/a", "x/.a", "x/.deep/a", "x/deep/.b/c/a", "x/._a"])
def test_hidden_files_are_samples_of_no_dataset(tmp_path: Path, name: str) -> None:
    for folder, kind, ending in (("files", fl.FileDataset, ".bin"), ("text", fl.TextDataset, ".txt")):
        root = tmp_path / folder
        fill(root, f"x/deep/1{ending}", f"x/2{ending}", f"y/3{ending}", f"{name}{ending}")
        (root / "x" / f"2{ending}").write_text("two")
        dataset: Any = kind(root)
        assert (dataset.classes, dataset.targets) == (["x", "y"], [0, 0, 1])
        assert bytes(dataset[0][0][:3].tolist()) == b"two"  # sorted by folder, then by name


def test_a_hidden_folder_itself_may_be_given(tmp_path: Path) -> None:
    fill(tmp_path / ".cache", "a/1.jpg")
    assert fl.ImageDataset(tmp_path / ".cache").classes == ["a"]


def test_parquet_in_linked_folders_is_found(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    places = ["data/b/1.PARQUET", "elsewhere/2.parquet", "elsewhere/deep/3.parquet", "data/0.parquet", "4.parquet"]
    for value, name in enumerate([*places, "elsewhere/_old/5.parquet", "elsewhere/.old/5.parquet"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [value]}), tmp_path / name)
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "b" / "up").symlink_to("..")
    (tmp_path / "data" / "c.parquet").symlink_to(tmp_path / "4.parquet")
    rows = fl.ParquetDataset(tmp_path / "data")
    assert [row["x"] for row in rows] == [3, 0, 4, 1, 2]
    (tmp_path / "4.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"c\.parquet"):
        fl.ParquetDataset(tmp_path / "data")


LABELS: list[Any] = [
    [1, 2, 2],
    [0, 1, 2],
    [0, 5, 0],
    [-1, 3, 1],
    [-1, -1, -1],
    [True, True, True],
    ["b", "a", "b"],
]


@pytest.mark.parametrize("labels", [*LABELS, ["10", "9", "9"], ["1", "01", "1\0"], [7, 1 << 40, 0]])
def test_names_of_classes_and_targets_agree(tmp_path: Path, labels: list[Any]) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(3)]
    for path in paths:
        path.write_bytes(SOUND)
    pack(paths, tmp_path / "shards", labels=labels)
    (tmp_path / "shards" / "pack.json").rename(tmp_path / "pack.json")
    unnamed = fl.ImageDataset(tmp_path / "shards")
    (tmp_path / "pack.json").rename(tmp_path / "shards" / "pack.json")
    given: list[Any] = [labels, tuple(labels)] + [np.array(labels)] * (labels != ["1", "01", "1\0"])
    datasets: list[Any] = [kind(paths, labels=own) for own in given for kind in (fl.ImageDataset, fl.FileDataset)]
    for dataset in [*datasets, fl.ImageDataset(tmp_path / "shards"), unnamed]:
        assert all(dataset.classes[target] == name for name, target in dataset.class_to_idx.items())
        assert list(dataset.class_to_idx) == dataset.classes
        if max(dataset.targets) == 1 << 40:  # an identifier, not a class
            assert dataset.classes == []
            continue
        if isinstance(labels[0], str) and dataset is not unnamed:
            assert [dataset.classes[target] for target in dataset.targets] == labels
        else:
            expected = dataset.targets if isinstance(labels[0], str) else [int(label) for label in labels]
            names = [dataset.classes[target] for target in dataset.targets if target >= 0]
            assert dataset.targets == expected
            assert names == [str(target) for target in expected if target >= 0]
    assert json.loads((tmp_path / "shards" / "pack.json").read_bytes())["classes"] == datasets[0].classes


@pytest.mark.parametrize("kind", [fl.ImageDataset, fl.FileDataset])
def test_labels_may_be_a_column_of_a_table(tmp_path: Path, kind: type[fl.ImageDataset | fl.FileDataset]) -> None:
    """pandas holds texts, categories and ints with missing values in arrays of objects, or gives NumPy such."""
    pandas = pytest.importorskip("pandas")
    fill(tmp_path, "a.jpg", "b.jpg", "c.jpg")
    table = pandas.DataFrame(
        {
            "file": [str(tmp_path / f"{name}.jpg") for name in "cab"],
            "text": pandas.Series(["dog", "cat", "dog"], dtype=object),
            "str": ["dog", "cat", "dog"],
            "category": pandas.Categorical(["dog", "cat", "dog"]),
            "number": pandas.Series([1, 0, 1], dtype=object),
            "missing": ["dog", None, "dog"],
        }
    )
    for column in ("text", "str", "category", "number"):
        for labels in (table[column], table[column].values, table[column].to_numpy()):
            dataset = kind(table["file"], labels=labels)
            assert dataset.classes == (["0", "1"] if column == "number" else ["cat", "dog"])
            assert [dataset[i][1] for i in range(3)] == [1, 0, 1]
        kept = table[1:]  # its rows are numbered 1 and 2
        assert kind(kept["file"], labels=kept[column]).targets == [0, 1]
    with pytest.raises(TypeError, match="labels must be all int or all str, got 'dog' and"):
        kind(table["file"], labels=table["missing"])


def test_files_beside_class_folders_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "source" / "cat").mkdir(parents=True)
    for name in ("cat/a.bin", "README", ".hidden"):
        (tmp_path / "source" / name).write_bytes(b"1")
    with pytest.warns(UserWarning, match=r"1 file beside the class folders, such as .*README', not packed"):
        assert fl.pack(tmp_path / "source", tmp_path / "left").samples == 1
    (tmp_path / "source" / "README").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fl.pack(tmp_path / "source", tmp_path / "whole").samples == 1
