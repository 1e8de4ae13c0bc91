"""The context of the training loop, in which worker threads load samples for it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ParamSpec, TypeVar

import torch

__all__ = ["LoopContext", "autocast_dtypes"]

_KINDS = ("cpu", "cuda", "xpu", "mps")

P = ParamSpec("P")
T = TypeVar("T")


def autocast_dtypes() -> list[tuple[str, torch.dtype]]:
    """Return the kinds of devices for which ``torch.autocast`` is on in this thread, with its dtypes.

    >>> with torch.autocast("cpu"):
    ...     autocast_dtypes()
    [('cpu', torch.bfloat16)]
    """
    return [(kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind)]


class LoopContext:
    """The context of the thread that makes this object, for other threads to work in.

    It has context variables (those of ``decimal`` and ``numpy.errstate`` among them), ``torch.no_grad``,
    ``torch.inference_mode``, ``torch.autocast`` and torch's default device. The default dtype is the same for all
    threads anyway.

    >>> import threading
    >>> with torch.no_grad():
    ...     context = LoopContext()
    >>> found = []
    >>> thread = threading.Thread(target=lambda: found.append(context.run(torch.is_grad_enabled)))
    >>> thread.start(); thread.join(); found
    [False]
    """

    def __init__(self) -> None:
        self._variables = contextvars.copy_context()
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast, self._caches_casts = autocast_dtypes(), torch.is_autocast_cache_enabled()
        self._device = torch.empty(0).device  # faster than torch.get_default_device()
        self._as_in_a_new_thread = (
            self._grad and not self._inference and not self._autocast and self._device.type == "cpu"
        )

    def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call ``function`` in this context; several threads may do so at once."""
        variables = self._variables.copy()
        if self._as_in_a_new_thread:
            return variables.run(function, *args, **options)
        with ExitStack() as modes:
            modes.enter_context(torch.inference_mode(self._inference))
            modes.enter_context(torch.set_grad_enabled(self._grad))
            modes.enter_context(_autocast(self._autocast, self._caches_casts))
            if self._device.type != "cpu":
                modes.enter_context(self._device)
            return variables.run(function, *args, **options)


@contextmanager
def _autocast(dtypes: list[tuple[str, torch.dtype]], caches: bool) -> Iterator[None]:
    # Not by torch.autocast, whose end would clear the casts of weights that the loop keeps. None is kept here, for
    # all threads share them: once the loop's autocast has ended, the weights may change. (Where that is off, a
    # sample's own autocast keeps and clears its casts.)
    before = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind, _ in dtypes]
    cached = torch.is_autocast_cache_enabled()
    try:
        for kind, dtype in dtypes:
            torch.set_autocast_enabled(kind, True)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(caches and not dtypes)
        yield
    finally:
        for kind, was_on, dtype in before:
            torch.set_autocast_enabled(kind, was_on)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(cached)
