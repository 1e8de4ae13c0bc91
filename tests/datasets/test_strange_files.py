"""FIFOs, devices, sockets and loops of links among files are passed over or refused; and names are any bytes."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import foreload as fl
from foreload import transforms
from foreload.datasets.tar.pack import pack
from foreload.errors import DecodeError
from tests.conftest import jpeg, photo
from tests.programs import python

SOUND = jpeg(photo(120, 90, 2))


def specials(folder: Path) -> list[str]:
    """Files that are no files: a FIFO, a socket, and links to a FIFO and a device."""
    os.mkfifo(folder / "fifo.jpg")
    listener = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(folder)  # the name of a socket is short
    try:
        listener.bind("socket.jpg")
    finally:
        os.chdir(here)
        listener.close()
    (folder / "link.jpg").symlink_to("fifo.jpg")
    (folder / "zero.jpg").symlink_to("/dev/zero")
    (folder / "tty.jpg").symlink_to("/dev/ptmx")
    return ["fifo.jpg", "socket.jpg", "link.jpg", "zero.jpg", "tty.jpg"]


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """Class folders with one image each among what is no file, and links to folders that they lie in."""
    for name in ("a", "b"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "one.jpg").write_bytes(SOUND)
        specials(tmp_path / name)
        (tmp_path / name / "deep" / "up").symlink_to("..")
        (tmp_path / name / "all").symlink_to(tmp_path)
        (tmp_path / name / "itself").symlink_to("itself")
    return tmp_path


@pytest.mark.parametrize("kind", [fl.ImageDataset, fl.FileDataset])
def test_folders_pass_over_what_is_no_file(kind: Any, strange: Path) -> None:
    if kind is fl.FileDataset:  # which would say that it is a loop when it is loaded
        for name in ("a", "b"):
            (strange / name / "itself").unlink()
    dataset = kind(strange)
    assert [dataset.classes[target] for target in dataset.targets] == ["a", "b"]
    assert all(path.endswith("/one.jpg") for path in paths_of(dataset))
    for name in ("all", "itself", "deep/up", "deep"):
        (strange / "a" / name).rmdir() if name == "deep" else (strange / "a" / name).unlink(missing_ok=True)
    flat = kind(strange / "a", labels=[3])
    assert paths_of(flat) == [str(strange / "a" / "one.jpg")]


def paths_of(dataset: Any) -> list[str]:
    return dataset.paths if isinstance(dataset, fl.FileDataset) else [path for path, _ in dataset.samples]


def test_a_folder_is_listed_through_links_but_once(tmp_path: Path) -> None:
    (tmp_path / "data" / "cat" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "data" / "cat" / "a.jpg").write_bytes(SOUND)
    (tmp_path / "elsewhere" / "b.jpg").write_bytes(SOUND)
    (tmp_path / "data" / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "dog").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data" / "cat")
    dataset = fl.ImageDataset(tmp_path / "data")
    names = [str(Path(path).relative_to(tmp_path / "data")) for path, _ in dataset.samples]
    assert names == [
        *("cat/a.jpg", "cat/more/b.jpg"),
        *("dog/b.jpg", "dog/back/a.jpg"),
    ]
    assert dataset.targets == [0, 0, 1, 1]


def test_a_link_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(SOUND)
    (tmp_path / "gone.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    loader = fl.DataLoader(fl.ImageDataset(tmp_path), batch_size=3, on_error="skip", num_workers=0)
    assert [len(images) for images, _ in loader] == [1]
    assert sorted(Path(error.source).name for error in loader.errors) == ["gone.jpg", "loop.jpg"]


def test_a_class_folder_that_is_its_own_parent_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(SOUND)
    (tmp_path / "self").symlink_to(".")
    with pytest.raises(FileNotFoundError, match="'self'"):
        fl.ImageDataset(tmp_path)


@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("kind", [fl.ImageDataset, fl.FileDataset])
def test_what_is_no_file_is_refused_with_its_path(kind: Any, cold: bool, direct_io: bool, tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(SOUND)
    names = [*specials(tmp_path), "folder.jpg"]
    (tmp_path / "folder.jpg").mkdir()
    dataset = kind([tmp_path / name for name in ["good.jpg", *names]], direct_io=direct_io)
    if cold:
        dataset._files.expect_cold()  # so that reads are made many at a time
    loader = fl.DataLoader(dataset, batch_size=7, on_error="skip", num_workers=0)
    assert [len(batch[0] if kind is fl.ImageDataset else batch) for batch in loader] == [1]
    assert [Path(error.source).name for error in loader.errors] == names
    assert all("OSError" in error.error or "Error: [Errno" in error.error for error in loader.errors)


@pytest.mark.parametrize("mode", [fl.LoadingMode.EAGER, fl.LoadingMode.CACHED])
def test_a_fifo_is_refused_when_files_are_kept(mode: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.jpg")
    with pytest.raises(OSError, match=r"not a regular file.*fifo\.jpg"):
        fl.ImageDataset([tmp_path / "fifo.jpg"], loading_mode=mode)[0]


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize("cold", [False, True])
def test_a_file_that_became_a_fifo_is_refused(workers: Any, cold: bool, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(SOUND)
    dataset = fl.ImageDataset(tmp_path, transform=transforms.val(16))
    if cold:
        dataset._files.expect_cold()
    (tmp_path / "3.jpg").unlink()
    os.mkfifo(tmp_path / "3.jpg")
    loader = fl.DataLoader(dataset, batch_size=6, on_error="skip", num_workers=1, workers=workers)
    assert [len(images) for images, _ in loader] == [5]
    assert [Path(error.source).name for error in loader.errors] == ["3.jpg"]


def test_a_shard_that_became_a_fifo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(SOUND)
    pack(tmp_path / "images", tmp_path / "shards")
    dataset = fl.ImageDataset(tmp_path / "shards")
    shard = next((tmp_path / "shards").glob("*.tar"))
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(OSError, match=str(shard)):
        dataset[0]
    with pytest.raises(FileNotFoundError):
        fl.ImageDataset(tmp_path / "shards")


@pytest.mark.parametrize("name", ["pipe.tar", "pipe.txt", "pipe"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with ended_after(10), pytest.raises(OSError, match=f"not a regular file.*{name}"):
        fl.MemoryEfficientDataset(tmp_path / name)


@pytest.mark.parametrize("direct_io", [False, True])
def test_a_pipe_cannot_be_read_at_random(direct_io: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    with ended_after(10), pytest.raises(OSError, match=r"not a regular file.*TarStream.*pipe\.tar"):
        fl.TarDataset(tmp_path / "pipe.tar", direct_io=direct_io)


@contextlib.contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    """End what waits for ever."""

    def end(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", ["pack", "plan", "doctor"])
def test_commands_do_not_wait_for_a_fifo(
    command: str, strange: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    arguments = {"pack": [strange, tmp_path_factory.mktemp("packed")], "plan": [strange], "doctor": [strange]}
    for name in ("a", "b"):
        (strange / name / "itself").unlink()
    done = python("-m", "foreload", command, *arguments[command])
    assert done.returncode == 0, done.stdout + done.stderr


def test_text_folders_pass_over_fifos_and_loops(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.txt").write_text("one")
    os.mkfifo(tmp_path / "x" / "b.txt")
    (tmp_path / "x" / "all").symlink_to(tmp_path)
    assert len(fl.TextDataset(tmp_path)) == 1


NAMES = [b"caf\xe9.jpg", b"\xff\xfe.png", b"ok.jpg", b"bad\xe9.jpg", b"cut\xe9.jpg"]


def shrink(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((8, 8))))


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Images in a class folder, with names that are no UTF-8; one is no image, and one is cut."""
    folder = tmp_path / os.fsdecode(b"cl\xe9")
    folder.mkdir()
    for name in NAMES:
        data = {b"bad\xe9.jpg": b"no image", b"cut\xe9.jpg": SOUND[:-2]}.get(name, SOUND)
        (folder / os.fsdecode(name)).write_bytes(data)
    return tmp_path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cache", [None, "64MiB"])
@pytest.mark.parametrize("workers", ["", "threads", "processes"])
@pytest.mark.parametrize("transform", [shrink, transforms.resize(8)])
def test_names_that_are_no_utf8(transform: Any, workers: Any, cache: Any, named: Path) -> None:
    dataset = fl.ImageDataset(named, transform=transform)
    assert dataset.classes == [os.fsdecode(b"cl\xe9")]
    options: dict[str, Any] = {"num_workers": 2, "workers": workers} if workers else {"num_workers": 0}
    loader = fl.DataLoader(dataset, batch_size=2, on_error="skip", cache=cache, **options)
    for _ in range(2):
        assert sum(len(labels) for _, labels in loader) == 3
    failed = b" ".join(os.fsencode(error.error) for error in loader.errors)
    assert all(name in failed for name in (b"/bad\xe9.jpg: ", b"/cut\xe9.jpg: "))
    assert all(str(error) for error in loader.errors)
    assert str(loader.report())
    with pytest.raises(DecodeError) as raised:
        list(fl.DataLoader(dataset, batch_size=5, cache=cache, **options))
    assert b"\xe9.jpg" in os.fsencode(str(raised.value))


def test_names_that_are_no_utf8_are_packed_and_read_by_the_ready_made_loaders(named: Path, tmp_path: Path) -> None:
    for name in (b"bad\xe9.jpg", b"cut\xe9.jpg"):
        (named / os.fsdecode(b"cl\xe9") / os.fsdecode(name)).unlink()
    shards = tmp_path.parent / f"{tmp_path.name}-shards"
    assert pack(named, shards, tiled=True).samples == 3
    for source in (named, shards):
        ((images, _),) = fl.DataLoader(fl.ImageDataset(source, transform=shrink), batch_size=3, num_workers=0)
        assert torch.equal(images[0], shrink(Image.open(io.BytesIO(SOUND))))
