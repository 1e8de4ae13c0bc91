"""Settings of the program are watched, but not what torch's compiler sets for itself."""

from __future__ import annotations

import contextvars
import csv
import decimal
import locale
import os
import sys
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ImageFile

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


# Each with what sets it, and what puts it back.
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "torch's default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "torch's gradient mode": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "torch.get_deterministic_debug_mode()": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "torch.get_float32_matmul_precision()": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "the context of decimals": (
        lambda: decimal.getcontext().traps.update({decimal.Inexact: True}),
        lambda: decimal.getcontext().traps.update({decimal.Inexact: False}),
    ),
    "numpy.geterr()": (lambda: np.seterr(divide="raise"), lambda: np.seterr(divide="warn")),
    "the time zone": (
        lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()),
        lambda: (os.environ.pop("TZ"), time.tzset()),
    ),
    "Image.MAX_IMAGE_PIXELS or ImageFile.LOAD_TRUNCATED_IMAGES": (
        lambda: setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True),
        lambda: setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False),
    ),
}
# What libraries may set, too.
ONLY_LATER: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "torch.set_flush_denormal()": (
        lambda: torch.set_flush_denormal(True),
        lambda: torch.set_flush_denormal(False),
    ),
    "sys.path": (lambda: sys.path.insert(0, "/nowhere"), lambda: sys.path.remove("/nowhere")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_first_sample_sets_is_a_change(name: str) -> None:
    set_it, put_back = SETTINGS[name]
    held = CopiedState([])
    try:
        set_it()
        assert held.changed_by_loading() == name
    finally:
        put_back()


@pytest.mark.parametrize("name", [*SETTINGS, *ONLY_LATER])
def test_what_is_set_later_is_a_change(name: str) -> None:
    set_it, put_back = {**SETTINGS, **ONLY_LATER}[name]
    held, by_loop = CopiedState([]), CopiedState([])
    assert held.changed_by_loading() is None
    try:
        set_it()
        assert held.changed_by_loading() == by_loop.changed() == name
    finally:
        put_back()


@pytest.mark.parametrize("name", ONLY_LATER)
def test_what_libraries_set_with_the_first_sample_is_none(name: str) -> None:
    set_it, put_back = ONLY_LATER[name]
    held = CopiedState([])
    try:
        set_it()
        assert held.changed_by_loading() is None
    finally:
        put_back()


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch 2.9 has it")
def test_precisions_of_backends_may_be_set() -> None:
    held, before = CopiedState([]), torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert held.changed() in (None, "torch.get_float32_matmul_precision()")
        assert CopiedState([]).changed() is None
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_what_raises_when_it_is_asked_for_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locale, "setlocale", None)
    held = CopiedState([])
    assert held.changed() is None
    monkeypatch.undo()
    assert held.changed() == "the locale"


def test_a_context_variable_that_had_a_value_is_no_librarys() -> None:
    def set_it() -> None:
        UNKNOWN.set(1)
        held = CopiedState([])
        UNKNOWN.set(2)
        assert held.changed_by_loading() == "a context variable"

    contextvars.copy_context().run(set_it)


class Scaled:
    """Reads a variable of the environment."""

    def __getitem__(self, index: int) -> float:
        return index * float(os.environ["SCALE"])


def test_the_environment_is_watched_from_the_first_sample_on_if_code_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, library, others = CopiedState(Scaled()), CopiedState(Scaled()), CopiedState([])
    monkeypatch.setenv("SET_BY_A_LIBRARY", "1")
    assert library.changed_by_loading() is None
    monkeypatch.setenv("SCALE", "2")
    assert held.changed_by_loading() == library.changed_by_loading() == "os.environ"
    assert others.changed_by_loading() is None


class Clipped:
    """Takes a function and a number from libraries."""

    def __getitem__(self, index: int) -> Any:
        return np.clip(index, 0, csv.QUOTE_ALL)


def test_what_code_takes_from_libraries_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in ((np, "clip", max), (csv, "QUOTE_ALL", 7)):
        held = CopiedState(Clipped())
        assert held.changed() is None
        monkeypatch.setattr(module, name, value)
        assert held.changed() == name


def test_what_libraries_set_when_they_are_first_used_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    held = CopiedState([])
    monkeypatch.setenv("SET_BY_A_LIBRARY", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        UNKNOWN.set(1)
        assert held.changed_by_loading() is None
        assert held.changed_by_loading() is None
