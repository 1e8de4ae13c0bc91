"""Start methods of worker processes, and the reasons why this process cannot start any."""

from __future__ import annotations

import ast
import io
import multiprocessing
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch

__all__ = ["start_method", "start_nested_no_processes", "why_not_started"]

# Whether this process is a worker, whose cores are taken by others like it.
_is_worker = False


def start_nested_no_processes() -> None:
    """Let loaders in this process, which is a worker of another one, choose no worker processes by themselves."""
    global _is_worker
    _is_worker = True


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
    if _is_worker:
        return "this is a worker process of another loader"
    method = start_method(context)
    if method == "fork":
        return None
    main = _Main()
    trouble = main.trouble or _why_not_sent(parts, main)
    return None if trouble is None else f"the start method is {method!r}, and {trouble}"


class _Main:
    """The main module, as a worker process would import it.

    Attributes:
        path: its file; None in an interactive session, which is not imported.
        trouble: why it cannot be imported.
    """

    def __init__(self) -> None:
        self.path: str | None = getattr(sys.modules.get("__main__"), "__file__", None)
        self.trouble: str | None = None
        self._guarded: set[str] = set()
        if self.path is not None:
            try:
                self._read(ast.parse(Path(self.path).read_bytes()))
            except (OSError, SyntaxError, ValueError):
                self.trouble = f"{self.path} cannot be read by them; keep the script in a file"

    def _read(self, tree: ast.Module) -> None:
        guards = [node for node in tree.body if isinstance(node, ast.If) and _tests_name(node.test)]
        if not guards:
            again = f"{self.path} would be run again by each of them"
            self.trouble = f"{again}; put what it runs under: if __name__ == '__main__'"
        others = [node for node in tree.body if node not in guards]
        self._guarded = _defined([node for guard in guards for node in guard.body]) - _defined(others)

    def why_not_found(self, name: str) -> str | None:
        """Return why a worker would not find a function or class of the main module; None if it would."""
        if self.path is None:
            return f"{name} is defined in this session; define it in a module"
        if name in self._guarded:
            return f"{name} is defined under: if __name__ == '__main__'; define it before"
        return None


def _tests_name(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _defined(nodes: Iterable[ast.AST]) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for outer in nodes for node in ast.walk(outer) if isinstance(node, kinds)}


class _Pickler(pickle.Pickler):
    """Pickles anything but the content of arrays, and keeps the names that it refers to in ``__main__``."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=4)
        self.names: list[str] = []

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (torch.Tensor, np.ndarray)):
            return int, ()
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            self.names.append(obj.__qualname__.partition(".")[0])
        return NotImplemented


def _why_not_sent(parts: Iterable[Any], main: _Main) -> str | None:
    for part in parts:
        pickler = _Pickler()
        try:
            pickler.dump(part)
        except Exception as error:  # a class may raise anything when it is pickled
            return f"{type(part).__name__} cannot be pickled ({type(error).__name__}: {error})"
        for name in pickler.names:
            if (trouble := main.why_not_found(name)) is not None:
                return trouble
    return None
