"""Outputs that only the loop's process has are watched: what samples print, log and warn of there."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pty
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foreload.dataset_state.copied import CopiedState

WRITES: dict[str, Callable[[], Any]] = {
    "what samples print": lambda: print("loaded"),
    "what samples log": lambda: logging.getLogger("samples").warning("loaded"),
    "what samples warn of": lambda: warnings.warn("loaded", stacklevel=1),
}


class Counting(logging.Handler):
    """Counts what is logged."""

    seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.seen += 1


@pytest.mark.parametrize("name", WRITES)
def test_what_loading_writes_where_only_the_loop_has_it_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(logging.getLogger("samples"), "handlers", [Counting()])
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        state = CopiedState([])
        assert state.changed_by_loading() is None
        WRITES[name]()
        assert state.changed() is None  # which the loop itself may do
        assert state.changed_by_loading() == name


class Lines(io.TextIOBase):
    """Keeps the lines that it gets."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)


def test_a_stream_of_ones_own_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Lines())
    state = CopiedState([])
    assert state.changed_by_loading() is None
    print("loaded")
    assert state.changed_by_loading() == "what samples print"


SEEN: list[str] = []


class Collecting(logging.Handler):
    """Keeps what is logged in a list of the module."""

    def emit(self, record: logging.LogRecord) -> None:
        SEEN.append(record.getMessage())


class Copying(io.TextIOBase):
    """Keeps what it passes on to a file in a list of the module."""

    def write(self, text: str) -> int:
        SEEN.append(text)
        return len(text)

    def fileno(self) -> int:
        return 1


class CountingFilter(logging.Filter):
    seen = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.seen += 1
        return True


def _makes_records(*args: Any, **options: Any) -> logging.LogRecord:
    SEEN.append(str(args[0]))
    return logging.LogRecord(*args, **options)


def _filters(record: logging.LogRecord) -> bool:
    return not SEEN.append(record.getMessage())


@pytest.mark.parametrize("what", ["a handler", "a stream", "a filter", "a function that filters", "records"])
def test_what_code_of_the_users_keeps_of_it_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("samples")
    monkeypatch.setattr(sys, "stdout", Copying() if what == "a stream" else sys.__stdout__)
    monkeypatch.setattr(logger, "handlers", [Collecting() if what == "a handler" else logging.NullHandler()])
    filters = {"a filter": CountingFilter(), "a function that filters": _filters}
    monkeypatch.setattr(logger, "filters", [filters[what]] if what in filters else [])
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(_makes_records if what == "records" else before)
    monkeypatch.setattr(logger, "propagate", False)  # to pytest's
    try:
        state = CopiedState([])
        assert state.changed_by_loading() is None
        print("loaded") if what == "a stream" else logger.warning("loaded")
        assert state.changed() is None
        assert state.changed_by_loading() == "what samples log"
    finally:
        logging.setLogRecordFactory(before)


def test_a_log_that_is_opened_late_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    monkeypatch.setattr(logging.getLogger("samples"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("samples"), "propagate", False)  # to pytest's
    state = CopiedState([])
    logging.getLogger("samples").warning("loaded")
    assert state.changed_by_loading() is None
    handler.close()


@pytest.mark.parametrize("what", ["print", "log", "warn"])
def test_what_samples_write_goes_elsewhere_once_that_is_redirected(what: str) -> None:
    state = CopiedState([])
    handler = logging.StreamHandler(io.StringIO())
    redirected = {
        "print": contextlib.redirect_stdout(io.StringIO()),
        "log": contextlib.closing(handler),
        "warn": warnings.catch_warnings(record=True),
    }[what]
    with redirected:
        if what == "log":
            logging.root.addHandler(handler)
        assert str(state.changed()).startswith(f"what samples {what}")
        logging.root.removeHandler(handler)
    assert state.changed() is None


@pytest.mark.parametrize(("mode", "changed"), [("a", None), ("w", "what samples print")])
def test_a_file_that_is_appended_to_is_the_same_place_again(
    mode: str, changed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "one", mode) as one, open(tmp_path / "other", mode) as other:
        monkeypatch.setattr(sys, "stdout", one)
        state = CopiedState([])
        with open(tmp_path / "one", mode) as again:  # which has a position of its own
            monkeypatch.setattr(sys, "stdout", again)
            assert state.changed() == changed
        monkeypatch.setattr(sys, "stdout", other)
        assert state.changed() == "what samples print"


def test_the_same_terminal_is_the_same_place_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as one, open(os.ttyname(theirs), "w") as again, open(ours, "rb"):
        monkeypatch.setattr(sys, "stdout", one)
        state = CopiedState([])
        monkeypatch.setattr(sys, "stdout", again)
        assert state.changed() is None


def test_the_first_log_of_a_loop_that_set_nothing_up_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    state = CopiedState([])
    logging.warning("step 1")  # which makes a handler for sys.stderr
    assert len(logging.root.handlers) == 1
    assert state.changed() is None


@pytest.mark.parametrize("how", ["level", "again"])
def test_more_of_what_samples_log_may_be_shown(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    if how == "again":
        logging.basicConfig()
    state = CopiedState([])
    if how == "level":
        logging.basicConfig(level=logging.INFO)
    else:
        logging.root.addHandler(logging.StreamHandler(logging.root.handlers[0].stream))  # type: ignore[attr-defined]
    assert state.changed() == "what samples log"


def test_what_samples_redirect_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    state = CopiedState([])
    assert state.changed_by_loading() is None
    logging.basicConfig(filename=tmp_path / "log")
    assert state.changed_by_loading() == "what samples log"
    logging.root.handlers[0].close()


class Recorder:
    """Counts warnings."""

    def __init__(self) -> None:
        self.seen = {"warnings": 0}

    def __call__(self, *about: Any, **more: Any) -> None:
        self.seen["warnings"] += 1


def _in_closure() -> Callable[..., None]:
    kept = SimpleNamespace(lines=[])
    return lambda message, *_, **__: kept.lines.append(message)


@pytest.mark.parametrize("make", [Recorder, _in_closure], ids=["object", "closure"])
def test_functions_that_get_warnings_are_watched_for_what_they_keep(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", make())
    state = CopiedState([])
    assert state.changed_by_loading() is None
    warnings.warn("loaded", stacklevel=1)
    assert state.changed_by_loading() == "what samples warn of"


def test_a_handler_may_lack_what_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.FileHandler.__new__(logging.FileHandler)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    state = CopiedState([])
    assert state.changed() is None


@pytest.mark.parametrize("what", ["log", "warn"])
def test_what_samples_log_and_warn_of_may_go_to_another_file_or_function(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    state = CopiedState([])
    logging.root.addHandler(logging.NullHandler())
    assert state.changed() is None
    if what == "log":
        logging.root.addHandler(handler)
    else:
        monkeypatch.setattr(warnings, "showwarning", lambda *about, **more: None)
    assert str(state.changed()).startswith(f"what samples {what}")


def test_logs_in_a_file_that_each_process_would_begin_anew_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with contextlib.closing(logging.FileHandler(tmp_path / "log", mode="w", delay=True)) as handler:
        monkeypatch.setattr(logging.getLogger("samples"), "handlers", [handler])
        monkeypatch.setattr(logging.getLogger("samples"), "propagate", False)  # to where pytest keeps logs
        state = CopiedState([])
        assert state.changed_by_loading() is None
        logging.getLogger("samples").warning("loaded")
        assert state.changed_by_loading() == "what samples log"


def test_logs_that_processes_add_to_one_file_are_no_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with contextlib.closing(logging.FileHandler(tmp_path / "log")) as handler:
        monkeypatch.setattr(logging.getLogger("samples"), "handlers", [handler])
        monkeypatch.setattr(logging.getLogger("samples"), "propagate", False)  # to where pytest keeps logs
        state = CopiedState([])
        logging.getLogger("samples").warning("loaded")
        assert state.changed_by_loading() is None


def test_the_loop_may_turn_logging_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", 0)
    state = CopiedState([])
    logging.disable(logging.CRITICAL)
    assert state.changed() == "what samples log"
