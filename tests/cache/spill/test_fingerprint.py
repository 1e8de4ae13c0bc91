"""A spill folder is recognised by all that decides what is in it: files, state and code, wherever they are."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from functools import partial
from os.path import splitext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

import foreload as fl
from foreload.cache.fingerprint import fingerprint, named_files
from foreload.protocol import SampleSource
from tests.cache.spill.held import COUNT, Held
from tests.datasets.every_dataset import DATASETS, write


def pandas() -> Any:
    return pytest.importorskip("pandas")


def shade(image: Any) -> int:
    return int(np.asarray(image)[0, 0, 0])


def paint(folder: Path, shades: list[int]) -> None:
    folder.mkdir(exist_ok=True)
    for index, value in enumerate(shades):
        Image.new("RGB", (8, 8), (value, value, value)).save(folder / f"{index:02}.bmp")


class Wrapper(Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.parts = {"inner": [dataset]}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.parts["inner"][0][index]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda dataset: dataset,
    "Subset": lambda dataset: Subset(dataset, range(COUNT)),
    "random_split": lambda dataset: random_split(dataset, [COUNT, 0])[0],
    "ConcatDataset": lambda dataset: ConcatDataset([dataset]),
    "own": Wrapper,
    "own of Subset": lambda dataset: Wrapper(Subset(dataset, range(COUNT))),
}


def loaded(dataset: Any, folder: Path) -> list[tuple[int, int]]:
    """The samples of two epochs of a loader that spills them, sorted."""
    cache = fl.Cache("1KiB", spill=folder)
    loader = fl.DataLoader(dataset, batch_size=4, num_workers=0, cache=cache)
    found = [
        (round(float(image)), int(target))
        for _ in range(2)
        for images, targets in loader
        for image, target in zip(images.flatten(1)[:, 0] if images.ndim > 1 else images, targets, strict=True)
    ]
    del loader
    gc.collect()
    return sorted(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transform", [shade, fl.transforms.resize(8, mean=(0, 0, 0), std=(1 / 255,) * 3)])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_changed_pictures_and_targets_are_seen_in_every_wrapper(
    tmp_path: Path, wrapper: str, transform: Any
) -> None:
    shades, labels = [10 * index for index in range(COUNT)], [0] * COUNT

    def run() -> list[tuple[int, int]]:
        paths = sorted((tmp_path / "images").iterdir())
        images = fl.ImageDataset(paths, transform=transform, cache_size=0, labels=labels)  # type: ignore[arg-type]
        return loaded(WRAPPERS[wrapper](images), tmp_path / "spill")

    for changed in (None, COUNT - 1, 12):
        if changed is not None:
            shades[changed] = 7
            labels[changed - 1] = 1
        paint(tmp_path / "images", shades)
        assert run() == sorted(zip(shades * 2, labels * 2, strict=True))
    assert run() == sorted(zip(shades * 2, labels * 2, strict=True))


def structured(path: Path) -> Any:
    rows = np.zeros(3, [("path", "U200"), ("label", "i4")])
    rows["path"][2] = str(path)
    return rows


HOLDERS: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": lambda path: path,
    "bytes": os.fsencode,
    "dict": lambda path: {"train": {0: str(path)}},
    "key": lambda path: {str(path): 1},
    "dicts": lambda path: [{"image": str(path), "label": 3}],
    "tuples": lambda path: [(0, 1, str(path))],
    "set": lambda path: {str(path), "a", "b"},
    "array": lambda path: np.array(["a", str(path)]),
    "bytes array": lambda path: np.array([b"a", os.fsencode(path)]),
    "objects": lambda path: np.array([None, str(path)], object),
    "structured": structured,
    "frame": lambda path: pandas().DataFrame({"path": ["a", str(path)], "label": [0, 1]}),
    "categories": lambda path: pandas().DataFrame({"path": pandas().Categorical(["a", str(path)])}),
    "arrow strings": lambda path: pandas().Series(["a", str(path)], dtype="string[pyarrow]"),
    "table": lambda path: pa.table({"path": ["a", str(path)], "label": [0, 1]}),
    "object": lambda path: Held(inner=Held(path=str(path))),
    "partial": lambda path: partial(open, str(path)),
    "closure": lambda path: lambda: path.read_text(),
    "method": lambda path: path.read_text,
    "open file": lambda path: path.open(),
    "folder": lambda path: str(path.parent),
    "folder above": lambda path: path.parent.parent,
    "link": lambda path: str(linked(path.parent)),
    "mapped": lambda path: np.memmap(path, np.uint8, "r"),
    "part of mapped": lambda path: {"a": np.memmap(path, np.uint8, "r")[2:]},
    "after many": lambda path: [*(f"/no such folder/{number}" for number in range(100_001)), str(path)],
    "relative": lambda path: os.path.relpath(path),
    "weak": lambda path: Stubborn(path),
}


def linked(folder: Path) -> Path:
    link = folder.parent.parent / "link"
    if not link.exists():
        link.symlink_to(folder)
    return link


class Stubborn:  # it refuses to be pickled
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_file_is_found_wherever_its_name_is(tmp_path: Path, holder: str) -> None:
    path = tmp_path / "data" / "deep" / "file.txt"
    path.parent.mkdir(parents=True)
    found = []
    for content in ("first", "other", "other"):
        if content != "other" or not found[1:]:
            path.write_text(content)
            os.utime(path, ns=(0, len(found)))
        held = HOLDERS[holder](path)
        found.append(fingerprint(Held(held=held)))
        assert fingerprint(Subset(Held(held=held), [1])) != found[-1]
        if holder == "open file":
            held.close()
    assert found[0] != found[1] == found[2]


def test_files_that_come_go_or_move_are_seen(tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    dataset = Held(root=str(tmp_path / "data"), again=tmp_path / "data" / "a")
    found = [fingerprint(dataset)]
    for change in (
        lambda: (tmp_path / "data" / "a" / "x").touch(),
        lambda: (tmp_path / "data" / "a" / "x").rename(tmp_path / "data" / "a" / "y"),
        lambda: (tmp_path / "data" / "a" / "y").unlink(),
    ):
        change()
        assert fingerprint(dataset) not in found[-1:]
        found.append(fingerprint(dataset))
    (tmp_path / "data" / "spill").mkdir()
    (tmp_path / "data" / ".hidden").mkdir()
    (tmp_path / "data" / "__pycache__").mkdir()
    without = partial(fingerprint, without=str(tmp_path / "data" / "spill"))
    before = without(dataset)
    (tmp_path / "data" / "spill" / "00000.spill").touch()
    (tmp_path / "data" / ".hidden" / "file").touch()
    (tmp_path / "data" / "__pycache__" / "file").touch()
    assert without(dataset) == before
    for name in (".hidden", "__pycache__"):  # named itself, beside what it is in
        dataset = Held(root=str(tmp_path / "data"), own=str(tmp_path / "data" / name))
        before = without(dataset)
        (tmp_path / "data" / name / "other").touch()
        assert without(dataset) != before


def test_a_spill_folder_among_the_data_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    calls = []

    class Own(Held):
        def __getitem__(self, index: int) -> Any:
            self.note(index)
            return index, index

    for _ in range(2):
        del calls[:]
        dataset = Own(root=str(tmp_path))
        Own.note = calls.append
        loaded(dataset, tmp_path / "spill")
    assert len(calls) == 8  # those that are compared


def test_too_many_files_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    monkeypatch.setattr(named_files, "_MAX_LISTED", 2)
    with pytest.warns(UserWarning, match="cannot tell whether the dataset is the same: .* more than 2 files"):
        assert fingerprint(Held(root=str(tmp_path))) != fingerprint(Held(root=str(tmp_path)))


def add_row(path: Path) -> None:
    """Change a file so that its size or time shows it."""
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, 1))


@pytest.mark.parametrize("kind", DATASETS)
def test_a_changed_file_of_any_dataset_is_seen(tmp_path: Path, kind: str) -> None:
    write(tmp_path)
    made, make = DATASETS[kind]
    known = fingerprint(make(made, tmp_path))
    assert fingerprint(make(made, tmp_path)) == known
    assert fingerprint(Subset(make(made, tmp_path), [0])) == fingerprint(Subset(make(made, tmp_path), [0]))
    held = fingerprint(Wrapper(make(made, tmp_path)))
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            add_row(path)
    assert fingerprint(make(made, tmp_path)) != known
    assert fingerprint(Wrapper(make(made, tmp_path))) != held


class Doubled(fl.ImageDataset):
    def read_encoded(self, index: int) -> bytes:
        return super().read_encoded(index)


class Scaled(fl.ImageDataset):
    factor = 2

    def prepare_sample(self, index: int, keep: Any = "auto") -> Any:
        image, target = super().prepare_sample(index, keep)
        return image, target * self.factor


class Read(fl.TarDataset):
    def read(self, index: int) -> Any:
        return {**super().read(index), "factor": self.factor}  # type: ignore[attr-defined]


def test_a_transform_counts_if_it_comes_before_the_cache(tmp_path: Path) -> None:
    write(tmp_path)
    one, other = fl.transforms.val(32), fl.transforms.val(64)

    def of(kind: Any, transform: Any, wrap: Any = lambda dataset: dataset) -> str:
        return fingerprint(wrap(kind(tmp_path / "images", transform=transform)))

    assert of(fl.ImageDataset, one) == of(fl.ImageDataset, other)
    assert of(fl.ImageDataset, one, Wrapper) != of(fl.ImageDataset, other, Wrapper)
    assert len({of(kind, one) for kind in (fl.ImageDataset, Doubled, Scaled)}) == 3
    assert of(Scaled, one) != of(Scaled, other)
    before = of(Scaled, one)
    images = Scaled(tmp_path / "images", transform=one)
    images.factor = 3
    assert fingerprint(images) != before
    tar = fl.TarDataset(tmp_path / "data.tar")
    known = fingerprint(tar)
    tar.transform = shade  # type: ignore[assignment]
    assert fingerprint(tar) == known
    read = Read(tmp_path / "data.tar")
    found = []
    for read.factor in (1, 2):  # type: ignore[attr-defined]
        found.append(fingerprint(read))
    assert found[0] != found[1]


class Named(Held, SampleSource):
    def fingerprint(self) -> str:
        return "mine"


def test_an_own_fingerprint_is_taken_at_its_word() -> None:
    assert fingerprint(Named(a=1)) == fingerprint(Named(a=2)) == "mine"
    assert fingerprint(Wrapper(Named(a=1))) == fingerprint(Wrapper(Named(a=2)))
    assert fingerprint(ConcatDataset([Named(), TensorDataset(torch.zeros(1))])) != fingerprint(
        ConcatDataset([Named(), TensorDataset(torch.ones(1))])
    )


def test_names_in_code_are_no_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = Wrapper(Held(logs=3))
    known = fingerprint(dataset)
    for name in ("parts", "logs", "index", "self", "dataset"):  # attributes, arguments, and globals
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert fingerprint(dataset) == known
    assert fingerprint(Wrapper(Held(logs="logs"))) != fingerprint(Wrapper(Held(logs="log")))


class Split(Held):
    """Splits by dots, itself and by what is installed."""

    def __getitem__(self, index: int) -> Any:
        return self.names[index].split("."), splitext("a.b"), [".", ".."]


def test_dots_in_code_and_among_words_are_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = Split(names=[".", "..", "a."], counts={".": 3}, array=np.array([".", ".."]), given=splitext)
    known = fingerprint(dataset)
    for name in ("log", "rb", "r", "utf-8"):
        (tmp_path / name).touch()
    (tmp_path.parent / f"{tmp_path.name} too").touch()
    assert fingerprint(dataset) == known


ROOTS: dict[str, Callable[[], Any]] = {
    "attribute": lambda: Held(root="."),
    "attribute of a part": lambda: Held(parts=[Held(root=".")]),
    "path": lambda: Held(roots=[Path(".")]),
    "closure": lambda: (lambda root: Held(load=lambda index: Path(root, str(index))))("."),
    "with a separator": lambda: Held(roots=["./"]),
    "a word": lambda: Held(roots=["data"]),
}


@pytest.mark.parametrize("kind", ROOTS)
def test_the_working_directory_counts_as_a_path_or_an_attribute(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    known = fingerprint(ROOTS[kind]())
    assert fingerprint(ROOTS[kind]()) == known
    (tmp_path / "data" / "image.png").touch()
    assert fingerprint(ROOTS[kind]()) != known
