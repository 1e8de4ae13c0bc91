"""Files that foreload writes beside data, changed: they are made anew, or one error names the file."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreload as fl
from foreload.datasets.tar.index import index_of
from foreload.datasets.tar.shards import ShardIndex


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for sample in range(10):
            for field, content in (("txt", b"%d" % sample * 5), ("cls", b"%d" % (sample % 3))):
                member = tarfile.TarInfo(f"{sample:04}.{field}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    index_of(path)
    return path


def arrays_of(shard: Path) -> dict[str, Any]:
    with np.load(f"{shard}.idx") as stored:
        return dict(stored)


def store(shard: Path, arrays: dict[str, Any], **options: Any) -> None:
    with open(f"{shard}.idx", "wb") as file:
        np.savez(file, **arrays, **options)


def samples_of(shard: Path) -> list[Any]:
    dataset = fl.TarDataset(str(shard))
    return [dataset[index] for index in range(len(dataset))]


def at(place: int, value: int) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        changed = array.copy()
        changed[place] = value
        return changed

    return change


WRONG: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("first", "a negative member", at(3, -1)),
    ("first", "a member that is not there", at(3, 10**9)),
    ("first", "the smallest number", at(3, -(1 << 63))),
    ("first", "samples without members", at(3, 4)),
    ("first", "samples that go back", lambda array: array[::-1].copy()),
    ("first", "more members", at(10, 21)),
    ("first", "less members", at(10, 19)),
    ("first", "a later beginning", at(0, 1)),
    ("first", "nothing", lambda array: array[:0]),
    ("first", "one less", lambda array: array[:-1]),
    ("first", "columns", lambda array: array.reshape(-1, 1)),
    ("first", "floats", lambda array: array * 1.0),
    ("first", "words", lambda array: array.astype("S8")),
    ("first", "one number", lambda array: np.array(3)),
    ("offsets", "before the file", at(3, -5)),
    ("offsets", "behind the file", at(19, 10**9)),
    ("offsets", "a sum that is negative", at(19, (1 << 63) - 1)),
    ("offsets", "in a header", at(0, 100)),
    ("offsets", "going back", lambda array: array[::-1].copy()),
    ("offsets", "one more", lambda array: np.append(array, array[-1])),
    ("offsets", "floats", lambda array: array.astype(np.float64)),
    ("offsets", "short numbers", lambda array: array.astype(np.int16)),
    ("offsets", "the other order of bytes", lambda array: array.astype(">i8")),
    ("lengths", "negative", at(3, -1)),
    ("lengths", "huge", at(19, (1 << 63) - 1)),
    ("lengths", "into the next member", at(3, 2000)),
    ("lengths", "one less", lambda array: array[:-1]),
    ("labels", "one less", lambda array: array[:-1]),
    ("labels", "floats", lambda array: array + 0.5),
    ("labels", "nothing", lambda array: array[:0]),
    ("keys", "more keys", lambda array: np.append(array, np.uint8(0))),
    ("keys", "one key", lambda array: array[:3]),
    ("keys", "numbers", lambda array: array.astype(np.float32)),
    ("names", "less names", lambda array: array[:20]),
    ("names", "objects", lambda array: array.astype(object)),
    ("size", "a list", lambda array: np.array([1, 2])),
    ("version", "another", lambda array: np.array(-1)),
    ("version", "a word", lambda array: np.array("one")),
]


@pytest.mark.parametrize(("name", "kind", "change"), WRONG, ids=[f"{name}: {kind}" for name, kind, _ in WRONG])
def test_an_index_that_makes_no_sense_is_made_anew(
    shard: Path, name: str, kind: str, change: Callable[[Any], Any]
) -> None:
    good, arrays, content = samples_of(shard), arrays_of(shard), Path(f"{shard}.idx").read_bytes()
    store(shard, {**arrays, name: change(arrays[name])})
    assert ShardIndex.load(f"{shard}.idx") is None
    assert samples_of(shard) == good
    assert Path(f"{shard}.idx").read_bytes() == content


@pytest.mark.parametrize("name", ["size", "keys", "first", "names", "offsets", "lengths", "labels", "version"])
def test_an_index_that_lacks_a_part_is_made_anew(shard: Path, name: str) -> None:
    good, arrays = samples_of(shard), arrays_of(shard)
    del arrays[name]
    store(shard, arrays)
    assert samples_of(shard) == good


@pytest.mark.parametrize("seed", range(6))
def test_an_index_with_other_bytes_never_gives_other_samples(shard: Path, seed: int) -> None:
    rng, good, content = random.Random(seed), samples_of(shard), Path(f"{shard}.idx").read_bytes()
    for _ in range(40):
        changed = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        if rng.random() < 0.3:
            del changed[rng.randrange(len(changed)) :]
        Path(f"{shard}.idx").write_bytes(changed)
        assert samples_of(shard) == good


@pytest.mark.slow
def test_an_index_that_unpacks_to_gigabytes_is_not_unpacked(shard: Path) -> None:
    good, arrays = samples_of(shard), arrays_of(shard)
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros(200 << 20, np.uint8))
    with zipfile.ZipFile(f"{shard}.idx", "w", zipfile.ZIP_DEFLATED) as stored:
        for name, array in arrays.items():
            with stored.open(f"{name}.npy", "w") as entry:
                if name == "keys":
                    entry.write(file.getvalue())
                else:
                    np.lib.format.write_array(entry, array)
    del file
    tracemalloc.start()
    try:
        assert ShardIndex.load(f"{shard}.idx") is None
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert samples_of(shard) == good


@pytest.mark.parametrize(
    "shape", ["(1000000000000,)", "(99999999999999999999,)", "(-1,)", "(10, 10)", "5", "(" * 60]
)
def test_an_array_that_says_it_is_enormous_is_not_allocated(shard: Path, shape: str) -> None:
    good, arrays = samples_of(shard), arrays_of(shard)
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (118 - len(text)) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + arrays["offsets"].tobytes()
    with zipfile.ZipFile(f"{shard}.idx", "w") as stored:
        for name, array in arrays.items():
            with stored.open(f"{name}.npy", "w") as entry:
                if name == "offsets":
                    entry.write(content)
                else:
                    np.lib.format.write_array(entry, array)
    tracemalloc.start()
    try:
        assert ShardIndex.load(f"{shard}.idx") is None
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert samples_of(shard) == good


def test_threads_that_index_at_once_do_not_write_into_one_file(shard: Path) -> None:
    index = index_of(shard)
    os.unlink(f"{shard}.idx")
    start, wrong = threading.Barrier(8), []

    def save() -> None:
        start.wait()
        for _ in range(30):
            try:
                index.save(f"{shard}.idx")
            except OSError as error:
                wrong.append(error)
            if ShardIndex.load(f"{shard}.idx") is None:
                wrong.append(None)

    threads = [threading.Thread(target=save) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(os.listdir(shard.parent)) == ["a.tar", "a.tar.idx"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"9" * 5000,
        b'{"classes": 5}',
        b'{"classes": "cats"}',
        b'{"classes": {"a": 1}}',
        b'{"classes": [1, 2]}',
        b'{"classes": [null]}',
        b'{"classes": null}',
    ],
    ids=["half", "no utf-8", "deep", "digits", "number", "word", "object", "numbers", "nothings", "null"],
)
def test_a_damaged_manifest_is_one_error_that_names_it(shard: Path, content: bytes) -> None:
    (shard.parent / "pack.json").write_bytes(content)
    with pytest.raises(
        fl.errors.DecodeError, match=r"pack\.json beside .* is damaged: .*pack again, or remove it"
    ):
        fl.TarDataset(str(shard))


@pytest.mark.parametrize("content", [b"5", b"[]", b"null", b"[" * 100_000, b"{", b"\xff"])
def test_a_folder_with_a_damaged_manifest_is_not_packed_into(tmp_path: Path, content: bytes) -> None:
    from foreload.datasets.tar.pack import pack

    source, target = tmp_path / "photos", tmp_path / "shards"
    (source / "cat").mkdir(parents=True)
    (source / "cat" / "tom.bin").write_bytes(b"meow")
    target.mkdir()
    (target / "pack.json").write_bytes(content)
    with pytest.raises(ValueError, match="give an empty one"):
        pack(source, target)
    assert (target / "pack.json").read_bytes() == content


@pytest.mark.sampled(4)
@pytest.mark.parametrize("language", ["json", "yaml"])
@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe\xff",
        b"[" * 100_000,
        b'{"batch_size": 1e999}',
        b'{"batch_size": {}}',
        b"- 1\n- 2",
        b'{"": 1}',
    ],
    ids=["half", "no utf-8", "deep", "infinite", "object", "list", "no name"],
)
def test_a_damaged_configuration_is_one_error(tmp_path: Path, language: str, content: bytes) -> None:
    if language == "yaml":
        pytest.importorskip("yaml")
    path = tmp_path / f"config.{language}"
    path.write_bytes(content)
    with pytest.raises((ValueError, TypeError)) as raised:
        getattr(fl.DataLoaderConfig, f"from_{language}")(path)
    assert not isinstance(raised.value, UnicodeDecodeError)
    assert str(path) in str(raised.value) or "batch_size" in str(raised.value)


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pack.json"
    path.write_text(json.dumps({"finished": True}))
    with pytest.raises(ValueError, match="unknown field 'finished'"):
        fl.DataLoaderConfig.from_json(path)


@pytest.mark.parametrize("language", ["json", "yaml"])
def test_a_configuration_is_written_whole_or_not_at_all(tmp_path: Path, language: str) -> None:
    import resource
    import signal

    if language == "yaml":
        pytest.importorskip("yaml")
    target, link = tmp_path / "config", tmp_path / "link"
    write = getattr(fl.DataLoaderConfig(batch_size=7), f"to_{language}")
    write(target)
    link.symlink_to(target)
    good = target.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write(link)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert target.read_bytes() == good
    write(link)
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["config", "link"]
