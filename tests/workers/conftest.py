"""Fixtures for the tests of workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foreload.tune import choose as tune_choose
from foreload.tune.choice import Choice
from foreload.tune.workload import Workload
from foreload.workers import selection
from tests.tune.fills import fills_of


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def chosen(count: int, *, is_measured: bool = False) -> None:
        monkeypatch.setattr(selection, "_chosen", {})

        def choose_workers(work: Workload) -> Choice:
            if count == 0 or "processes" not in work.kinds:
                return Choice("threads", 0, "as the test says")
            fills = fills_of(work) if is_measured else {}
            return Choice("processes", count, "as the test says", fills=fills)

        monkeypatch.setattr(tune_choose, "choose_workers", choose_workers)

    return chosen
