"""Samples that take long, open a file when it is first needed, or fail now and then, are measured too."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

import foreload as fl
from foreload.tune import measure
from foreload.tune import sample_cost as sample_cost_of
from foreload.tune.sample_cost import common_samples
from foreload.tune.workload import Workload
from tests.tune.rows import Rows


class Opens(Rows):
    """Opens a file with the first sample; some samples cannot be read."""

    file: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = open(os.devnull)  # noqa: SIM115
        if index % 4 == 3:
            raise ValueError(f"sample {index} cannot be read")
        time.sleep(0.03)
        return index


def test_samples_that_fail_are_the_same_if_they_fail_alike() -> None:
    work = Workload(Opens(400), 8, None, None, lambda *_: None, ("processes",))
    hashes = common_samples(work)
    assert len(hashes) >= 3
    assert common_samples(work, len(hashes)) == hashes


@pytest.mark.slow
def test_slow_samples_get_processes_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (measure, sample_cost_of):
        monkeypatch.setattr(module, "SLOW_SECONDS", 0.02)
    loader = fl.DataLoader(Opens(400), batch_size=8, on_error="skip")
    loader.choose_workers()
    workers = loader.stats()["workers"]
    assert workers["kind"] == "processes"
    assert "too long to try" in workers["why"]
