"""Records in the spill folder that this user did not write are not used, and do no harm."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import shutil
import socket
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import foreload as fl
from tests.cache.spill.trapped import Words, _loaded, _pickled, run
from tests.programs import python

ROOT = str(Path(__file__).parents[3])
HEAD = 56  # bytes of a record's header: magic, form, sample, size, and two tags


@contextmanager
def trap(path: Path) -> Iterator[None]:
    _pickled["path"] = str(path)
    try:
        yield
    finally:
        _pickled["path"] = None


@pytest.mark.parametrize("takes", ["spill", "spill and description", "spill after ours"])
def test_pickles_of_somebody_else_are_never_loaded(tmp_path: Path, filled: Path, takes: str) -> None:
    sprung, theirs = tmp_path / "sprung", tmp_path / "theirs"
    with trap(sprung):
        run(Words(), theirs)
    sprung.unlink(missing_ok=True)
    if takes == "spill after ours":
        shutil.copy(theirs / "00000.spill", filled / "00007.spill")
    else:
        shutil.copy(theirs / "00000.spill", filled / "00000.spill")
    if takes == "spill and description":
        shutil.copy(theirs / "foreload.json", filled / "foreload.json")
    loaded, said = run(Words(), filled)
    assert not sprung.exists()
    assert len(said) == 1
    assert "not written by this user" in said[0]
    assert str(filled) in said[0]
    if takes != "spill after ours":
        assert sorted(loaded) == list(range(24))  # and are written anew
    assert run(Words(), filled) == (list(range(8)), [])


def test_samples_of_another_dataset_do_not_pass_with_the_same_key(tmp_path: Path, filled: Path) -> None:
    other = tmp_path / "other"
    run(Words(text="woof"), other)
    for name in ("foreload.json", "key"):
        shutil.copy(filled / name, other / name)
    loaded, said = run(Words(), other)
    assert sorted(loaded) == list(range(24))
    assert len(said) == 1


def test_records_have_the_tags_of_keyed_blake2b(filled: Path) -> None:
    known = json.loads((filled / "foreload.json").read_text())["fingerprint"]
    secret = (filled / "key").read_bytes()
    key = hashlib.blake2b(known.encode(), key=secret, digest_size=32).digest()
    content, at, seen = (filled / "00000.spill").read_bytes(), 0, []
    while at < len(content):
        _, _, sample, size = struct.unpack_from("<IIQQ", content, at)
        head, data = content[at : at + HEAD], content[at + HEAD : at + HEAD + size]
        assert hashlib.blake2b(head[:24], key=key, digest_size=16).digest() == head[24:40]
        assert hashlib.blake2b(head[:40] + data, key=key, digest_size=16).digest() == head[40:]
        assert f"meow {sample} ".encode() in data
        at += HEAD + size
        seen.append(sample)
    assert sorted(seen) == list(range(24))


def _flip(content: bytearray, random: random.Random) -> None:
    for _ in range(random.randint(1, 30)):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def _swap(content: bytearray, random: random.Random) -> None:
    """Exchange two records of the same or another size."""
    records, at = [], 0
    while at < len(content):
        size = struct.unpack_from("<Q", content, at + 16)[0]
        records.append(bytes(content[at : at + HEAD + size]))
        at += HEAD + size
    a, b = random.sample(range(len(records)), 2)
    # Keep each header in its place, and exchange the bytes; then the headers' samples as well.
    if random.random() < 0.5:
        records[a], records[b] = records[a][:HEAD] + records[b][HEAD:], records[b][:HEAD] + records[a][HEAD:]
    else:
        number = records[a][8:16]
        records[a] = records[a][:8] + records[b][8:16] + records[a][16:]
        records[b] = records[b][:8] + number + records[b][16:]
    content[:] = b"".join(records)


def _number(value: int) -> Callable[[bytearray, random.Random], None]:
    def change(content: bytearray, random: random.Random) -> None:
        struct.pack_into("<Q", content, random.choice((8, 16)), value)

    return change


def _fill(content: bytearray, random: random.Random) -> None:
    begin = random.randrange(len(content))
    content[begin : begin + 200] = random.randbytes(len(content[begin : begin + 200]))


CHANGES = {
    "flip": _flip,
    "swap": _swap,
    "fill": _fill,
    "huge": _number(1 << 62),
    "negative": _number((1 << 64) - 1),
    "large": _number(1 << 40),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", CHANGES)
def test_changed_samples_are_loaded_anew_with_one_warning(filled: Path, change: str) -> None:
    path = filled / "00000.spill"
    good = {file.name: file.read_bytes() for file in filled.iterdir()}
    for seed in range(12):
        content = bytearray(good["00000.spill"])
        CHANGES[change](content, random.Random(seed))
        if bytes(content) == good["00000.spill"]:
            continue
        path.write_bytes(content)
        loaded, said = run(Words(), filled)
        assert set(loaded) >= set(range(8))
        # One that is compared may differ in nothing but its tag; then the dataset's own is used.
        assert len(said) <= 1, said
        assert not said or "damaged" in said[0], said
        assert len(set(loaded)) == 24 or said or change == "flip"
        for file in filled.glob("*.spill"):
            file.unlink()
        path.write_bytes(good["00000.spill"])


def test_what_a_killed_run_left_is_no_reason_to_warn(filled: Path) -> None:
    path = filled / "00000.spill"
    content = path.read_bytes()
    for length in (0, 10, HEAD - 1, HEAD, HEAD + 5, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert run(Words(), filled)[1] == []
        for file in filled.glob("*.spill"):
            file.unlink()
    path.write_bytes(content + bytes(1000))  # where another thread was to write
    assert run(Words(), filled)[1] == []


@pytest.mark.parametrize("size", [1 << 36, 1 << 43])
def test_a_file_with_holes_is_not_taken_into_memory(filled: Path, size: int) -> None:
    content = (filled / "00000.spill").read_bytes()
    with (filled / "00001.spill").open("wb") as file:
        file.write(content[:8] + struct.pack("<QQ", 9, size - HEAD) + content[24:HEAD])
        file.truncate(size)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 35, 1 << 35))\n"
        f"sys.path.insert(0, {ROOT!r})\n"
        "from tests.cache.spill.test_records import *\n"
        f"print(run(Words(), Path({str(filled)!r})))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "not written by this user" in done.stdout


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device", "loop"])
def test_what_is_no_file_is_not_waited_for(
    filled: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled / "00000.spill"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "socket":
        monkeypatch.chdir(filled)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    loaded, said = run(Words(), filled)
    assert sorted(loaded) == list(range(24))
    assert len(said) == 1
    if kind != "folder":
        assert run(Words(), filled) == (list(range(8)), [])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b"1e999",
        b"NaN",
        b'{"version": []}',
        b"0" * 5000,
        b" " * 10**6,
    ],
    ids=["empty", "half", "null", "no utf-8", "deep", "infinite", "nan", "list", "digits", "long"],
)
def test_a_damaged_description_makes_the_folder_new(filled: Path, text: bytes) -> None:
    (filled / "foreload.json").write_bytes(text)
    loaded, _ = run(Words(), filled)
    assert sorted(loaded) == list(range(24))
    assert run(Words(), filled) == (list(range(8)), [])


def test_the_folder_of_an_older_version_is_emptied_unread(filled: Path) -> None:
    about = json.loads((filled / "foreload.json").read_text())
    (filled / "foreload.json").write_text(json.dumps({**about, "version": 1}))
    (filled / "key").unlink()
    loaded, said = run(Words(), filled)
    assert sorted(loaded) == list(range(24))
    assert said == []


class Old:
    """A sample of a class that the next version of a program no longer has."""

    def __reduce__(self) -> Any:
        return _old, ()


def _old() -> str:
    if _pickled["path"] == "gone":
        raise AttributeError("Can't get attribute 'Old'")
    return "old"


class Olds(Words):
    """Samples of that class."""

    def __getitem__(self, index: int) -> Any:
        _loaded.append(index)
        return Old()


def test_samples_that_no_longer_unpickle_are_loaded_from_the_dataset(folder: Path) -> None:
    with trap(Path("old")):
        run(Olds(), folder)
    _pickled["path"] = "gone"
    try:
        loaded, said = run(Olds(), folder)
    finally:
        _pickled["path"] = None
    assert set(loaded) == set(range(24))
    assert len(said) == 1
    assert "cannot be cached" in said[0]


@pytest.mark.slow
def test_no_more_open_files_is_no_reason_to_delete_samples(filled: Path) -> None:
    code = (
        "import resource, sys\n"
        f"sys.path.insert(0, {ROOT!r})\n"
        "from tests.cache.spill.test_records import *\n"
        "from foreload.cache.spill import SpillFolder\n"
        "from foreload.cache.store import SampleStore\n"
        f"folder = SpillFolder(Path({str(filled)!r}), Words())\n"
        "store = SampleStore(24, 0)\n"
        "spare = os.open('/', os.O_RDONLY)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 3, spare + 3))\n"
        "store.spill_to(folder)\n"
        "print(store.native.spill_rejected())"
    )
    done = python("-c", code)
    assert done.stdout.split() == ["0"], done.stderr
    assert run(Words(), filled) == (list(range(8)), [])


@pytest.mark.parametrize("workers", [0, 2])
def test_files_of_images_that_were_exchanged_are_read_from_the_dataset(
    photos: Path, folder: Path, workers: int
) -> None:
    def epochs() -> tuple[list[torch.Tensor], list[str]]:
        dataset = fl.ImageDataset(photos, transform=fl.transforms.val(32))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            cache = fl.Cache(1, keep="encoded", spill=folder)
            loader = fl.DataLoader(dataset, batch_size=4, num_workers=workers, cache=cache)
            for _ in range(2):
                batches = [images.clone() for images, _ in loader]
            loader.close()
            del loader
            gc.collect()
        return batches, [str(one.message) for one in said if "spill folder" in str(one.message)]

    good, said = epochs()
    assert not said
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.spill")))
    assert content.count(b"\xff\xd8\xff") >= 4
    again, said = epochs()
    assert not said
    assert all(map(torch.equal, good, again))
    for path in folder.glob("*.spill"):
        records = bytearray(path.read_bytes())
        size = struct.unpack_from("<Q", records, 16)[0]
        records[HEAD + size // 2] ^= 1  # which many decoders take for another picture
        path.write_bytes(records)
    again, said = epochs()
    assert len(said) == 1
    assert all(map(torch.equal, good, again))
