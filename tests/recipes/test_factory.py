"""DataLoaderFactory and create_dataloader: the dataset of a path, its cache, and both loaders of a training."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

import foreload as fl
from foreload import DataLoaderConfig, DataLoaderFactory, HighPerformanceDataset
from tests.recipes.test_recipes import listed


class FakeText(torch.utils.data.Dataset[Any]):
    def __init__(self, data_path: Any, tokenizer: Any = None, max_length: int = 512, **options: Any) -> None:
        self.texts = Path(data_path).read_text().split()
        self.max_length, self.options, self.padding = max_length, options, options.get("padding", True)
        self.collate = types.SimpleNamespace(pad=0)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([ord(letter) for letter in self.texts[index]][: self.max_length]), index


class FakeHDF5(TensorDataset):
    def __init__(self, data_path: Any, dataset_name: str = "data", **options: Any) -> None:
        super().__init__(torch.arange(6.0))
        self.arguments = (data_path, dataset_name, options)


def test_the_factory_makes_the_dataset_of_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, fake in (("TextDataset", FakeText), ("HDF5Dataset", FakeHDF5)):
        module = types.ModuleType("fake")
        setattr(module, name, fake)
        monkeypatch.setitem(sys.modules, f"foreload.datasets.{name.removesuffix('Dataset').lower()}", module)
    config = DataLoaderConfig(batch_size=2, num_workers=0, shuffle=False)
    (tmp_path / "words.txt").write_text("abc de f")
    loader = DataLoaderFactory.create_text_dataloader(tmp_path / "words.txt", config, 2, padding=False)
    assert (loader.dataset.max_length, loader.dataset.options) == (2, {"padding": False})  # type: ignore[attr-defined]
    first, second = loader
    assert first["input_ids"].tolist() == [[97, 98], [100, 101]]
    assert second["labels"].tolist() == [2]
    assert config.collate_fn is None
    hdf5 = DataLoaderFactory.create_hdf5_dataloader("x.h5", config, "rows", transform=abs)
    assert hdf5.dataset.arguments == ("x.h5", "rows", {"transform": abs})  # type: ignore[attr-defined]
    assert sum(len(batch) for (batch,) in DataLoaderFactory.create_hdf5_dataloader("x.h5", config)) == 6
    assert listed(DataLoaderFactory.create_dataloader([1, 2], config)) == [[1, 2]]
    assert DataLoaderFactory.create_dataloader([1, 2]).config == DataLoaderConfig()


def test_texts_are_padded_with_the_tokenizers_padding(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<pad>": 7}, unk_token="b"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_padding(pad_id=7, pad_token="<pad>")
    (tmp_path / "a.csv").write_text("text,label\na b a,1\na,2\n")
    config = DataLoaderConfig(batch_size=2, num_workers=0, shuffle=False)
    (batch,) = DataLoaderFactory.create_text_dataloader(
        tmp_path / "a.csv", config, tokenizer=tokenizer, padding=False
    )
    assert batch["input_ids"].tolist() == [[0, 1, 0], [0, 7, 7]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [1, 2]


def labelled(photos: Path) -> tuple[list[Path], list[int]]:
    paths = sorted(photos.rglob("*.jpg"))
    return paths, [int(path.parent.name[-1]) for path in paths]


def to_array(image: Image.Image) -> np.ndarray:
    """A transform that is Python."""
    return np.asarray(image.resize((16, 16)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("transform", [fl.transforms.val(24), to_array])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (TorchDataLoader, {"num_workers": 0}),
        (TorchDataLoader, {"num_workers": 2}),
        (TorchDataLoader, {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True}),
        (fl.DataLoader, {"num_workers": 2, "workers": "threads"}),
        (fl.DataLoader, {"num_workers": 2, "workers": "processes"}),
    ],
)
def test_the_cache_is_one_for_all_workers(photos: Path, kind: Any, options: Any, transform: Any) -> None:
    paths, labels = labelled(photos)
    plain = fl.ImageDataset(paths, transform=transform, labels=labels)
    expected = list(TorchDataLoader(plain, batch_size=8))
    for arguments in ({}, {"preload": True}, {"cache_size": 0}):
        dataset = HighPerformanceDataset(paths, labels, transform, **arguments)
        loader = kind(dataset, batch_size=8, **options)
        for _ in range(2):
            for ours, theirs in zip(loader, expected, strict=True):
                assert torch.equal(ours[0], theirs[0])
                assert torch.equal(ours[1], theirs[1])
        stats = dataset.cache_stats()
        if arguments:
            size = 40 if "preload" in arguments else 0
            assert (stats["hits"], stats["misses"], stats["size"], stats["capacity"]) == (0, 0, size, size)
        else:
            assert (stats["hits"], stats["misses"], stats["hit_rate"], stats["size"]) == (40, 40, 0.5, 40)


@pytest.mark.parametrize("transform", [fl.transforms.val(24), to_array])
def test_the_files_that_were_used_last_are_kept(photos: Path, transform: Any) -> None:
    paths, labels = labelled(photos)
    dataset = HighPerformanceDataset(paths, labels, transform, cache_size=5)
    reference: fl.LRUCache[int, bool] = fl.LRUCache(5)
    for index in np.random.default_rng(0).integers(0, 12, 200).tolist():
        dataset[index]
        if reference.get(index) is None:
            reference.put(index, True)
    theirs = reference.stats()
    ours = dataset.cache_stats()
    assert {name: ours[name] for name in ("hits", "misses", "size", "capacity")} == {
        name: theirs[name] for name in ("hits", "misses", "size", "capacity")
    }


def test_a_file_that_is_kept_may_be_gone_and_a_transform_may_be_exchanged(photos: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(labelled(photos)[0][0].read_bytes())
    for preload in (False, True):
        dataset = HighPerformanceDataset([str(path)], [3], preload=preload)
        image, label = dataset[0]
        assert image.shape == (3, 224, 224)
        dataset.transform = to_array
        dataset[0]
        original = path.read_bytes()
        path.unlink()
        assert dataset[0][0].shape == (16, 16, 3)
        dataset.transform = fl.transforms.val(8)
        assert dataset[0][0].shape == (3, 8, 8)
        path.write_bytes(original)
        assert int(label) == 3
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(fl.errors.DecodeError, match=r"bad\.jpg"):
        HighPerformanceDataset([tmp_path / "bad.jpg"], [0])[0]
    with pytest.raises(ValueError, match="labels has 1 entry for 2 files"):
        HighPerformanceDataset([path, path], [1])
    with pytest.raises(FileNotFoundError, match="data_paths: there is no folder 'nowhere'"):
        fl.create_dataloader("nowhere")
    with pytest.raises(ValueError, match="cache_size must be 0 or more, got -1"):
        HighPerformanceDataset([path], [1], cache_size=-1)
    with pytest.raises(TypeError, match=r"cache_size must be an int, got 1\.5"):
        HighPerformanceDataset([path], [1], cache_size=1.5)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("workers", [0, 2])
def test_create_dataloader_trains_and_validates(photos: Path, workers: int) -> None:
    paths, labels = labelled(photos)
    validation = fl.create_dataloader(paths, labels, 16, workers, 32, augment=False, preload=True)
    reference = fl.ImageDataset(paths, transform=fl.transforms.val(32), labels=labels)
    for ours, theirs in zip(validation, TorchDataLoader(reference, batch_size=16), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    training = fl.create_dataloader([str(path) for path in paths], labels, num_workers=workers, img_size=(16, 24))
    epochs = [list(training) for _ in range(2)]
    assert [images.shape for images, _ in epochs[0]] == [(32, 3, 16, 24), (8, 3, 16, 24)]
    orders = [torch.cat([found for _, found in epoch]).tolist() for epoch in epochs]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(labels)
    assert training.dataset.cache_stats()["hits"] == 40  # type: ignore[union-attr]
    moved = fl.create_dataloader(paths, labels, num_workers=workers, img_size=16, prefetch_device="meta")
    assert isinstance(moved, fl.PrefetchLoader)
    assert len(moved) == 2
    assert {images.device.type for images, _ in moved} == {"meta"}
    for loader in (validation, training, moved):
        loader.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.create_dataloader(photos, num_workers=0)  # a folder of classes


@pytest.mark.parametrize("name", ["preload", "augment", "pin_memory"])
def test_switches_are_true_or_false(tmp_path: Path, name: str) -> None:
    # (As they come from a command line: the text "False" is true in Python.)
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path)
    switches: dict[str, Any] = {name: "False"}
    with pytest.raises(TypeError, match=f"{name} must be True or False, got 'False'"):
        fl.create_dataloader([path], [0], num_workers=0, **switches)


@pytest.mark.parametrize("size", [0, (4, 99999), (1, 2, 3), "224", 2.5])
def test_a_wrong_size_of_images_is_named_as_it_was_given(tmp_path: Path, size: Any) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path)
    for augment in (True, False):
        with pytest.raises((ValueError, TypeError), match=r"^img_size must be "):
            fl.create_dataloader([path], [0], num_workers=0, img_size=size, augment=augment)
    with pytest.raises((ValueError, TypeError), match=r"^image_size must be "):
        fl.ImageDataset(tmp_path, image_size=size)
    with pytest.raises((ValueError, TypeError), match=r"^size must be "):
        fl.transforms.resize(size)


def test_single_texts_are_not_padded(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nab,1\nc,2\n")
    config = DataLoaderConfig(batch_size=None, num_workers=0, shuffle=False)
    samples = list(DataLoaderFactory.create_text_dataloader(tmp_path / "a.csv", config, padding=False))
    assert [(ids.tolist(), label) for ids, label in samples] == [([97, 98], 1), ([99], 2)]
    config = DataLoaderConfig(batch_size=None, num_workers=0, custom_batch_sampler=[[0, 1]])
    (batch,) = DataLoaderFactory.create_text_dataloader(tmp_path / "a.csv", config, padding=False)
    assert batch["input_ids"].tolist() == [[97, 98], [99, 0]]
