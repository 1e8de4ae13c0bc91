"""Samplers with a state, and loaders over every dataset, order and kind of worker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.epochs.stateful import WORKERS


def cases(kinds: Any, workers: Any = tuple(WORKERS), fast: Any = ("here", "threads")) -> list[Any]:
    """All kinds with all workers; with processes, only the first of the kinds are fast tests."""
    return [
        pytest.param(
            kind, own, marks=() if own in fast or (number < 2 and own == "processes") else pytest.mark.slow
        )
        for number, kind in enumerate(kinds)
        for own in workers
        # Threads share the generators that this dataset draws from.
    ]
