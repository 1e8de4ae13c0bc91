"""Shards that are replaced on the server: an error that names them, never another member's bytes."""

from __future__ import annotations

import os
import pickle
import re
import zlib
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

import foreload as fl
from foreload.errors import DecodeError
from foreload.remote.fetch import Fetch, Range, Version
from tests.remote.replaced_shards import CHANGES, SIZES, contents
from tests.remote.web_server import Handler, Validators, noise, samples_of, with_slow, write_shard

pytestmark = pytest.mark.slow

pytest.importorskip("obstore")


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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
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
