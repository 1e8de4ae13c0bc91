"""Settings of the program and of the loop's thread, which worker processes that are not forked take over."""

from __future__ import annotations

import csv
import decimal
import importlib
import locale
import operator
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from foreload.dataset_state.settings import Settings, filters_of_errors

__all__ = ["LoopSettings", "present_settings"]


def _warnings() -> list[tuple[str, str, tuple[str, str], str, int]]:
    """Return the filters by which warnings are errors, and those that come before these, as texts and names."""
    return [
        (action, _text(message), (_module_of(kind), kind.__qualname__), _text(module), line)
        for action, message, kind, module, line in filters_of_errors()
        if isinstance(kind, type)
    ]


def _module_of(kind: type) -> str:
    module = str(kind.__module__)
    return "__main__" if module == "__mp_main__" else module  # its name in processes that are not forked


def _text(pattern: Any) -> str:
    return str(getattr(pattern, "pattern", pattern) or "")


# What is not in the settings that are looked at before each batch, as it is seldom set.
_MORE: dict[str, Callable[[], Any]] = {
    "the recursion limit": sys.getrecursionlimit,
    "csv.field_size_limit()": csv.field_size_limit,
    "the filter of warnings that are errors": _warnings,
}


def present_settings() -> dict[str, Any]:
    """Return the settings that another process could have too, by name."""
    return dict(Settings(environment=None).values()) | {name: value() for name, value in _MORE.items()}


def _set_decimals(values: list[Any]) -> None:
    context = decimal.getcontext()
    *numbers, traps = values
    for name, value in zip(("prec", "rounding", "Emin", "Emax", "capitals", "clamp"), numbers, strict=True):
        setattr(context, name, value)
    for trap, is_set in traps.items():
        context.traps[trap] = is_set


def _set_warnings(filters: list[tuple[Any, ...]]) -> None:
    kinds = [operator.attrgetter(name)(importlib.import_module(module)) for _, _, (module, name), _, _ in filters]
    for kind, (action, message, _, module, line) in reversed(list(zip(kinds, filters, strict=True))):
        warnings.filterwarnings(action, message, kind, module, line)


_entered: list[Any] = []  # modes that end when they are let go of


def _set_inference(is_set: bool) -> None:
    if is_set:
        _entered.append(torch.inference_mode())
        _entered[-1].__enter__()


def _set_autocast(kinds: list[tuple[str, torch.dtype]]) -> None:
    for kind, dtype in kinds:
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, dtype)


_SET: dict[str, Callable[[Any], Any]] = {
    "the current directory": os.chdir,
    "torch's default dtype": torch.set_default_dtype,
    "torch's gradient mode": torch.set_grad_enabled,
    "torch's inference mode": _set_inference,
    "torch's autocast": _set_autocast,
    "the context of decimals": _set_decimals,
    "numpy.geterr()": lambda kinds: np.seterr(**kinds),
    "the locale": lambda name: locale.setlocale(locale.LC_ALL, name),
    "the recursion limit": sys.setrecursionlimit,
    "csv.field_size_limit()": csv.field_size_limit,
    "the filter of warnings that are errors": _set_warnings,
    "torch.get_deterministic_debug_mode()": torch.set_deterministic_debug_mode,
    "torch.get_float32_matmul_precision()": torch.set_float32_matmul_precision,
    "torch.set_flush_denormal()": torch.set_flush_denormal,
}


class LoopSettings:
    """The settings of the thread that makes this object; a process that unpickles it has them too from then on.

    Some can only be compared: see :class:`~foreload.dataset_state.program.state.ProgramState`.

    >>> import pickle
    >>> with torch.no_grad(): sent = pickle.dumps(LoopSettings())
    >>> _ = pickle.loads(sent); torch.is_grad_enabled()
    False
    >>> _ = torch.set_grad_enabled(True)
    """

    def __init__(self) -> None:
        self.values = present_settings()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        present = present_settings()
        for name, take_over in _SET.items():
            if present[name] != self.values[name]:
                with suppress(Exception):  # such as a folder that has been deleted; that it differs is found later
                    take_over(self.values[name])
