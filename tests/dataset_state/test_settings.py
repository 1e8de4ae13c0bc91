"""Settings of the program are watched, but not what torch's compiler sets for itself."""

from __future__ import annotations

import contextvars
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foreload.dataset_state.copied import CopiedState

UNKNOWN_ARRAY: contextvars.ContextVar[Any] = contextvars.ContextVar("UNKNOWN_ARRAY")
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

    sys.modules["torch.not_to_be_imported"] = None  # type: ignore[assignment]
    UNKNOWN_ARRAY.set(np.zeros(2))
    tagged = torch.ones(3)
    tagged.note = "of the user's"  # type: ignore[attr-defined]
    state = CopiedState(SimpleNamespace(weights=weights, tagged=tagged))
    compiled = torch.compile(Weighted(), backend="eager")
    assert float(compiled(torch.ones(3))) == 3
    assert state.changed() is None
    del sys.modules["torch.not_to_be_imported"]
    weights.note = 1  # type: ignore[attr-defined]
    assert state.changed() == "note"


SETTINGS = {
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's gradient mode": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_first_sample_sets_is_a_change(name: str) -> None:
    dtype, keeps = torch.get_default_dtype(), torch.is_grad_enabled()
    held = CopiedState([])
    try:
        SETTINGS[name]()
        assert held.changed_by_loading() == name
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(keeps)


def test_what_libraries_set_when_they_are_first_used_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    held = CopiedState([])
    monkeypatch.setenv("SET_BY_A_LIBRARY", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        UNKNOWN.set(1)
        assert held.changed_by_loading() is None
        assert held.changed_by_loading() is None
