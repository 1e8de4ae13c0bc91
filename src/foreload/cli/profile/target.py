"""The script or module that ``foreload profile`` is to run, looked up before anything is started."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

__all__ = ["check_module", "check_script"]


def check_script(script: str) -> None:
    """Check that Python can run a path.

    Raises:
        FileNotFoundError: there is no such file, or it is a folder without a ``__main__.py``.

    >>> check_script("none.py")
    Traceback (most recent call last):
    FileNotFoundError: there is no script 'none.py'; give the path of a Python file, or -m and the name of a module
    """
    if not Path(script).exists():
        what = "option or script" if script.startswith("-") else "script"
        raise FileNotFoundError(
            f"there is no {what} {script!r}; give the path of a Python file, or -m and the name of a module"
        )
    if Path(script).is_dir() and not (Path(script) / "__main__.py").exists():
        raise FileNotFoundError(f"{script!r} is a folder without a __main__.py; give the path of a Python file")


def check_module(name: str) -> None:
    """Check that ``python -m name`` finds a module; nothing is imported.

    Where a package changes its own ``__path__``, its modules are not known before, and pass.

    Raises:
        FileNotFoundError: there is none, or it is a package that cannot be run.

    >>> check_module("json.tool")
    >>> check_module("json.none")
    Traceback (most recent call last):
    FileNotFoundError: there is no module 'json.none' (-m); give a name that `python -m` finds here
    """
    found: ModuleSpec | None = None
    for end in range(1, name.count(".") + 2):
        if found is not None and _may_have_others(found):
            return
        found = _find(".".join(name.split(".")[:end]), found)
        if found is None:
            other = name.removesuffix(".py")
            remedy = (
                f"write {other!r}, without .py" if other != name else "give a name that `python -m` finds here"
            )
            raise FileNotFoundError(f"there is no module {name!r} (-m); {remedy}")
    if found is None or found.submodule_search_locations is None or _may_have_others(found):
        return
    if _find(f"{name}.__main__", found) is None:
        raise FileNotFoundError(
            f"{name!r} (-m) is a package without a __main__.py; give the name of a module in it"
        )


def _find(name: str, package: ModuleSpec | None) -> ModuleSpec | None:
    """Find a module without importing the package that it is in, if any."""
    folders = None if package is None else package.submodule_search_locations
    if not name.rpartition(".")[2] or (package is not None and folders is None):
        return None
    # (The command's own path may lack the folder in which it was started.)
    if package is None and (spec := PathFinder.find_spec(name, [os.getcwd(), *sys.path])) is not None:
        return spec
    for finder in sys.meta_path:
        if hasattr(finder, "find_spec") and (spec := finder.find_spec(name, folders)) is not None:
            return spec
    return None


def _may_have_others(package: ModuleSpec) -> bool:
    """Whether a package may have modules that its folder has not: it has none of its own, or changes its path."""
    if package.submodule_search_locations is None:
        return False
    try:
        return package.origin is None or b"__path__" in Path(package.origin).read_bytes()
    except OSError:
        return True
