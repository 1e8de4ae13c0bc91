"""Settings of the program are watched, but not what torch's compiler sets for itself."""

from __future__ import annotations

import contextvars
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foreload.dataset_state.copied import CopiedState

UNKNOWN: contextvars.ContextVar[int] = contextvars.ContextVar("UNKNOWN")


def test_context_variables_are_watched_whoever_reads_them() -> None:
    def set_them() -> None:
        state = CopiedState([])
        UNKNOWN.set(1)
        assert state.changed() is not None
        state = CopiedState([])
        with np.errstate(all="raise"):
            assert state.changed() is not None
        assert state.changed() is None

    contextvars.copy_context().run(set_them)


def test_warnings_that_become_errors_are_watched() -> None:
    with warnings.catch_warnings():
        state = CopiedState([])
        warnings.filterwarnings("ignore", "a warning that nobody has")
        before = state.changed()
        warnings.simplefilter("error")
        assert state.changed() == "the filter of warnings"
    # (Tests have errors among their filters, so what comes before these counts.)
    assert before in (None, "the filter of warnings")


@pytest.mark.slow
def test_what_the_compiler_sets_is_no_change() -> None:
    weights = torch.ones(3)

    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weights", weights)

        def forward(self, values: torch.Tensor) -> Any:
            return (values * self.weights).sum()

    tagged = torch.ones(3)
    tagged.note = "of the user's"  # type: ignore[attr-defined]
    state = CopiedState(SimpleNamespace(weights=weights, tagged=tagged))
    compiled = torch.compile(Weighted(), backend="eager")
    assert float(compiled(torch.ones(3))) == 3
    assert state.changed() is None
    weights.note = 1  # type: ignore[attr-defined]
    assert state.changed() == "note"
