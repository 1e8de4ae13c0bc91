"""Variables of installed modules that the user's code sets, such as ``ImageFile.LOAD_TRUNCATED_IMAGES``."""

from __future__ import annotations

import functools
import importlib
import sys
from contextlib import suppress
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

from foreload.dataset_state.installed import is_installed
from foreload.dataset_state.names import names_used, strings_in
from foreload.dataset_state.program.codes import UnknownContentError, digest_code
from foreload.dataset_state.program.touched import codes_of, touched_in
from foreload.dataset_state.walk import PLAIN

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
        texts: the texts in it, such as the names of variables of the environment.
        touched: the variables of installed modules that it sets or may change in place: the module, the variable
            with the classes around it, and whether it is set.
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.texts: set[str] = set()
        self.touched: set[tuple[str, str, bool]] = set()
        for name, module in list(sys.modules.items()):
            # "__mp_main__" is the main module once more.
            if issubclass(type(module), ModuleType) and name != "__mp_main__" and not is_installed(name):
                for code in codes_of(name):
                    self.used |= names_used(code)
                    self.texts |= strings_in(code)
                    self.touched |= set(touched_in(code, vars(module)))


class LibraryState:
    """The variables of installed modules and classes that the user's code sets, or may change in place.

    Numbers and texts that are set are so in a process that unpickles this, too. Anything else in libraries is
    taken to be what it is after they were imported.

    Args:
        names: the names in the user's code.

    >>> LibraryState(UserNames()).differs() is None
    True
    """

    def __init__(self, names: UserNames) -> None:
        self._set: dict[tuple[str, str], Any] = {}
        self._digests: dict[tuple[str, str], bytes | None] = {}
        for module, name, is_set in sorted(names.touched):
            package = module.partition(".")[0]
            if package != "foreload" and module in sys.modules and is_installed(module):
                self._note(module, name, is_set=is_set, is_own=package in _OWN)
        for setters, module, kept in _KEPT:
            if module in sys.modules and not setters.isdisjoint(names.used):
                for name in kept:
                    self._digests[module, name] = _digest(vars(sys.modules[module]).get(name))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for (module, name), value in self._set.items():
            if not _is_equal(_get(module, name), value):
                owner, _, attribute = name.rpartition(".")
                with suppress(Exception):  # of a class that cannot be changed; that it differs is found later
                    setattr(_get(module, owner), attribute, value)

    def _note(self, module: str, name: str, *, is_set: bool, is_own: bool) -> None:
        value = _get(module, name)
        kind = type(value)
        if value is _MISSING:
            return
        if is_set and (kind in PLAIN or issubclass(kind, Enum)):
            if not is_own:
                self._set[module, name] = value
        elif _is_of_user(value) or (is_set and not is_own):
            self._digests[module, name] = _digest(value)
        elif not is_own and (digest := _digest(value)) is not None:  # it may only be read
            self._digests[module, name] = digest

    def differs(self) -> str | None:
        """Return the name of a variable that is another one in this process; None if all are the same."""
        for (module, name), before in self._set.items():
            if not _is_equal(_get(module, name), before):
                return f"{module}.{name}"
        for (module, name), digest in self._digests.items():
            value = _get(module, name)
            if digest is None or value is _MISSING or _digest(value) != digest:
                return f"{module}.{name}"
        return None


def _is_equal(value: Any, before: Any) -> bool:
    if value is before:
        return True
    are_nan = value != value and before != before
    return type(value) is type(before) and bool(value == before or are_nan)


def _is_of_user(value: Any) -> bool:
    """Whether a function or method is the user's, or may be derived from a library's by the user."""
    if issubclass(type(value), functools.partial):
        return True
    is_around = issubclass(type(value), (MethodType, staticmethod, classmethod))
    code = value.__func__ if is_around else value
    return type(code) is FunctionType and not is_installed(str(code.__module__))


def _digest(value: Any) -> bytes | None:
    """Return a hash of a value, of a container as it is beneath what a class derived from it makes of it."""
    for kind in (dict, list, set):
        if issubclass(type(value), kind):
            if kind.__len__(value) > _MOST_ITEMS:
                return None
            value = dict(dict.items(value)) if kind is dict else kind(kind.__iter__(value))
    try:
        return digest_code(value)
    except UnknownContentError:
        return None


def _get(module: str, name: str) -> Any:
    """Return a variable of a module, or of a class in it; a module that is not there is imported."""
    with suppress(Exception):  # whatever importing it may raise
        found: Any = importlib.import_module(module)
        for part in filter(None, name.split(".")):
            found = getattr(found, part) if issubclass(type(found), ModuleType) else vars(found)[part]
        return found
    return _MISSING
