"""An argument that changes nothing is refused, or a warning says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import LoadingMode
from tests.datasets.tar.shards import write_tar


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for kind in ("cat", "dog"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / kind / "a.png")
    return tmp_path / "images"


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    return write_tar(tmp_path / "a.tar", [("a.png", (tmp_path / "a.png").read_bytes()), ("a.cls", b"0")])


@pytest.mark.parametrize("option", ["storage", "index_folder"])
@pytest.mark.parametrize("kind", ["folder", "list", "images in a shard", "shard", "stream"])
def test_options_of_urls_are_for_urls(kind: str, option: str, images: Path, shard: Path) -> None:
    make: Any = {
        "folder": lambda **options: fl.ImageDataset(images, **options),
        "list": lambda **options: fl.ImageDataset([images / "cat" / "a.png"], **options),
        "images in a shard": lambda **options: fl.ImageDataset(shard, **options),
        "shard": lambda **options: fl.TarDataset(shard, **options),
        "stream": lambda **options: fl.TarStream(shard, **options),
    }[kind]
    make()  # without a warning
    if kind == "stream" and option == "index_folder":
        return
    value: Any = {"storage": {"endpoint": "http://host"}, "index_folder": shard.parent / "kept"}[option]
    with pytest.warns(UserWarning, match=f"^{option}= has no effect here: .* named by URLs") as said:
        make(**{option: value})
    assert [warning.filename for warning in said] == [__file__]


def test_the_size_of_images_is_checked_where_a_transform_decides_it_too(images: Path) -> None:
    for transform in (None, fl.transforms.val(8)):
        with pytest.raises(ValueError, match="image_size must be from 1 to"):
            fl.ImageDataset(images, 0, transform)


class OwnBytes(fl.ImageDataset):
    def read_encoded(self, index: int) -> bytes:
        return super().read_encoded(index)


class OwnPixels(fl.ImageDataset):
    def prepare_sample(self, index: int, keep: Any = "auto") -> Any:
        return super().prepare_sample(index, keep)


class OwnResult(fl.ImageDataset):
    def finish_sample(self, index: int, prepared: Any) -> Any:
        return super().finish_sample(index, prepared)


@pytest.mark.parametrize("kind", [OwnBytes, OwnPixels, OwnResult])
@pytest.mark.parametrize("mode", list(LoadingMode))
def test_a_loading_mode_that_a_subclass_passes_over_is_named(mode: LoadingMode, kind: Any, images: Path) -> None:
    if mode in (LoadingMode.LAZY, LoadingMode.STREAMING):
        dataset = kind(images, 8, loading_mode=mode)
    else:
        with pytest.warns(UserWarning, match=rf"loading_mode={mode} keeps no images: {kind.__name__} loads its"):
            dataset = kind(images, 8, loading_mode=mode)
    assert dataset._cache is None  # memory that nothing would be read from
    for loader in (TorchDataLoader, fl.DataLoader):
        assert [int(target) for _, target in loader(dataset)] == [0, 1]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_texts_without_labels_have_no_use_for_what_changes_labels(name: str, tmp_path: Path) -> None:
    text = {"a.txt": "meow\n", "a.csv": "text\nmeow\n", "a.jsonl": '{"text": "meow"}\n'}[name]
    (tmp_path / name).write_text(text)
    for mode in (LoadingMode.LAZY, LoadingMode.EAGER):
        with pytest.raises(
            ValueError, match=r"target_transform is called with labels, but the texts of .* have none"
        ):
            fl.TextDataset(tmp_path / name, target_transform=str, loading_mode=mode)
    (tmp_path / "b.csv").write_text("text,label\nmeow,1\n")
    assert fl.TextDataset(tmp_path / "b.csv", target_transform=str)[0][1] == "1"
