"""Settings of the program that samples may depend on, whatever they are made from."""

from __future__ import annotations

import locale
import os
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any

import numpy as np
import torch

from foreload._libraries import WARNINGS_CONTEXT, environment_bytes, warning_filters
from foreload._torch import innermost_function_mode
from foreload.batch.context import autocast_dtypes
from foreload.checks import optional

__all__ = ["Settings", "filters_of_errors"]

_DECIMALS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimals() -> Any:
    module = sys.modules.get("decimal")
    if module is None:
        return None
    context = module.getcontext()
    return [*(getattr(context, name) for name in _DECIMALS), context.traps.copy()]


def _folder() -> Any:
    with suppress(OSError):  # it has been deleted
        return os.getcwd()
    return None


_CPU = torch.device("cpu")


def _device() -> Any:
    if innermost_function_mode() is None:  # a default device is one; to ask for it takes ten times as long
        return _CPU
    with suppress(AttributeError):  # torch 2.6, once the default device has been set to None
        return torch.get_default_device()
    return _CPU


def _environment() -> Any:
    return dict(environment_bytes())


def filters_of_errors() -> Any:
    """Return the filters by which warnings are errors, and those that come before these."""
    filters = warning_filters()
    last = max((place for place, each in enumerate(filters) if each[0] == "error"), default=-1)
    return filters[: last + 1]


def _variables_of_torch() -> set[ContextVar[Any]]:
    """Return the context variables of torch's modules and of its configuration, which ``torch.compile`` sets."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch"]
    spaces = [own for module in modules if isinstance(own := optional(module, "__dict__"), dict)]
    values = [value for own in spaces for value in list(own.values())]
    settings = [config for own in spaces if type(config := own.get("_config")) is dict]
    values += [optional(entry, "user_override") for config in settings for entry in config.values()]
    return {value for value in values if type(value) is ContextVar}


def _precision() -> str | None:
    with suppress(RuntimeError):  # it raises where that of a backend has been set (torch 2.9+)
        return torch.get_float32_matmul_precision()
    return None


# Each setting of Pillow's that decides which files it reads, and its value before it is imported.
_PILLOWS = ("Image", "MAX_IMAGE_PIXELS", (1 << 30) // 12), ("ImageFile", "LOAD_TRUNCATED_IMAGES", False)


def _pillows() -> list[Any]:
    modules = sys.modules
    return [getattr(modules.get(f"PIL.{name}"), setting, value) for name, setting, value in _PILLOWS]


def _flushes_denormal() -> bool:
    least = sys.float_info.min
    return least / 2 == 0


_CONTEXT, _WARNINGS, _ENVIRON = "a context variable", "the filter of warnings", "os.environ"
_LOCALE, _DENORMAL = "the locale", "torch.set_flush_denormal()"
_PATH, _PILLOW = "sys.path", "Image.MAX_IMAGE_PIXELS or ImageFile.LOAD_TRUNCATED_IMAGES"

_PRESENT: dict[str, Callable[[], Any]] = {
    "the current directory": _folder,
    "torch's default dtype": torch.get_default_dtype,
    "torch's default device": _device,
    "torch's gradient mode": torch.is_grad_enabled,
    "torch's inference mode": torch.is_inference_mode_enabled,
    "torch's autocast": autocast_dtypes,
    "torch.get_deterministic_debug_mode()": torch.get_deterministic_debug_mode,
    "torch.get_float32_matmul_precision()": _precision,
    "the context of decimals": _decimals,
    "numpy.geterr()": np.geterr,
    _DENORMAL: _flushes_denormal,
    _LOCALE: lambda: locale.setlocale(locale.LC_ALL),
    "the time zone": lambda: time.tzname,
    _PATH: lambda: tuple(sys.path),
    _PILLOW: _pillows,
    _WARNINGS: filters_of_errors,
    _CONTEXT: copy_context,
}

# What has ways of its own to other processes.
_OF_PROCESSES = (_CONTEXT, _WARNINGS, _PATH, _PILLOW)

# What libraries may set when they are first used, which each process does for itself; also new context variables.
_BY_LIBRARIES = (_WARNINGS, _LOCALE, _DENORMAL, _PATH)


class Settings:
    """The settings as they are now.

    Args:
        environment: the texts in code that reads variables of the environment; None: they are not among the
            settings. Libraries set some when they are first used, so of these, only those that are named count
            at first.

    >>> settings = Settings(environment={"SCALE"})
    >>> os.environ["SCALE"] = "2"
    >>> settings.changed()
    'os.environ'
    >>> del os.environ["SCALE"]; settings.changed()
    """

    def __init__(self, *, environment: Collection[str] | None) -> None:
        watched = _PRESENT | ({} if environment is None else {_ENVIRON: _environment})
        self._named = [name.encode() for name in environment or () if name.isascii()]
        self._before = [(name, present, _value_of(present)) for name, present in watched.items()]
        self._of_torch: set[ContextVar[Any]] = set()

    def values(self) -> list[tuple[str, Any]]:
        """Return the settings that another process could have too, by name."""
        return [(name, value) for name, _, value in self._before if name not in _OF_PROCESSES]

    def changed_by_code(self) -> str | None:
        """Return the name of what has been set since, of what libraries do not set when they are first used."""
        return self._changed(left_out=_BY_LIBRARIES, at_first=True)

    def changed(self) -> str | None:
        """Return the name of what has been set since; None if nothing has."""
        return self._changed()

    def _changed(self, left_out: Collection[str] = (), *, at_first: bool = False) -> str | None:
        for name, present, before in self._before:
            if name in left_out or _is_equal(now := _value_of(present), before):
                continue
            if name == _ENVIRON and at_first:
                if any(now.get(each) != before.get(each) for each in self._named):
                    return name
            elif name != _CONTEXT or self._have_changed(before, of_new=not at_first):
                return name
        return None

    def _have_changed(self, before: Context, *, of_new: bool) -> bool:
        """Whether context variables have been set that are not torch's; those without a value if asked for."""
        now = copy_context()
        known = {**now, **before} if of_new else before
        pairs = ((each, now.get(each, before), before.get(each, before)) for each in known)
        names = [each for each, one, other in pairs if not (one is other or _is_equal(one, other))]
        # (The filters in that of warnings are a setting of their own.)
        names = [each for each in names if each is not WARNINGS_CONTEXT]
        if not self._of_torch.issuperset(names):
            self._of_torch = _variables_of_torch() | {each for each in names if each.name.startswith("torch.")}
        return not self._of_torch.issuperset(names)


def _value_of(present: Callable[[], Any]) -> Any:
    try:
        return present()
    except Exception as error:  # whatever a library raises in some state or version
        return type(error)


def _is_equal(value: Any, before: Any) -> bool:
    try:
        return bool(value == before)
    except Exception:  # the comparison of a context variable's values may raise anything
        return False
