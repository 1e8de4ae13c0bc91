"""Shards that are replaced on the server: an error that names them, never another member's bytes."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import foreload as fl
from foreload import transforms
from foreload.errors import DecodeError
from foreload.remote.fetch import Fetch, Range, Version
from tests.remote.web_server import Handler, Validators, noise, samples, samples_of, with_slow, write_shard

pytest.importorskip("obstore")

SIZES = [400, 2000, 900, 900, 3000, 100, 100, 2000, 700, 50, 1200, 600]
FIRST = noise(999, SIZES[0])


def contents(seed: int, sizes: list[int]) -> list[bytes]:
    """The first one is the same in every shard."""
    return [FIRST] + [noise(seed * 100 + number, size) for number, size in enumerate(sizes[1:], 1)]


# Other shards of the same size, whose first member is the same.
CHANGES: dict[str, Callable[[Path], Path]] = {
    "content": lambda path: write_shard(path, contents(2, SIZES)),
    "labels": lambda path: write_shard(path, contents(1, SIZES), shift=1),
    "sizes": lambda path: write_shard(path, contents(1, [SIZES[0], *reversed(SIZES[1:])])),
    "names": lambda path: rename(write_shard(path, contents(1, SIZES))),
}


def rename(path: Path) -> Path:
    """Give all members but the first sample's other names, without a change of anything else."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w") as tar:
        for number, (member, content) in enumerate(members):
            member.name = member.name if number < 2 else "9" + member.name[1:]
            tar.addfile(member, io.BytesIO(content))
    return path


def tag(content: bytes) -> dict[str, str]:
    return {"ETag": f'"{zlib.crc32(content)}"'}


# What a server gives to tell versions apart, and whether it honours If-Match.
VALIDATORS: dict[str, tuple[Validators, bool]] = {
    "strong": (tag, True),
    "strong, ignores If-Match": (tag, False),
    "strong and a date": (lambda content: tag(content) | {"Last-Modified": formatdate(0, usegmt=True)}, False),
    "weak": (lambda content: {"ETag": f'W/"{zlib.crc32(content)}"'}, False),
    "weak, If-Match never matches": (lambda content: {"ETag": f'W/"{zlib.crc32(content)}"'}, True),
    "a date": (lambda content: {"Last-Modified": formatdate(zlib.crc32(content), usegmt=True)}, False),
    "weak that stays, and a date": (
        lambda content: {"ETag": 'W/"a"', "Last-Modified": formatdate(zlib.crc32(content), usegmt=True)},
        False,
    ),
}
# These tell nothing, so that only the headers and the labels can show the change.
SILENT: dict[str, tuple[Validators, bool]] = {
    "none": (lambda content: {}, False),
    "weak that stays": (lambda content: {"ETag": 'W/"a"'}, False),
}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_shard(tmp_path / "a.tar", contents(1, SIZES))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("validators", with_slow(VALIDATORS, ["strong, ignores If-Match", "a date"]))
def test_a_shard_that_is_replaced_after_opening(change: str, validators: str, shard: Path, serve: Any) -> None:
    server = serve(shard.parent)
    server.validators, server.matches = VALIDATORS[validators]
    dataset = fl.TarDataset(server.url("a.tar"))
    before = samples_of(dataset)
    assert before == list(fl.TarDataset(shard))
    size = shard.stat().st_size
    CHANGES[change](shard)
    assert shard.stat().st_size == size
    for index in range(len(SIZES)):
        with pytest.raises(DecodeError, match=r"http://127.*a\.tar: .*was replaced .*make the dataset again"):
            dataset[index]
    assert samples_of(fl.TarDataset(server.url("a.tar"))) == list(fl.TarDataset(shard))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("validators", with_slow(SILENT, ["none"]))
def test_a_server_that_gives_no_validator(change: str, validators: str, shard: Path, serve: Any) -> None:
    server = serve(shard.parent)
    server.validators, server.matches = SILENT[validators]
    dataset = fl.TarDataset(server.url("a.tar"))
    CHANGES[change](shard)
    after = list(fl.TarDataset(shard))
    loader = fl.DataLoader(dataset, 5, on_error="skip", collate_fn=list, num_workers=0)
    given = [sample for batch in loader for sample in batch]
    assert all(sample in after for sample in given)  # the members that are there now, with their own labels
    assert all("the shard is not the one that was indexed" in error.error for error in loader.errors)
    assert len(given) + len(loader.errors) == len(SIZES)
    assert loader.errors or change == "content"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "way", with_slow(["none", "threads", "processes", "spawned", "stock"], ["threads", "stock"])
)
def test_in_the_middle_of_an_epoch(way: str, shard: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(shard.parent)
    write_shard(shard, contents(1, SIZES * 10))
    dataset = fl.TarDataset(server.url("a.tar"))
    good = list(fl.TarDataset(shard))
    if way == "stock":
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(dataset, 3, num_workers=2, prefetch_factor=2, collate_fn=list)
    else:
        options: dict[str, Any] = {
            "none": {"num_workers": 0},
            "threads": {"num_workers": 2, "workers": "threads"},
            "processes": {"num_workers": 2, "workers": "processes"},
            "spawned": {"num_workers": 1, "workers": "processes", "multiprocessing_context": "spawn"},
        }[way]
        loader = fl.DataLoader(dataset, 3, collate_fn=list, **options)
    given: list[Any] = []

    failure = ""
    try:
        for batch in loader:
            given.extend(batch)
            if len(given) == 9:
                write_shard(tmp_path / "b", contents(2, SIZES * 10))
                os.replace(tmp_path / "b", shard)
    except DecodeError as error:  # which would keep the loader
        failure = str(error)
        error.with_traceback(None)
    assert re.search(r"a\.tar: .*was replaced", failure)
    assert given == good[: len(given)]


def test_after_a_resume(shard: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(shard.parent).url("a.tar"))
    loader = fl.DataLoader(dataset, 3, shuffle=True, seed=1, num_workers=0)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = fl.DataLoader(pickle.loads(pickle.dumps(dataset)), 3, shuffle=True, seed=1, num_workers=0)
    again.load_state_dict(state)
    write_shard(shard, contents(2, SIZES))
    with pytest.raises(DecodeError, match="was replaced"):
        list(again)
    with pytest.raises(DecodeError, match="was replaced"):
        next(batches)


def test_a_pickled_dataset_is_of_the_version_that_was_opened(shard: Path, serve: Any) -> None:
    dataset = fl.TarDataset(serve(shard.parent).url("a.tar"))
    pickled = pickle.dumps(dataset)
    write_shard(shard, contents(2, SIZES))
    with pytest.raises(DecodeError, match="was replaced"):
        pickle.loads(pickled)[0]


def test_between_the_index_and_the_opening(shard: Path, serve: Any, tmp_path: Path) -> None:
    """The shard is replaced right after it was asked for its version, and before its index is read."""
    server = serve(shard.parent)
    fl.TarDataset(shard)  # writes the index

    def exchange(handler: Handler) -> bool:
        if handler.path.endswith(".idx"):
            CHANGES["sizes"](shard)
        return False

    server.fault = exchange
    with pytest.raises(DecodeError, match=r"a\.tar: .*was replaced"):
        fl.TarDataset(server.url("a.tar"))


def test_while_its_index_is_made(shard: Path, serve: Any, tmp_path: Path) -> None:
    server = serve(shard.parent)
    write_shard(shard, [noise(number, 300_000) for number in range(12)])

    def exchange(handler: Handler) -> bool:
        if handler.command == "GET" and not handler.headers["Range"].startswith("bytes=0-"):
            write_shard(tmp_path / "b", [noise(number + 1, 300_000) for number in range(12)])
            os.replace(tmp_path / "b", shard)
        return False

    server.fault = exchange
    with pytest.raises(DecodeError, match=r"a\.tar: .*was replaced"):
        fl.TarDataset(server.url("a.tar"))


def test_mirrors_with_different_etags(shard: Path, serve: Any) -> None:
    """A name that stands for several servers, each with an ETag of its own; so none of them can be trusted."""
    server = serve(shard.parent)
    server.validators = lambda content: {"ETag": f'"{len(server.asked) // 5}"'}
    server.matches = False
    with pytest.raises(DecodeError, match=r"a\.tar: .*different ETags answer here in turn, name one of them"):
        samples_of(fl.TarDataset(server.url("a.tar")))
    # Those that agree on it are one.
    server.validators = tag
    assert samples_of(fl.TarDataset(server.url("a.tar"))) == list(fl.TarDataset(shard))


def test_a_shard_that_grew_or_shrank(shard: Path, serve: Any) -> None:
    server = serve(shard.parent)
    server.validators = lambda content: {}
    for size in (0, 30_000):
        write_shard(shard, contents(1, SIZES))
        dataset = fl.TarDataset(server.url("a.tar"))
        write_shard(shard, contents(1, [*SIZES, size] if size else SIZES[:-3]))
        with pytest.raises(DecodeError, match=r"a\.tar: .*was replaced \(it had .* bytes, now"):
            dataset[0]


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
def test_content_that_is_encoded_on_the_way(encoding: str, shard: Path, serve: Any) -> None:
    server = serve(shard.parent)
    dataset = fl.TarDataset(server.url("a.tar"))
    server.validators = lambda content: tag(content) | {"Content-Encoding": encoding}
    with pytest.raises(OSError, match=rf"sends it encoded \({encoding}\).*a\.tar"):
        dataset[0]


def test_neighbours_that_come_together_are_checked_too(shard: Path, serve: Any) -> None:
    server = serve(shard.parent)
    server.matches = False
    dataset = fl.TarDataset(server.url("a.tar"))
    server.asked.clear()
    samples_of(dataset)
    assert len(server.asked) < len(SIZES)
    CHANGES["content"](shard)
    with pytest.raises(DecodeError, match="was replaced"):
        samples_of(dataset)


def test_ranges_of_a_version(shard: Path, serve: Any) -> None:
    url = serve(shard.parent).url("a.tar")
    fetch = Fetch()
    version = fetch.head(url)
    content = shard.read_bytes()
    other = Version(version.size, '"another"')
    longer = Version(version.size + 1, version.tag)
    memory, _, failures = fetch.read([Range(url, 3, 5, version)])
    assert (memory[:5].tobytes(), failures) == (content[3:8], {})
    for wrong in (other, longer):
        _, _, failures = fetch.read([Range(url, 3, 5, wrong), Range(url, 9, 5, wrong), Range(url, 9000, 5, wrong)])
        assert [type(failures[number]) for number in range(3)] == [DecodeError] * 3


def test_the_answer_is_longer_than_the_range(shard: Path, serve: Any, impatient: None) -> None:
    server = serve(shard.parent)
    dataset = fl.TarDataset(server.url("a.tar"))

    def longer(handler: Handler) -> bool:
        content = shard.read_bytes()
        begin, end = handler.wanted(len(content))
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        handler.send_header("Content-Length", str(end - begin + 100))
        handler.send_header("ETag", tag(content)["ETag"])
        handler.end_headers()
        handler.wfile.write(content[begin : end + 100].ljust(end - begin + 100, b"x"))
        return True

    server.fault = longer
    with pytest.raises(OSError, match=r"longer than the range.*a\.tar"):
        dataset[0]


@pytest.mark.parametrize("lie", ["another range", "no range", "no total", "multipart"])
def test_a_range_that_was_not_asked_for(lie: str, shard: Path, serve: Any, impatient: None) -> None:
    server = serve(shard.parent)
    dataset = fl.TarDataset(server.url("a.tar"))

    def answer(handler: Handler) -> bool:
        content = shard.read_bytes()
        begin, end = handler.wanted(len(content))
        handler.send_response(206)
        ranges = {
            "another range": f"bytes {begin + 1}-{end}/{len(content)}",
            "no total": f"bytes {begin}-{end - 1}/*",
        }
        if lie in ranges:
            handler.send_header("Content-Range", ranges[lie])
        if lie == "multipart":
            handler.send_header("Content-Type", "multipart/byteranges; boundary=x")
        handler.send_header("Content-Length", str(end - begin))
        handler.send_header("ETag", tag(content)["ETag"])
        handler.end_headers()
        handler.wfile.write(content[begin + 1 : end + 1])
        return True

    server.fault = answer
    with pytest.raises(OSError, match=r"a\.tar"):
        dataset[3]


# Images, whose labels are in members of their own.


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


def test_a_kept_index_of_a_server_without_validators(shard: Path, serve: Any, tmp_path: Path) -> None:
    """Where tags do not tell versions apart, an index is kept for another shard."""
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
