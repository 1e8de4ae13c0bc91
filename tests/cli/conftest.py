"""A folder for the sockets of programs that publish their loaders, and a running page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.served import Page


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for the sockets of this test's programs; paths of sockets are short."""
    found = tmp_path_factory.mktemp("s")
    monkeypatch.setenv("TMPDIR", str(found))
    monkeypatch.setattr("tempfile.tempdir", str(found))
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    running = Page(tmp_path_factory.mktemp("s"))
    try:
        yield running
    finally:
        running.process.kill()
        _, wrong = running.process.communicate()
        assert "Traceback" not in wrong, wrong
