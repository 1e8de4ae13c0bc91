"""The objects that loading makes when first needed, as measuring finds them."""

from __future__ import annotations

from foreload.dataset_state.probes.fills import Fills
from foreload.tune import measure
from foreload.tune.workload import Workload

__all__ = ["fills_of"]


def fills_of(work: Workload) -> Fills:
    return measure._in_fork(work, measure._make).fills
