"""``foreload doctor``: what it looks at, and how it says what it found."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from foreload.cli.doctor import Finding, examine, table
from tests.programs import python


def test_doctor_looks_at_everything(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for name in (".DS_Store", ".git/config", "empty"):
        (tmp_path / name).write_bytes(b"" if name == "empty" else b"x")
    nothing = [finding.found for finding in examine(tmp_path) if finding.name in ("O_DIRECT", "reading")]
    assert nothing == 2 * [f"no file in {str(tmp_path)!r} to try it on"]
    (tmp_path / "file").write_bytes(b"x" * 10000)
    result = python("-m", "foreload", "doctor", tmp_path)
    assert result.returncode == 0, result.stderr
    for word in ("cores", "memory", "SIMD", "JPEG", "CUDA", "io_uring", "O_DIRECT", "/dev/shm"):
        assert word in result.stdout


def test_doctor_shows_all_of_any_path_in_a_terminal_of_any_width() -> None:
    """Square brackets are a file's name here, not rich's markup."""
    path = "photos/[old]/[red]" + "x" * 40
    shown = io.StringIO()
    findings = [Finding("O_DIRECT", True, f"works on {path}"), Finding("JPEG", False, "[b]", "see [i]")]
    Console(file=shown, width=40).print(table(findings))
    joined = "".join(line[20:].strip() for line in shown.getvalue().splitlines())
    assert path.replace(" ", "") in joined.replace(" ", "")
    assert "[b]" in joined
    assert "see [i]" in joined


def test_doctor_says_how_small_small_files_are(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 6)
    (found,) = (finding.found for finding in examine(tmp_path) if finding.name == "reading")
    assert found.startswith("6 B from storage: ")


def test_doctor_passes_over_what_cannot_be_looked_at(tmp_path: Path) -> None:
    """A link into a folder that may not be searched fails in the same way, but not for root."""
    (tmp_path / "a").symlink_to("x" * 300)
    (tmp_path / "file").write_bytes(b"x" * 6)
    (found,) = (finding.found for finding in examine(tmp_path) if finding.name == "reading")
    assert found.startswith("6 B from storage: ")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm")
def test_doctor_says_what_is_not_read_past_the_page_cache() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(b"x" * 10000)
        file.flush()
        (found,) = (finding for finding in examine(Path(file.name)) if finding.name == "O_DIRECT")
    assert not found.good
    assert "memory (tmpfs)" in found.found
