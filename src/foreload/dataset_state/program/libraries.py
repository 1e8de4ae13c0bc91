"""Variables of installed modules that the user's code sets, such as ``ImageFile.LOAD_TRUNCATED_IMAGES``."""

from __future__ import annotations

import dis
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from foreload.dataset_state.program.codes import UnknownContentError, digest_code
from foreload.dataset_state.walk import CONTAINERS, PLAIN, is_installed, names_used, strings_in

__all__ = ["LibraryState", "UserNames"]

# The most values of a container that are compared.
_MOST_ITEMS = 10_000

# Modules whose variables are their process' own, or are sent with a process anyway; functions in them count.
_OWN = ("sys", "os", "posixpath", "builtins", "multiprocessing", "logging", "warnings", "threading")

# Where libraries keep what functions of theirs set: the functions, and the variables of a module.
_KEPT = (
    ({"set_image_backend", "set_video_backend"}, "torchvision", ("_image_backend", "_video_backend")),
    ({"set_option", "options"}, "pandas._config.config", ("_global_config",)),
    ({"add_type"}, "mimetypes", ("types_map", "common_types")),
    ({"textdomain", "bindtextdomain"}, "gettext", ("_current_domain", "_localedirs")),
)

_MISSING = object()


class UserNames:
    """The names in the code of the user's modules.

    Attributes:
        used: all names.
        stored: those that are set as attributes of anything.
        texts: the texts in it, such as the names of variables of the environment.
        modules: the ids of modules that are variables in the user's modules, by whatever name.
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.stored: set[str] = set()
        self.texts: set[str] = set()
        self.modules: set[int] = {id(os.path)}
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and not is_installed(name):
                self.modules |= {id(value) for value in vars(module).values() if isinstance(value, ModuleType)}
                if name != "__mp_main__":  # the main module once more
                    used, stored, texts = _names_of(name)
                    self.used |= used
                    self.stored |= stored
                    self.texts |= texts


@functools.lru_cache(maxsize=4096)
def _names_of(module: str) -> tuple[set[str], set[str], set[str]]:
    """Return all names in a module's code, those that are set as attributes, and the texts in it."""
    code = None
    with suppress(Exception):  # whatever a loader or the file of a module may raise
        code = _code_of(sys.modules[module])
    if code is None:
        return set(), set(), set()
    used, stored, texts = names_used(code), set(_stored(code)), strings_in(code)
    if "setattr" in used:
        stored |= texts
    return used | stored, stored, texts


def _code_of(module: ModuleType) -> CodeType | None:
    loader = getattr(module.__spec__, "loader", None)
    if hasattr(loader, "get_code"):
        code: CodeType | None = loader.get_code(module.__spec__.name)  # type: ignore[union-attr]
        return code
    file = getattr(module, "__file__", None)
    return None if file is None else compile(Path(file).read_bytes(), file, "exec")


def _stored(code: CodeType) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _stored(value)


class LibraryState:
    """The variables of installed modules and classes that the user's code may have set.

    They are those whose name, and that of the module, the user's code has: settings, as numbers or text;
    containers of such; and functions of the user's in the place of a library's. Anything else in libraries is
    taken to be what it is after they were imported.

    Args:
        names: the names in the user's code.

    >>> LibraryState(UserNames()).differs() is None
    True
    """

    def __init__(self, names: UserNames) -> None:
        self._found: dict[tuple[str, str], tuple[str, Any]] = {}
        for module, variables in _modules(names):
            for name in sorted(names.used & variables.keys()):
                self._note(names, module, name, variables[name])
        for setters, module, kept in _KEPT:
            if module in sys.modules and not setters.isdisjoint(names.used):
                for name in kept:
                    self._found[module, name] = "hash", _digest(vars(sys.modules[module]).get(name))

    def _note(self, names: UserNames, module: str, name: str, value: Any) -> None:
        if isinstance(value, type):
            if is_installed(value.__module__):
                for attribute in sorted(names.stored & vars(value).keys()):
                    self._note_set(module, f"{name}.{attribute}", vars(value)[attribute])
        elif isinstance(value, (list, dict, set)) or name in names.stored:
            self._note_set(module, name, value)

    def _note_set(self, module: str, name: str, value: Any) -> None:
        is_own = module.partition(".")[0] in _OWN
        if isinstance(value, PLAIN) and (type(value) in PLAIN or isinstance(value, Enum)) and not is_own:
            self._found[module, name] = "value", value
        elif _is_of_user(value):
            self._found[module, name] = "hash", _digest(value)
        elif _is_short(value) and not is_own and (digest := _digest(value)) is not None:
            self._found[module, name] = "hash", digest

    def differs(self) -> str | None:
        """Return the name of a variable that is another one in this process; None if all are the same.

        Constants, by their names, are set here to what they were there.
        """
        for (module, name), (kind, before) in self._found.items():
            value = _get(module, name)
            if kind == "hash":
                is_same = before is not None and value is not _MISSING and _digest(value) == before
            else:
                is_same = type(value) is type(before) and value == before
                constant = name.rpartition(".")[2]
                if not is_same and value is not _MISSING and constant == constant.upper():
                    is_same = _set(module, name, before)
            if not is_same:
                return f"{module}.{name}"
        return None


def _modules(names: UserNames) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the installed modules that the user's code names, with their variables."""
    for name, module in sorted(sys.modules.items()):
        is_named = name in names.used or name.rpartition(".")[2] in names.used or id(module) in names.modules
        if is_named and isinstance(module, ModuleType) and is_installed(name) and name.split(".")[0] != "foreload":
            yield name, {key: value for key, value in vars(module).items() if not key.startswith("__")}


def _is_of_user(value: Any) -> bool:
    """Whether a function or method is the user's, or may be derived from a library's by the user."""
    if isinstance(value, functools.partial):
        return True
    code = value.__func__ if isinstance(value, (MethodType, staticmethod, classmethod)) else value
    return isinstance(code, FunctionType) and not is_installed(str(code.__module__))


def _is_short(value: Any) -> bool:
    return isinstance(value, CONTAINERS) and len(value) <= _MOST_ITEMS


def _digest(value: Any) -> bytes | None:
    try:
        return digest_code(value)
    except UnknownContentError:
        return None


def _get(module: str, name: str) -> Any:
    """Return a variable of a module, or of a class in it; a module that is not there is imported."""
    with suppress(Exception):  # whatever importing it may raise
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = vars(found)[part]
        return found
    return _MISSING


def _set(module: str, name: str, value: Any) -> bool:
    owner, _, attribute = name.rpartition(".")
    with suppress(Exception):  # of a class that cannot be changed
        setattr(_get(module, owner) if owner else sys.modules[module], attribute, value)
        return True
    return False
