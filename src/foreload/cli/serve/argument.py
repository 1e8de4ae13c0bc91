"""The part of an advice that can be pasted: arguments, a call or a command."""

from __future__ import annotations

import ast
import functools
import re

__all__ = ["argument"]

# Where arguments or a call of foreload's may begin.
_BEGIN = re.compile(r"\b(?:[a-z_]+=(?!=)|foreload\.\w+\()")
_MAX_CHARACTERS = 200
_COMMAND = re.compile(r"\bforeload (?:pack|plan|bench|profile|synth|doctor)(?: --?[a-z-]+| [A-Z_]+)*")


@functools.lru_cache(maxsize=256)
def argument(advice: str) -> str:
    """Return what to paste to follow an advice; the whole of it if there is nothing else.

    >>> argument("num_workers=4 instead of 2 (each worker must deliver a part of its own)")
    'num_workers=4'
    >>> argument('workers="processes", num_workers=2 (each process has its own interpreter)')
    'workers="processes", num_workers=2'
    >>> argument('cache=foreload.Cache("3GiB", keep="encoded"), which keeps about 90% of the samples')
    'cache=foreload.Cache("3GiB", keep="encoded")'
    >>> argument('pin_memory=True, and foreload.PrefetchLoader(loader, "cuda") (copies run during the work)')
    'pin_memory=True'
    >>> argument("foreload pack --tiled SRC DST: JPEGs that need decoding only where the crop is")
    'foreload pack --tiled SRC DST'
    >>> argument("a simpler collate_fn, or none")
    'a simpler collate_fn, or none'
    """
    for begin in _BEGIN.finditer(advice):
        text = advice[begin.start() :][:_MAX_CHARACTERS]
        # The longest that is an argument list.
        for end in range(len(text), 0, -1):
            if _is_pasteable(text[:end]):
                return text[:end].rstrip(", ")
    command = _COMMAND.search(advice)
    return advice if command is None else command[0]


def _is_pasteable(text: str) -> bool:
    if not text.rstrip(", ").endswith(("'", '"', ")", *"0123456789abcdefghijklmnopqrstuvwxyz")):
        return False
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError):
        return False
    if not isinstance(call, ast.Call):
        return False
    if not call.keywords:
        return len(call.args) == 1 and isinstance(call.args[0], ast.Call) and _is_value(call.args[0])
    return not call.args and all(keyword.arg and _is_value(keyword.value) for keyword in call.keywords)


def _is_value(value: ast.expr) -> bool:
    """Whether an expression is a literal, or a call of a named function: not "4 or more", nor "2 (see below)"."""
    if isinstance(value, ast.Call):
        called = [*value.args, *(keyword.value for keyword in value.keywords)]
        return _is_name(value.func) and all(_is_name(part) or _is_value(part) for part in called)
    return isinstance(value, ast.Constant)


def _is_name(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) or (isinstance(value, ast.Attribute) and _is_name(value.value))
