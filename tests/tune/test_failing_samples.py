"""Samples that open a file when it is first needed, and fail now and then, are measured too."""

from __future__ import annotations

import os
import time
from typing import Any

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
