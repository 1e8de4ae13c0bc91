"""The distinction between installed code (Python's and that of packages) and the user's own."""

from __future__ import annotations

import functools
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from foreload.checks import optional

__all__ = ["is_installed"]

# The folders that packages are installed in, Debian's own in the second.
_FOLDERS = ("site-packages", "dist-packages")

# Where a package was installed from that is a folder or a repository, in the words of the standard for
# ``direct_url.json``.
_OWN = ('"dir_info"', '"vcs_info"')


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module is part of Python or of an installed package, which keep their own state in order.

    A package that is installed from a folder or a repository, or that no record tells of, is the user's own code.
    """
    package = module.partition(".")[0]
    if package.startswith("_cython_"):  # which the types of compiled functions name
        return True
    top = sys.modules.get(package)
    if package in ("foreload", "torch") or (package in sys.stdlib_module_names and _is_pythons(top)):
        return package != "__main__"
    # (Of a package without an __init__.py, one part may be installed and another one the user's.)
    file = optional(top, "__file__") or optional(sys.modules.get(module), "__file__")
    found = [Path(path) for path in ([file] if file else optional(top, "__path__") or ())]
    are_inside = bool(found) and all(any(folder in path.parts for folder in _FOLDERS) for path in found)
    return are_inside and not _is_own(package, found[0])


def _is_own(package: str, file: Path) -> bool:
    """Whether a package among the installed ones is somebody's own: see the standard for ``direct_url.json``."""
    folder = next(parent for parent in (file, *file.parents) if parent.name in _FOLDERS)
    record = _records(folder).get(package)
    if record is None:  # (Debian's own packages need have none.)
        return folder.name == _FOLDERS[0] and not _is_of_conda(folder)
    origin = _text(record / "direct_url.json")
    return any(kind in origin for kind in _OWN) and _text(record / "INSTALLER").strip() != "conda"


def _is_pythons(module: ModuleType | None) -> bool:
    """Whether a module of the name of one of Python's is that one."""
    file = optional(module, "__file__")
    return not isinstance(file, str) or Path(file).is_relative_to(sysconfig.get_path("stdlib"))


def _is_of_conda(folder: Path) -> bool:
    """Whether packages may be in a folder of which only conda's own records tell."""
    return any((parent / "conda-meta").is_dir() for parent in folder.parents)


@functools.cache
def _records(folder: Path) -> dict[str, Path]:
    """Return the folders with the records of what is installed, by the packages that it consists of."""
    found: dict[str, Path] = {}
    for record in (*folder.glob("*.dist-info"), *folder.glob("*.egg-info")):
        lines = _text(record / "top_level.txt").split()
        if not lines:
            lines = [line.partition(",")[0].partition("/")[0] for line in _text(record / "RECORD").splitlines()]
        for name in lines:
            found.setdefault(name.partition(".")[0], record)
    return found


def _text(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text()
    return ""
