"""Settings of the program that samples may depend on, whatever they are made from."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import torch

from foreload.batch.context import autocast_dtypes

__all__ = ["Settings"]

_DECIMALS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimals() -> Any:
    module = sys.modules.get("decimal")
    if module is None:
        return None
    context = module.getcontext()
    return [getattr(context, name) for name in _DECIMALS]


def _folder() -> Any:
    with suppress(OSError):  # it has been deleted
        return os.getcwd()
    return None


def _device() -> Any:
    with suppress(AttributeError):  # torch 2.6, once the default device has been set to None
        return torch.get_default_device()
    return torch.device("cpu")


def _environment() -> Any:
    return dict(getattr(os.environ, "_data", os.environ))  # decoding all of it takes longer


_CONTEXT = "a context variable"

_PRESENT: dict[str, Callable[[], Any]] = {
    "the current directory": _folder,
    "torch's default dtype": torch.get_default_dtype,
    "torch's default device": _device,
    "torch's gradient mode": torch.is_grad_enabled,
    "torch's inference mode": torch.is_inference_mode_enabled,
    "torch's autocast": autocast_dtypes,
    "the context of decimals": _decimals,
    _CONTEXT: copy_context,
}


class Settings:
    """The settings as they are now.

    Args:
        with_environment: whether variables of the environment are among them. Libraries set some of these when
            they are first used, so it is for code that reads them.

    >>> settings = Settings(with_environment=True)
    >>> os.environ["SCALE"] = "2"
    >>> settings.changed()
    'os.environ'
    >>> del os.environ["SCALE"]; settings.changed()
    """

    def __init__(self, *, with_environment: bool) -> None:
        watched = _PRESENT | ({"os.environ": _environment} if with_environment else {})
        self._before = [(name, present, present()) for name, present in watched.items()]

    def values(self) -> list[tuple[str, Any]]:
        """Return the settings that another process could have too, by name."""
        return [(name, value) for name, _, value in self._before if name != _CONTEXT]

    def changed(self) -> str | None:
        """Return the name of what has been set since; None if nothing has."""
        return next((name for name, present, before in self._before if not _is_equal(present(), before)), None)


def _is_equal(value: Any, before: Any) -> bool:
    try:
        return bool(value == before)
    except Exception:  # the comparison of a context variable's values may raise anything
        return False
