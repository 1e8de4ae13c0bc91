"""Samples that take half a second and more: no workers are tried, so that choosing them does not take long."""

from __future__ import annotations

import pathlib
import time
from typing import Any

from foreload.tune import measure
from foreload.tune.workload import Workload
from tests.tune.rows import Rows, chosen, without_workers


class Slow(Rows):
    """Samples of half a second and more, which may open a file when it is first needed."""

    def __init__(self, path: pathlib.Path | None) -> None:
        super().__init__(1000)
        self.path = path
        self.file: Any = None

    def __getitem__(self, index: int) -> int:
        time.sleep(0.55)
        if self.path is not None and self.file is None:
            self.file = self.path.open()
        return index


def slow_work(path: pathlib.Path | None) -> Workload:
    return Workload(dataset := Slow(path), 8, None, None, lambda *_: iter(()), ("processes",), (dataset,))


def test_slow_samples_are_loaded_by_processes_without_trying_them() -> None:
    measured = measure.measure_workers(slow_work(None), 2)
    assert not measured.state
    assert not measured.trouble
    assert {kind for kind, _ in measured.missing} == {"processes"}
    assert chosen(Slow(None))["kind"] == "processes"


def test_slow_samples_that_open_a_file_are_not_loaded_again_to_be_compared(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("text")
    measured = measure.measure_workers(slow_work(tmp_path / "file"), 2)
    assert "take too long to load some of them again" in measured.state


class SetUp(Rows):
    """The first sample takes long, for all of them."""

    table: Any = None

    def __getitem__(self, index: int) -> int:
        if self.table is None:
            time.sleep(0.6)
            self.table = list(range(len(self)))
        return int(self.table[index])


def test_one_slow_sample_says_nothing_of_the_others() -> None:
    assert without_workers(lambda: SetUp(1000))["count"] == 0
