"""Shards of several packs: every label is called what its own pack calls it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import foreload as fl
from foreload.errors import DecodeError


@pytest.fixture
def packed(tmp_path: Path) -> Any:
    """Packs photos of these labels, one each, into a folder of that name."""
    photo = tmp_path / "photo.png"
    Image.new("RGB", (9, 9)).save(photo)

    def make(name: str, labels: Sequence[Any] | None) -> Path:
        count = 2 if labels is None else len(labels)
        (tmp_path / f"{name} photos").mkdir()
        paths = [shutil.copy(photo, tmp_path / f"{name} photos" / f"{number}.png") for number in range(count)]
        fl.pack(paths, tmp_path / name, labels=labels)
        return tmp_path / name

    return make


def called(images: fl.ImageDataset) -> list[str | None]:
    """The name of each sample's label, as the targets and the samples have it."""
    assert [images[index][1] for index in range(len(images))] == images.targets
    assert images.class_to_idx == {name: number for number, name in enumerate(images.classes)}
    return [images.classes[target] if target >= 0 else None for target in images.targets]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([["cat", "dog"], ["ant", "bee"]], ["ant", "bee", "cat", "dog"]),
        ([["cat", "dog"], ["dog", "cat", "ant", "dog"]], ["ant", "cat", "dog"]),
        ([["ant", "bee"], ["ant", "bee", "cat"]], ["ant", "bee", "cat"]),
        ([["cat", "dog"], ["cat", "dog"]], ["cat", "dog"]),
        ([["cat"], ["dog"], ["cat", "dog"], ["ant"]], ["ant", "cat", "dog"]),
        ([["cat", "dog"], None, ["ant"]], ["ant", "cat", "dog"]),
        ([None, ["cat"]], ["cat"]),
        ([[0, 1], [11, 2]], [str(number) for number in range(12)]),
        ([[0, 3], ["cat"]], ["0", "1", "2", "3", "cat"]),
    ],
)
def test_classes_of_several_packs_are_theirs(packed: Any, labels: list[Any], classes: list[str]) -> None:
    folders = [packed(f"p{number}", given) for number, given in enumerate(labels)]
    expected = [name for given in labels for name in (given or [None] * 2)]
    images = fl.ImageDataset(folders)
    assert called(images) == [name if name is None else str(name) for name in expected]
    assert images.classes == classes
    shards = [folder / "shard-000000.tar" for folder in folders]
    assert called(fl.ImageDataset(shards)) == called(images)
    # Samples have what their shards hold.
    alone = [sample for folder in folders for sample in fl.TarDataset(folder)]
    assert list(fl.TarDataset(folders)) == alone


def test_numbers_without_names_are_not_called_what_another_pack_calls_them(packed: Any) -> None:
    named, bare = packed("named", ["cat", "dog"]), packed("bare", ["ant", "bee"])
    (bare / "pack.json").unlink()
    for folders in ([named, bare], [bare, named]):
        with pytest.raises(
            ValueError, match=r"shards: labels in '.*bare' are.*in '.*named' have.*copy the pack\.json"
        ):
            fl.ImageDataset(folders)
        assert len(fl.TarDataset(folders)) == 4
    shutil.copy(named / "pack.json", bare / "pack.json")
    assert called(fl.ImageDataset([named, bare])) == ["cat", "dog"] * 2


def test_numbers_are_called_what_they_are(packed: Any) -> None:
    some, bare = packed("some", [0, 1]), packed("bare", [3, 1])
    (bare / "pack.json").unlink()
    for folders in ([some, bare], [bare, some]):
        images = fl.ImageDataset(folders)
        assert images.classes == ["0", "1", "2", "3"]
        assert called(images) == [str(target) for target in images.targets]


def test_a_label_beyond_the_names_is_an_error(packed: Any) -> None:
    one, other = packed("one", ["cat", "dog"]), packed("other", ["ant", "bee"])
    manifest = json.loads((other / "pack.json").read_bytes())
    (other / "pack.json").write_text(json.dumps(manifest | {"classes": ["ant"]}))
    with pytest.raises(
        DecodeError, match=r"other: label 1 has no name in its pack\.json, which has 1 classes; pack"
    ):
        fl.ImageDataset([one, other])


def test_an_unfinished_or_damaged_pack_is_found_among_others(packed: Any) -> None:
    one, other = packed("one", ["cat"]), packed("other", ["cat"])
    manifest = json.loads((other / "pack.json").read_bytes())
    (other / "pack.json").write_text(json.dumps(manifest | {"finished": False}))
    with pytest.warns(UserWarning, match="'.*other/shard-000000.tar' belongs to a pack that was not finished"):
        fl.ImageDataset([one, other])
    (other / "pack.json").write_text('{"fin')
    with pytest.raises(
        DecodeError, match=r"pack\.json beside '.*other/shard-000000\.tar' is damaged: .*remove it"
    ):
        fl.ImageDataset([one, other])
