"""A search of bytecode for what it sets in modules, or may change in place there."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from foreload.dataset_state.names import steps_of

__all__ = ["codes_of", "touched_in"]

_CONTAINERS = (list, dict, set)

_LOCAL = ("LOAD_FAST", "STORE_FAST")
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS", *_LOCAL[:1])
_STORES = ("STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", *_LOCAL[1:])

_IMPORT = dis.opmap["IMPORT_NAME"]
_SETS = tuple(dis.opmap[name] for name in ("STORE_ATTR", "DELETE_ATTR"))

# Steps that change neither what lies on top of the stack, nor where it comes from.
_IDLE = ("PUSH_NULL", "SWAP", "ROT_TWO", "POP_TOP", "MAKE_CELL", "COPY_FREE_VARS")


def codes_of(name: str) -> list[CodeType]:
    """Return the code of a module, by its name; that of all cells, in a notebook; nothing if it is not known."""
    own = vars(sys.modules[name])
    cells = own.get("In")
    if name == "__main__" and isinstance(cells, list) and "__file__" not in own:
        return [code for text in cells if isinstance(text, str) and (code := _compiled(text)) is not None]
    code = _code_of(name)
    return [] if code is None else [code]


@functools.lru_cache(maxsize=4096)
def _compiled(text: str) -> CodeType | None:
    with suppress(SyntaxError, ValueError):
        code: CodeType = compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return code
    return None


@functools.lru_cache(maxsize=4096)
def _code_of(name: str) -> CodeType | None:
    module = sys.modules[name]
    with suppress(Exception):  # whatever a loader or the file of a module may raise
        loader = getattr(module.__spec__, "loader", None)
        if hasattr(loader, "get_code"):
            code: CodeType | None = loader.get_code(module.__spec__.name)  # type: ignore[union-attr]
            return code
        if (file := getattr(module, "__file__", None)) is not None:
            return compile(Path(file).read_bytes(), file, "exec")
    return None


@dataclass(frozen=True)
class _Place:
    """A module or a variable in one.

    Attributes:
        module: the module's name.
        name: the variable's, with those of the classes around it; nothing for the module itself.
        value: what is there.
    """

    module: str
    name: str
    value: Any

    def within(self, attribute: str) -> str:
        return f"{self.name}.{attribute}" if self.name else attribute

    def inner(self, attribute: str) -> _Place | None:
        """Return a variable of a module, or an attribute of a class; None if this is neither, or has none such."""
        if not issubclass(type(self.value), (ModuleType, type)) or attribute not in vars(self.value):
            return None
        value = vars(self.value)[attribute]
        return _place_of_module(value) or _Place(self.module, self.within(attribute), value)


def _place_of_module(value: Any) -> _Place | None:
    name = vars(value).get("__name__") if issubclass(type(value), ModuleType) else None
    return _Place(name, "", value) if isinstance(name, str) else None


def _place_of(value: Any) -> _Place | None:
    if issubclass(type(value), type):
        return _Place(str(value.__module__), value.__qualname__, value)
    return _place_of_module(value)


def touched_in(
    code: CodeType, known: Mapping[str, Any], around: Mapping[str, _Place] | None = None
) -> Iterator[tuple[str, str, bool]]:
    """Yield what code sets in modules and classes, and the containers in them that it uses.

    Args:
        code: of a module, or of a function in it.
        known: the variables of the module.
        around: what is imported in the code around it, by the name that it has there.

    Yields:
        The name of a module, that of a variable in it with the classes around it, and whether it is set.
    """
    if not _may_touch(code, known, around or {}):
        for value in code.co_consts:
            if isinstance(value, CodeType):
                yield from touched_in(value, known, around)
        return
    own: dict[str, _Place] = {}
    place = copied = imported = None  # what lies on top of the stack, what lay there, the last import
    is_setting = False  # whether arguments of setattr are loaded
    earlier: Any = None
    before: Any = None
    for name, value in steps_of(code):
        if name in _IDLE:
            continue
        top, place = place, None
        if name in _LOADS:
            local = own.get(value)
            shared = None if name in _LOCAL else (around or {}).get(value) or _place_of(known.get(value))
            place = local or shared
            is_setting |= value == "setattr"
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            place = top and top.inner(value)
        elif name in ("STORE_ATTR", "DELETE_ATTR"):
            if (owner := top or copied) is not None:
                yield owner.module, owner.within(value), True
            copied = None
        elif name == "IMPORT_NAME":
            has_names, is_relative = bool(before), bool(earlier)  # and within the user's package
            first = value if has_names else value.partition(".")[0]
            place = imported = None if is_relative else _place_of_module(sys.modules.get(first))
        elif name == "IMPORT_FROM":
            place = imported and imported.inner(value)
            imported = imported if has_names else place
        elif name in _STORES:
            copied = None
            own.pop(value, None)
            if top is not None:
                own[value] = top
        elif name in ("COPY", "DUP_TOP"):
            place = copied = top
        elif name == "LOAD_CONST" and is_setting and top is not None and isinstance(value, str):
            yield top.module, top.within(value), True
        if place is not None and place.name and issubclass(type(place.value), _CONTAINERS):
            yield place.module, place.name, False
        is_setting &= name.startswith("LOAD")
        earlier, before = before, value
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from touched_in(value, known, {**(around or {}), **own})


def _may_touch(code: CodeType, known: Mapping[str, Any], around: Mapping[str, _Place]) -> bool:
    """Whether the steps of code can touch anything: to take them apart takes much longer than to rule that out.

    Code that imports nothing reaches only what its names lead to.
    """
    names = code.co_names
    operations = code.co_code[::2]
    if _IMPORT in operations:
        return True
    begins = [
        found for name in (*names, *code.co_freevars) if (found := around.get(name) or _place_of(known.get(name)))
    ]
    if not begins:
        return False
    if any(operation in operations for operation in _SETS) or "setattr" in (
        *names,
        *code.co_varnames,
        *code.co_freevars,
    ):
        return True
    # What a function keeps in a variable, only functions in it can use, through a cell.
    if code.co_cellvars or not code.co_flags & inspect.CO_OPTIMIZED:
        return True
    reached = {(place.module, place.name): place for place in begins}
    left = begins
    while left:
        place = left.pop()
        if place.name and issubclass(type(place.value), _CONTAINERS):
            return True
        for name in names:
            inner = place.inner(name)
            if inner is not None and reached.setdefault((inner.module, inner.name), inner) is inner:
                left.append(inner)
    return False
