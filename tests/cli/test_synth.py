"""`foreload synth` in a folder that has data already; and results that would go to a file of a strange name."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.programs import python


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "foreload", *arguments)


@pytest.mark.parametrize(
    ("kind", "count", "other", "file"),
    [
        ("--images", 2, 2, "class_01/000001.jpg"),
        ("--text", 5, 6, "lines.txt"),
        ("--tensors", "5,2", "5,3", "x.npy"),
        ("--hdf5", "5,2", "5,3", "data.h5"),
    ],
)
def test_data_of_another_seed_is_not_overwritten(
    kind: str, count: Any, other: Any, file: str, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    assert run("synth", folder, kind, count).returncode == 0
    content = (folder / file).read_bytes()
    for arguments in ([count, "--seed", 1], [other]) if other != count else ([count, "--seed", 1],):
        result = run("synth", folder, kind, *arguments)
        assert result.returncode == 2
        assert "--force" in result.stderr
        assert (folder / file).read_bytes() == content
    assert run("synth", folder, kind, count).returncode == 0, "the same again"
    assert run("synth", folder, kind, count, "--seed", 1, "--force").returncode == 0
    assert (folder / file).read_bytes() != content


def test_a_file_of_the_users_in_a_folder_of_synthetic_data_is_not_overwritten(tmp_path: Path) -> None:
    assert run("synth", tmp_path, "--tensors", "3,1").returncode == 0
    (tmp_path / "lines.txt").write_text("mine")
    result = run("synth", tmp_path, "--text", 3)
    assert (result.returncode, (tmp_path / "lines.txt").read_text()) == (2, "mine")


def test_a_result_is_not_written_to_a_file_of_the_name_of_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("plan", 100, "--json", "-")
    assert result.returncode == 2
    assert "--json must name a file, got -" in result.stderr
    assert not list(tmp_path.iterdir())
