"""Fixtures for the tests of workers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from foreload.tune import choose as tune_choose
from foreload.tune.choice import Choice
from foreload.tune.workload import Workload
from foreload.workers import selection


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def chosen(count: int) -> None:
        monkeypatch.setattr(selection, "_chosen", {})

        def choose_workers(work: Workload) -> Choice:
            if count == 0 or "processes" not in work.kinds:
                return Choice("threads", 0, "as the test says")
            return Choice("processes", count, "as the test says")

        monkeypatch.setattr(tune_choose, "choose_workers", choose_workers)

    return chosen
