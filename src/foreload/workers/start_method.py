"""Start methods of worker processes, and the reasons why this process cannot start any."""

from __future__ import annotations

import ast
import io
import multiprocessing
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["start_method", "why_not_started"]


def start_method(context: Any) -> str:
    """Return the start method of a ``multiprocessing`` context; None stands for the default one."""
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def why_not_started(context: Any, parts: Iterable[Any]) -> str | None:
    """Return why worker processes cannot be started here; None if they can.

    Args:
        context: of ``multiprocessing``; None: the default one.
        parts: the objects that they would be sent.
    """
    if multiprocessing.current_process().daemon:
        return "this is a daemonic process, which may start no others"
    method = start_method(context)
    if method == "fork":
        return None
    trouble = _why_main_cannot_be_imported()
    if trouble is None:
        trouble = _why_not_sent(parts)
    return None if trouble is None else f"the start method is {method!r}, and {trouble}"


def _why_main_cannot_be_imported() -> str | None:
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None:
        return None  # an interactive session is not imported
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return f"{path} cannot be read"
    if any(isinstance(node, ast.If) and _tests_name(node.test) for node in tree.body):
        return None
    return f"{path} would be run again by each of them; put what it runs under: if __name__ == '__main__'"


def _tests_name(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


class _Pickler(pickle.Pickler):
    """Pickles anything but the content of arrays, and keeps what it writes about ``__main__``."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (torch.Tensor, np.ndarray)):
            return int, ()
        return NotImplemented


def _why_not_sent(parts: Iterable[Any]) -> str | None:
    has_file = getattr(sys.modules.get("__main__"), "__file__", None) is not None
    for part in parts:
        written = io.BytesIO()
        try:
            _Pickler(written, protocol=4).dump(part)
        except Exception as error:  # a class may raise anything when it is pickled
            return f"{type(part).__name__} cannot be pickled ({type(error).__name__}: {error})"
        if not has_file and b"\x08__main__" in written.getvalue():
            return f"{type(part).__name__} has parts that are defined in this session; define them in a module"
    return None
