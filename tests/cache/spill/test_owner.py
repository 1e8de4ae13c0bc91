"""The spill folder belongs to one user, with a key of its own; links and others' folders are refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from foreload.cache import spill
from foreload.cache.spill import SpillFolder
from tests.cache.spill.trapped import Words, loader_of, run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_folder_is_reused_without_loading_or_warnings(filled: Path) -> None:
    loaded, said = run(Words(), filled)
    assert loaded == list(range(8))  # which are compared
    assert said == []


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_everything_is_made_for_the_user_alone(folder: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        run(Words(), folder)
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()} == dict.fromkeys(
        ("lock", "key", "foreload.json", "00000.spill"), 0o600
    )


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o770, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused(folder: Path, bits: int) -> None:
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(PermissionError, match="chmod 700") as raised:
        loader_of(Words(), folder).__iter__()
    assert str(folder) in str(raised.value)
    assert not list(folder.iterdir())


def test_a_folder_that_others_can_only_read_is_used(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    assert run(Words(), folder)[1] == []


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {user}.*{user + 1}.*of your own") as raised:
        loader_of(Words(), folder).__iter__()
    assert str(folder) in str(raised.value)


def test_a_folder_that_is_a_link_is_refused_with_the_place_it_leads_to(tmp_path: Path, folder: Path) -> None:
    there = tmp_path / "elsewhere"
    there.mkdir(mode=0o700)
    folder.symlink_to(there)
    with pytest.raises(OSError, match="is a link") as raised:
        loader_of(Words(), folder).__iter__()
    assert str(there) in str(raised.value)
    assert not list(there.iterdir())
    with pytest.raises(OSError, match="is a link"):
        loader_of(Words(), Path(f"{folder}/")).__iter__()


def test_a_link_to_nowhere_is_refused_and_makes_nothing(tmp_path: Path, folder: Path) -> None:
    folder.symlink_to(tmp_path / "not there")
    with pytest.raises(OSError, match="is a link"):
        loader_of(Words(), folder).__iter__()
    assert not (tmp_path / "not there").exists()


def test_parents_may_be_links_as_tmp_is_on_some_systems(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path / "private")
    assert run(Words(), tmp_path / "tmp" / "a" / "spill")[1] == []
    assert (tmp_path / "private" / "a" / "spill" / "00000.spill").exists()


def test_a_file_in_place_of_the_folder_is_an_error_with_its_path(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(OSError, match=r"spill"):
        loader_of(Words(), folder).__iter__()


@pytest.mark.parametrize("name", ["lock", "key", "foreload.json", "00000.spill", "00001.spill"])
def test_links_in_the_folder_are_not_followed(tmp_path: Path, filled: Path, name: str) -> None:
    victim = tmp_path / "thesis.tex"
    victim.write_bytes(b"years of work, exactly 32 bytes!")
    (filled / name).unlink(missing_ok=True)
    (filled / name).symlink_to(victim)
    before = victim.stat()
    if name == "lock":
        with pytest.raises(OSError, match="lock"):
            loader_of(Words(), filled).__iter__()
    else:
        run(Words(), filled)
    assert victim.read_bytes() == b"years of work, exactly 32 bytes!"
    assert (victim.stat().st_mode, victim.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.mark.parametrize("damage", ["gone", "short", "long", "empty", "open", "folder", "pipe"])
def test_a_key_that_is_not_secret_or_whole_is_replaced(filled: Path, damage: str) -> None:
    key = filled / "key"
    content = key.read_bytes()
    assert len(content) == 32
    if damage == "open":
        key.chmod(0o644)
    else:
        key.unlink()
    if damage in ("short", "long", "empty"):
        key.touch(0o600)
        key.write_bytes({"short": content[:31], "long": content + b".", "empty": b""}[damage])
    if damage == "pipe":
        os.mkfifo(key, 0o600)
    if damage == "folder":
        key.mkdir()
        with pytest.raises(OSError, match="key"), pytest.warns(UserWarning, match="'key'"):
            loader_of(Words(), filled).__iter__()
        return
    loaded, said = run(Words(), filled)
    assert sorted(loaded) == list(range(24))
    assert len(said) == 1
    assert "'key'" in said[0]
    assert mode(key) == 0o600
    assert key.read_bytes() != content
    assert run(Words(), filled) == (list(range(8)), [])


def test_keys_differ_between_folders(tmp_path: Path) -> None:
    keys = []
    for name in "ab":
        run(Words(), tmp_path / name)
        keys.append((tmp_path / name / "key").read_bytes())
    assert keys[0] != keys[1]


def test_processes_that_start_at_once_have_one_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_locked", lambda file: True)  # as on a file system without locks
    start = threading.Barrier(8)
    folders: list[SpillFolder] = []

    def begin() -> None:
        start.wait()
        folders.append(SpillFolder(folder, Words()))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.target.key for one in folders}) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["foreload.json", "key", "lock"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_worker_processes_use_the_folder(folder: Path, start: str) -> None:
    arguments = {"num_workers": 2, "workers": "processes", "multiprocessing_context": start}
    _, said = run(Words(), folder, **arguments)
    assert said == []
    assert len(list(folder.glob("*.spill"))) == 2
    assert run(Words(), folder) == (list(range(8)), [])


@pytest.mark.slow
def test_a_folder_that_is_exchanged_for_a_link_gets_nothing(tmp_path: Path, folder: Path) -> None:
    loader = loader_of(Words(), folder, num_workers=1, workers="processes", multiprocessing_context="spawn")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    iterator = iter(loader)
    next(iterator)
    del iterator
    folder.rename(tmp_path / "moved")
    folder.symlink_to(elsewhere)
    list(loader)
    assert not list(elsewhere.iterdir())
    assert list((tmp_path / "moved").glob("*.spill"))


@pytest.mark.slow
def test_a_program_that_leaves_its_loader_open_ends_quietly(folder: Path) -> None:
    program = f"""
        import torch
        from torch.utils.data import Dataset
        import foreload as fl

        class Rows(Dataset):
            def __len__(self):
                return 20

            def __getitem__(self, index):
                return torch.full((1000,), float(index))

        loader = fl.DataLoader(Rows(), batch_size=5, num_workers=0, cache=fl.Cache("8KiB", spill={str(folder)!r}))
        for batch in loader:
            for row in batch:
                pass
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300, check=True
    )
    assert ended.stderr == ""
