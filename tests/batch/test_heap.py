"""Memory that samples free is there for the samples to come."""

from __future__ import annotations

import pytest

from foreload.machine import granted_cores, granted_memory
from tests.programs import python

SCRIPT = """
import resource, sys
import numpy as np
import foreload as fl

class Arithmetic:
    def __len__(self):
        return 400

    def __getitem__(self, index):
        frames = [np.full((3, 200, 200), index, np.float32) for _ in range(10)]  # of 480 kB
        return float(frames[3][0, 0, 0]), resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if __name__ == "__main__":
    options = eval(sys.argv[1])
    loader = fl.DataLoader(Arithmetic(), batch_size=20, **options)
    faults = [int(batch[1][-1]) for batch in loader]
    print((faults[-1] - faults[len(faults) // 2]) / 200)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    granted_memory() < max(4 << 30, granted_cores() << 30), reason="here nothing is kept that could be given back"
)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        pytest.param({"num_workers": 1, "workers": "threads"}, marks=pytest.mark.slow),
        {"num_workers": 1, "workers": "processes"},
        pytest.param(
            {"num_workers": 1, "workers": "processes", "multiprocessing_context": "spawn"}, marks=pytest.mark.slow
        ),
    ],
)
def test_samples_take_no_new_memory_each(options: dict[str, object], tmp_path: object) -> None:
    script = f"{tmp_path}/script.py"
    with open(script, "w") as file:
        file.write(SCRIPT)
    done = python(script, repr(options))
    assert done.returncode == 0, done.stderr
    # The ten have 1,180 pages.
    assert float(done.stdout) < 100
