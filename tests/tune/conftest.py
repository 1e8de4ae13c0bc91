"""Tuning and choosing are tested on two cores."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def on_two_cores(two_cores: None) -> None:
    pass
