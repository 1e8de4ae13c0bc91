"""The part of a program that processes which are not forked lack: what was set since modules were imported."""

from __future__ import annotations

import decimal  # noqa: F401 (its context is compared, which is not there before)
import hashlib
import logging
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any

from foreload.cache.fingerprint.content import ContentPickler
from foreload.dataset_state.settings import Settings
from foreload.dataset_state.walk import LRU_CACHE, globals_read, is_installed, walk

__all__ = ["ProgramState"]


class ProgramState:
    """The code that loads samples with the global variables and attributes of classes that it uses, and settings.

    Processes that ``spawn`` or ``forkserver`` start import modules anew, and get only what the dataset holds.

    Args:
        parts: the dataset, and what is applied to its samples.
    """

    def __init__(self, *parts: Any) -> None:
        self._codes = {name: _digest(code) for name, code in _codes_of(parts).items()}
        self._settings = {name: _digest(value) for name, value in Settings(with_environment=False).values()}

    def differs(self, *parts: Any) -> str | None:
        """Return what is not the same for copies of the parts in this process; None if all is."""
        present = ProgramState(*parts)
        for key, before in self._codes.items():
            if before is None or present._codes.get(key) != before:
                return f"the code of {key[1]}, or a variable that it uses,"
        return next((name for name, before in self._settings.items() if present._settings[name] != before), None)


def _codes_of(parts: tuple[Any, ...]) -> dict[tuple[str, str], Any]:
    """Return the user's classes and functions that the parts are made of, by module and name."""
    found: dict[tuple[str, str], Any] = {}
    for part in parts:
        for value in (part, *(value for _, value in walk(part))):
            code = value.__func__ if isinstance(value, MethodType) else value
            code = code.__wrapped__ if isinstance(code, LRU_CACHE) else code
            code = code if isinstance(code, (type, FunctionType)) else type(code)
            module = str(code.__module__)  # which classes may define as anything
            # (What has no name of its own is in the code of what has.)
            if not is_installed(module) and "<" not in code.__qualname__:
                found["__main__" if module == "__mp_main__" else module, code.__qualname__] = code
    return found


def _digest(value: Any) -> bytes | None:
    """Return a hash that is the same in every process; None if there is none."""
    known = hashlib.sha256()
    try:
        _Pickler(known.update).dump(value)
    except Exception:  # whatever pickling a user's object may raise
        return None
    return known.digest()


class _Pickler(ContentPickler):
    def __init__(self, write: Callable[[Any], Any]) -> None:
        super().__init__(_Written(write), protocol=5, buffer_callback=lambda part: write(part.raw()))

    def persistent_id(self, thing: Any) -> Any:
        # Pickle tells equal strings from one that is there twice.
        return (1, thing.encode(errors="surrogatepass")) if type(thing) is str else super().persistent_id(thing)

    def reducer_override(self, thing: Any) -> Any:
        # A logger, which has the name of its module, is in no sample.
        return (str, ("logger",)) if isinstance(thing, logging.Logger) else super().reducer_override(thing)

    def globals_of(self, code: CodeType) -> list[str]:
        # The main module has another name there.
        return [name for name in globals_read(code) if name != "__name__"]


class _Written:
    """A file that passes on what is written."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        self.write = write
