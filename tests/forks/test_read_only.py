"""A fork that measures changes no file."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from sqlite3 import connect
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import foreload as fl
from foreload.forks.fork import forked
from foreload.forks.read_only import ReadOnlyFiles


def _keep_temporary(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (written := Path(folder) / "written").write_text("text")
        written.replace(path)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "write": lambda folder: (folder / "new").write_text("new"),
    "write, relative": lambda folder: (os.chdir(folder), Path("new").write_text("new")),
    "save by torch, relative": lambda folder: (os.chdir(folder), torch.save(torch.ones(3), "new")),
    "append": lambda folder: (folder / "old").open("a"),
    "update": lambda folder: np.memmap(folder / "old", np.uint8, "r+"),
    "save": lambda folder: np.save(folder / "new", np.zeros(3)),
    "save by torch": lambda folder: torch.save(torch.ones(3), folder / "new"),
    "image": lambda folder: Image.new("L", (2, 2)).save(folder / "new.png"),
    "low": lambda folder: os.open(folder / "new", os.O_CREAT | os.O_WRONLY),
    "touch": lambda folder: (folder / "old").touch(),
    "folder": lambda folder: os.makedirs(folder / "new" / "inner"),
    "remove": lambda folder: os.remove(folder / "old"),
    "remove all": lambda folder: shutil.rmtree(folder / "inner"),
    "move": lambda folder: shutil.move(folder / "old", folder / "new"),
    "rename": lambda folder: os.replace(folder / "old", folder / "other"),
    "link": lambda folder: os.symlink("old", folder / "new"),
    "hard link": lambda folder: os.link(folder / "old", folder / "new"),
    "shorten": lambda folder: os.truncate(folder / "old", 1),
    "keep a temporary one": lambda folder: _keep_temporary(folder / "new"),
    "insert": lambda folder: sqlite3.connect(folder / "rows").execute("insert into t values (2)"),
    "insert by a name": lambda folder: connect(folder / "rows").execute("insert into t values (2)"),
    "attach": lambda folder: _attached(folder / "rows").execute("insert into other.t values (2)"),
    "create": lambda folder: sqlite3.connect(folder / "rows").execute("create table u (i int)"),
    "delete": lambda folder: sqlite3.connect(folder / "rows").execute("delete from t"),
    "create a database": lambda folder: sqlite3.connect(folder / "new").execute("create table u (i int)"),
    "connect late": lambda folder: _connect_late(folder / "rows"),
    "connect by the class": lambda folder: sqlite3.Connection(folder / "rows").execute("delete from t"),
    "claim": lambda folder: _claim(folder / "1.lock"),
    "lock by a folder": lambda folder: os.mkdir(folder / "1.lock"),
    "owner": lambda folder: os.chown(folder / "old", os.getuid(), os.getgid()),
    "attribute": lambda folder: os.setxattr(folder / "old", "user.seen", b"1"),
    "temporary, elsewhere": lambda folder: tempfile.TemporaryDirectory(dir=folder),
    "by a fork": lambda folder: _by_fork(folder / "new"),
    "through a link": lambda folder: _through_link(folder),
    "replace by a temporary one": lambda folder: _replace(folder),
}

KEPT = sqlite3.connect


def _attached(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.execute(f"attach '{path}' as other")
    return database


def _temporary() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "inner").mkdir()
        (Path(folder) / "inner" / "file").write_text("text")
        torch.save(torch.ones(2), Path(folder) / "tensor")
    with tempfile.TemporaryFile("w") as file, tempfile.NamedTemporaryFile("w") as named:
        file.write("text")
        named.write("text")


def _in_folder(name: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with tempfile.TemporaryDirectory(dir=name) as inner:  # type: ignore[type-var]
            (Path(os.fsdecode(inner)) / "file").write_text("text")
        os.chdir("/")


def _again() -> None:
    with tempfile.NamedTemporaryFile("w") as file:
        pass
    Path(file.name).write_text("text")
    Path(f"{file.name}.wav").write_text("text")
    for name in (file.name, f"{file.name}.wav"):
        os.remove(name)


def _by_fork(path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_refused, args=(path,))
    process.start()
    process.join()
    raise OSError(errno.EROFS, os.strerror(errno.EROFS)) if process.exitcode == 3 else AssertionError


def _refused(path: Path) -> None:
    try:
        path.write_text("text")
    except OSError:
        sys.exit(3)


def _connect_late(path: Path) -> None:
    """As where sqlite3 is imported by the sample, or its function has been kept."""
    KEPT(path).execute("insert into t values (2)")


def _claim(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))


def _through_link(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        (link := Path(temporary) / "link").symlink_to(folder / "old")
        link.write_text("new")


def _replace(folder: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write("new")
    os.replace(file.name, folder / "old")


def _by_program() -> None:
    path = Path(tempfile.mktemp())
    subprocess.run([sys.executable, "-S", "-c", f"open({str(path)!r}, 'w')"], check=True)
    path.unlink()


NONE: dict[str, Callable[[Path], Any]] = {
    "read": lambda folder: (folder / "old").read_text(),
    "map": lambda folder: np.memmap(folder / "old", np.uint8, "c"),
    "temporary": lambda folder: _temporary(),
    "temporary, relative": lambda folder: _in_folder("."),
    "temporary, as bytes": lambda folder: _in_folder(b"."),
    "temporary, again": lambda folder: _again(),
    "a stream of the process": lambda folder: open("/dev/stdout", "w").close(),
    "an open file": lambda folder: open(np.int64(os.dup(1)), "w").close(),  # type: ignore[call-overload]
    "by a program": lambda folder: _by_program(),
    "torch in memory": lambda folder: torch.save(torch.ones(3), io.BytesIO()),
    "a lock": lambda folder: (folder / "none.lock").touch(),
    "nowhere": lambda folder: Path(os.devnull).write_text("text"),
    "a folder that is there": lambda folder: os.makedirs(folder / "inner", exist_ok=True),
    "what is not there": lambda folder: (folder / "none").unlink(missing_ok=True),
    "program": lambda folder: subprocess.run([sys.executable, "-S", "-c", "0"], check=True),
    "query": lambda folder: sqlite3.connect(folder / "rows").execute("select i from t").fetchall(),
    "in memory": lambda folder: sqlite3.connect(":memory:").execute("create table t (i int)"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("inner")
    (tmp_path / "old").write_text("old")
    with sqlite3.connect(tmp_path / "rows") as rows:
        rows.execute("create table t (i int)")
        rows.execute("insert into t values (1)")
    rows.close()
    return tmp_path


def _listing(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def _in_fork(run: Callable[[Path], Any], folder: Path) -> list[str | None]:
    """Return the error that a function raises, and what was refused."""

    def tell(into: int) -> None:
        files, said = ReadOnlyFiles(), None
        files.begin()
        try:
            run(folder)
        except (OSError, sqlite3.Error) as error:
            said = str(error)
        files.end(keeps=False)
        os.write(into, json.dumps([said, files.refused]).encode())

    with forked(tell) as fork:
        told: list[str | None] = json.loads(os.read(fork.pipe, 1 << 16))
        return told


@pytest.mark.parametrize("name", CHANGES)
def test_what_would_change_a_file_is_refused(name: str, folder: Path) -> None:
    before = _listing(folder)
    error, refused = _in_fork(CHANGES[name], folder)
    assert _listing(folder) == before
    assert refused is not None
    assert refused.startswith(":memory:" if name == "attach" else str(folder))
    assert error is not None
    assert "Read-only file system" in error or "not authorized" in error


@pytest.mark.parametrize("name", NONE)
def test_all_else_is_not(name: str, folder: Path) -> None:
    assert _in_fork(NONE[name], folder) == [None, None]


def test_only_what_has_begun_is_refused(folder: Path) -> None:
    def tell(into: int) -> None:
        files = ReadOnlyFiles()
        (folder / "before").write_text("text")
        rows = sqlite3.connect(folder / "rows")
        files.begin()
        with tempfile.NamedTemporaryFile(delete=False) as kept:
            pass
        files.end(keeps=True)
        rows.execute("insert into t values (2)")
        files.begin()
        with tempfile.NamedTemporaryFile(delete=False) as left:
            pass
        files.end(keeps=False)
        (folder / "after").write_text("text")
        there = os.path.exists(kept.name), os.path.exists(left.name)
        os.remove(kept.name)
        os.write(into, json.dumps([*there, files.refused]).encode())

    with forked(tell) as fork:
        assert json.loads(os.read(fork.pipe, 1 << 16)) == [True, False, None]


def test_the_folder_for_temporary_files_need_not_be_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert _in_fork(NONE["temporary"], folder) == [None, None]


def test_what_somebody_else_has_made_beside_temporary_files_stays(folder: Path) -> None:
    path = Path(tempfile.gettempdir()) / f"{uuid.uuid4()}.log"

    def change(folder: Path) -> None:
        subprocess.run([sys.executable, "-S", "-c", f"open({str(path)!r}, 'w').write('theirs')"], check=True)
        with path.open("a") as file:
            file.write("mine")

    try:
        error, refused = _in_fork(change, folder)
        assert refused == str(path)
        assert "Read-only file system" in str(error)
        assert path.read_text() == "theirs"
    finally:
        path.unlink()


@pytest.mark.parametrize("change", [Path.write_text, lambda path, _: path.mkdir()], ids=["file", "folder"])
def test_what_a_sample_names_itself_beside_temporary_files_is_not_its_own(change: Any, folder: Path) -> None:
    path = Path(tempfile.gettempdir()) / f"{uuid.uuid4()}.npy"
    error, refused = _in_fork(lambda folder: change(path, "text"), folder)
    assert refused == str(path)
    assert "Read-only file system" in str(error)
    assert not path.exists()


class Kept(Dataset[Any]):
    """Samples that are computed in full precision the first time, and read in half of it from then on."""

    def __init__(self, folder: Path, size: int = 400) -> None:
        self.folder, self.size = folder, size

    def __len__(self) -> int:
        return self.size

    def path(self, index: int) -> Path:
        return self.folder / f"{index}.npy"

    def __getitem__(self, index: int) -> Any:
        path = self.path(index)
        if path.exists():
            return np.load(path).astype(np.float32)
        computed = np.sin(np.arange(2_000, dtype=np.float32) * index)
        for _ in range(20):
            np.sort(computed)
        np.save(path, computed.astype(np.float16))
        return computed


class KeptBeside(Kept):
    """The same, in the folder for temporary files, of which nobody knows that they are to stay."""

    def path(self, index: int) -> Path:
        return Path(tempfile.gettempdir()) / f"{self.folder.name}-{index}.npy"


def test_samples_kept_beside_temporary_files_are_those_of_the_first_time(tmp_path: Path) -> None:
    try:
        stock, ours = (
            [batch for _ in range(2) for batch in kind(KeptBeside(tmp_path / name), batch_size=8)]
            for name, kind in (("stock", torch.utils.data.DataLoader), ("ours", fl.DataLoader))
        )
    finally:
        for path in Path(tempfile.gettempdir()).glob("*-*.npy"):
            path.unlink()
    for one, other in zip(ours, stock, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("is_there", [True, False], ids=["one write fails", "all fail"])
def test_samples_that_keep_files_are_those_of_the_first_time(is_there: bool, tmp_path: Path) -> None:
    batches = {}
    for name, kind in (("stock", torch.utils.data.DataLoader), ("ours", fl.DataLoader)):
        dataset = Kept(tmp_path / name)
        dataset.folder.mkdir()
        if is_there:
            dataset[0]
        loader: Any = kind(dataset, batch_size=8)
        batches[name] = [batch for _ in range(2) for batch in loader]
    for ours, stock in zip(batches["ours"], batches["stock"], strict=True):
        assert torch.equal(ours, stock)
    workers = loader.stats()["workers"]
    assert workers["count"] == 0
    assert "loading changes a file" in workers["why"]
    assert str(tmp_path / "ours") in workers["why"]
