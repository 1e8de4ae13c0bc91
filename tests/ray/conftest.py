"""One Ray cluster for all tests in this folder: it takes longer to start than most of them run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ray.parts import running_cluster


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[Any]:
    with running_cluster() as cluster:
        yield cluster
