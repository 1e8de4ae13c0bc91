"""Labels, indexes and caches of shards that are replaced on the server are never mixed up."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import foreload as fl
from foreload import transforms
from foreload.errors import DecodeError
from foreload.remote.fetch import Fetch
from tests.remote.replaced_shards import CHANGES, SIZES, contents
from tests.remote.web_server import noise, samples, samples_of, with_slow, write_shard

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")


def write_images(path: Path, labels: list[int], *, label_first: bool = False, apart: int = 0) -> Path:
    with tarfile.open(path, "w") as tar:
        for number, label in enumerate(labels):
            file = io.BytesIO()
            Image.fromarray(np.full((8, 8, 3), number * 7 % 256, np.uint8)).save(file, "PNG")
            members = [(f"{number:04}.png", file.getvalue()), (f"{number:04}.cls", str(label).encode())]
            if apart:
                members.insert(1, (f"{number:04}.json", b" " * apart))
            for name, data in reversed(members) if label_first else members:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.sampled(1)
@pytest.mark.parametrize("label_first", with_slow([False, True], [True]))
@pytest.mark.parametrize("apart", with_slow([0, 20_000], [20_000]))
@pytest.mark.parametrize("changed", ["all", "one"])
def test_an_old_index_gives_no_wrong_label(
    changed: str, apart: int, label_first: bool, serve: Any, tmp_path: Path
) -> None:
    """Packed again with other labels, the tar has the same size and the same headers."""
    before = [number % 5 for number in range(40)]
    after = [label + 1 for label in before] if changed == "all" else [*before[:17], 9, *before[18:]]
    shard = write_images(tmp_path / "a.tar", before, label_first=label_first, apart=apart)
    fl.TarDataset(shard)
    index = (tmp_path / "a.tar.idx").read_bytes()
    write_images(shard, after, label_first=label_first, apart=apart)
    (tmp_path / "a.tar.idx").write_bytes(index)
    server = serve(tmp_path)
    small = transforms.resize(8, normalize=False)
    if changed == "all":
        with pytest.warns(UserWarning, match="shards were read to index them"):
            images = fl.ImageDataset(server.url("a.tar"), transform=small)
        assert images.targets == after
        assert [target for _, target in images] == after
        return
    images = fl.ImageDataset(server.url("a.tar"), transform=small)
    for reader in (images, fl.ImageDataset(server.url("a.tar"), transform=np.asarray)):
        for number in range(40):
            if number == 17:
                with pytest.raises(DecodeError, match=r"a\.tar: .*not the one that was indexed.*remove its \.idx"):
                    reader[number]
            else:
                assert reader[number][1] == after[number]
    loader = fl.DataLoader(images, 8, on_error="skip")
    assert sorted(label for _, labels in loader for label in labels.tolist()) == sorted(after[:17] + after[18:])
    assert [error.index for error in loader.errors] == [17]


def test_a_relabelled_shard_in_a_tar_dataset(shard: Path, serve: Any, tmp_path: Path) -> None:
    fl.TarDataset(write_shard(shard, contents(1, SIZES * 5)))
    index = (tmp_path / "a.tar.idx").read_bytes()
    write_shard(shard, contents(1, SIZES * 5), shift=1)
    (tmp_path / "a.tar.idx").write_bytes(index)
    with pytest.warns(UserWarning, match="shards were read to index them"):
        dataset = fl.TarDataset(serve(tmp_path).url("a.tar"))
    assert dataset.shards.labels.tolist() == [(number + 1) % 7 for number in range(60)]


@pytest.mark.sampled(1)
def test_a_kept_index_of_a_server_without_validators(shard: Path, serve: Any, tmp_path: Path) -> None:
    """If tags do not tell versions apart, an index is kept for another shard."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = serve(folder)
    server.validators = lambda content: {}
    shutil.copy(shard, folder / "a.tar")
    for change in CHANGES.values():
        fl.TarDataset(server.url("a.tar"), index_folder=tmp_path / "kept")
        change(folder / "a.tar")
        dataset = fl.TarDataset(server.url("a.tar"), index_folder=tmp_path / "kept")
        assert samples_of(dataset) == list(fl.TarDataset(folder / "a.tar"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lie", ["404", "empty", "text", "an index of another shard", "a list as pack.json"])
def test_what_lies_beside_a_shard(lie: str, shard: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(tmp_path)
    if lie == "empty":
        (tmp_path / "a.tar.idx").write_bytes(b"")
    elif lie == "text":
        (tmp_path / "a.tar.idx").write_text("<html>there is no such page</html>")
    elif lie == "an index of another shard":
        other = write_shard(tmp_path / "b.tar", contents(2, [SIZES[0], *reversed(SIZES[1:])]))
        fl.TarDataset(other)
        (tmp_path / "b.tar.idx").rename(tmp_path / "a.tar.idx")
    elif lie != "404":
        (tmp_path / "pack.json").write_text(json.dumps(["no", "manifest"]))
    if lie in ("404", "a list as pack.json"):
        dataset = fl.TarDataset(server.url("a.tar"))
    else:
        with pytest.warns(UserWarning, match="shards were read to index them"):
            dataset = fl.TarDataset(server.url("a.tar"))
    assert samples_of(dataset) == list(fl.TarDataset(shard))


def test_a_cache_keeps_nothing_of_another_version(shard: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(shard.parent)
    dataset = fl.TarDataset(server.url("a.tar"))
    cache = fl.Cache("1MB", spill=tmp_path / "spill")
    with fl.DataLoader(dataset, 4, cache=cache, num_workers=0) as loader:
        before = samples(loader)
    CHANGES["content"](shard)
    with fl.DataLoader(fl.TarDataset(server.url("a.tar")), 4, cache=cache, num_workers=0) as loader:
        assert samples(loader) != before


def test_streams_of_a_bucket_are_of_one_version(serve: Any, tmp_path: Path) -> None:
    """TarStream reads what is in object storage by ranges; here a web server stands for it."""
    from foreload.datasets.tar.remote import RemoteFile

    shard = write_shard(tmp_path / "a.tar", [noise(number, 50_000) for number in range(10)])
    url = serve(tmp_path).url("a.tar")
    fetch = Fetch()
    file = RemoteFile(fetch, url, fetch.head(url))
    assert len(file.read(1000)) == 1000
    write_shard(shard, [noise(number + 1, 50_000) for number in range(10)])
    with pytest.raises(DecodeError, match="was replaced"):
        file.read(1000)


def test_dates_in_the_same_second_are_the_same(shard: Path, serve: Any) -> None:
    """A Last-Modified of whole seconds cannot tell these apart: the headers must."""
    server = serve(shard.parent)
    now = formatdate(time.time(), usegmt=True)
    server.validators = lambda content: {"Last-Modified": now}
    dataset = fl.TarDataset(server.url("a.tar"))
    CHANGES["sizes"](shard)
    with pytest.raises(DecodeError, match="not the one that was indexed"):
        samples_of(dataset)
