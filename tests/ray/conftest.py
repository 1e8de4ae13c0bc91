"""One Ray cluster for all tests that leave its nodes as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.ray.parts import running_cluster


@pytest.fixture(scope="session")
def closing() -> Iterator[ExitStack]:
    """What closes the shared cluster, so that this process can be connected to another."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session", autouse=True)
def shared_cluster(closing: ExitStack, temporary_folder: Path) -> Any:
    return closing.enter_context(running_cluster())
