"""The context of the training loop, in which worker threads load samples for it."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["LoopContext"]

P = ParamSpec("P")
T = TypeVar("T")


class LoopContext:
    """The context of the thread that makes this object, for other threads to work in.

    It has context variables (those of ``decimal`` and ``numpy.errstate`` among them), ``torch.no_grad`` and
    ``torch.inference_mode``. The default dtype is the same for all threads anyway.

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

    def run(self, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Call ``function`` in this context; several threads may do so at once."""
        variables = self._variables.copy()
        if self._grad and not self._inference:  # as in a new thread
            return variables.run(function, *args, **options)
        with torch.inference_mode(self._inference), torch.set_grad_enabled(self._grad):
            return variables.run(function, *args, **options)
