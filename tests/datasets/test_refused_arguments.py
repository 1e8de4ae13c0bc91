"""Arguments that would be taken for something else, or for nothing, are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import foreload as fl


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{name}.png" for name in "ab"]
    for path in paths:
        Image.new("RGB", (4, 4)).save(path)
    return [str(path) for path in paths]


@pytest.mark.parametrize("dataset", [fl.ImageDataset, fl.FileDataset])
def test_a_set_of_files_has_no_order_for_labels(dataset: Any, files: list[str]) -> None:
    with pytest.raises(TypeError, match=r"data_path is a set.*sorted\(data_path\)"):
        dataset(set(files), labels=[0, 1])


@pytest.mark.parametrize("dataset", [fl.ImageDataset, fl.FileDataset, fl.MemoryEfficientDataset, fl.TextDataset])
def test_an_empty_path_is_not_the_present_folder(
    dataset: Any, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(files[0]).parent)
    with pytest.raises(FileNotFoundError, match=r"data_path: there is no.* ''"):
        dataset("")


def test_switches_are_true_or_false(files: list[str]) -> None:
    with pytest.raises(TypeError, match="direct_io must be True or False, got 1"):
        fl.ImageDataset(files, direct_io=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"), [("text_field", "body"), ("label_field", "class"), ("label_field", 1)], ids=str
)
@pytest.mark.parametrize("is_folder", [False, True])
def test_texts_without_fields_have_no_labels_to_name(
    name: str, value: Any, is_folder: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("meow\n")
    with pytest.raises(ValueError, match=rf"{name}={value!r}: the texts of .* have no fields; \.csv"):
        fl.TextDataset(tmp_path if is_folder else path, **{name: value})
    assert len(fl.TextDataset(path, label_field=None)) == 1


def test_a_column_may_be_an_int_of_numpy(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("meow,1\npurr,0\n")
    texts = fl.TextDataset(tmp_path / "a.csv", text_field=np.int64(0), label_field=np.int64(-1))  # type: ignore[arg-type]
    assert texts.targets == [1, 0]


@pytest.mark.parametrize("text", ['[{"text": "a"}]', '[\n {"text": "a"}\n]'])
def test_an_array_in_a_json_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json:1 .*each line must be one object"):
        fl.TextDataset(tmp_path / "a.json")


def test_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("café\n".encode("latin-1"))
    with pytest.raises(UnicodeDecodeError, match=r"a\.txt:1; texts must be in UTF-8"):
        _ = fl.TextDataset(tmp_path / "a.txt")[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("x.npy", r"data must be a tensor, .* got str"),
        (b"x.npy", r"data must be a tensor, .* got bytes"),
        ([(1, "tom"), (2, "kitty")], r"data\[1\] must be a tensor or an ndarray"),
        ([{"name": "tom"}, {"name": "kitty"}], r"data\['name'\] must be a tensor or an ndarray"),
    ],
    ids=str,
)
def test_texts_are_no_tensors(data: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        fl.CachedDataset(data)


def test_a_share_may_be_a_number_of_numpy() -> None:
    assert fl.DataLoaderConfig(max_memory_usage=np.float32(0.5)).max_memory_usage == 0.5  # type: ignore[arg-type]
    assert fl.MemoryMonitor(np.float64(0.5)) is not None


@pytest.mark.parametrize("make", [fl.OPTCache, lambda size: fl.cached(maxsize=size, policy="opt")])
def test_the_optimal_cache_is_for_datasets(make: Callable[[int], Any]) -> None:
    @make(5)
    def load(index: int) -> int:
        return index

    with pytest.raises(TypeError, match=r"OPTCache is for a dataset's __getitem__\(self, index\), not for load"):
        load(1)
