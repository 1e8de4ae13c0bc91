"""A folder for the sockets of programs that publish their loaders."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's programs keep their sockets; paths of sockets are short."""
    found = tmp_path_factory.mktemp("s")
    monkeypatch.setenv("TMPDIR", str(found))
    monkeypatch.setattr("tempfile.tempdir", str(found))
    return found
