"""Tuning and choosing are tested on two cores, whatever the machine has: what they begin with depends on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def two_cores() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    yield
    os.sched_setaffinity(0, cores)
