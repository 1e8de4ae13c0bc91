"""TarDataset in loaders, as loose files are; its indexes, and shards that change."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

import foreload as fl
from foreload import transforms
from foreload.datasets.tar.index import index_of
from foreload.datasets.tar.shards import ShardIndex, list_shards
from foreload.errors import DecodeError
from tests.datasets.tar.shards import by_webdatasets_rules, shards_of, write_tar


@pytest.mark.slow
def test_the_index_beside_the_shard(tmp_path: Path) -> None:
    (shard,) = shards_of(tmp_path, 1, 4)
    beside = Path(f"{shard}.idx")
    fl.TarDataset(shard)
    written = beside.stat().st_mtime_ns
    fl.TarDataset(shard)
    assert beside.stat().st_mtime_ns == written

    def check() -> None:
        assert list(fl.TarDataset(shard)) == by_webdatasets_rules(shard)
        known = ShardIndex.load(beside)
        assert known is not None
        assert known.modified == shard.stat().st_mtime_ns

    before = shard.stat()
    while shard.stat().st_mtime_ns == before.st_mtime_ns:  # of the same size
        write_tar(
            shard, [(name, b"other") for sample in range(4) for name in (f"9-{sample}.bin", f"9-{sample}.txt")]
        )
    assert shard.stat().st_size == before.st_size
    check()
    write_tar(shard, [("b.txt", b"of another size")])
    check()
    # Damaged at any byte, cut short at any place: nothing that differs is ever believed.
    good = beside.read_bytes()
    known = pickle.dumps(ShardIndex.load(beside))
    for at in range(len(good)):
        for damaged in (good[:at], good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :]):
            beside.write_bytes(damaged)
            found = ShardIndex.load(beside)
            assert found is None or pickle.dumps(found) == known
    for useless in (b"", b"no index", pickle.dumps([1])):
        beside.write_bytes(useless)
        check()
    values = dict(np.load(beside))
    values["version"] = values["version"] + 1
    with beside.open("wb") as file:
        np.savez(file, **values)
    check()
    beside.unlink()
    beside.mkdir()  # cannot be written
    assert len(fl.TarDataset(shard)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be someone else")
def test_a_folder_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        (shard,) = shards_of(folder, 1, 4)
        shard.chmod(0o644)
        os.seteuid(65534)
        try:
            assert len(fl.TarDataset(shard)) == 4
        finally:
            os.seteuid(0)
        assert sorted(folder.iterdir()) == [shard]


def test_shards_in_many_words(tmp_path: Path) -> None:
    paths = shards_of(tmp_path, 3)
    expected = [sample for path in paths for sample in by_webdatasets_rules(path)]
    for shards in (tmp_path, str(tmp_path / "train-{000..002}.tar"), paths, [tmp_path], [str(p) for p in paths]):
        tar = fl.TarDataset(shards)
        assert list(tar) == expected
    assert tar[-1] == expected[-1]
    with pytest.raises(IndexError, match="index 60 is out of range for 60 samples"):
        tar[60]
    (tmp_path / "._train-000.tar").write_bytes(b"what other systems leave beside their files")
    assert list(fl.TarDataset(tmp_path)) == expected
    assert len(list(fl.TarStream(tmp_path))) == 60
    one, other = tmp_path / "a-1" / "b-1.tar", tmp_path / "a-1" / "b-2.tar"
    assert list_shards(str(tmp_path / "a-{1..1}" / "b-{1..2}.tar")) == [str(one), str(other)]
    assert next(iter(fl.TarDataset([paths[2], paths[0]]))) == by_webdatasets_rules(paths[2])[0]


@pytest.mark.parametrize("direct_io", [False, True])
def test_more_shards_than_files_may_be_open(tmp_path: Path, direct_io: bool) -> None:
    for number in range(150):
        write_tar(tmp_path / f"{number:03}.tar", [(f"{number}.txt", str(number).encode())])
    dataset = fl.TarDataset(tmp_path, direct_io=direct_io)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = len(os.listdir("/proc/self/fd"))  # which tests before this one may have left
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(others + 80, 2 * others), limits[1]))
    try:
        for loader in (fl.DataLoader(dataset, 40, num_workers=2, workers="threads"), TorchDataLoader(dataset, 40)):
            for _ in range(2):
                assert [text for batch in loader for text in batch["txt"]] == [b"%d" % i for i in range(150)]
        dataset._files.expect_cold()
        assert dataset.__getitems__(list(range(150)))[149]["txt"] == b"149"
        (tmp_path / "149.tar").write_bytes(b"")
        with pytest.raises(DecodeError, match="the shard has changed"):
            dataset[149]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Content:
    """The bytes of a sample, as FileDataset gives them."""

    def __call__(self, sample: dict[str, Any]) -> Any:
        return torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8), int(sample["cls"])


def loaded(loader: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in loader]


@pytest.mark.slow
def test_loading_is_that_of_loose_files(tmp_path: Path) -> None:
    paths = shards_of(tmp_path, 3)
    files = []
    for sample in (sample for path in paths for sample in by_webdatasets_rules(path)):
        files.append(tmp_path / f"{sample['__key__']}.bin")
        files[-1].write_bytes(sample["bin"])
    loose = fl.FileDataset(files, labels=[sample % 5 for _ in paths for sample in range(20)])
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 3}
    expected = loaded(fl.DataLoader(loose, **options))
    in_order = loaded(TorchDataLoader(loose, batch_size=7))
    for direct_io in (False, True):
        tar = fl.TarDataset(tmp_path, Content(), direct_io=direct_io)
        for more in (
            {"num_workers": 0},
            {"num_workers": 2},
            {"num_workers": 2, "workers": "processes"},
            {"cache": 5000},
            {"cache": 5000, "workers": "processes", "num_workers": 2},
        ):
            loader = fl.DataLoader(tar, **options, **more)
            assert loaded(loader) == expected
            if "cache" in more:
                loader.set_epoch(0)
                assert loaded(loader) == expected
        for workers in (0, 2):
            assert loaded(TorchDataLoader(tar, batch_size=7, num_workers=workers)) == in_order
    for mode in fl.LoadingMode:
        assert loaded(fl.DataLoader(fl.TarDataset(tmp_path, Content(), mode), **options)) == expected
    pickled = fl.DataLoader(
        tar, **options, num_workers=1, workers="processes", multiprocessing_context="forkserver"
    )
    assert loaded(pickled) == expected
    for more in ({}, {"cache": 5000}):
        first = fl.DataLoader(tar, **options, **more)
        iterator = iter(first)
        for _ in range(4):
            next(iterator)
        state = first.state_dict()
        resumed = fl.DataLoader(tar, **options, **more)
        resumed.load_state_dict(state)
        assert loaded(resumed) == expected[4:]


def test_shards_that_change_in_mid_epoch(tmp_path: Path) -> None:
    paths = shards_of(tmp_path, 3)
    tar = fl.TarDataset(tmp_path, Content())
    expected = loaded(TorchDataLoader(tar, batch_size=5))
    changed = shards_of(tmp_path, 3, 21)  # all are written anew, in place
    assert changed == paths
    message = "the shard has changed since its index was made; open the dataset again"
    fresh = pickle.loads(pickle.dumps(tar))
    for dataset in (tar, fresh):
        with pytest.raises(DecodeError, match=message) as raised:
            dataset[25]
        assert str(paths[1]) in str(raised.value)
        with pytest.raises(DecodeError, match=r"sample 0 \(position 0 of its batch\).*" + message):
            list(fl.DataLoader(dataset, batch_size=5))
    again = fl.TarDataset(tmp_path, Content())
    assert len(again) == 63
    running = iter(fl.DataLoader(again, batch_size=7, num_workers=0))
    first = [next(running) for _ in range(8)]
    shutil.copy(paths[0], tmp_path / "other")
    os.replace(tmp_path / "other", paths[1])  # the old one is still open
    rest = list(running)
    assert [row.tolist() for batch in (*first, *rest) for row in batch[0]] == [
        list(np.random.default_rng(100 * shard + sample).bytes(300)) for shard in range(3) for sample in range(21)
    ]
    fresh = pickle.loads(pickle.dumps(again))
    loader = fl.DataLoader(fresh, batch_size=9, on_error="skip")
    assert sum(len(batch[0]) for batch in loader) == 42
    assert {error.source for error in loader.errors} <= {str(paths[1]), None}
    assert sorted(error.index for error in loader.errors) == list(range(21, 42))
    assert len(expected) == 12


@pytest.mark.slow
def test_images_in_shards(tmp_path: Path, photos: Path) -> None:
    folder = fl.ImageDataset(photos, 32)
    for tiled in (False, True):
        packed = tmp_path / f"tiled-{tiled}"
        fl_pack(photos, packed, tiled=tiled, shard_bytes=40000)
        for direct_io in (False, True):
            for transform in (
                transforms.train(32, color_jitter=(0.2, 0.2, 0.2, 0.1)),
                transforms.train(32, normalize=False),
                transforms.val(32, normalize=False),
            ):
                loose = fl.ImageDataset(photos, transform=transform)
                shards = fl.ImageDataset(packed, transform=transform, direct_io=direct_io)
                assert shards.targets == loose.targets
                assert (shards.classes, shards.class_to_idx) == (loose.classes, loose.class_to_idx)
                options: dict[str, Any] = {"batch_size": 17, "shuffle": True, "seed": 5}
                expected = list(fl.DataLoader(loose, **options, num_workers=0))
                for more in ({"num_workers": 2}, {"cache": 1 << 20}, {"workers": "processes", "num_workers": 1}):
                    same(list(fl.DataLoader(shards, **options, **more)), expected)
        default = fl.ImageDataset(packed, 32)
        same(list(TorchDataLoader(default, batch_size=16)), list(TorchDataLoader(folder, batch_size=16)))
        by_pillow = [fl.ImageDataset(path, transform=np.asarray) for path in (packed, photos)]
        for ours, theirs in zip(*by_pillow, strict=True):
            assert np.array_equal(ours[0], theirs[0])
    assert default.samples[0][0].endswith(
        f"shard-000000.tar:{Path(folder.samples[0][0]).relative_to(photos).with_suffix('')}"
    )
    with pytest.raises(ValueError, match="labels: shards have their own"):
        fl.ImageDataset(packed, labels=[1])


def fl_pack(*arguments: Any, **options: Any) -> Any:
    from foreload.datasets.tar.pack import pack

    return pack(*arguments, **options)


def same(ours: list[Any], theirs: list[Any]) -> None:
    for (images, targets), (images_, targets_) in zip(ours, theirs, strict=True):
        assert torch.equal(images, images_)
        assert torch.equal(targets, targets_)


def test_samples_without_an_image(tmp_path: Path, photos: Path) -> None:
    picture = next(photos.rglob("*.jpg")).read_bytes()
    shard = write_tar(
        tmp_path / "x.tar", [("a.json", b"{}"), ("a.jpg", picture), ("a.cls", b"3"), ("b.json", b"{}")]
    )
    with pytest.raises(ValueError, match=r"x\.tar: sample 'b' has no jpg or jpeg or png"):
        fl.ImageDataset(shard)
    shard = write_tar(tmp_path / "x.tar", [("a.jpg", picture), ("b.JPEG", picture[:2000]), ("c.png", b"no png")])
    images = fl.ImageDataset(shard, 32)
    assert images.targets == [-1, -1, -1]
    loader = fl.DataLoader(images, batch_size=3, on_error="skip")
    ((rows, _),) = loader
    assert len(rows) == 1
    assert [(error.index, error.source) for error in loader.errors] == [(1, f"{shard}:b"), (2, f"{shard}:c")]
    for key, error in zip("bc", loader.errors, strict=True):
        assert f"{shard}" in error.error, key


def test_an_unfinished_pack(tmp_path: Path) -> None:
    shards_of(tmp_path, 1)
    (tmp_path / "pack.json").write_text('{"finished": false}')
    with pytest.warns(UserWarning, match="belongs to a pack that was not finished; run `foreload pack` again"):
        fl.TarDataset(tmp_path)
    (tmp_path / "pack.json").write_text('{"fin')
    with pytest.raises(DecodeError, match=r"pack\.json.*damaged: .*remove it"):
        fl.TarDataset(tmp_path)
    assert index_of(tmp_path / "train-000.tar").labels.tolist() == [0, 1, 2, 3, 4] * 4
