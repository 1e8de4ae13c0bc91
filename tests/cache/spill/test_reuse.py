"""A spill folder serves the next run until the data changes."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import foreload as fl
from foreload.cache.spill import SpillFolder
from foreload.cache.store import SampleStore


class Files:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[str, int]:
        return Path(self.path).read_text(), index


def spilled(dataset: Any, folder: Path) -> SampleStore:
    store = SampleStore(len(dataset), 0)
    store.native.follow_members(np.zeros(len(dataset), np.uint8))
    store.spill_to(SpillFolder(folder, dataset))
    return store


def load_all(store: SampleStore, dataset: Any) -> list[int]:
    calls = []

    def get(index: int) -> Any:
        calls.append(index)
        return dataset[index]

    for index in range(len(dataset)):
        assert store.load(index, get) == dataset[index]
    return calls


def test_a_spill_folder_serves_the_next_run_until_the_data_changes(tmp_path: Path) -> None:
    source = tmp_path / "data.txt"
    source.write_text("first")
    dataset = Files(source)
    store = spilled(dataset, tmp_path / "spill")
    assert load_all(store, dataset) == list(range(8))
    assert load_all(store, dataset) == []
    with pytest.warns(UserWarning, match="in use by another run"):
        assert not SpillFolder(tmp_path / "spill", dataset).usable
    del store
    gc.collect()
    store = spilled(dataset, tmp_path / "spill")
    load_all(store, dataset)  # these are compared
    assert load_all(store, dataset) == []
    del store
    gc.collect()
    source.write_text("second, longer")
    assert load_all(spilled(dataset, tmp_path / "spill"), dataset) == list(range(8))


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}, {}], ids=str
)
def test_a_loader_that_is_closed_leaves_the_folder_whoever_holds_its_iterators(
    options: dict[str, Any], tmp_path: Path
) -> None:
    dataset: Any = torch.utils.data.TensorDataset(torch.arange(8.0))
    arguments = {"batch_size": 2, "cache": fl.Cache("1KiB", spill=tmp_path / "spill"), **options}
    with fl.DataLoader(dataset, **arguments) as loader:
        list(loader)
        held = iter(loader)
        assert len(list(held)) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fl.DataLoader(dataset, **arguments) as other:
            list(other)
            left = iter(other)
            next(left)
    with (
        pytest.warns(UserWarning, match="or by a loader or an iterator that this process still has"),
        fl.DataLoader(dataset, **arguments) as other,
    ):
        list(other)
    del left


class Sly:
    """Changes in a way that no fingerprint shows."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index + int(os.environ.get("SLY", 0))


def test_a_spill_folder_that_lies_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Sly()
    load_all(spilled(dataset, tmp_path), dataset)
    gc.collect()
    monkeypatch.setenv("SLY", "1")
    store = spilled(dataset, tmp_path)
    with pytest.warns(UserWarning, match="not what the dataset gives now"):
        load_all(store, dataset)


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    import resource

    dataset = Sly()
    store = spilled(dataset, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.warns(UserWarning, match="nothing more is written to the spill folder") as warned:
            load_all(store, dataset)
            load_all(store, dataset)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(warned) == 1


def test_other_files_in_a_spill_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "00000.spill").write_bytes(b"not ours, but named as ours")
    dataset = Sly()
    load_all(spilled(dataset, tmp_path), dataset)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def pictures(folder: Path, shades: range) -> None:
    """Write one-coloured pictures, whose sizes and times are always the same."""
    folder.mkdir(exist_ok=True)
    for index, shade in enumerate(shades):
        path = folder / f"{index:02}.bmp"
        Image.new("RGB", (8, 8), (shade, shade, shade)).save(path)
        os.utime(path, ns=(0, 0))


def shades(folder: Path, spill: Path, **arguments: Any) -> list[int]:
    transform = arguments.pop("transform", fl.transforms.resize(8, mean=(0, 0, 0), std=(1, 1, 1)))
    images = fl.ImageDataset(folder, transform=transform, cache_size=0)
    loader = fl.DataLoader(images, batch_size=1, cache=fl.Cache("1KiB", spill=spill), **arguments)
    found = [round(float(batch[0].mean()) * 255) for _ in range(2) for batch in loader]
    del loader
    gc.collect()
    return found


def test_a_native_loader_finds_out_a_spill_folder_that_lies(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    pictures(folder, range(40))
    assert shades(folder, tmp_path / "spill", num_workers=0) == [*range(40)] * 2
    pictures(folder, range(100, 140))
    with pytest.warns(UserWarning, match="not what the dataset gives now"):
        assert shades(folder, tmp_path / "spill", num_workers=0) == [*range(100, 140)] * 2
    assert shades(folder, tmp_path / "spill", num_workers=2, workers="threads") == [*range(100, 140)] * 2


def text_of(path: Path) -> str:
    return path.read_text()


class Told:
    """Names no file, so that no fingerprint shows what its samples are."""

    def __init__(self, path: Path) -> None:
        self.parts = path.parts

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, str]:
        return index, text_of(Path(*self.parts))


@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_find_out_a_spill_folder_that_lies(tmp_path: Path, context: str) -> None:
    source = tmp_path / "source" / "text"
    source.parent.mkdir()
    for text in ("old", "new"):
        source.write_text(text)
        os.utime(source, ns=(0, 0))
        loader = fl.DataLoader(
            Told(source),
            batch_size=4,
            num_workers=2,
            workers="processes",
            multiprocessing_context=context,
            cache=fl.Cache("1KiB", spill=tmp_path / "spill"),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [text for _ in range(2) for _, texts in loader for text in texts]
        assert found == [text] * 80
        del loader
        gc.collect()


def test_a_cache_of_files_alone_does_not_say_that_samples_are_loaded_each_time(tmp_path: Path) -> None:
    data = [np.full(50, i) for i in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = fl.DataLoader(data, batch_size=None, num_workers=0, cache=fl.Cache(0, spill=tmp_path / "spill"))
        for _ in range(2):
            assert [int(row[0]) for row in loader] == [0, 1, 2, 3]


class Lone:
    """A sample that cannot be pickled, so that nothing keeps it."""

    def __init__(self, index: int) -> None:
        self.numbers = torch.tensor([index])

    def __reduce__(self) -> Any:
        raise TypeError("it cannot be pickled")


class Lonely(torch.utils.data.Dataset[Lone]):
    def __len__(self) -> int:
        return 4

    def __getitems__(self, indices: list[int]) -> list[Lone]:
        return [Lone(index) for index in indices]


@pytest.mark.filterwarnings("ignore:.*cannot be kept", "ignore:.*pickled")
def test_a_sample_that_comes_twice_in_a_batch_and_is_not_kept_is_two_samples(tmp_path: Path) -> None:
    cache = fl.Cache("1MiB", spill=tmp_path / "spill")
    loader: Any = fl.DataLoader(
        Lonely(),
        batch_sampler=[[1, 1, 2], [2, 2]],
        num_workers=0,
        cache=cache,
        transform=lambda lone: lone.numbers.add_(10),
    )
    assert [batch.flatten().tolist() for batch in loader] == [[11, 11, 12], [12, 12]]
